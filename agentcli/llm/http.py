"""The HTTP client of all providers: streamed bodies, and failures as `ProviderError`s that show no key."""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import reduce
from typing import Any, NoReturn
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from agentcli.errors import UserError
from agentcli.llm import errors
from agentcli.llm.addresses import basic_auth, is_address, is_header_name, proxy_for
from agentcli.llm.connection import ConnectionPool, Headers, Response, host_header
from agentcli.llm.messages import decode_json, encode_json
from agentcli.settings.keys import Key
from agentcli.version import __version__

MAX_ERROR_BODY = 64 * 1024  # bytes of a rejection that are read for its message
MAX_EVENT_BYTES = 16 * 1024 * 1024  # of an answer that comes whole, and of one event of a stream
MIN_SECRET_CHARS = 4  # a shorter secret is part of many words by chance, so it is not masked
_SECRET_NAMES = ("auth", "key", "token", "secret", "pass", "cookie", "credential", "session")


class Carrier(ABC):
    """Carries requests to one service. Its failures are `ProviderError`s that show no key.

    If the service rejects a key that a command printed, the command runs again, and the request is sent once more.
    """

    shown_url: str
    key: Key = ""
    missing_key_problem = ""  # the message for every request, if the service needs a key and has none

    async def fetch_json(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Return the JSON that answers a GET request, or with a `body` a POST request. Raises `ProviderError`."""
        async with self.send(path, body) as response:
            content = await read_start(response, MAX_EVENT_BYTES)
            try:
                return decode_json(content)
            except ValueError as error:
                raise no_reply_error(response, content) from error

    @asynccontextmanager
    async def send(self, path: str, body: dict[str, Any] | None) -> AsyncIterator[Response]:
        """Send a GET, or a POST of `body` as JSON; yield the response with its body unread. Raises `ProviderError`."""
        key = await self._current_key()
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self._send(path, body, key))
            except errors.AuthError as error:
                if error.status != 401 or isinstance(self.key, str):  # only a key that a command prints can be renewed
                    raise
                self.key.forget()
                if (renewed := await self._current_key()) == key:
                    raise
                response = await stack.enter_async_context(self._send(path, body, renewed))
            yield response

    async def _current_key(self) -> str:
        """Return the key, which a command may have to print first. Raises `AuthError`."""
        if self.missing_key_problem:
            raise errors.AuthError(self.missing_key_problem)
        try:
            return self.key if isinstance(self.key, str) else await self.key.key()
        except UserError as error:
            raise errors.AuthError(str(error)) from error

    @abstractmethod
    def _send(self, path: str, body: dict[str, Any] | None, key: str) -> AbstractAsyncContextManager[Response]: ...

    @abstractmethod
    async def aclose(self) -> None: ...


class HttpClient(Carrier):
    """Sends requests to one server. `read_timeout` limits its silence, in seconds."""

    def __init__(
        self,
        base_url: str,
        headers: Headers,
        *,
        key: Key = "",
        key_header: str = "authorization",
        read_timeout: float = 600.0,
    ) -> None:
        self.key, self._key_header = key, key_header.lower()
        self.base_url = base_url.rstrip("/")
        self.shown_url = redacted_address(self.base_url)
        self._headers = {name.lower(): value.strip() for name, value in headers.items()}
        self._proxy = proxy_for(self.base_url)
        self._connections = ConnectionPool(self.shown_url, self._proxy, read_timeout=read_timeout)

    @asynccontextmanager
    async def _send(self, path: str, body: dict[str, Any] | None, key: str) -> AsyncIterator[Response]:
        """Send a request once with this key; yield the response if its status is a success. See `Carrier.send`."""
        headers = dict(self._headers)
        if key:
            headers[self._key_header] = (f"Bearer {key}" if self._key_header == "authorization" else key).strip()
        mask = mask_of(headers, self.base_url)
        try:
            check_sendable(self.base_url, headers)
            address, mark, query = self.base_url.partition("?")  # Azure's address has its version in the query
            url = urlsplit(f"{address.rstrip('/')}{path}{mark}{query}")
            if url.username or url.password:
                headers["authorization"] = basic_auth(unquote(url.username or ""), unquote(url.password or ""))
            method, content = ("GET", b"") if body is None else ("POST", encode_json(body))
            defaults = {
                "host": host_header(url),
                "accept": "*/*",
                "accept-encoding": "gzip",
                "user-agent": f"agentcli/{__version__}",
                "content-type": "application/json",
            }
            if content:
                defaults["content-length"] = str(len(content))
            if self._proxy is not None and url.scheme == "http" and not self._proxy.is_socks:
                defaults |= self._proxy.authorization()
            async with self._connections.send(method, url, defaults | headers, content) as response:
                response.mask = mask
                await check_status(response)
                yield response
        except errors.ProviderError as error:
            error.args = (mask(str(error)),)  # a server may quote the key
            raise

    async def aclose(self) -> None:
        await self._connections.aclose()


def check_sendable(address: str, headers: Mapping[str, str]) -> None:
    """Raise `BadRequest` or `AuthError` for an address or a header that cannot be sent."""
    if not is_address(address):
        shown = redacted_address(address)
        raise errors.BadRequest(f"{shown!r} is not an http(s) address: set the provider's base_url.")
    for name, value in headers.items():
        if not is_header_name(name) or name in ("content-length", "transfer-encoding"):
            raise errors.BadRequest(f"{name!r} is not a header that can be set: correct the provider's headers.")
        if not (value.isascii() and value.isprintable()):
            raise errors.AuthError(
                f"The header {name} contains a character that an HTTP header cannot carry: copy it again."
            )


async def check_status(response: Response) -> None:
    """Raise `ProviderError` for a rejection, and for a redirect, whose target would get the key."""
    if response.status >= 400:
        raise_for_rejection(response, await read_start(response))
    if response.status >= 300:
        where = "a malformed address"
        with suppress(ValueError):
            where = redacted_address(urljoin(response.url.geturl(), response.headers.get("location", "")))
        raise errors.BadRequest(
            f"{redacted_address(response.url)} redirects to {where}, where the request is not sent. "
            "If that is the right place, set the base_url to it.",
            status=response.status,
        )


def redacted_address(address: str | SplitResult) -> str:
    """Return an address without the parts that may be secret; it need not be a valid one."""
    bare = re.split(r"[?#]", address if isinstance(address, str) else address.geturl(), maxsplit=1)[0]
    return re.sub(r"^(\w+://)?[^/]*@", lambda found: found[1] or "", bare)


def mask_of(headers: Mapping[str, str], address: str) -> errors.Mask:
    """Return a function that masks a request's secrets in a text: its keys, and the password in its address."""
    values = [value.strip() for name, value in headers.items() if any(word in name for word in _SECRET_NAMES)]
    found = {*values, *(value.rpartition(" ")[2] for value in values)}  # with and without a scheme, such as "Bearer"
    if login := re.match(r"(?:\w+://)?[^/]*?:([^/]*)@", address.partition("?")[0]):  # https://NAME:PASSWORD@HOST
        found |= {login[1], unquote(login[1])}
    secrets = sorted((secret for secret in found if len(secret) >= MIN_SECRET_CHARS), key=len, reverse=True)
    return lambda text: reduce(lambda masked, secret: masked.replace(secret, "[masked]"), secrets, text)


async def read_start(response: Response, max_bytes: int = MAX_ERROR_BODY) -> bytes:
    """Return the beginning of a body; it may be longer than `max_bytes` by the last piece that arrived."""
    start = bytearray()
    async for piece in response.pieces():
        start += piece
        if len(start) >= max_bytes:
            break
    return bytes(start)


def raise_for_rejection(response: Response, body: bytes) -> NoReturn:
    """Raise the error for a status of 400 or more, with the server's message and the time it asks to wait."""
    message, code = errors.error_in_body(body, response.mask)
    if response.status == 404:  # perhaps the address is wrong
        message = f"{message.rstrip('. ') or 'Not found'}, asked at {redacted_address(response.url)}"
    retry_after = errors.retry_after_seconds(response.headers)
    if retry_after is None and response.status == 429:
        retry_after = errors.seconds_until_reset(response.headers, body)
    raise errors.error_for_status(
        response.status,
        message,
        code=code,
        default_message=f"HTTP {response.status} {response.reason} from {redacted_address(response.url)}",
        retry_after=retry_after,
        should_retry={"true": True, "false": False}.get(response.headers.get("x-should-retry", "")),
    )


def no_reply_error(response: Response, start: bytes) -> errors.ServerError:
    """Return the error for a good status with a body that is not an API's reply, such as a login page."""
    kind = response.headers.get("content-type", "no content type")
    return errors.ServerError(
        f"{redacted_address(response.url)} answered with {kind}, and not as a model's server does: is the base_url "
        f"right? It begins: {response.mask(start.decode(errors='replace'))[:120]!r}",
        is_retryable=False,
    )
