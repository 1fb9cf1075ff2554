"""Speaks HTTP/1.1 with asyncio and httptools, over TLS and through proxies, and reuses connections."""

import asyncio
import os
import ssl
import sys
import time
import zlib
from abc import ABC, abstractmethod
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from socket import gaierror
from typing import Any
from urllib.parse import SplitResult, quote

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from agentcli.llm.addresses import Origin, Proxy, authority_of, origin_of
from agentcli.llm.errors import ConnectionFailed, Mask, ProviderError, Timeout

CONNECT_TIMEOUT_S = 10.0
MAX_IDLE_S = 5.0  # servers close idle connections; a request on one that just closes is lost
MAX_HEAD_BYTES = 100 * 1024  # that arrive before the first bytes of a body or after its last ones
READ_SIZE = 64 * 1024
MAX_UNZIPPED_BYTES = 1024 * 1024  # of one piece
_URL_SAFE = "!$%&'()*+,-./:;=?@_~[]"  # besides letters and digits; with `%`, quoted characters stay as they are

Headers = Mapping[str, str]
Streams = tuple[StreamReader, StreamWriter]


class ConnectionPool:
    """The connections to one server, named `where` in errors. `read_timeout` is its longest silence in seconds."""

    def __init__(self, where: str, proxy: Proxy | None, *, read_timeout: float) -> None:
        self._proxy, self._read_timeout = proxy, read_timeout
        self._where = where if proxy is None else f"{where} (through the proxy {proxy.url})"
        self._open: set[HttpConnection] = set()  # those in use and the idle ones
        self._tls: ssl.SSLContext | None = None

    @asynccontextmanager
    async def send(
        self, method: str, url: SplitResult, headers: Headers, body: bytes, *, addresses: Sequence[str] | None = None
    ) -> AsyncIterator["Response"]:
        """Send a request and yield its response, whose body is not read yet. Raises `ProviderError`.

        `addresses` are tried instead of looking up the host's name.
        """
        target = quote(url.path or "/", safe=_URL_SAFE) + ("?" + quote(url.query, safe=_URL_SAFE) if url.query else "")
        if self._proxy is not None and not self._proxy.is_socks and url.scheme == "http":
            target = f"http://{host_header(url)}{target}"
        connection = await self._take_idle_connection(origin_of(url)) or await self._open_connection(url, addresses)
        try:
            await connection.send(method, url, target, headers=headers, body=body)
            yield connection
        finally:
            connection.idle_since = time.monotonic()
            if not connection.can_be_reused:
                await self._close(connection)

    async def _take_idle_connection(self, origin: Origin) -> "HttpConnection | None":
        for connection in tuple(self._open):
            if connection.idle_since and not connection.is_alive():
                await self._close(connection)
            elif connection.idle_since and connection.origin == origin:
                connection.idle_since = 0.0
                return connection
        return None

    async def _open_connection(self, url: SplitResult, addresses: Sequence[str] | None) -> "HttpConnection":
        peer = origin_of(url) if self._proxy is None else self._proxy.origin
        if self._tls is None and "https" in (url.scheme, peer.scheme):
            self._tls = await asyncio.to_thread(tls_context)  # tens of milliseconds
        addresses = [peer.host] if addresses is None else addresses
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    connection = await self._connect(address, peer, url)
                    break
            except OSError as error:  # TimeoutError is one
                if isinstance(error, ssl.SSLError) or address == addresses[-1]:  # TLS fails alike at every address
                    raise self._connection_error(error) from error
        self._open.add(connection)
        return connection

    async def _connect(self, address: str, peer: Origin, url: SplitResult) -> "HttpConnection":
        """Connect to `address`, which is the server's or the proxy's (`peer`). Raises `OSError`, `ProviderError`."""
        origin, proxy = origin_of(url), self._proxy
        if proxy is not None and proxy.is_socks:
            streams = await self._through_socks(proxy, origin)
        else:
            tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": peer.host} if peer.scheme == "https" else {}
            streams = await asyncio.open_connection(address, peer.port, happy_eyeballs_delay=0.25, **tls)  # RFC 8305 §5
        connection = HttpConnection(origin, streams, self._where, self._read_timeout)
        try:
            if proxy is not None and url.scheme == "https":  # TLS to the server, inside the connection to the proxy
                if not proxy.is_socks:
                    target = authority_of(origin.host, origin.port)
                    await connection.send("CONNECT", url, target, headers={"host": target, **proxy.authorization()})
                    if not 200 <= connection.status < 300:
                        refusal = f"{connection.status} {connection.reason}".rstrip(" .")
                        raise ConnectionFailed(f"{self._where} could not be reached: {refusal}.")
                assert self._tls is not None
                try:
                    _, writer = streams
                    await writer.start_tls(self._tls, server_hostname=origin.host)
                except TypeError as error:  # asyncio of Python 3.11, if a handshake fails inside a proxy's TLS
                    raise ssl.SSLError(1, str(error.__context__ or error)) from error
                if connection.has_unread:
                    raise broken_connection(self._where, "the proxy answered in the place of the server")
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _through_socks(self, proxy: Proxy, origin: Origin) -> Streams:
        """Return a connection through a SOCKS5 proxy, which resolves the name. Raises `OSError`, `ProviderError`."""
        from python_socks import ProxyError, ProxyType  # few starts need it
        from python_socks.async_.asyncio.v2 import Proxy as SocksProxy

        client = SocksProxy(ProxyType.SOCKS5, proxy.origin.host, proxy.origin.port, *(proxy.login or ()))
        try:
            stream = await client.connect(origin.host, origin.port)
        except (ProxyError, EOFError, ValueError, ConnectionResetError, BrokenPipeError) as error:
            if getattr(error, "error_code", None) is None:  # the proxy did not refuse: it broke the connection
                raise broken_connection(self._where, error) from error
            raise ConnectionFailed(f"{self._where} could not be reached: {error}.") from error
        return stream.reader, stream.writer

    def _connection_error(self, error: OSError) -> ProviderError:
        if isinstance(error, TimeoutError):
            return Timeout(f"{self._where} did not accept a connection within {CONNECT_TIMEOUT_S:g} s.")
        if isinstance(error, ssl.SSLCertVerificationError):
            return untrusted_certificate_error(self._where, str(error))
        has_one_reason = isinstance(error, gaierror | ssl.SSLError)  # else the error lists each address that was tried
        why = error.strerror or str(error) if has_one_reason else "All connection attempts failed"
        return unreachable_error(self._where, why)

    async def _close(self, connection: "HttpConnection") -> None:
        self._open.discard(connection)
        with suppress(RuntimeError):  # the event loop of the connection has ended, and the connection with it
            connection.abort()
        await asyncio.sleep(0)  # the socket closes with the loop's next round

    async def aclose(self) -> None:
        for connection in tuple(self._open):
            await self._close(connection)


