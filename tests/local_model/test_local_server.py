"""The shared server of the local model: one for every user of it, gone with the last of them, and real tool
calls.

Needs the weights: AGENTCLI_TEST_GGUF names the pinned model's .gguf file.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentcli.llm.local_server.server import LocalServer, acquire, running_servers, stop_servers

GGUF = os.environ.get("AGENTCLI_TEST_GGUF", "")

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.skipif(not GGUF, reason="AGENTCLI_TEST_GGUF does not name the local model's .gguf file"),
]

CONTEXT = 2048

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "file_read",
            "description": "Read a text file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}},
                "required": ["path"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a shell command: ls, wc, git, tests, programs.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    },
]

SYSTEM = {
    "role": "system",
    "content": "You are a coding assistant in the user's project folder. Answer shortly.",
}

USER_PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from agentcli.llm.local_server.server import acquire

model, state, context = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
server = asyncio.run(acquire(model_path=model, state_folder=state, context=context))
print(server.pid, server.base_url, flush=True)
time.sleep(600)
"""


class User(NamedTuple):
    """Another program that uses the server, and the server's pid and address as it was told them."""

    process: subprocess.Popen[str]
    server: str


def start_user(state: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", USER_PROGRAM, GGUF, str(state), str(CONTEXT)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def started(process: subprocess.Popen[str]) -> User:
    assert process.stdout is not None
    return User(process, process.stdout.readline().strip())


def kill(user: User) -> None:
    user.process.kill()
    user.process.wait()
    if user.process.stdout is not None:
        user.process.stdout.close()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def ends_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


def notices_its_end(server: LocalServer) -> bool:
    deadline = time.monotonic() + 5
    while server.is_running and time.monotonic() < deadline:
        time.sleep(0.02)
    return not server.is_running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    held = asyncio.run(acquire(model_path=Path(GGUF), state_folder=tmp_path_factory.mktemp("state"), context=CONTEXT))
    yield held
    held.release()
    assert ends_within(held.pid, 5)


class Reply(NamedTuple):
    text: str
    calls: list[dict[str, str]]
    finish: str
    prompt_tokens: int
    cached_tokens: int


def ask(server: LocalServer, messages: list[Any], *, tools: list[Any] | None = None, max_tokens: int = 120) -> Reply:
    """Streams one reply, as an OpenAI-compatible client does."""
    body: dict[str, Any] = {
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": max_tokens,
    }
    if tools:
        body["tools"] = tools
    connection = connect(server)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers(server))
    response = connection.getresponse()
    assert response.status == 200, response.read()
    text, finish = "", ""
    calls: list[dict[str, str]] = []
    usage: dict[str, Any] = {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            finish = choice["finish_reason"] or finish
            text += choice["delta"].get("content") or ""
            for delta in choice["delta"].get("tool_calls", []):
                if delta["index"] == len(calls):
                    calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
                calls[delta["index"]]["arguments"] += delta["function"].get("arguments", "")
    connection.close()
    return Reply(text, calls, finish, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


def connect(server: LocalServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", int(server.base_url.split(":")[2].split("/")[0]), timeout=120)


def headers(server: LocalServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.api_key}", "Content-Type": "application/json"}


def test_two_programs_that_start_at_once_share_one_server_and_it_ends_when_both_were_killed(
    tmp_path: Path,
) -> None:
    starting = [start_user(tmp_path), start_user(tmp_path)]
    first, second = map(started, starting)
    try:
        assert first.server
        assert first.server == second.server
        pid = int(first.server.split()[0])
        kill(first)
        assert not ends_within(pid, 1), "one user is left"
        kill(second)
        assert ends_within(pid, 5)
        assert [*tmp_path.rglob("*.json"), *tmp_path.rglob("*.sock")] == []
    finally:
        for user in (first, second):
            kill(user)


def test_a_server_that_was_killed_is_replaced_and_its_user_can_tell(tmp_path: Path) -> None:
    async def scenario() -> None:
        dead = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT)
        os.kill(dead.pid, signal.SIGKILL)
        assert notices_its_end(dead)
        waits: list[str] = []
        fresh = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT, on_wait=waits.append)
        assert fresh.is_running
        assert fresh.pid != dead.pid
        assert len(waits) == 1
        os.kill(fresh.pid, signal.SIGTERM)
        assert ends_within(fresh.pid, 5)

    asyncio.run(scenario())
    assert not list(tmp_path.rglob("*.json")), "a terminated server leaves no record"


def test_a_server_lingers_for_the_next_user(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT, linger_s=3)
        first.release()
        first.release()
        assert not first.is_running
        await asyncio.sleep(0.5)
        second = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT)
        assert second.pid == first.pid
        second.release()
        assert await asyncio.to_thread(ends_within, second.pid, 8)

    asyncio.run(scenario())


def test_a_server_that_lingers_ends_when_told_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT, linger_s=60)
        (running,) = await running_servers(tmp_path)
        assert (running.pid, running.context, running.linger_s) == (first.pid, CONTEXT, 60)
        first.release()
        assert await stop_servers(tmp_path) == 1
        assert ends_within(first.pid, 5)
        assert await running_servers(tmp_path) == []
        assert await stop_servers(tmp_path) == 0

    asyncio.run(scenario())


