"""The HTTP client of all providers: redirects, streamed bodies, every failure a `ProviderError` that shows no key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn, Protocol
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
from agentcli.llm.refusals import (
    Mask,
    error_in_body,
    error_in_json,
    error_told,
    retry_after_seconds,
    seconds_until_reset,
)
from agentcli.llm.server_address import is_address, is_header_name, origin_of
from agentcli.version import __version__

MAX_ERROR_BODY = 64 * 1024  # bytes of a refusal that are read for its message
MAX_STREAM_BYTES = 128 * 1024 * 1024  # of one streamed reply: a token may take 400 bytes, also one that shows nothing
LONGEST_DRAIN_S = 0.25
MOST_REDIRECTS = 5


class Answer(Protocol):
    """A response, its body not yet read; names of headers are in lower case.

    `masked` takes the keys of its request out of a text.
    """

    masked: Mask
    method: str
    url: SplitResult
    status: int
    reason: str
    headers: dict[str, str]

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """The decompressed body as it arrives. Raises `ProviderError`."""
        ...


class HttpClient:
    """Requests to one server. `read_timeout` is the longest silence in seconds that is waited through.

    Raises `ConfigError` for a proxy variable that cannot be used. Redirects are followed on the same host only, with
    the same method and body: elsewhere the key would be given away.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], *, read_timeout: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.shown_url = shown(self.base_url)
        self._headers = {name.lower(): value.strip() for name, value in headers.items()}
        self._masked = mask_of(self._headers, self.base_url)
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
            content = await read_start(response, LONGEST_LINE)
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
                    if (target := redirect_of(response)) is None:
                        response.masked = self._masked
                        if response.status >= 400:
                            raise_for_refusal(response, await read_start(response))
                        is_answered = True
                        yield response
                        return
                url = target
            raise BadRequest(
                f"{self.shown_url} redirects in a loop; the last address was {place_of(url)}. Is the base_url right?"
            )
        except ProviderError as error:
            note_request(error, self._masked, body, is_answered=is_answered)
            raise

    def _url(self, path: str) -> SplitResult:
        """The address of a request. Raises `BadRequest` or `AuthError` for what cannot be sent."""
        check_sendable(self.base_url, self._headers)
        address, mark, query = self.base_url.partition("?")  # Azure's has its version there
        return urlsplit(f"{address.rstrip('/')}{path}{mark}{query}")

    async def aclose(self) -> None:
        await self._connections.aclose()


def check_sendable(address: str, headers: Mapping[str, str]) -> None:
    """Raises `BadRequest` or `AuthError` for an address or a header that cannot be sent."""
    if not is_address(address) or not _is_writable(address):
        raise BadRequest(f"{shown(address)!r} is not an http(s) address: set the provider's base_url.")
    for name, value in headers.items():
        if not is_header_name(name):
            raise BadRequest(f"{name!r} is not the name of a header: set the provider's headers.")
        if not (value.isascii() and value.isprintable()):
            raise AuthError(f"The header {name} contains a character that an HTTP header cannot carry: copy it again.")


def note_request(error: ProviderError, masked: Mask, body: dict[str, Any] | None, *, is_answered: bool) -> None:
    """Take the keys out of an error's words, and note whether the request was answered and what it said."""
    error.is_answered |= is_answered and isinstance(error, ConnectionFailed | Timeout)
    error.args = (masked(str(error)),)
    if isinstance(error, BadRequest):
        error.sent = body or {}


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


