"""The HTTP client of all providers: redirects, streamed bodies, every failure a `ProviderError` that shows no key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from agentcli.llm.connection import Connections, Response, host_header
from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    ConnectionFailed,
    ProviderError,
    ServerError,
    Timeout,
    error_for_status,
)
from agentcli.llm.event_streams import LONGEST_LINE, Parser, ServerSentEvent
from agentcli.llm.json_text import decode_json, encode_json
from agentcli.llm.proxies import Proxy, basic, proxy_for
from agentcli.llm.refusals import error_in_body, error_in_json, error_told, retry_after_seconds
from agentcli.llm.server_address import is_address, is_header_name, origin_of
from agentcli.version import __version__

MAX_ERROR_BODY = 64 * 1024  # bytes of a refusal that are read for its message
LONGEST_DRAIN_S = 0.25
MOST_REDIRECTS = 5


class HttpClient:
    """Requests to one server. `read_timeout` is the longest silence in seconds that is waited through.

    Raises `ConfigError` for a proxy variable that cannot be used. Redirects are followed on the same host only, with
    the same method and body: elsewhere the key would be given away.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], *, read_timeout: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.shown_url = _shown(self.base_url)
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._secrets = _secrets_in(self._headers, self.base_url)
        self._proxy = proxy_for(self.base_url)
        self._connections = Connections(self.shown_url, self._proxy, read_timeout=read_timeout)

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any], **headers: str) -> AsyncIterator[Response]:
        """POST `body` as JSON; the response once its status is known to be good.

        Raises `ProviderError` for a refusal and for every failure while the response is read.
        """
        async with self._answered("POST", path, body, headers) as response:
            yield response

    async def get_json(self, path: str, **headers: str) -> Any:
        return await self._json("GET", path, None, headers)

    async def post_json(self, path: str, body: dict[str, Any], **headers: str) -> Any:
        return await self._json("POST", path, body, headers)

    async def _json(self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> Any:
        async with self._answered(method, path, body, headers) as response:
            content = await response.read()
            try:
                return decode_json(content)
            except ValueError as error:
                raise not_a_reply(response, content) from error

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]
    ) -> AsyncIterator[Response]:
        """The response to a request, redirects followed, its body not yet read.

        Raises `ProviderError`. Servers quote keys in their errors: where an error shows what was sent, it is masked,
        also when the caller raised it while reading.
        """
        is_answered = False
        try:
            url = self._url(path)
            content = b"" if body is None else encode_json(body)
            for _ in range(MOST_REDIRECTS + 1):
                sent = _request_headers(url, self._proxy, content if method == "POST" else None)
                sent |= self._headers | headers | _login_in(url)
                async with self._connections.answered(method, url, sent, content) as response:
                    if (target := _redirect_of(response)) is None:
                        response.masked = self._masked
                        if response.status >= 400:
                            raise_for_refusal(response, await _read_start(response))
                        is_answered = True
                        yield response
                        return
                url = target
            raise BadRequest(
                f"{self.shown_url} redirects in a loop; the last address was {_place(url)}. Is the base_url right?"
            )
        except ProviderError as error:
            error.is_answered |= is_answered and isinstance(error, ConnectionFailed | Timeout)
            error.args = (self._masked(str(error)),)
            if isinstance(error, BadRequest):
                error.sent = body or {}
            raise

    def _url(self, path: str) -> SplitResult:
        """The address of a request. Raises `BadRequest` or `AuthError` for what cannot be sent."""
        if not is_address(self.base_url) or not _is_writable(self.base_url):
            raise BadRequest(f"{self.shown_url!r} is not an http(s) address: set the provider's base_url.")
        for name, value in self._headers.items():
            if not is_header_name(name):
                raise BadRequest(f"{name!r} is not the name of a header: set the provider's headers.")
            if not (value.isascii() and value.isprintable()):
                raise AuthError(f"{name} holds a character that no header can carry: copy the key again.")
        return urlsplit(self.base_url + path)

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[masked]")
        return text

    async def aclose(self) -> None:
        await self._connections.aclose()


def _request_headers(url: SplitResult, proxy: Proxy | None, content: bytes | None) -> dict[str, str]:
    headers = {
        "host": host_header(url),
        "accept": "*/*",
        "accept-encoding": "gzip",
        "user-agent": f"agentcli/{__version__}",
        "content-type": "application/json",
    }
    if content is not None:
        headers["content-length"] = str(len(content))
    if proxy is not None and url.scheme == "http" and not proxy.is_socks:
        headers |= proxy.authorization()
    return headers


def _login_in(url: SplitResult) -> dict[str, str]:
    if not (url.username or url.password):
        return {}
    return {"authorization": basic(unquote(url.username or ""), unquote(url.password or ""))}


def _is_writable(address: str) -> bool:
    try:
        _, host, _ = origin_of(urlsplit(address))
    except ValueError:
        return False
    return address.isprintable() and not any(character in host for character in ' <>"^`{|}\\%')


