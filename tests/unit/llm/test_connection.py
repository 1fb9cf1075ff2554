"""HTTP/1.1 as servers and proxies send it: framing, limits, and connections that are kept or not."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentcli.llm.errors import ConnectionFailed, ProviderError
from agentcli.llm.http import HttpClient


class Wire:
    """A server that answers each request with the next of `answers`, in the pieces given, and hangs up after the last.

    `connections` counts who came, `heads` has the requests.
    """

    def __init__(self, answers: Sequence[Sequence[bytes]]) -> None:
        self._answers = list(answers)
        self.connections, self.port = 0, 0
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self._answers:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                for piece in self._answers.pop(0):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.01)
        except (EOFError, OSError):
            pass
        writer.close()


@asynccontextmanager
async def wire(*answers: Sequence[bytes]) -> AsyncIterator[Wire]:
    made = Wire(answers)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()


async def asked(server: Wire, times: int = 1) -> list[Any]:
    client = HttpClient(f"http://127.0.0.1:{server.port}", {}, read_timeout=5)
    try:
        return [await client.fetch_json("/x") for _ in range(times)]
    finally:
        await client.aclose()


def reply(body: bytes = b"{}", **headers: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n{''.join(lines)}\r\n".encode() + body


@pytest.mark.parametrize(
    "pieces",
    [
        (b'HTTP/1.1 200 OK\r\n\r\n{"a"', b": 1}"),
        (b"HTTP/1.0 200\r\n\r\n", b'{"a": 1}'),
        (b'HTTP/1.1 200 OK\ncontent-length: 8\n\n{"a": 1}',),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", reply(b'{"a": 1}')),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n8\r\n", b'{"a": 1}\r\n0\r\n\r\n'),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8;x=y\r\n", b'{"a": 1}\r\n0\r\nx: y\r\n\r\n'),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8  \r\n", b'{"a": 1}\r\n0  \r\n\r\n'),
        (reply(gzip.compress(b'{"a": 1}'), content_encoding="gzip"),),
        (reply(zlib.compress(b'{"a": 1}'), content_encoding="deflate"),),
        (reply(b'{"a": 1}', connection="Upgrade, Keep-Alive", upgrade="h2,h2c"),),
    ],
)
async def test_each_framing_of_a_body_is_read(pieces: Sequence[bytes]) -> None:
    async with wire(pieces) as server:
        assert await asked(server) == [{"a": 1}]


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b'{"a": 1}'),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\n", b'{"a": 1}\r\n'),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} ",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n{}",),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n{}",),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\n" + b"x-more: y\r\n" * 20_000,),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"x-more: y\r\n" * 20_000,),
        (b"not HTTP at all\r\n\r\n",),
        (b"",),
    ],
)
async def test_a_response_that_is_cut_malformed_or_endless_is_a_broken_connection(pieces: Sequence[bytes]) -> None:
    async with wire(pieces) as server:
        with pytest.raises(ConnectionFailed, match="broke"):
            await asked(server)


@pytest.mark.parametrize(
    ("first", "connections"),
    [
        (reply(), 1),
        (reply(connection="close"), 2),
        (reply() + reply(b'{"stale": 1}'), 2),
        (reply() + b"HTTP/1.1 4", 2),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}", 2),
    ],
)
async def test_a_connection_is_kept_only_while_it_is_in_order(first: bytes, connections: int) -> None:
    async with wire((first,), (reply(b'{"second": 1}'),)) as server:
        assert await asked(server, 2) == [{}, {"second": 1}]
        assert server.connections == connections


async def test_what_a_server_says_to_no_request_answers_none() -> None:
    async with wire((reply(), b"HTTP/1.1 408 Too Slow\r\n\r\n"), (reply(b'{"second": 1}'),)) as server:
        client = HttpClient(f"http://127.0.0.1:{server.port}", {}, read_timeout=5)
        await client.fetch_json("/x")
        await asyncio.sleep(0.05)
        assert await client.fetch_json("/x") == {"second": 1}
        await client.aclose()
        assert server.connections == 2


async def test_nothing_that_is_sent_can_add_a_header_or_a_request() -> None:
    async with wire((reply(),), (reply(),)) as server:
        for headers in ({"x": "a\r\ny: b"}, {"x\r\ny": "b"}, {"x y": "b"}, {"transfer-encoding": "chunked"}):
            client = HttpClient(f"http://127.0.0.1:{server.port}", headers)
            with pytest.raises(ProviderError):
                await client.fetch_json("/x")
        client = HttpClient(f"http://127.0.0.1:{server.port}", {})
        await client.fetch_json("/a b\r\nx: y?c d")
        await client.aclose()
        assert [head.splitlines()[0] for head in server.heads] == [b"GET /a%20bx:%20y?c%20d HTTP/1.1"]


async def test_a_proxy_may_send_its_answer_in_pieces_and_refuse_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    pieces = (b"HTTP/1.1 407 Who ", b"are you\r\nproxy-", b"authenticate: Basic\r\n\r\n")
    async with wire(pieces) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://Zoë:pä:ss@127.0.0.1:{proxy.port}")
        client = HttpClient("https://model.example", {})
        with pytest.raises(ConnectionFailed, match="could not be reached: 407 Who are you") as failed:
            await client.fetch_json("/x")
        assert b"CONNECT model.example:443 HTTP/1.1\r\n" in proxy.heads[0]
        assert "ss@" not in str(failed.value)


async def test_text_before_a_broken_chunk_is_read() -> None:
    async with wire((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n",)) as server:
        client = HttpClient(f"http://127.0.0.1:{server.port}", {}, read_timeout=5)
        pieces = []
        with pytest.raises(ConnectionFailed, match="broke"):
            async with client.send("/x", {}) as response:
                async for piece in response.pieces():
                    pieces.append(piece)
        await client.aclose()
    assert pieces == [b"{}"]


async def test_an_event_is_seen_as_soon_as_it_has_come() -> None:
    event = b'd\r\n{"event": 1}\n\r\n'
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with wire((head, *[event] * 3, b"0\r\n\r\n")) as server:
        client = HttpClient(f"http://127.0.0.1:{server.port}", {}, read_timeout=5)
        async with client.send("/x", {}) as response:
            pieces = [piece async for piece in response.pieces()]
        await client.aclose()
    assert [json.loads(piece) for piece in pieces] == [{"event": 1}] * 3
