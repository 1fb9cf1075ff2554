"""Providers for Python programs: bundled ones that are made by name, and ones of the program's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, ConfigError, UsageError
from agentcli.llm.models import ModelInfo, Prices
from agentcli.models.choice import create_provider
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
