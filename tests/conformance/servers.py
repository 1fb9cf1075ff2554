"""Loopback servers that play recorded bytes: the network of the tests.

    with anthropic_server([Reply(recorded("anthropic_text.sse"))]) as server:
        provider = AnthropicProvider(info, base_url=server.url, api_key="key")
        ...
    assert server.requests[0].json["model"] == "claude-sonnet-5-5"

Each request for a reply takes the next one of the script; other paths (models, token counts) have answers of their own.
Every piece of a body is sent as one HTTP chunk, which clients see as one piece, whatever the network does to packets.
A request that the real server would refuse for its form is answered with a 400, and the test fails.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.conformance.wire_rules import (
    refusals_of_anthropic,
    refusals_of_chat,
    refusals_of_local,
    refusals_of_ollama,
    refusals_of_responses,
)

Cut = Callable[[bytes], list[bytes]]

SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"


def recorded(name: str) -> bytes:
    """A body from the folder `recorded`."""
    return (Path(__file__).parent / "recorded" / name).read_bytes()


# How a body is cut into pieces.


def whole(body: bytes) -> list[bytes]:
    return [body] if body else []


def byte_by_byte(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def pieces_of(size: int) -> Cut:
    return lambda body: [body[at : at + size] for at in range(0, len(body), size)]


def inside_characters(body: bytes) -> list[bytes]:
    """After the first byte of every character that has several."""
    return _cut_after(body, [at + 1 for at, byte in enumerate(body) if byte >= 0xC0])


def inside_line_ends(body: bytes) -> list[bytes]:
    """Between the CR and the LF of every line end, and between the two line ends that close an event."""
    return _cut_after(body, [at + 1 for at, byte in enumerate(body) if byte in b"\r\n"])


def at_events(body: bytes) -> list[bytes]:
    """One piece an event, as a server that flushes after each."""
    return [event + b"\n\n" for event in body.split(b"\n\n") if event]


def at_lines(body: bytes) -> list[bytes]:
    return body.splitlines(keepends=True)


def _cut_after(body: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *places, len(body)]
    return [body[start:end] for start, end in pairwise(edges) if start < end]


def with_crlf(body: bytes) -> bytes:
    return body.replace(b"\n", b"\r\n")


# What a server answers.


@dataclass(frozen=True)
class Reply:
    """One response, and what goes wrong with it.

    `breaks_after` and `falls_silent_after` count bytes of the body: the connection is dropped there, or nothing more
    comes until the client leaves. With `answers=False` not even the status comes. `pause_s` passes before each piece.
    """

    body: bytes = b""
    status: int = 200
    content_type: str = SSE
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: Cut = whole
    breaks_after: int | None = None
    falls_silent_after: int | None = None
    answers: bool = True
    pause_s: float = 0

    def but(self, **changes: Any) -> Reply:
        return replace(self, **changes)


SILENCE = Reply(answers=False)
HTML = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body><h1>Guest network</h1></body></html>\n"


def html(status: int = 200) -> Reply:
    return Reply(HTML, status, "text/html; charset=utf-8")


def json_reply(data: Any, status: int = 200, **headers: str) -> Reply:
    """`headers` with underscores for hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(json.dumps(data).encode(), status, "application/json", named)


