"""Replies of the local model through its server, with real tool calls.

Needs the weights: AGENTCLI_TEST_GGUF names the pinned model's .gguf file.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentcli.llm.local_server.server import LocalServer, acquire

GGUF = os.environ.get("AGENTCLI_TEST_GGUF", "")

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.skipif(not GGUF, reason="AGENTCLI_TEST_GGUF does not name the local model's .gguf file"),
]

CONTEXT = 2048


def tool(name: str, description: str, required: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    parameters = schema | {"required": [required]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    tool("file_read", "Read a text file.", "path", path="string", limit="integer"),
    tool("bash", "Run a shell command: ls, wc, git, tests, programs.", "command", command="string"),
]

SYSTEM = {"role": "system", "content": "You are a coding assistant in the user's project folder. Answer shortly."}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    held = asyncio.run(acquire(model_path=Path(GGUF), state_folder=tmp_path_factory.mktemp("state"), context=CONTEXT))
    yield held
    held.release()


class Reply(NamedTuple):
    text: str
    calls: list[dict[str, str]]
    finish: str
    prompt_tokens: int
    cached_tokens: int


def ask(server: LocalServer, messages: list[Any], *, tools: list[Any] | None = None, max_tokens: int = 120) -> Reply:
    """Streams one reply, as an OpenAI-compatible client does."""
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    body |= {"max_tokens": max_tokens} | ({"tools": tools} if tools else {})
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
    return http.client.HTTPConnection("127.0.0.1", server.info.port, timeout=120)


def headers(server: LocalServer) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.api_key}", "Content-Type": "application/json"}


def test_a_request_without_the_key_is_refused(server: LocalServer) -> None:
    connection = connect(server)
    connection.request("POST", "/v1/chat/completions", "{}", {"Content-Type": "application/json"})
    assert connection.getresponse().status == 401


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

    with ThreadPoolExecutor() as pool:
        list(pool.map(count, ("first", "second"), (60, 10)))
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
    story = [{"role": "user", "content": "Write a very long story."}]
    body = {"messages": story, "stream": True, "max_tokens": 1500}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers(server))
    response = connection.getresponse()
    response.readline()
    response.close()
    connection.close()
    began = time.monotonic()
    ask(server, [{"role": "user", "content": "Hi"}], max_tokens=3)
    assert time.monotonic() - began < 10, "the next request does not wait for the rest of the story"