class Response(ABC):
    """The head of a response, and its body as it arrives. `mask` masks keys in a text."""

    url: SplitResult
    status: int
    reason: str
    headers: dict[str, str]
    mask: Mask = str

    @abstractmethod
    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the decompressed body as it arrives. Raises `ProviderError`."""


class HttpConnection(Response):
    """A connection, which is also the response to its newest request.

    `status` is 0 until the head of the response has arrived, and `idle_since` is 0 while a request uses the connection.
    httptools calls the `on_` methods.
    """

    def __init__(self, origin: Origin, streams: Streams, where: str, read_timeout: float) -> None:
        self.origin, self.idle_since = origin, 0.0
        self._reader, self._writer = streams
        self._where, self._read_timeout = where, read_timeout
        self._waits_since = float("inf")  # for bytes; infinite while nobody waits
        self._timer = asyncio.get_running_loop().call_later(read_timeout, self._end_long_wait)

    def _end_long_wait(self) -> None:
        """End a wait that takes too long. One timer serves all waits, because one for each delta would be slow."""
        loop = asyncio.get_running_loop()
        ends_at = min(self._waits_since, loop.time()) + self._read_timeout
        if ends_at > loop.time():
            self._timer = loop.call_at(ends_at, self._end_long_wait)
        else:
            self._reader.set_exception(TimeoutError())

    async def send(self, method: str, url: SplitResult, target: str, *, headers: Headers, body: bytes = b"") -> None:
        """Send a request with checked headers, and wait for the head of its response. Raises `ProviderError`."""
        self.url, self.idle_since = url, 0.0
        self.status, self.reason, self.headers = 0, "", dict[str, str]()
        self._is_complete, self._allows_next = False, False  # the response has ended; another request may follow it
        self._head_bytes = 0  # bytes that have arrived since the last ones of the body
        self._pieces = list[bytes]()  # of the body, not read yet
        self._failure: Exception | None = None  # a fault of the bytes after those in `_pieces`
        self._parser = HttpResponseParser(self)
        # Some servers end lines with a bare LF or pad sizes. If a response has two framings, `chunked` applies.
        self._parser.set_dangerous_leniencies(
            lenient_chunked_length=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._writer.writelines(("\r\n".join(lines).encode("ascii"), body))  # the server wakes up once for both
        try:
            async with asyncio.timeout(self._read_timeout):
                await self._writer.drain()
        except TimeoutError as error:
            raise Timeout(f"{self._where} did not read the request for {self._read_timeout:g} s.") from error
        except OSError:
            pass  # a server may reject a request before it has read all of it: its response, read next, has the reason
        while not self.status:
            await self._receive()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        is_compressed = self.headers.get("content-encoding", "").strip().lower() in ("gzip", "x-gzip", "deflate")
        unzip = zlib.decompressobj(32 + zlib.MAX_WBITS)  # 32: zlib detects the format
        while self._pieces or not self._is_complete:
            received, self._pieces = b"".join(self._pieces), []
            if not received:
                await self._receive()
            elif not is_compressed:
                yield received
            has_more = is_compressed and bool(received)
            # A kilobyte may unpack to a megabyte: small pieces let the reader stop early.
            while has_more:
                try:
                    piece = unzip.decompress(received, MAX_UNZIPPED_BYTES)
                except zlib.error as error:
                    raise broken_connection(self._where, f"its compressed body is damaged ({error})") from error
                received = unzip.unconsumed_tail
                has_more = bool(received) or len(piece) == MAX_UNZIPPED_BYTES  # zlib may have more for a full piece
                if piece:
                    yield piece

    async def _receive(self) -> None:
        """Wait for bytes, and pass them to the parser, which calls the `on_` methods. Raises `ProviderError`."""
        if self._failure is not None:
            raise broken_connection(self._where, self._failure) from self._failure
        self._waits_since = asyncio.get_running_loop().time()
        try:
            data = await self._reader.read(READ_SIZE)
            self._waits_since = float("inf")
            if data:
                self._parser.feed_data(data)
            else:
                self._end()
        except TimeoutError as error:  # from `_end_long_wait`
            # The server accepted the request, so it may bill it.
            raise Timeout(f"{self._where} sent nothing for {self._read_timeout:g} s.", is_answered=True) from error
        except (HttpParserError, HttpParserUpgrade) as error:
            self._failure, self._allows_next = error, False  # raised by the next call, once `_pieces` have been read
        except OSError as error:
            raise broken_connection(self._where, error) from error
        # Headers without an end would fill the memory. With `_pieces`, the body has begun.
        self._head_bytes = 0 if self._pieces else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self._is_complete:
            raise broken_connection(self._where, f"it sent more than {MAX_HEAD_BYTES >> 10} KiB of headers")

    def _end(self) -> None:
        """End a body without a length when the server closes the connection. Raises `ConnectionFailed` otherwise."""
        if not self.status:
            raise broken_connection(self._where, "the server closed it without sending a response")
        if "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower():
            raise broken_connection(self._where, "the server closed it before the end of the response")
        self._is_complete = True

    def on_message_begin(self) -> None:
        if self._is_complete:  # a second response without a request
            self._allows_next = False

    def on_status(self, text: bytes) -> None:
        if not self.status:
            self.reason += text.decode(errors="replace")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:  # trailers are left out
            self.headers[name.decode(errors="replace").lower()] = value.decode(errors="replace").strip()

    def on_headers_complete(self) -> None:
        """Set `status` for the response that answers the request, and forget an interim one, which may precede it."""
        if self._parser.get_status_code() < 200:  # interim, as 103 Early Hints is
            self.reason, self.headers = "", {}
            # Restart the count for the next headers. `_receive` still adds its last read, up to `READ_SIZE` bytes,
            # which may contain none of them.
            self._head_bytes = -READ_SIZE
        elif not self.status:  # otherwise a second response, which a server must not send
            self.status, self._allows_next = self._parser.get_status_code(), self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        if not self._is_complete:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self._is_complete = bool(self.status)  # 0 after an interim response, whose end is not that of the body

    @property
    def can_be_reused(self) -> bool:
        """True if the response was read to the end and the connection can carry another request."""
        return self._is_complete and not self._pieces and self._allows_next and self.is_alive()

    @property
    def has_unread(self) -> bool:
        """True if bytes arrived without a request, or from a proxy before TLS."""
        return bool(self._reader._buffer)  # type: ignore[attr-defined]  # noqa: SLF001 - there is no method for it

    def is_alive(self) -> bool:
        is_open = not (self.has_unread or self._reader.at_eof() or self._writer.transport.is_closing())
        return is_open and time.monotonic() - self.idle_since < MAX_IDLE_S

    def abort(self) -> None:
        self._timer.cancel()
        if not self._writer.transport.is_closing():  # after a failure of TLS inside a proxy's TLS, abort() would raise
            self._writer.transport.abort()


def host_header(url: SplitResult) -> str:
    """Return the host of an address, with its port if it is not the scheme's own."""
    scheme, host, port = origin_of(url)
    return authority_of(host, port, default_port=443 if scheme == "https" else 80)


