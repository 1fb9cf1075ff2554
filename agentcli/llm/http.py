"""The one HTTP client: streamed replies as server-sent events or JSON lines, every failure a `ProviderError`."""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote

import httpx2
import msgspec

from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    ConnectionFailed,
    ProviderError,
    ServerError,
    Timeout,
    error_for_status,
)
from agentcli.llm.proxies import is_loopback, proxy_for, transport_failures, tunnel_within
from agentcli.llm.server_address import is_address, is_header_name

CONNECT_TIMEOUT_S = 10.0
MAX_ERROR_BODY = 64 * 1024  # bytes of a refusal that are read for its message
LONGEST_MESSAGE = 500  # characters of a refusal whose form is not known
LONGEST_DRAIN_S = 0.25
LONGEST_LINE = 16 * 1024 * 1024  # bytes of a line, or of a whole event, that are kept while its end is awaited
MOST_REDIRECTS = 5

_decode = msgspec.json.Decoder().decode


class HttpClient:
    """Requests to one server. `read_timeout` is the longest silence in seconds that is waited through.

    Raises `ConfigError` for a proxy variable that cannot be used. Redirects are followed on the same host only, with
    the same method and body: elsewhere the key would be given away.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str], *, read_timeout: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        self.shown_url = _shown(self.base_url)
        self._headers = dict(headers)
        self._secrets = _secrets_in(self._headers, self.base_url)
        self._timeout = httpx2.Timeout(read_timeout, connect=CONNECT_TIMEOUT_S)
        self._proxy = proxy_for(self.base_url)
        self._client: httpx2.AsyncClient | None = None

    async def _connected(self) -> httpx2.AsyncClient:
        if self._client is None:
            if not is_address(self.base_url):
                raise BadRequest(f"{self.shown_url!r} is not an http(s) address: set the provider's base_url.")
            for name, value in self._headers.items():
                if not is_header_name(name):
                    raise BadRequest(f"{name!r} is not the name of a header: set the provider's headers.")
                if not (value.isascii() and value.isprintable()):
                    raise AuthError(f"{name} holds a character that no header can carry: copy the key again.")
            # A TLS context takes tens of milliseconds to build: off the loop's thread, and never for loopback.
            verify = False if self._is_on_this_machine() else await asyncio.to_thread(httpx2.create_ssl_context)
            self._client = httpx2.AsyncClient(
                verify=verify, trust_env=False, proxy=self._proxy, headers=self._headers, timeout=self._timeout
            )
        return self._client

    def _is_on_this_machine(self) -> bool:
        try:
            url = httpx2.URL(self.base_url)
        except httpx2.InvalidURL:
            return False
        return url.scheme == "http" and is_loopback(url.host)

    @asynccontextmanager
    async def stream(self, path: str, body: dict[str, Any], **headers: str) -> AsyncIterator[httpx2.Response]:
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
            content = await response.aread()
            try:
                return decode_json(content)
            except ValueError as error:
                raise not_a_reply(response, content) from error

    @asynccontextmanager
    async def _answered(
        self, method: str, path: str, body: dict[str, Any] | None, headers: dict[str, str]
    ) -> AsyncIterator[httpx2.Response]:
        """The response to a request, redirects followed, its body not yet read.

        Raises `ProviderError`. Servers quote keys in their errors: where an error shows what was sent, it is masked,
        also when the caller raised it while reading.
        """
        client = await self._connected()
        content = None if body is None else encode_json(body)
        sent = {"content-type": "application/json", **headers}
        try:
            url = httpx2.URL(self.base_url + path)
            for _ in range(MOST_REDIRECTS + 1):
                request = client.build_request(method, url, content=content, headers=sent)
                response = await self._sent(client, request)
                response.extensions[_MASKED] = self._masked
                try:
                    if (target := _redirect_of(response)) is None:
                        if response.status_code >= 400:
                            raise_for_refusal(response, await _read_start(response))
                        yield response
                        return
                finally:
                    await response.aclose()
                url = target
            raise BadRequest(
                f"{self.shown_url} redirects in a loop; the last address was {_place(url)}. Is the base_url right?"
            )
        except ProviderError as error:
            error.args = (self._masked(str(error)),)
            raise
        except transport_failures() as error:
            raise self._failure(error) from error

    async def _sent(self, client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        """The beginning of the response. Raises `Timeout` for a proxy that takes the connection and leads nowhere."""
        if self._proxy is None:
            return await client.send(request, stream=True)
        try:
            async with asyncio.timeout(None) as limit:
                request.extensions["trace"] = tunnel_within(CONNECT_TIMEOUT_S, limit, self._proxy, request.url)
                return await client.send(request, stream=True)
        except TimeoutError as error:
            raise Timeout(
                f"The proxy {self._proxy.url} took the connection and did not lead to {self.shown_url} within "
                f"{CONNECT_TIMEOUT_S:g} s. Is it the right address?"
            ) from error

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "[masked]")
        return text

    def _failure(self, error: Exception) -> ProviderError:
        where = self.shown_url
        if self._proxy is not None:
            where += f" (through the proxy {self._proxy.url})"
        match error:
            case httpx2.ConnectTimeout() | httpx2.PoolTimeout():
                return Timeout(f"{where} did not accept a connection within {CONNECT_TIMEOUT_S:g} s.")
            case httpx2.TimeoutException():
                return Timeout(f"{where} sent nothing for {self._timeout.read:g} s.")
            case httpx2.ProxyError():
                return ConnectionFailed(f"{where} could not be reached: {str(error).rstrip('.')}.")
            case httpx2.ConnectError():
                return ConnectionFailed(f"Could not connect to {where} ({error}). Is the server running?")
            case httpx2.UnsupportedProtocol() | httpx2.InvalidURL() | UnicodeError():
                return BadRequest(f"{self.shown_url!r} is not an http(s) address: set the provider's base_url.")
            case _:
                return ConnectionFailed(f"The connection to {where} broke: {str(error) or type(error).__name__}.")

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _redirect_of(response: httpx2.Response) -> httpx2.URL | None:
    """Where on its own host a response leads, None when it leads nowhere. Raises `BadRequest` for another place.

    From plain HTTP to HTTPS is no other place; the way back would show the key to all between.
    """
    status = response.status_code
    if not 300 <= status < 400:
        return None
    here, written = response.url, response.headers.get("location", "")
    try:
        target = here.join(written)
    except httpx2.InvalidURL:
        written = ""
    if not written:
        raise BadRequest(f"{_place(here)} answered with a redirect to nowhere: is the base_url right?", status=status)
    if status == 303 and response.request.method != "GET":
        why = "for a GET, which would lose the request"
    elif _origin(target) in (_origin(here), _origin(here.copy_with(scheme="https"))):
        return target
    else:
        why = "where the key is not sent"
    raise BadRequest(
        f"{_place(here)} redirects to {_place(target)}, {why}. If that is the right place, set the base_url to it.",
        status=status,
    )


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _place(url: httpx2.URL) -> str:
    """An address to be shown, without what may be secret in it."""
    return str(url.copy_with(username=None, password=None, query=None, fragment=None))


def _shown(address: str) -> str:
    """An address as it was written, without what may be secret in it; it need not be a valid one."""
    bare = re.split(r"[?#]", address, maxsplit=1)[0]
    return re.sub(r"^(\w+://)?[^/]*@", lambda found: found[1] or "", bare)


_NAMES_A_SECRET = re.compile(r"auth|key|token|secret|pass|cookie|credential|session", re.IGNORECASE)
SHORTEST_SECRET = 4  # a shorter one stands in many words by chance


def _secrets_in(headers: Mapping[str, str], address: str) -> list[str]:
    """What no error may show: keys, with and without their scheme, and the password in the address. Longest first."""
    values = [value.strip() for name, value in headers.items() if _NAMES_A_SECRET.search(name)]
    found = {*values, *(value.rpartition(" ")[2] for value in values)}
    if login := re.match(r"(?:\w+://)?[^/]*?:([^/]*)@", address.partition("?")[0]):
        found |= {login[1], unquote(login[1])}
    return sorted((secret for secret in found if len(secret) >= SHORTEST_SECRET), key=len, reverse=True)


async def _read_start(response: httpx2.Response, most: int = MAX_ERROR_BODY) -> bytes:
    start = bytearray()
    async for chunk in response.aiter_bytes():
        start += chunk
        if len(start) >= most:
            break
    return bytes(start)


Mask = Callable[[str], str]
_MASKED = "agentcli.masked"  # under this name a response carries what masks the keys of its request


def _mask_of(response: httpx2.Response) -> Mask:
    masked: Mask = response.extensions.get(_MASKED, str)
    return masked


def raise_for_refusal(response: httpx2.Response, body: bytes) -> NoReturn:
    message, code = error_in_body(body, _mask_of(response))
    if response.status_code == 404:  # the address may be what was not found
        message = f"{message.rstrip('. ') or 'Not found'}, asked at {_place(response.url)}"
    wish = response.headers.get("x-should-retry")
    raise error_for_status(
        response.status_code,
        message,
        code=code,
        otherwise=f"HTTP {response.status_code} {response.reason_phrase} from {_place(response.url)}",
        retry_after=retry_after_seconds(response.headers),
        should_retry={"true": True, "false": False}.get(wish or ""),
    )


def error_in_body(body: bytes, masked: Mask = str) -> tuple[str, str]:
    """The message and the code in an error body of any service's shape; plain text is its own message.

    What is too long is cut; it is `masked` before, so that no part of a key is left.
    """
    try:
        data = decode_json(body)
    except ValueError:
        text = body.decode(errors="replace").strip()
        if text.lower().startswith(("<!doctype", "<html")):
            return "The server answered with an HTML page, not with an API's error.", ""
        return masked(text)[:LONGEST_MESSAGE], ""
    return error_in_json(data, masked)


def error_in_json(data: Any, masked: Mask = str) -> tuple[str, str]:
    """`{"error": {"message", "type"|"code"}}`, `{"error": "…"}`, `{"detail": …}`, `{"message": …}`, or a list."""
    if isinstance(data, list):
        data = data[0] if data else {}
    if not isinstance(data, dict):
        return masked(str(data))[:LONGEST_MESSAGE], ""
    inner = data.get("error") or data
    if not isinstance(inner, dict):
        if isinstance(inner, str) and inner.startswith("{"):  # Ollama passes its runner's whole answer on
            return error_in_body(inner.encode(), masked)
        return str(inner), ""
    message = inner.get("message") or inner.get("detail") or data.get("detail") or ""
    details = inner.get("details")
    codes = [details.get("error_code") if isinstance(details, dict) else None, inner.get("code"), inner.get("type")]
    code = next((word for word in codes if isinstance(word, str) and word and word != "error"), "")
    metadata = inner.get("metadata")  # OpenRouter puts the upstream's own words here
    if isinstance(metadata, dict) and metadata.get("raw"):
        message = f"{message}: {metadata['raw']}"
    return message if isinstance(message, str) else masked(json.dumps(message))[:LONGEST_MESSAGE], code


def error_told(data: Any) -> ProviderError:
    """The error in a body or an event whose status was 200; its own number counts, where it gives one."""
    message, code = error_in_json(data)
    data = data if isinstance(data, dict) else {}
    inner = data.get("error") or data
    status = inner.get("code") if isinstance(inner, dict) else None
    if not isinstance(status, int) or not 400 <= status < 600:
        status = 500
    return error_for_status(status, message, code=code, otherwise="the server failed")


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """`retry-after-ms`, then `retry-after` in seconds or as an HTTP date (RFC 9110 §10.2.3)."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        return seconds if isfinite(seconds) and seconds >= 0 else None
    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        # A date without a zone is in UTC, the only one that HTTP knows.
        return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def not_a_reply(response: httpx2.Response, start: bytes) -> ServerError:
    """The error for a good status with a body that is no API reply (a portal's page, a proxy's note)."""
    kind = response.headers.get("content-type", "no content type")
    text = _mask_of(response)(start.decode(errors="replace"))
    error = ServerError(
        f"{_place(response.url)} answered with {kind}, and not as a model's server does: is the base_url right? "
        f"It begins: {text[:120]!r}"
    )
    error.is_retryable = False
    return error


