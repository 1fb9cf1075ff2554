"""Replies of the local model through its server, with real tool calls.

Needs the weights: AGENTCLI_TEST_GGUF names the pinned model's .gguf file.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentcli.llm.errors import AuthError, ContextOverflow
from agentcli.llm.local_server import LocalServer, acquire
from agentcli.llm.messages import Message, ToolResult
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Done, Request, ToolSpec, UsageUpdate
from agentcli.llm.providers.local import LocalProvider
from tests.conformance.reading import asking

GGUF = os.environ.get("AGENTCLI_TEST_GGUF", "")

pytestmark = [
    pytest.mark.local_model,
    pytest.mark.skipif(not GGUF, reason="AGENTCLI_TEST_GGUF does not name the local model's .gguf file"),
]

CONTEXT = 2048
SYSTEM = "You are a coding assistant in the user's project folder. Answer shortly."


def tool(name: str, description: str, required: str, **properties: str) -> ToolSpec:
    schema = {key: {"type": kind} for key, kind in properties.items()}
    return ToolSpec(name, description, {"type": "object", "properties": schema, "required": [required]})


TOOLS = (
    tool("file_read", "Read a text file.", "path", path="string", limit="integer"),
    tool("bash", "Run a shell command: ls, wc, git, tests, programs.", "command", command="string"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    held = asyncio.run(acquire(model_path=Path(GGUF), state_folder=tmp_path_factory.mktemp("state"), context=CONTEXT))
    yield held
    held.release()


@asynccontextmanager
async def model_of(server: LocalServer, **other: str) -> AsyncIterator[LocalProvider]:
    """The provider of a server that the test holds."""

    async def start() -> Any:
        held = {"base_url": server.base_url, "api_key": server.api_key, "is_running": True, "release": lambda: None}
        return SimpleNamespace(**held | other)

    provider = LocalProvider(ModelInfo("pinned", "local", window=CONTEXT), start=start)
    try:
        yield provider
    finally:
        await provider.aclose()


async def last_event(model: LocalProvider, request: Request) -> Any:
    return [event async for event in model.stream(request)][-1]


async def ask(server: LocalServer, *messages: Message | str, **options: Any) -> Done:
    async with model_of(server) as model:
        return await last_event(model, asked(*messages, **options))


def asked(*messages: Message | str, tools: tuple[ToolSpec, ...] = TOOLS, max_tokens: int = 120) -> Request:
    return asking(*messages, system=SYSTEM if tools else "", tools=tools, max_tokens=max_tokens)


async def test_a_request_without_the_key_is_refused(server: LocalServer) -> None:
    async with model_of(server, api_key="") as stranger:
        with pytest.raises(AuthError):
            await last_event(stranger, asked("Hi"))


async def test_a_tool_call_comes_back_as_a_real_call_and_its_result_as_an_answer(server: LocalServer) -> None:
    question = "What is the timeout in settings.toml?"
    call = await ask(server, question)
    (use,) = call.message.tool_uses
    assert (call.stop_reason, call.message.text) == ("tool_use", "")
    assert use.name in ("file_read", "bash")  # either tells it, and the model chooses
    assert "settings.toml" in "".join(map(str, use.input.values()))
    result = Message("user", (ToolResult(use.id, "1\t[server]\n2\ttimeout = 45"),))
    answer = await ask(server, question, call.message, result)
    assert (answer.stop_reason, answer.message.tool_uses) == ("end_turn", ())
    assert "45" in answer.message.text
    is_cached = answer.usage.cache_read_input_tokens >= call.usage.prompt_tokens
    assert is_cached, "the request begins with the bytes of the one before"


async def test_a_question_without_tools_is_answered_plainly(server: LocalServer) -> None:
    reply = await ask(server, "What is the capital of France?", tools=())
    assert "Paris" in reply.message.text
    assert reply.stop_reason == "end_turn"


async def test_json_in_an_answer_is_not_taken_for_a_call(server: LocalServer) -> None:
    reply = await ask(server, "Show me an example of a package.json file with a name and a version.")
    assert reply.message.tool_uses == ()
    assert '"version"' in reply.message.text


async def test_a_system_text_and_the_tools_stay_short(server: LocalServer) -> None:
    assert (await ask(server, "Hello!", tools=TOOLS * 2, max_tokens=1)).usage.prompt_tokens < 400


async def test_a_second_request_waits_for_the_first_and_is_answered(server: LocalServer) -> None:
    counts = (ask(server, "Count from 1 to 40.", tools=(), max_tokens=limit) for limit in (60, 10))
    first, second = await asyncio.gather(*counts)
    assert first.message.text.startswith(second.message.text[:10])


async def test_the_server_reports_how_much_of_a_prompt_it_has_read(server: LocalServer) -> None:
    async with (
        model_of(server) as model,
        aclosing(model.stream(asked("word " * 600, tools=(), max_tokens=1))) as events,
    ):
        counted = [event async for event in events if isinstance(event, UsageUpdate)]
    read = [update.usage.prompt_tokens for update in counted if update.prompt_tokens]
    assert len(set(read)) > 2
    assert read == sorted(read)
    assert {update.prompt_tokens for update in counted[:-1]} == {read[-1]} == {counted[-1].usage.prompt_tokens}


async def test_a_prompt_that_is_too_long_is_an_error_that_says_so(server: LocalServer) -> None:
    with pytest.raises(ContextOverflow, match=rf"available context size.*{CONTEXT}"):
        await ask(server, "word " * (CONTEXT + 100), tools=())


async def test_closing_the_connection_stops_the_reply(server: LocalServer) -> None:
    story = asked("Write a very long story.", tools=(), max_tokens=1500)
    async with model_of(server) as model, aclosing(model.stream(story)) as events:
        assert not isinstance(await anext(events), Done)
    began = time.monotonic()
    await ask(server, "Hi", tools=(), max_tokens=3)
    assert time.monotonic() - began < 10, "the next request does not wait for the rest of the story"
