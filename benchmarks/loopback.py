"""A model server on loopback for the benchmarks: scripted, timed, in its own process.

It speaks the Messages API, and the Responses API to requests whose path ends with `/responses` (codex).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent


def sse(*events: dict) -> bytes:
    return b"".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events)


def opening() -> dict:
    usage = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5", "content": []}
    return {"type": "message_start", "message": {**message, "stop_reason": None, "usage": usage}}


def closing(reason: str) -> list[dict]:
    return [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 9},
        },
        {"type": "message_stop"},
    ]


def text_reply(*deltas: str) -> list[bytes]:
    start = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    parts = [sse(opening(), start)]
    parts += [
        sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
        for text in deltas
    ]
    return [*parts, sse({"type": "content_block_stop", "index": 0}, *closing("end_turn"))]


def call_reply(id: str, name: str, arguments: dict) -> list[bytes]:
    block = {"type": "tool_use", "id": id, "name": name, "input": {}}
    delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    return [
        sse(
            opening(),
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            *closing("tool_use"),
        )
    ]


def responses_reply(item: dict, deltas: Sequence[str] = ()) -> list[bytes]:
    """One item of the Responses API as a whole stream; a message's text comes in `deltas`."""
    usage = {"input_tokens": 10, "input_tokens_details": None, "output_tokens": 9, "output_tokens_details": None}
    completed = {"id": "resp_1", "usage": {**usage, "total_tokens": 19}}
    added = {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}}
    return [
        sse({"type": "response.created", "response": {"id": "resp_1"}}, added),
        *(
            sse({"type": "response.output_text.delta", "item_id": "item_1", "output_index": 0, "delta": text})
            for text in deltas
        ),
        sse(
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": completed},
        ),
    ]


def responses_text(*deltas: str) -> list[bytes]:
    content = [{"type": "output_text", "text": "".join(deltas)}]
    return responses_reply({"type": "message", "role": "assistant", "id": "item_1", "content": content}, deltas)


def responses_call(id: str, name: str, arguments: dict) -> list[bytes]:
    """A call of a shell command, by the name and argument that codex gives its tool."""
    call = {"name": "exec_command", "arguments": json.dumps({"cmd": arguments["command"]}), "call_id": id}
    return responses_reply({"type": "function_call", "id": "item_1", **call})


def script(name: str, deltas: int, wire: str = "messages") -> list[list[bytes]]:
    text_reply, call_reply = WIRES[wire]
    if name == "hello":
        return [text_reply("4")]
    if name == "turns":
        calls = [call_reply(f"toolu_{n:016d}", "bash", {"command": f"echo step {n}"}) for n in range(50)]
        return [*calls, text_reply("done")]
    if name == "rounds":  # one turn of `deltas` calls
        calls = [call_reply(f"toolu_{n:016d}", "file_read", {"path": f"module_{n % 23}.py"}) for n in range(deltas)]
        return [*calls, text_reply("done")]
    if name == "reads":  # `deltas` turns, each a call and an answer
        calls = [call_reply(f"toolu_{n:016d}", "file_read", {"path": f"module_{n % 23}.py"}) for n in range(deltas)]
        return [reply for n, call in enumerate(calls) for reply in (call, text_reply(f"It returns **{n}**."))]
    if name.endswith(".json"):  # a file with the deltas of one reply
        return [text_reply(*json.loads(Path(name).read_text("utf-8")))]
    words = ["word ", "## head\n", "`code` ", "text.\n", "more "]
    return [text_reply(*(words[n % 5][:5].ljust(5) for n in range(deltas)))]


WIRES = {"messages": (text_reply, call_reply), "responses": (responses_text, responses_call)}