class Parser(Protocol):
    """Takes a body apart as it comes; raises `ProviderError` for one that cannot be read on."""

    def feed(self, chunk: bytes) -> list[Any]: ...

    def close(self) -> list[Any]:
        """What the body's end completes. Raises `ConnectionFailed` when it came in the middle of an item."""
        ...


async def parsed_chunks(
    response: httpx2.Response, parser: Parser, *, content_type: str, whole: str = ""
) -> AsyncIterator[list[Any]]:
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
    async for chunk in response.aiter_bytes():
        if items := parser.feed(chunk):
            yield items
    if items := parser.close():
        yield items


async def drain(pieces: AsyncIterator[Any]) -> None:
    """Read what follows the last event, so that the connection serves the next request too; never for long."""
    try:
        async with asyncio.timeout(LONGEST_DRAIN_S):
            async for _ in pieces:
                pass
    except (TimeoutError, httpx2.RequestError, ProviderError):
        pass


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    data: str
    event: str = "message"
    id: str = ""


class SseParser:
    """Bytes in, events out, after the event stream section of the WHATWG HTML standard.

    Lines end at CR, LF or CRLF and nowhere else. Unlike there, `close` gives a last event that has no empty line.
    """

    def __init__(self) -> None:
        self._rest = _Rest()
        self._after_cr = False
        self._last_id = ""
        self.retry_ms: int | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[ServerSentEvent] = []
        for block in self._rest.split(chunk, b"\n\n"):
            event = self._event(block)
            if event is not None:
                events.append(event)
        return events

    def close(self) -> list[ServerSentEvent]:
        block = self._rest.take()
        if not any(line and not line.startswith(b":") for line in block.split(b"\n")):
            return []
        event = self._event(block)
        if event is None or not (event.data == "[DONE]" or _is_json(event.data)):
            raise ConnectionFailed("The stream ended in the middle of an event.")
        return [event]

    def _event(self, block: bytes) -> ServerSentEvent | None:
        name, data = "", []
        for line in block.decode(errors="replace").split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "event":
                name = value
            elif field == "id" and "\0" not in value:
                self._last_id = value
            elif field == "retry" and value.isascii() and value.isdigit():
                self.retry_ms = int(value)
        if not data:
            return None
        return ServerSentEvent("\n".join(data), name or "message", self._last_id)