def test_one_that_only_lingers_gives_way_to_another_and_one_in_use_does_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        unused = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT, linger_s=60)
        unused.release()
        used = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT // 2, linger_s=60)
        assert ends_within(unused.pid, 5)
        other = await acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT)
        assert used.is_running
        used.release()
        other.release()
        assert await stop_servers(tmp_path) >= 1

    asyncio.run(scenario())


def test_a_server_ends_when_its_model_file_is_another_one(tmp_path: Path) -> None:
    copied = tmp_path / "copied.gguf"
    shutil.copyfile(GGUF, copied)

    async def scenario() -> None:
        first = await acquire(model_path=copied, state_folder=tmp_path, context=CONTEXT, linger_s=60)
        first.release()
        copied.unlink()
        assert await asyncio.to_thread(ends_within, first.pid, 10)
        shutil.copyfile(GGUF, copied)
        second = await acquire(model_path=copied, state_folder=tmp_path, context=CONTEXT, linger_s=60)
        copied.touch()
        third = await acquire(model_path=copied, state_folder=tmp_path, context=CONTEXT)
        assert third.pid != second.pid
        assert ends_within(second.pid, 5)
        third.release()

    asyncio.run(scenario())


def test_a_start_that_is_cancelled_leaves_no_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        starting = asyncio.ensure_future(acquire(model_path=Path(GGUF), state_folder=tmp_path, context=CONTEXT))
        await asyncio.sleep(0.8)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(scenario())
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in listed


def test_the_server_and_its_record_are_for_this_user_only(server: LocalServer, tmp_path: Path) -> None:
    connection = connect(server)
    connection.request("POST", "/v1/chat/completions", "{}", {"Content-Type": "application/json"})
    assert connection.getresponse().status == 401
    arguments = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode().split("\0")
    assert server.api_key not in arguments, "other users can read a process's arguments"
    for option in ("--record", "--control"):
        assert Path(arguments[arguments.index(option) + 1]).stat().st_mode & 0o077 == 0


def test_a_tool_call_comes_back_as_a_real_call_and_its_result_as_an_answer(server: LocalServer) -> None:
    messages: list[Any] = [SYSTEM, {"role": "user", "content": "What is the timeout in settings.toml?"}]
    call = ask(server, messages, tools=TOOLS)
    assert (call.finish, call.text, len(call.calls)) == ("tool_calls", "", 1)
    assert call.calls[0]["name"] in ("file_read", "bash")  # either tells it, and the model chooses
    assert "settings.toml" in "".join(json.loads(call.calls[0]["arguments"]).values())

    function = {key: call.calls[0][key] for key in ("name", "arguments")}
    messages += [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call.calls[0]["id"], "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.calls[0]["id"], "content": "1\t[server]\n2\ttimeout = 45"},
    ]
    answer = ask(server, messages, tools=TOOLS)
    assert (answer.finish, answer.calls) == ("stop", [])
    assert "45" in answer.text
    assert answer.cached_tokens >= call.prompt_tokens, "the request begins with the bytes of the one before"


def test_a_question_without_tools_is_answered_plainly(server: LocalServer) -> None:
    reply = ask(server, [{"role": "user", "content": "What is the capital of France?"}])
    assert "Paris" in reply.text
    assert reply.finish == "stop"


def test_json_in_an_answer_is_not_taken_for_a_call(server: LocalServer) -> None:
    question = "Show me an example of a package.json file with a name and a version."
    reply = ask(server, [SYSTEM, {"role": "user", "content": question}], tools=TOOLS)
    assert reply.calls == []
    assert '"version"' in reply.text


def test_a_system_text_and_the_tools_stay_short(server: LocalServer) -> None:
    reply = ask(server, [SYSTEM, {"role": "user", "content": "Hello!"}], tools=TOOLS * 2, max_tokens=1)
    assert reply.prompt_tokens < 400


def test_a_second_request_waits_for_the_first_and_is_answered(server: LocalServer) -> None:
    replies: dict[str, Reply] = {}

    def count(who: str, limit: int) -> None:
        replies[who] = ask(server, [{"role": "user", "content": "Count from 1 to 40."}], max_tokens=limit)

    threads = [
        threading.Thread(target=count, args=("first", 60)),
        threading.Thread(target=count, args=("second", 10)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replies["first"].text.startswith(replies["second"].text[:10])


def test_a_prompt_that_is_too_long_is_an_error_that_says_so(server: LocalServer) -> None:
    connection = connect(server)
    body = json.dumps({"messages": [{"role": "user", "content": "word " * (CONTEXT + 100)}]})
    connection.request("POST", "/v1/chat/completions", body, headers(server))
    response = connection.getresponse()
    error = json.loads(response.read())["error"]
    assert (response.status, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", CONTEXT)


def test_closing_the_connection_stops_the_reply(server: LocalServer) -> None:
    connection = connect(server)
    body = {
        "messages": [{"role": "user", "content": "Write a very long story."}],
        "stream": True,
        "max_tokens": 1500,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers(server))
    response = connection.getresponse()
    response.readline()
    response.close()
    connection.close()
    began = time.monotonic()
    ask(server, [{"role": "user", "content": "Hi"}], max_tokens=3)
    assert time.monotonic() - began < 10, "the next request does not wait for the rest of the story"
