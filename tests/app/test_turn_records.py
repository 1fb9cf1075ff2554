"""Records of turns and metrics of calls, in the library and of the stored sessions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentcli import Agent, AgentFailed, AgentOptions, UsageCollector, tool
from agentcli.providers import Usage
from agentcli.testing import ScriptedCall, ScriptedModel, ScriptedReply
from tests.app.running import Place, call


@tool
def weather(city: str) -> str:
    "Tells the weather of a city."
    return f"It rains in {city}."


def asks_about(city: str) -> ScriptedReply:
    return ScriptedReply(
        thinking="They want the weather.",
        text="Let me look.",
        tool_calls=[ScriptedCall("weather", {"city": city})],
        usage=Usage(100, 20, cost_usd=0.5),
        delay_ms=20,
    )


@pytest.mark.usefixtures("library_home")
async def test_a_turn_has_a_record_of_thoughts_calls_observations_answer_and_what_it_took(work: Path) -> None:
    last = ScriptedReply(text="Take an umbrella.", usage=Usage(200, 10, cost_usd=0.25))
    model = ScriptedModel([asks_about("Oslo"), ScriptedReply(error="overloaded"), last, "Bye."])
    options = AgentOptions(settings={"retry": {"initial_delay": 0.01}})
    async with Agent(model, cwd=work, tools=[weather], options=options) as agent:
        assert agent.turns() == []
        await agent.run("How is the weather?")
        await agent.run("Thanks.")
        first, second = agent.turns()
    assert (first.prompt, first.answer, first.model) == ("How is the weather?", "Take an umbrella.", "scripted/script")
    assert first.thoughts == ["They want the weather.", "Let me look."]
    assert [(use.name, use.input) for use in first.calls] == [("weather", {"city": "Oslo"})]
    assert [seen.result.text for seen in first.observations] == ["It rains in Oslo."]
    assert first.observations[0].result.tool_use_id == first.calls[0].id
    took = first.metrics
    assert (took.requests, took.retries, took.cost_usd) == (2, 1, 0.75)
    assert (took.usage.input_tokens, took.usage.output_tokens) == (300, 30)
    assert took.first_token_s is not None
    assert 0.02 <= took.first_token_s < took.latency_s
    assert (second.prompt, second.answer, second.calls, second.thoughts) == ("Thanks.", "Bye.", [], [])


@pytest.mark.usefixtures("library_home")
async def test_an_answer_of_several_replies_is_one_answer_and_a_turn_that_failed_keeps_its_part(work: Path) -> None:
    cut, broken = (
        ScriptedReply(text="Take an ", stop_reason="max_tokens"),
        ScriptedReply(text="So ", error="connection"),
    )
    async with Agent(ScriptedModel([cut, "umbrella.", broken, "Bye."]), cwd=work) as agent:
        assert (await agent.run("How is the weather?")).text == "Take an umbrella."
        with pytest.raises(AgentFailed):
            await agent.run("And now?")
        await agent.run("Bye.")
    assert [record.answer for record in agent.turns()] == ["Take an umbrella.", "So ", "Bye."]
    assert [record.thoughts for record in agent.turns()] == [[], [], []]


@pytest.mark.usefixtures("library_home")
def test_the_records_outlast_the_event_loop_and_go_with_the_conversation(work: Path) -> None:
    agent = Agent(ScriptedModel(["One.", "Two.", "Three."]), cwd=work)
    for prompt in ("first", "second"):
        agent.run_sync(prompt)
    assert [(record.prompt, record.answer) for record in agent.turns()] == [("first", "One."), ("second", "Two.")]

    async def begin_again() -> None:
        await agent.session()
        await agent.reset()
        assert agent.turns() == []
        await agent.run("third")
        await agent.close()

    asyncio.run(begin_again())
    assert [record.answer for record in agent.turns()] == ["Three."]


@pytest.mark.slow
def test_a_stored_session_is_shown_with_its_turns_and_usage_counts_calls_and_skills(place: Place) -> None:
    folder = place.home / "skills/umbrellas"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: umbrellas\ndescription: Lends umbrellas.\n---\n\nLend one.\n")
    (place.folder / "a.txt").write_text("blue\n")
    calls = {
        "tool_calls": [call("skill", name="umbrellas"), call("file_read", path="a.txt"), call("file_read", path="b")]
    }
    ran = place.run("-m", place.script(calls, {"text": "Here."}), "-p", "Lend me one.", "--output-format", "json")
    place.run("-m", place.script({"text": "Nothing."}), "-p", "Hello?")
    id = ran.result["session_id"]
    (turn,) = json.loads(place.run("sessions", "show", id, "--json").out)["turns"]
    assert (turn["prompt"], turn["answer"], turn["skills"]) == ("Lend me one.", "Here.", ["umbrellas"])
    assert [made["name"] for made in turn["calls"]] == ["skill", "file_read", "file_read"]
    assert [seen["result"].get("is_error", False) for seen in turn["observations"]] == [False, False, True]
    assert "blue" in turn["observations"][1]["result"]["content"]
    assert turn["metrics"]["requests"] == 2
    whole, one = (json.loads(place.run("usage", "--json", *flags).out) for flags in ((), ("--session", id)))
    assert [report["total"]["turns"] for report in (whole, one)] == [2, 1]
    for total in (whole["total"], one["total"], one["sessions"][0]):
        assert total["skills"] == {"umbrellas": 1}
        assert (total["calls"]["calls"], total["calls"]["errors"]) == (3, {"ENOENT": 1})
        assert total["calls"]["mean_tokens"] == round(total["calls"]["tokens"] / 3, 1) > 0
    assert "mean_tokens" in whole["tools"][0]
    assert "skill umbrellas 1×" in place.run("usage").out.splitlines()[-1]


@pytest.mark.usefixtures("library_home")
async def test_a_collector_of_several_agents_adds_up_their_calls(work: Path) -> None:
    collector = UsageCollector()
    for city in ("Oslo", "Rome"):
        async with Agent(
            ScriptedModel([asks_about(city), "So."]), cwd=work, tools=[weather], options=AgentOptions(usage=collector)
        ) as agent:
            await agent.run("How is the weather?")
    report = collector.report()
    assert (report["total"]["calls"]["calls"], report["total"]["rounds"]) == (2, 4)
    assert [row["calls"]["calls"] for row in report["sessions"]] == [1, 1]