def _redirect_of(response: Response) -> SplitResult | None:
    """Where on its own host a response leads, None when it leads nowhere. Raises `BadRequest` for another place."""
    if not 300 <= response.status < 400:
        return None
    written = response.headers.get("location", "")
    target = redirect_target(response.url, written)
    if target is None:
        place = _place(response.url)
        raise BadRequest(f"{place} answered with a redirect to nowhere: is the base_url right?", status=response.status)
    if response.status == 303 and response.method != "GET":
        why = "for a GET, which would lose the request"
    elif is_same_place(response.url, target):
        return target
    else:
        why = "where the key is not sent"
    raise BadRequest(
        f"{_place(response.url)} redirects to {_place(target)}, {why}. "
        "If that is the right place, set the base_url to it.",
        status=response.status,
    )


def redirect_target(here: SplitResult, written: str) -> SplitResult | None:
    """The address in a `location` header; None if there is none."""
    try:
        target = urlsplit(urljoin(here.geturl(), written))
        origin_of(target)
    except ValueError:
        return None
    if not (written and target.hostname):
        return None
    if not (target.username or target.password) and is_same_place(here, target):
        login = here.netloc.rpartition("@")[0]
        target = target._replace(netloc=f"{login}@{target.netloc}" if login else target.netloc)
    return target


def is_same_place(here: SplitResult, target: SplitResult) -> bool:
    """From plain HTTP to HTTPS is no other place; the way back would show the key to all between."""
    return origin_of(target) in (origin_of(here), origin_of(here._replace(scheme="https")))


def _place(url: SplitResult) -> str:
    """An address to be shown, without what may be secret in it."""
    return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _shown(address: str) -> str:
    """An address as it was written, without what may be secret in it; it need not be a valid one."""
    bare = re.split(r"[?#]", address, maxsplit=1)[0]
    return re.sub(r"^(\w+://)?[^/]*@", lambda found: found[1] or "", bare)


_SECRET_NAMES = ("auth", "key", "token", "secret", "pass", "cookie", "credential", "session")
SHORTEST_SECRET = 4  # a shorter one stands in many words by chance


def _secrets_in(headers: Mapping[str, str], address: str) -> list[str]:
    """What no error may show: keys, with and without their scheme, and the password in the address. Longest first."""
    values = [value.strip() for name, value in headers.items() if any(word in name for word in _SECRET_NAMES)]
    found = {*values, *(value.rpartition(" ")[2] for value in values)}
    if login := re.match(r"(?:\w+://)?[^/]*?:([^/]*)@", address.partition("?")[0]):
        found |= {login[1], unquote(login[1])}
    return sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)


async def _read_start(response: Response, most: int = MAX_ERROR_BODY) -> bytes:
    start = bytearray()
    async for piece in response.pieces():
        start += piece
        if len(start) >= most:
            break
    return bytes(start)


def raise_for_refusal(response: Response, body: bytes) -> NoReturn:
    message, code = error_in_body(body, response.masked)
    if response.status == 404:  # the address may be what was not found
        message = f"{message.rstrip('. ') or 'Not found'}, asked at {_place(response.url)}"
    wish = response.headers.get("x-should-retry")
    raise error_for_status(
        response.status,
        message,
        code=code,
        otherwise=f"HTTP {response.status} {response.reason} from {_place(response.url)}",
        retry_after=retry_after_seconds(response.headers),
        should_retry={"true": True, "false": False}.get(wish or ""),
    )


def not_a_reply(response: Response, start: bytes) -> ServerError:
    """The error for a good status with a body that is no API reply (a portal's page, a proxy's note)."""
    kind = response.headers.get("content-type", "no content type")
    text = response.masked(start.decode(errors="replace"))
    error = ServerError(
        f"{_place(response.url)} answered with {kind}, and not as a model's server does: is the base_url right? "
        f"It begins: {text[:120]!r}"
    )
    error.is_retryable = False
    return error


async def parsed_chunks(
    response: Response, parser: Parser, *, content_type: str, whole: str = ""
) -> AsyncGenerator[list[Any], None]:
    """The response's body through `parser`, one list of items for each piece that arrived.

    Some servers do not stream: a JSON object that holds the field `whole` is a reply too, as its one event.
    Raises `ServerError` when the body is not of `content_type` (JSON errors are read, pages are named).
    """
    if content_type not in response.headers.get("content-type", content_type).lower():
        start = await _read_start(response, LONGEST_LINE if whole else MAX_ERROR_BODY)
        try:
            told = decode_json(start)
        except ValueError:
            told = None
        if whole and isinstance(told, dict) and told.get(whole):
            yield [ServerSentEvent(start.decode(errors="replace"))]
            return
        if isinstance(told, dict | list) and error_in_json(told)[0]:
            raise error_told(told)
        raise not_a_reply(response, start)
    async for piece in response.pieces():
        if items := parser.feed(piece):
            yield items
    if items := parser.close():
        yield items


async def drain(pieces: AsyncIterator[Any]) -> None:
    """Read what follows the last event, so that the connection serves the next request too; never for long."""
    try:
        async with asyncio.timeout(LONGEST_DRAIN_S):
            async for _ in pieces:
                pass
    except (TimeoutError, ProviderError):
        pass
