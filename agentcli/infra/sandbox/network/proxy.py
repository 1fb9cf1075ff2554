"""Connects commands without a network to granted hosts: an HTTP proxy on a unix socket.

It accepts `CONNECT host:port` (RFC 9110, section 9.3.6), which everything over TLS uses, and plain `http://` requests.
It connects only to granted hosts, at addresses that it has looked up and checked itself. It cannot see inside TLS: a
grant for a host with other people's content, as in shared hosting, covers all of that content.
"""

import asyncio
import contextlib
import re
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from agentcli.patterns import lazy_pattern
from agentcli.safety.hosts import WEB_PORTS, HostGrant, find_grant, may_lead_to, read_host, split_port

Resolve = Callable[[str, int], Awaitable[list[str]]]

_MAX_HEAD_BYTES = 64 * 1024
_TIMEOUT_S = 30.0  # for the head of a request, and for a connection
_MAX_CONNECTIONS = 256
_CHUNK = 65_536
_REQUEST_LINE = lazy_pattern(rb"([A-Z]{1,20}) ([!-~]{1,8192}) HTTP/1\.[01]")
_HEADER = lazy_pattern(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*)")
# Headers that concern only the client and the proxy (RFC 9110, section 7.6.1), and those that it replaces.
_NOT_PASSED_ON = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"te", b"upgrade", b"host"))


class _Denial(Exception):
    """A request is denied; the arguments are the HTTP status and the reason."""


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, as the system looks them up. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class NetworkProxy:
    """Serves between `start` and `aclose`, on a socket in `folder`, which must have a short path.

    If nothing listens on a granted port of this machine, `connect_to_job`, which blocks, may connect to one of a job.
    """

    def __init__(
        self,
        grants: Sequence[HostGrant],
        *,
        folder: Path,
        how_to_grant: str = "The person can grant it.",  # NAME in it stands for the host
        resolve: Resolve = resolve,
        connect_to_job: Callable[[int], socket.socket | None] = lambda port: None,
    ) -> None:
        self._grants = grants
        self.socket = folder / "proxy"
        self.denials: deque[tuple[float, str]] = deque(maxlen=100)  # the newest, with their monotonic times
        self._how_to_grant, self._resolve, self._connect_to_job = how_to_grant, resolve, connect_to_job
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to serve. Raises `OSError`."""
        self._server = await asyncio.start_unix_server(self._accept, self.socket, limit=_MAX_HEAD_BYTES)
        self.socket.chmod(0o600)

    async def aclose(self) -> None:
        """Stop serving, and close all connections. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        self.socket.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client; a denied request is answered and kept in `denials`."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > _MAX_CONNECTIONS:
                raise _Denial(503, "too many connections at once")
            await self._serve(reader, writer)
        except _Denial as denial:
            status, reason = denial.args
            self.denials.append((time.monotonic(), reason))
            with contextlib.suppress(OSError):
                writer.write(_build_answer(status, reason))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):  # either side has disconnected
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request, connect to its host, and copy both ways until both sides have closed."""
        line, headers = await _read_head(reader)
        match = _REQUEST_LINE.fullmatch(line)
        if match is None:
            raise _Denial(400, "not a request that a proxy understands")
        host, port, path = _read_target(match[1], match[2].decode())
        # A plain request is rewritten and passed on; a tunnel (CONNECT) has no path.
        request = _build_request(match[1], path, _format_authority(host, port, default=80), headers) if path else b""
        from_server, to_server = await self._connect(host, port)
        if request:
            to_server.write(request)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, to_server))
                tasks.create_task(_copy(from_server, writer))
        except* OSError as gone:
            raise ConnectionError("either side has gone") from gone
        finally:
            to_server.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to a host if it is granted and leads only to addresses that are. Raises `_Denial`."""
        grant = find_grant(self._grants, host, port)
        if grant is None:
            raise self._denial("host {} is not granted.", host, port)
        failure = OSError("it has no address")
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                # The name is looked up only once, so that no unchecked address is used. One bad address denies all.
                addresses = await self._resolve(host, port)
                for address in addresses:
                    if not (may_lead_to(grant, address) or find_grant(self._grants, address, port)):
                        why = f"{host} leads to {{}}, an address that is not public and must be granted itself, too."
                        raise self._denial(why, address, port)
                for address in addresses:
                    try:
                        return await asyncio.open_connection(address, port)
                    except OSError as error:
                        failure = error
                if grant.is_this_machine and (job := await asyncio.to_thread(self._connect_to_job, port)):
                    return await asyncio.open_connection(sock=job)
                raise failure
        except TimeoutError as error:
            raise _Denial(504, f"{host} does not answer") from error
        except OSError as error:
            raise _Denial(502, f"{host} cannot be reached: {error.strerror or error}") from error

    def _denial(self, why: str, host: str, port: int) -> _Denial:  # the host replaces the `{}` in `why`
        name = host if port in WEB_PORTS else _format_authority(host, port, default=None)
        return _Denial(403, f"{why.format(name)} {self._how_to_grant.replace('NAME', name)}")


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Read the request line and the headers. Raises `_Denial` if they are missing, too long or invalid."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.LimitOverrunError) as error:
        raise _Denial(400, "no request came, or its head is too large") from error
    line, *lines = head[:-4].split(b"\r\n")
    headers = [_HEADER.fullmatch(header) for header in lines]
    if not all(headers):
        raise _Denial(400, "a header that nobody should send")
    return line, [(match[1], match[2]) for match in headers if match is not None]


def _read_target(method: bytes, target: str) -> tuple[str, int, str]:
    """Return the host, port and path of a request to a proxy; the path is empty for a tunnel."""
    path = ""
    try:
        if method == b"CONNECT":
            host, port = split_port(target, default=None)
        else:
            url = urlsplit(target)
            if url.scheme != "http" or "@" in url.netloc or not url.netloc:
                raise ValueError("not an http:// address; what is encrypted goes through CONNECT")
            host, port = split_port(url.netloc, default=80)
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if port is None:
            raise ValueError(f"{target!r} has no port")
        return read_host(host), port, path
    except ValueError as error:
        raise _Denial(400, str(error)) from error


def _build_request(method: bytes, path: str, authority: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Build the head of a plain request for the host `authority`, with those headers that do not concern the proxy."""
    names = [name.lower() for name, _ in headers]
    # A server that obeys the other one of two lengths would take the rest of the body for another request.
    if names.count(b"content-length") > 1 or {b"content-length", b"transfer-encoding"} <= set(names):
        raise _Denial(400, "two lengths")
    passed_on = [
        name + b": " + value
        for name, value in headers
        if name.lower() not in _NOT_PASSED_ON and not name.lower().startswith(b"proxy-")
    ]
    # The connection is closed after the answer, because the next request could be for another host.
    first = [method + b" " + path.encode() + b" HTTP/1.1", b"Host: " + authority.encode(), b"Connection: close"]
    return b"\r\n".join([*first, *passed_on, b"", b""])


def _format_authority(host: str, port: int, *, default: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port == default else f"{name}:{port}"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _build_answer(status: int, reason: str) -> bytes:
    """Build an answer. The status line has the reason too, because after a CONNECT programs show only that line."""
    text = f"agentcli: {reason}"
    line = re.sub(r"[^ -~]", "?", text)[:300]
    body = (text + "\n").encode()
    head = f"HTTP/1.1 {status} {line}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}"
    return f"{head}\r\nConnection: close\r\n\r\n".encode() + body
