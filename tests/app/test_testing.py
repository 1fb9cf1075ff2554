"""`agentcli.testing`: the scripted model with which programs that use the library are tested."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcli import Agent, AgentFailed, AgentOptions, Message, UsageCollector, tool
from agentcli.providers import Usage
from agentcli.testing import ScriptedCall, ScriptedError, ScriptedModel, ScriptedReply

pytestmark = pytest.mark.usefixtures("library_home")


@tool
def weather(city: str) -> str:
    "Tells the weather of a city."
    return f"It rains in {city}."


async def test_texts_replies_and_functions_answer_one_request_each_and_the_requests_are_kept(work: Path) -> None:
    def repeat(messages: tuple[Message, ...]) -> ScriptedReply:
        return ScriptedReply(text=f"I was told: {messages[-1].content[0]}", usage=Usage(7, 3))

    model = ScriptedModel([ScriptedReply(tool_calls=[ScriptedCall("weather", {"city": "Oslo"})]), repeat, "Bye."])
    collector = UsageCollector()
    async with Agent(model, cwd=work, tools=[weather], options=AgentOptions(usage=collector)) as agent:
        assert "It rains in Oslo." in (await agent.run("How is the weather?")).text
        assert (await agent.run("Thanks.")).text == "Bye."
    first, _, last = model.requests
    assert first.messages[-1].text.endswith("How is the weather?")
    assert "weather" in [spec.name for spec in first.tools]
    assert first.system == last.system != ""
    assert last.messages[-1].text == "Thanks."
    assert collector.total.usage.output_tokens >= 3


@pytest.mark.parametrize("error", ["server", ScriptedError("server", message="Out of order.")])
async def test_a_reply_may_break_off_and_a_failure_that_may_pass_is_tried_again(
    work: Path, error: str | ScriptedError
) -> None:
    options = AgentOptions(settings={"retry": {"initial_delay": 0.01, "max": 1}})
    async with Agent(ScriptedModel([ScriptedReply(error=error), "Here."]), cwd=work, options=options) as agent:
        assert (await agent.run("Are you there?")).text == "Here."
    async with Agent(ScriptedModel([ScriptedReply(error=error)] * 2), cwd=work, options=options) as agent:
        with pytest.raises(AgentFailed, match="scripted server error" if error == "server" else "Out of order"):
            await agent.run("Are you there?")


async def test_a_script_that_is_used_up_or_calls_what_is_not_offered_fails_with_a_sentence(work: Path) -> None:
    async with Agent(ScriptedModel(["One."]), cwd=work) as agent:
        await agent.run("first")
        with pytest.raises(AgentFailed, match="The script has ended: it holds 1 replies"):
            await agent.run("second")
    wrong = ScriptedModel([ScriptedReply(tool_calls=[ScriptedCall("wether")])])
    async with Agent(wrong, cwd=work, tools=[weather]) as agent:
        with pytest.raises(AgentFailed, match=r"calls 'wether' \(did you mean weather\?\).*file_read"):
            await agent.run("go")
    assert len(wrong.requests) == 1


def test_a_script_of_the_command_line_is_played_as_well(work: Path) -> None:
    lines = [
        '{"text": "Ok.", "delay_ms": 1}',
        '{"tool_calls": [{"name": "weather", "input": {"city": "Rome"}}]}',
        '"So."',
    ]
    agent = Agent(ScriptedModel(map(json.loads, lines)), cwd=work, tools=[weather])
    assert [agent.run_sync(prompt).text for prompt in ("first", "second")] == ["Ok.", "So."]