class LineParser:
    """Bytes in, the lines out that hold something (NDJSON). `close` gives a last line that has no end."""

    def __init__(self) -> None:
        self._rest = _Rest()

    def feed(self, chunk: bytes) -> list[bytes]:
        return [line for line in self._rest.split(chunk, b"\n") if line.strip()]

    def close(self) -> list[bytes]:
        rest = self._rest.take()
        if rest.strip() and not _is_json(rest):
            raise ConnectionFailed("The stream ended in the middle of a line.")
        return [rest] if rest.strip() else []


class _Rest:
    """What has arrived after the last end mark; each byte is looked at once, however many pieces it comes in.

    A byte order mark at the beginning is left out.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._at_start = True

    def split(self, chunk: bytes, mark: bytes) -> list[bytes]:
        """The parts that `mark` ends. Raises `ServerError` when one grows beyond `LONGEST_LINE`."""
        if self._at_start:
            chunk = self.take() + chunk
            if len(chunk) < len(BOM_UTF8) and BOM_UTF8.startswith(chunk):
                self._kept += chunk
                return []
            self._at_start = False
            chunk = chunk.removeprefix(BOM_UTF8)
        if self._kept:
            seam = self._kept[1 - len(mark) :] if len(mark) > 1 else b""  # a mark may be cut
            if mark not in chunk and mark not in seam + chunk[: len(seam)]:
                self._kept += chunk
                if len(self._kept) > LONGEST_LINE:
                    raise _endless()
                return []
            chunk = self.take() + chunk
        *parts, rest = chunk.split(mark)
        if rest:
            self._kept += rest
        return parts

    def take(self) -> bytes:
        kept = bytes(self._kept)
        self._kept.clear()
        return kept


def _endless() -> ServerError:
    error = ServerError(f"The server sent {LONGEST_LINE >> 20} MB without the end of a line: is the base_url right?")
    error.is_retryable = False
    return error


def _is_json(data: bytes | str) -> bool:
    try:
        decode_json(data)
    except ValueError:
        return False
    return True


def decode_json(data: bytes | str) -> Any:
    """One JSON value; a lone surrogate becomes U+FFFD, so that it can be printed and stored.

    Raises ValueError for anything that is not one JSON value (NaN and Infinity included).
    """
    try:
        return _decode(data)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    except msgspec.DecodeError as error:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if "\\ud" not in text.lower() and "�" not in text:
            raise ValueError(f"not JSON ({error}): {text[:80]!r}") from error
        try:
            return without_lone_surrogates(json.loads(text, parse_constant=_refuse_constant))
        except RecursionError:
            raise ValueError("JSON nested too deeply") from error


class JsonItems:
    """Decodes the JSON values of one stream; a surrogate pair that two of them halve comes whole with the second.

    `decode` raises ValueError as `decode_json` does.
    """

    def __init__(self) -> None:
        self._half = ""

    def decode(self, data: bytes | str) -> Any:
        mark = "\\u" if isinstance(data, str) else b"\\u"
        if mark not in data:  # type: ignore[operator]  # both are of one type
            return decode_json(data)
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if self._half and (begun := _LOW_FIRST.sub(lambda quote: quote[0] + self._half, text)) != text:
            text, self._half = begun, ""
        if found := _HIGH_LAST.search(text):
            text, self._half = _HIGH_LAST.sub(lambda end: end[1], text), found[2]
        return decode_json(text)


_LOW_FIRST = re.compile(r'(?<!\\)"(?=\\u[dD][c-fC-F])')
_HIGH_LAST = re.compile(r'(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2})(?=")')


def encode_json(value: Any) -> bytes:
    """`value` as JSON; a lone surrogate, which UTF-8 cannot hold, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(without_lone_surrogates(value))


def without_lone_surrogates(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(_SURROGATE.sub("\ufffd", text)) if _SURROGATE.search(text) else value


_SURROGATE = re.compile("[\ud800-\udfff]")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