@dataclass
class Received:
    """A request as it came, and when (monotonic seconds). `left` is set once the client went before the reply's end."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    came: float = field(default_factory=time.monotonic)
    left: threading.Event = field(default_factory=threading.Event)

    @cached_property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Reply | Callable[[Received], Reply]
Rules = Callable[[Received], list[str]]  # why a real server would refuse a request


class LoopbackServer:
    """Plays `script` for POSTs to `chat_path` and `routes` for the rest, keyed `"GET /path"`."""

    def __init__(
        self,
        script: Iterable[Answer],
        *,
        chat_path: str,
        routes: Mapping[str, Answer],
        rules: Rules = lambda received: [],
        base: str = "",
    ) -> None:
        self.rules = rules
        self.requests: list[Received] = []
        self.others: list[Received] = []
        self.connections = 0
        self._script = iter(script)
        self._chat_path = base + chat_path
        self._routes = {f"{key.split()[0]} {base}{key.split()[1]}": answer for key, answer in routes.items()}
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.url = self.address + base

    def start(self) -> None:
        thread = threading.Thread(target=self._accept, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Close everything (twice is once); raises what went wrong inside the server."""
        if self._listener.fileno() >= 0:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            for connection in self._sockets:
                _shut(connection)
        for thread in self._threads:
            thread.join(5)
        if self._failures:
            raise self._failures[0]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                self._sockets.add(connection)
                thread = threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True)
                self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            with connection, connection.makefile("rb") as stream:
                while received := _read_request(stream, number):
                    if not self._play(self._answer(received), connection, received):
                        return
        except OSError:
            pass
        except BaseException as error:  # raised by stop()
            self._failures.append(error)
        finally:
            with self._lock:
                self._sockets.discard(connection)

    def _answer(self, received: Received) -> Reply:
        with self._lock:
            if (received.method, received.path) == ("POST", self._chat_path):
                self.requests.append(received)
                answer: Answer = next(self._script, _SCRIPT_ENDED)
                if refusals := self.rules(received):
                    self._failures.append(AssertionError(f"a real server refuses this request: {refusals}"))
                    return json_reply({"error": {"message": "; ".join(refusals)}}, 400)
            else:
                self.others.append(received)
                answer = self._routes.get(f"{received.method} {received.path}", _NO_SUCH_PATH)
        return answer if isinstance(answer, Reply) else answer(received)

    def _play(self, reply: Reply, connection: socket.socket, received: Received) -> bool:
        """Send a reply; whether the connection can be used again."""
        if not reply.answers:
            _wait_until_left(connection, received)
            return False
        end = min((k for k in (reply.breaks_after, reply.falls_silent_after) if k is not None), default=None)
        pieces = _up_to(reply.cut(reply.body), end)
        head = [f"HTTP/1.1 {reply.status} {_phrase(reply.status)}", "transfer-encoding: chunked"]
        if reply.content_type:
            head.append(f"content-type: {reply.content_type}")
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        last = [] if end is not None else [b"0\r\n\r\n"]
        try:
            start = "\r\n".join([*head, "\r\n"]).encode("latin-1")
            if reply.pause_s:
                connection.sendall(start)
                for chunk in chunks:
                    time.sleep(reply.pause_s)
                    connection.sendall(chunk)
                connection.sendall(b"".join(last))
            else:
                connection.sendall(start + b"".join([*chunks, *last]))
        except OSError:
            received.left.set()
            return False
        if reply.falls_silent_after is not None:
            _wait_until_left(connection, received)
        return end is None


def _read_request(stream: Any, connection: int) -> Received | None:
    start = stream.readline()
    if not start.strip():
        return None
    method, path, _ = start.decode("latin-1").split(" ", 2)
    headers = {}
    while line := stream.readline().decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Received(method, path, headers, stream.read(int(headers.get("content-length", 0))), connection)


def _wait_until_left(connection: socket.socket, received: Received) -> None:
    try:
        while connection.recv(4096):
            pass
    except OSError:
        pass
    received.left.set()


def _up_to(pieces: list[bytes], end: int | None) -> list[bytes]:
    if end is None:
        return pieces
    kept = []
    for piece in pieces:
        if end > 0:
            kept.append(piece[:end])
        end -= len(piece)
    return kept


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


_SCRIPT_ENDED = json_reply({"error": {"message": "the script of this server has ended"}}, 500, x_should_retry="false")
_NO_SUCH_PATH = json_reply({"error": {"message": "this server has no such path"}}, 404)