async def serve(name: str, deltas: int, delay_ms: float) -> None:
    scripts = {wire: script(name, deltas, wire) for wire in (["messages"] if name in ("reads", "rounds") else WIRES)}
    rows: list[dict] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrived = time.monotonic()
                if head.startswith(
                    b"GET /requests"
                ):  # asked for when the run is over, so that it costs the run nothing
                    listed = json.dumps(rows).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(listed) + listed)
                    await writer.drain()
                    continue
                size = next(
                    int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")
                )
                body = await reader.readexactly(size)
                replies = scripts["responses" if b"/responses " in head.split(b"\r\n", 1)[0] else "messages"]
                reply = replies[min(len(rows), len(replies) - 1)]
                rows.append(
                    {"arrived": arrived, "size": size, "body": "" if name in ("reads", "rounds") else body.decode()}
                )
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for part in reply:
                    if delay_ms:
                        await asyncio.sleep(delay_ms / 1000)
                    writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                    if writer.transport.get_write_buffer_size() > 65_536:
                        await writer.drain()
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                rows[-1]["ended"] = time.monotonic()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def loopback(name: str, *, deltas: int = 20_000, delay_ms: float = 0) -> Iterator[tuple[str, Callable[[], list[dict]]]]:
    """The server's address, and what gives its requests so far (`arrived`, `ended`, `body`).

    `name` is a script's, or a JSON file with the deltas of one reply; `delay_ms` passes before each delta.
    """
    command = [sys.executable, __file__, name, str(deltas), str(delay_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{process.stdout.readline().strip()}"

    def requests() -> list[dict]:
        with urllib.request.urlopen(f"{url}/requests") as response:
            return json.load(response)

    try:
        yield url, requests
    finally:
        process.kill()
        process.wait()


def environment(url: str, home: str) -> dict[str, str]:
    kept = {
        k: v for k, v in os.environ.items() if not k.endswith(("_API_KEY", "_TOKEN")) and k != "PYTHONDONTWRITEBYTECODE"
    }
    return {**kept, "ANTHROPIC_API_KEY": "none", "ANTHROPIC_BASE_URL": url, "AGENTCLI_HOME": home}


@contextlib.contextmanager
def workspace() -> Iterator[tuple[str, str]]:
    """A small git repository, and a home of its own for agentcli."""
    with tempfile.TemporaryDirectory() as folder:
        repository, home = Path(folder) / "repository", Path(folder) / "home"
        repository.mkdir()
        home.mkdir()
        for number in range(23):
            (repository / f"module_{number}.py").write_text(f"def f{number}():\n    return {number}\n")
        subprocess.run(["git", "init", "-q", "."], cwd=repository, check=True)
        yield str(repository), str(home)


# Starts a command, waits for it and writes what it used to a descriptor. The system counts the memory of the process
# that starts another one as the other's own: this one is a tenth of the benchmarks'.
LAUNCHER = """
import os, sys, time
started = time.monotonic()
pid = os.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, used = os.wait4(pid, 0)
wall, cpu = time.monotonic() - started, used.ru_utime + used.ru_stime
os.write(int(sys.argv[1]), f"{os.waitstatus_to_exitcode(status)} {started} {wall} {cpu} {used.ru_maxrss}".encode())
"""


def cpu_of(command: list[str], *, cwd: str | None = None, env: dict[str, str] | None = None) -> dict[str, float]:
    """Wall and CPU seconds of a whole process with its children, and the peak memory (MiB) of its largest process."""
    read, write = os.pipe()
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, str(write), *command],
        check=False, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, pass_fds=(write,),
    )  # fmt: skip
    os.close(write)
    with os.fdopen(read) as report:
        code, started, wall, cpu, kib = map(float, report.read().split())
    if code:
        raise SystemExit(f"{command} ended with {code:g}: {ran.stderr.decode()[-500:]}")
    return {"started": started, "wall": wall, "cpu": cpu, "rss": kib / 1024, "stdout": len(ran.stdout)}


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))


class ServedTools:
    """Tools as a program beside agentcli calls them: `agentcli tools run`, a line of JSON for each call."""

    def __init__(self, folder: Path, home: Path, *arguments: str) -> None:
        argv = [sys.executable, "-m", "agentcli", "tools", "run", *arguments]
        env = environment("http://127.0.0.1:9", home)
        self._process = subprocess.Popen(argv, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, tool: str, input: dict) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"name": tool, "input": input}).encode() + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert b'"is_error":false' in answer, answer[:500]

    def end(self) -> None:
        self._process.communicate()