def unreachable_error(where: str, why: str) -> ConnectionFailed:
    """Return the error for a server that could not be connected to; one without TLS is probably run by the user."""
    advice = "Is the server running?" if where.startswith("http:") else "Check your network connection."
    return ConnectionFailed(f"Could not connect to {where} ({why}). {advice}")


def broken_connection(where: str, error: Exception | str) -> ConnectionFailed:
    """Return the error for a connection that ended or was damaged; `error` is the reason."""
    why = getattr(error, "strerror", None) or str(error).rstrip(".") or type(error).__name__
    return ConnectionFailed(f"The connection to {where} broke: {why}.")


def tls_context() -> ssl.SSLContext:
    """Return a context that trusts only SSL_CERT_FILE, else the system's certificates. Raises `ConnectionFailed`."""
    return _context_for(os.environ.get("SSL_CERT_FILE", ""))


def _system_has_certificates() -> bool:
    places = ssl.get_default_verify_paths()  # None for a place that does not exist
    return bool(places.cafile or (places.capath and any(Path(places.capath).iterdir())))


@cache
def _context_for(trusted_file: str) -> ssl.SSLContext:
    if trusted_file or (sys.platform == "linux" and _system_has_certificates()):
        try:
            context = ssl.create_default_context(cafile=trusted_file or None)
        except OSError as error:  # SSLError is one
            why = "it holds no certificates" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConnectionFailed(
                f"SSL_CERT_FILE is {trusted_file}, which cannot be used ({why}). Correct it (certificates in PEM "
                "form), or unset it.",
                is_retryable=False,
            ) from error
    else:  # the system's store, or on Linux a bundle at a path that this OpenSSL does not know
        from truststore import SSLContext

        context = SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["http/1.1"])
    return context


def untrusted_certificate_error(where: str, why: str) -> ConnectionFailed:
    """Return the error for a server whose certificate is not trusted; it is not tried again."""
    return ConnectionFailed(
        f"The certificate of {where} is not trusted ({why.rstrip('.')}). If you trust it, set SSL_CERT_FILE to a PEM "
        "file that holds the certificate of its authority, beside the others you need.",
        is_retryable=False,
    )