@contextmanager
def running(server: LoopbackServer) -> Iterator[LoopbackServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


# One server for each protocol.

ANTHROPIC_MODEL = {
    "type": "model",
    "id": "claude-sonnet-5-5",
    "display_name": "Claude Sonnet 5.5",
    "created_at": "2026-08-11T00:00:00Z",
    "line": "sonnet",
    "lifecycle": "active",
    "deprecated_at": None,
    "retires_at": None,
    "max_input_tokens": 1_000_000,
    "max_tokens": 128_000,
}


@contextmanager
def anthropic_server(
    script: Iterable[Answer] = (), *, model: Answer | None = None, count: Answer | None = None
) -> Iterator[LoopbackServer]:
    """`/v1/messages`, `/v1/messages/count_tokens` and `/v1/models/claude-sonnet-5-5`. Its `url` ends before `/v1`."""
    routes = {
        "POST /v1/messages/count_tokens": count or json_reply({"input_tokens": 2_095}),
        "GET /v1/models/claude-sonnet-5-5": model or json_reply(ANTHROPIC_MODEL),
    }

    def rules(received: Received) -> list[str]:
        return refusals_of_anthropic(received.json, version=received.headers.get("anthropic-version", ""))

    with running(LoopbackServer(script, chat_path="/v1/messages", routes=routes, rules=rules)) as server:
        yield server


@contextmanager
def chat_server(
    script: Iterable[Answer] = (), *, models: Answer | None = None, is_local: bool = False
) -> Iterator[LoopbackServer]:
    """`/v1/chat/completions` and `/v1/models`. Its `url` ends with `/v1`. `is_local`: llama.cpp with a blind model."""
    listed = [{"id": "test-model", "object": "model", "created": 1_760_000_000, "owned_by": "loopback"}]
    routes = {"GET /models": models or json_reply({"object": "list", "data": listed})}

    def rules(received: Received) -> list[str]:
        if is_local:
            return refusals_of_local(received.json)
        return refusals_of_chat(received.json, fields=frozenset({"reasoning_content", "reasoning_details"}))

    with running(
        LoopbackServer(script, chat_path="/chat/completions", routes=routes, rules=rules, base="/v1")
    ) as server:
        yield server


@contextmanager
def responses_server(script: Iterable[Answer] = (), *, models: Answer | None = None) -> Iterator[LoopbackServer]:
    """`/v1/responses` and `/v1/models`. Its `url` ends with `/v1`."""
    listed = [{"id": "test-model", "object": "model", "created": 1_760_000_000, "owned_by": "loopback"}]
    routes = {"GET /models": models or json_reply({"object": "list", "data": listed})}

    def rules(received: Received) -> list[str]:
        return refusals_of_responses(received.json)

    with running(LoopbackServer(script, chat_path="/responses", routes=routes, rules=rules, base="/v1")) as server:
        yield server


OLLAMA_SHOW = {
    "capabilities": ["completion", "tools", "thinking"],
    "details": {"family": "qwen3", "parameter_size": "8.2B", "quantization_level": "Q4_K_M"},
    "model_info": {"general.architecture": "qwen3", "qwen3.context_length": 40_960},
}


@contextmanager
def ollama_server(script: Iterable[Answer] = (), *, show: Answer | None = None) -> Iterator[LoopbackServer]:
    """`/api/chat` and `/api/show`."""
    routes = {"POST /api/show": show or json_reply(OLLAMA_SHOW)}
    shown = (show or json_reply(OLLAMA_SHOW)) if not callable(show) else json_reply(OLLAMA_SHOW)

    def rules(received: Received) -> list[str]:
        try:
            can = json.loads(shown.body).get("capabilities") or ("vision", "thinking", "tools")
        except (ValueError, AttributeError):
            can = ("vision", "thinking", "tools")
        return refusals_of_ollama(received.json, vision="vision" in can, thinks="thinking" in can, tools="tools" in can)

    with running(LoopbackServer(script, chat_path="/api/chat", routes=routes, rules=rules)) as server:
        yield server


def refused_address() -> str:
    """An address nothing listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"
