"""Speaks HTTP/1.1 through asyncio and h11, and keeps connections for the next request; httpx2 costs 80 ms to import."""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from socket import gaierror
from urllib.parse import SplitResult, quote

import h11

from agentcli.llm.errors import BadRequest, ConnectionFailed, ProviderError, Timeout
from agentcli.llm.proxies import Proxy, lead_through
from agentcli.llm.refusals import Mask
from agentcli.llm.server_address import Origin, origin_of
from agentcli.llm.tls import permanent_connection_error, tls_context, untrusted_certificate_error

CONNECT_TIMEOUT_S = 10.0
LONGEST_IDLE_S = 5.0  # servers close idle connections; a request on one that just closes is lost
HAPPY_EYEBALLS_S = 0.25  # RFC 8305 §5
LARGEST_HEAD = 100 * 1024  # bytes of a status line and its headers
READ_SIZE = 64 * 1024
MAX_UNZIPPED = 1024 * 1024  # bytes of one piece
_COMPRESSED = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS  # tells them apart by their first bytes
_URL_SAFE = "!$%&'()*+,-./:;=?@_~[]"  # besides letters and digits; `%` so that what is quoted stays so


class Response:
    """The head of a response; names of headers are in lower case. The body is read once.

    `masked` takes the keys of its request out of a text.
    """

    masked: Mask = str

    def __init__(self, connection: _Connection, method: str, url: SplitResult, head: h11.Response) -> None:
        self.method, self.url = method, url
        self.status, self.reason = head.status_code, head.reason.decode(errors="replace")
        self.headers = {name.decode(): value.decode(errors="replace") for name, value in head.headers}
        self._connection = connection

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The decompressed body as it arrives. Raises `ProviderError`."""
        is_compressed = self.headers.get("content-encoding", "").strip().lower() in _COMPRESSED
        unzip = zlib.decompressobj(_GZIP_OR_ZLIB) if is_compressed else None
        while isinstance(event := await self._connection.next_event(), h11.Data):
            if unzip is None:
                yield bytes(event.data)
                continue
            waiting, is_full = bytes(event.data), True
            while waiting or is_full:  # a kilobyte may hold a megabyte: in pieces, so that whoever reads can stop
                try:
                    piece = unzip.decompress(waiting, MAX_UNZIPPED)
                except zlib.error as error:
                    raise self._connection.broken(error) from error
                waiting, is_full = unzip.unconsumed_tail, len(piece) == MAX_UNZIPPED
                if piece:
                    yield piece


class Connections:
    """Connections to one server. `where` names it in errors; `read_timeout` is the longest silence in seconds."""

    def __init__(self, where: str, proxy: Proxy | None, *, read_timeout: float) -> None:
        self._server, self._proxy, self._read_timeout = where, proxy, read_timeout
        self._where = where if proxy is None else f"{where} (through the proxy {proxy.url})"
        self._open: set[_Connection] = set()
        self._idle: list[_Connection] = []
        self._tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def answered(
        self, method: str, url: SplitResult, headers: Mapping[str, str], body: bytes
    ) -> AsyncIterator[Response]:
        """The response to a request, its body not yet read. Raises `ProviderError`."""
        connection = await self._idle_to(origin_of(url)) or await self._connected(url)
        try:
            yield await connection.answer(method, url, self._target(url), headers, body)
        finally:
            if connection.ends_cycle():
                self._idle.append(connection)
            else:
                await self._close(connection)

    async def _idle_to(self, origin: Origin) -> _Connection | None:
        found = None
        for connection in tuple(self._idle):
            if not connection.is_alive():
                await self._close(connection)
            elif connection.origin == origin:
                found = connection
        if found is not None:
            self._idle.remove(found)
        return found

    async def _connected(self, url: SplitResult) -> _Connection:
        """A new connection. Raises `Timeout`, `ConnectionFailed`, and `BadRequest` for an impossible host."""
        scheme, host, port = origin = origin_of(url)
        proxy = self._proxy
        first = origin if proxy is None else proxy.origin
        tls = await self._tls_context() if "https" in (first[0], scheme) else None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    first[1],
                    first[2],
                    ssl=tls if first[0] == "https" else None,
                    happy_eyeballs_delay=HAPPY_EYEBALLS_S,
                )
            try:
                if proxy is not None and (scheme == "https" or proxy.is_socks):
                    await self._tunnel(proxy, reader, writer, host, port)
                    if scheme == "https":
                        assert tls is not None
                        await _secure(writer, tls, host)
            except BaseException:
                _abort(writer)
                raise
        except TimeoutError as error:
            raise Timeout(f"{self._where} did not accept a connection within {CONNECT_TIMEOUT_S:g} s.") from error
        except ssl.SSLCertVerificationError as error:
            raise untrusted_certificate_error(self._where, str(error)) from error
        except OSError as error:
            raise ConnectionFailed(
                f"Could not connect to {self._where} ({_reason(error)}). Is the server running?"
            ) from error
        except UnicodeError as error:
            raise BadRequest(f"{self._server!r} is not an http(s) address: set the provider's base_url.") from error
        connection = _Connection(origin, reader, writer, self._where, self._read_timeout)
        self._open.add(connection)
        return connection

    async def _tunnel(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
    ) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if refusal := await lead_through(proxy, reader, writer, host, port):
                    raise ConnectionFailed(f"{self._where} could not be reached: {refusal.rstrip('.')}.")
        except TimeoutError as error:
            raise Timeout(
                f"The proxy {proxy.url} took the connection and did not lead to {self._server} within "
                f"{CONNECT_TIMEOUT_S:g} s. Is it the right address?"
            ) from error
        except (OSError, EOFError, ValueError) as error:
            raise broken(self._where, error) from error

    async def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:  # takes tens of milliseconds to build, so not on the loop's thread
            self._tls = await asyncio.to_thread(tls_context)
        return self._tls

    def _target(self, url: SplitResult) -> str:
        target = quote(url.path or "/", safe=_URL_SAFE) + ("?" + quote(url.query, safe=_URL_SAFE) if url.query else "")
        if self._proxy is not None and not self._proxy.is_socks and url.scheme == "http":
            return f"http://{host_header(url)}{target}"
        return target

    async def _close(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        connection.abort()
        await asyncio.sleep(0)  # the socket closes with the loop's next round

    async def aclose(self) -> None:
        for connection in tuple(self._open):
            await self._close(connection)


class _Connection:
    def __init__(
        self,
        origin: Origin,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        where: str,
        read_timeout: float,
    ) -> None:
        self.origin = origin
        self._reader, self._writer = reader, writer
        self._where, self._read_timeout = where, read_timeout
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=LARGEST_HEAD)
        self._idle_since = 0.0

    async def answer(
        self, method: str, url: SplitResult, target: str, headers: Mapping[str, str], body: bytes
    ) -> Response:
        try:
            request = h11.Request(method=method, target=target, headers=list(headers.items()))
            parts = [self._http.send(event) for event in (request, h11.Data(body), h11.EndOfMessage())]
        except h11.LocalProtocolError as error:  # a header of the person's own that none can be
            raise permanent_connection_error(f"The request to {self._where} cannot be sent: {error}.") from error
        self._writer.write(b"".join(part for part in parts if part))
        try:
            async with asyncio.timeout(self._read_timeout):
                await self._writer.drain()
        except TimeoutError as error:
            raise Timeout(f"{self._where} took nothing for {self._read_timeout:g} s.") from error
        except OSError:
            pass  # a server may refuse what it did not read to the end: its answer tells
        while not isinstance(event := await self.next_event(), h11.Response):
            pass
        return Response(self, method, url, event)

    async def next_event(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._read_timeout):
                    data = await self._reader.read(READ_SIZE)
                if not data and self._http.their_state is h11.SEND_RESPONSE:
                    raise broken(self._where, "Server disconnected without sending a response")
                self._http.receive_data(data)
        except TimeoutError as error:
            silent = Timeout(f"{self._where} sent nothing for {self._read_timeout:g} s.")
            silent.is_answered = True  # it took the request
            raise silent from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise self.broken(error) from error
        return event

    def broken(self, error: Exception) -> ProviderError:
        return broken(self._where, error)

    def ends_cycle(self) -> bool:
        """True if the response was read to its end and the connection can carry another request."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self._idle_since = time.monotonic()
        return self.is_alive()

    def is_alive(self) -> bool:
        is_open = not (self._reader.at_eof() or self._writer.transport.is_closing())
        return is_open and time.monotonic() - self._idle_since < LONGEST_IDLE_S

    def abort(self) -> None:
        _abort(self._writer)


async def _secure(writer: asyncio.StreamWriter, tls: ssl.SSLContext, host: str) -> None:
    """Begin TLS inside a tunnel. Raises OSError."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await writer.start_tls(tls, server_hostname=host)
    except TypeError as error:  # asyncio of Python 3.11 stumbles where a handshake fails inside a proxy's TLS
        raise ssl.SSLError(1, str(error.__context__ or error)) from error


def _abort(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.transport.abort()


def host_header(url: SplitResult) -> str:
    """The host of an address, with its port where that is not the scheme's own."""
    scheme, host, port = origin_of(url)
    shown = f"[{host}]" if ":" in host else host
    return shown if (scheme, port) in (("http", 80), ("https", 443)) else f"{shown}:{port}"


def broken(where: str, error: Exception | str) -> ConnectionFailed:
    return ConnectionFailed(f"The connection to {where} broke: {str(error).rstrip('.') or type(error).__name__}.")


def _reason(error: OSError) -> str:
    return str(error) if isinstance(error, gaierror | ssl.SSLError) else "All connection attempts failed"
