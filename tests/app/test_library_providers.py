"""Providers for Python programs: bundled ones that are made by name, and ones of the program's own."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, ConfigError, UsageError, tool
from agentcli.providers import (
    Done,
    Health,
    Message,
    ModelInfo,
    Overloaded,
    Prices,
    Request,
    StreamEvent,
    Text,
    TextDelta,
    TokenCount,
    ToolResult,
    ToolUse,
    Usage,
    create_provider,
)
from tests.conformance.replies import chat_reply
from tests.conformance.servers import chat_server

pytestmark = pytest.mark.usefixtures("library_home")


async def test_a_provider_that_is_made_by_name_asks_the_server_with_the_key(work: Path) -> None:
    with chat_server([chat_reply("One."), chat_reply("Two.")]) as server:
        openai = create_provider("openai", model="test-model", api_key="sk-own", base_url=server.url)
        async with Agent(openai, cwd=work) as agent:
            assert (await agent.run("first")).text == "One."
        info = ModelInfo("house-7b", "", window=32_000, prices=Prices(input=1_000_000))
        house = create_provider(
            "house", model=info, api_key="team-key", base_url=server.url, headers={"X-Team": "core"}
        )
        async with Agent(house, cwd=work) as agent:
            done = await agent.run("second")
        await openai.aclose()
        await house.aclose()
    first, second = server.requests
    assert (first.headers["authorization"], first.json["model"]) == ("Bearer sk-own", "test-model")
    assert (second.headers["authorization"], second.json["model"]) == ("Bearer team-key", "house-7b")
    assert second.headers["x-team"] == "core"
    assert (house.name, house.model) == ("house", "house-7b")
    assert done.cost_usd == done.usage.prompt_tokens > 0  # by the price of the caller's own ModelInfo


@pytest.mark.parametrize(
    ("name", "server", "error", "says"),
    [
        ("opnai", {}, UsageError, "did you mean openai?"),
        ("openai", {}, UsageError, "OPENAI_API_KEY"),
        ("ollama", {"api_key": "sk-x"}, UsageError, "ollama takes no API key"),
        ("house", {"base_url": "nowhere"}, ConfigError, "providers.house.base_url"),
        ("house", {"base_url": "http://127.0.0.1:9/v1", "hedaers": {}}, ConfigError, "did you mean headers?"),
    ],
)
def test_a_provider_that_cannot_be_made_is_an_error_with_what_to_do(
    name: str, server: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says.replace("?", r"\?")):
        create_provider(name, model="test-model", **server)


@tool
def weather(city: str) -> str:
    "Tells the weather of a city."
    return f"It rains in {city}. " * 100


class Oracle:
    """A provider of a program's own: is overloaded once, then asks for the weather, and answers with what it reads."""

    name, model = "oracle", "delphi"
    info = ModelInfo("delphi", "oracle", window=50_000, prices=Prices(output=1_000_000))

    def __init__(self) -> None:
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        self.requests.append(request)
        if len(self.requests) == 1:
            raise Overloaded("Come back later.", retry_after=0.01)
        newest = request.messages[-1].content[0]
        if isinstance(newest, ToolResult):
            yield TextDelta(newest.text)
            message = Message("assistant", (Text(newest.text),))
        else:
            message = Message("assistant", (ToolUse("call_1", "weather", {"city": "Delphi"}),))
        yield Done(message, "tool_use" if message.tool_uses else "end_turn", Usage(output_tokens=2), self.model)

    async def count_tokens(self, request: Request) -> TokenCount:
        return TokenCount(len(request.messages), exact=True)

    async def health_check(self) -> Health:
        return Health(True, "the oracle is in")

    async def aclose(self) -> None: ...


async def shorten(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages with results of one sentence."""
    return tuple(Message(message.role, tuple(map(first_sentence, message.content))) for message in messages)


def first_sentence(block: Any) -> Any:
    return ToolResult(block.tool_use_id, block.text.partition(". ")[0]) if isinstance(block, ToolResult) else block


async def test_a_provider_and_a_transform_need_the_public_names_alone(work: Path) -> None:
    oracle = Oracle()
    async with Agent(oracle, tools=[weather], cwd=work, options=AgentOptions(context_transform=shorten)) as agent:
        done = await agent.run("How is the weather?")
        (record,) = agent.turns()
    assert done.text == "It rains in Delphi"
    assert (done.cost_usd, record.metrics.retries, record.model) == (4.0, 1, "oracle/delphi")
    assert record.observations[0].result.text.startswith("It rains in Delphi. It rains")