def redirect_of(response: Answer) -> SplitResult | None:
    """Where on its own host a response leads, None when it leads nowhere. Raises `BadRequest` for another place."""
    if not 300 <= response.status < 400:
        return None
    written = response.headers.get("location", "")
    target = redirect_target(response.url, written)
    if target is None:
        place = place_of(response.url)
        raise BadRequest(f"{place} answered with a redirect to nowhere: is the base_url right?", status=response.status)
    if response.status == 303 and response.method != "GET":
        why = "for a GET, which would lose the request"
    elif is_same_place(response.url, target):
        return target
    else:
        why = "where the key is not sent"
    raise BadRequest(
        f"{place_of(response.url)} redirects to {place_of(target)}, {why}. "
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


def place_of(url: SplitResult) -> str:
    """An address to be shown, without what may be secret in it."""
    return url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()


def shown(address: str) -> str:
    """An address as it was written, without what may be secret in it; it need not be a valid one."""
    bare = re.split(r"[?#]", address, maxsplit=1)[0]
    return re.sub(r"^(\w+://)?[^/]*@", lambda found: found[1] or "", bare)


_SECRET_NAMES = ("auth", "key", "token", "secret", "pass", "cookie", "credential", "session")
SHORTEST_SECRET = 4  # a shorter one stands in many words by chance


def mask_of(headers: Mapping[str, str], address: str) -> Mask:
    """Takes a request's keys out of a text, with and without their scheme, and the password in its address."""
    values = [value.strip() for name, value in headers.items() if any(word in name for word in _SECRET_NAMES)]
    found = {*values, *(value.rpartition(" ")[2] for value in values)}
    if login := re.match(r"(?:\w+://)?[^/]*?:([^/]*)@", address.partition("?")[0]):
        found |= {login[1], unquote(login[1])}
    secrets = sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)

    def masked(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "[masked]")
        return text

    return masked


async def read_start(response: Answer, most: int = MAX_ERROR_BODY) -> bytes:
    start = bytearray()
    async for piece in response.pieces():
        start += piece
        if len(start) >= most:
            break
    return bytes(start)


def raise_for_refusal(response: Answer, body: bytes) -> NoReturn:
    message, code = error_in_body(body, response.masked)
    if response.status == 404:  # the address may be what was not found
        message = f"{message.rstrip('. ') or 'Not found'}, asked at {place_of(response.url)}"
    wish = response.headers.get("x-should-retry")
    retry_after = retry_after_seconds(response.headers)
    if retry_after is None and response.status == 429:
        retry_after = seconds_until_reset(response.headers, body)
    raise error_for_status(
        response.status,
        message,
        code=code,
        otherwise=f"HTTP {response.status} {response.reason} from {place_of(response.url)}",
        retry_after=retry_after,
        should_retry={"true": True, "false": False}.get(wish or ""),
    )


def not_a_reply(response: Answer, start: bytes) -> ServerError:
    """The error for a good status with a body that is no API reply (a portal's page, a proxy's note)."""
    kind = response.headers.get("content-type", "no content type")
    text = response.masked(start.decode(errors="replace"))
    error = ServerError(
        f"{place_of(response.url)} answered with {kind}, and not as a model's server does: is the base_url right? "
        f"It begins: {text[:120]!r}"
    )
    error.is_retryable = False
    return error


async def parsed_chunks(
    response: Answer, parser: Parser, *, content_type: str, whole: str = ""
) -> AsyncGenerator[list[Any], None]:
    """The response's body through `parser`, one list of items for each piece that arrived.

    Some servers do not stream: a JSON object that holds the field `whole` is a reply too, as its one event.
    Raises `ServerError` when the body is not of `content_type` (JSON errors are read, pages are named).
    """
    if content_type not in response.headers.get("content-type", content_type).lower():
        start = await read_start(response, LONGEST_LINE if whole else MAX_ERROR_BODY)
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
    received = 0
    async for piece in response.pieces():
        received += len(piece)
        if received > MAX_STREAM_BYTES:
            raise _endless(response)
        if items := parser.feed(piece):
            yield items
    if items := parser.close():
        yield items


def _endless(response: Answer) -> ServerError:
    error = ServerError(
        f"{place_of(response.url)} sent more than {MAX_STREAM_BYTES >> 20} MB for one reply, so it was cancelled."
    )
    error.is_retryable = False
    return error


async def drain(pieces: AsyncIterator[Any]) -> None:
    """Read what follows the last event, so that the connection serves the next request too; never for long."""
    try:
        async with asyncio.timeout(LONGEST_DRAIN_S):
            async for _ in pieces:
                pass
    except (TimeoutError, ProviderError):
        pass
