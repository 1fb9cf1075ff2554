"""`from agentcli import Agent`: the library's front door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from agentcli import Agent, AgentFailed
from agentcli.agent.events import (
    ApprovalRequested,
    ClientResult,
    ClientToolRequested,
    Done,
    EntryStored,
    TextDelta,
    ToolFinished,
)
from agentcli.agent.hooks import NoHooks
from agentcli.errors import ConfigError, ToolError, UsageError, UserError
from agentcli.llm.messages import Usage
from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import Tool, ToolContext, ToolOutput
from tests.app.running import call

MakeModel = Callable[..., str]
ASKS = {"tool_calls": [call("bash", command="touch made")]}
SEEN = {"text": "So: {{last_result}}"}
LATE = {"text": "late", "delay_ms": 10_000}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "DEEPSEEK_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def model(tmp_path: Path) -> MakeModel:
    def make(*replies: dict[str, Any]) -> str:
        (tmp_path / "script.jsonl").write_text("".join(json.dumps(reply) + "\n" for reply in replies))
        return f"scripted/{tmp_path / 'script.jsonl'}"

    return make


def test_a_prompt_is_answered_without_an_event_loop(model: MakeModel, work: Path) -> None:
    done = Agent(model({"text": "It prints hi.", "usage": {"input_tokens": 3}}), cwd=work).run_sync("what is a.py?")
    assert done == Done("It prints hi.", 1, Usage(3), "end_turn", 0.0)


async def test_a_conversation_goes_on_from_prompt_to_prompt(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "One."}, {"text": "Two."}), cwd=work) as agent:
        assert (await agent.run("first")).text == "One."
        assert (await agent.run("second")).text == "Two."
        session = await agent.session()
        provider, _ = await session.runtime.resolve(session.state)
    assert [message.role for message in provider.requests[1].messages] == ["user", "assistant", "user"]


async def test_nothing_is_stored(model: MakeModel, work: Path, tmp_path: Path) -> None:
    async with Agent(model({"text": "One."}), cwd=work) as agent:
        await agent.run("first")
    assert not (tmp_path / "home" / "state" / "sessions.db").exists()


async def test_the_events_of_an_answer_can_be_followed(model: MakeModel, work: Path) -> None:
    (work / "a.txt").write_text("blue\n")
    replies = ({"tool_calls": [call("file_read", path="a.txt")]}, {"text": "It is blue.", "chunk": 4})
    async with Agent(model(*replies), cwd=work) as agent:
        events = [event async for event in agent.stream("what is in a.txt?")]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "It is blue."
    assert [event.result.content for event in events if isinstance(event, ToolFinished)] == ["1\tblue"]
    assert any(isinstance(event, EntryStored) for event in events)
    assert isinstance(events[-1], Done)


async def test_a_file_that_is_named_comes_with_the_prompt(model: MakeModel, work: Path) -> None:
    (work / "a.txt").write_text("blue\n")
    async with Agent(model({"text": "ok"}), cwd=work) as agent:
        await agent.run("what is in @a.txt?")
        session = await agent.session()
        provider, _ = await session.runtime.resolve(session.state)
    assert '<file path="a.txt">\n1\tblue\n</file>' in provider.requests[0].messages[0].text


async def test_a_failure_is_raised_and_the_agent_goes_on(model: MakeModel, work: Path) -> None:
    broken = {"text": "Half", "error": {"kind": "connection", "message": "The line went dead."}}
    async with Agent(model(broken, {"text": "Back."}), cwd=work) as agent:
        with pytest.raises(AgentFailed, match="The line went dead") as failed:
            await agent.run("first")
        assert failed.value.is_retryable
        assert (await agent.run("second")).text == "Back."


async def test_without_anybody_to_ask_a_call_is_denied(model: MakeModel, work: Path) -> None:
    async with Agent(model(ASKS, SEEN), cwd=work) as agent:
        assert "nobody can be asked" in (await agent.run("go")).text
    assert not (work / "made").exists()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_callback_decides_what_may_run(model: MakeModel, work: Path, allowed: bool) -> None:
    asked: list[ApprovalRequested] = []

    async def approve(request: ApprovalRequested) -> bool:
        asked.append(request)
        return allowed

    async with Agent(model(ASKS, SEEN), cwd=work, approve=approve) as agent:
        await agent.run("go")
    assert [request.preview for request in asked] == ["touch made"]
    assert (work / "made").exists() is allowed


async def test_a_callback_that_fails_ends_the_prompt_and_lets_nothing_run(model: MakeModel, work: Path) -> None:
    async def approve(request: ApprovalRequested) -> bool:
        raise RuntimeError("no window to ask in")

    async with Agent(model(ASKS, {"text": "Back."}), cwd=work, approve=approve) as agent:
        with pytest.raises(RuntimeError, match="no window"):
            await agent.run("go")
        assert (await agent.run("again")).text == "Back."
    assert not (work / "made").exists()


async def test_a_permission_mode_and_settings_are_taken(model: MakeModel, work: Path) -> None:
    agent = Agent(
        model(ASKS, SEEN), cwd=work, permission_mode="bypassPermissions", settings={"limits": {"max_turns": 1}}
    )
    async with agent:
        done = await agent.run("go")
    assert done.reason == "max_turns"
    async with Agent(model(ASKS, SEEN), cwd=work, permission_mode="bypassPermissions") as agent:
        await agent.run("go")
    assert (work / "made").exists()


class Weather(Struct, frozen=True):
    city: str
    days: int = 1


async def weather(given: Weather, context: ToolContext) -> ToolOutput:
    if given.city == "Atlantis":
        raise ToolError("There is no Atlantis: ask for a city above the sea.", kind="not_found")
    return ToolOutput(f"{given.days} days of sun in {given.city}, seen from {context.workspace.cwd.name}")


async def test_a_tool_of_one_s_own_is_described_and_run(model: MakeModel, work: Path) -> None:
    tool = Tool("weather", "Tells the weather.", Weather, weather, "read", source="mine")
    calls = [call("weather", city="Rome", days=3), call("weather", city="Atlantis"), call("weather")]
    async with Agent(model({"tool_calls": calls}, {"text": "ok"}), cwd=work, tools=[tool]) as agent:
        await agent.run("how is it?")
        session = await agent.session()
        provider, _ = await session.runtime.resolve(session.state)
    spec = provider.requests[0].tools[-1]
    assert (spec.name, spec.description) == ("weather", "Tells the weather.")
    assert spec.input_schema == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }
    sunny, wet, wrong = (block.content for block in provider.requests[1].messages[-1].content)
    assert sunny == "3 days of sun in Rome, seen from work"
    assert wet == "not_found: There is no Atlantis: ask for a city above the sea."
    assert "It takes city, days?" in wrong


async def test_a_tool_brought_with_a_prompt_is_run_by_the_caller(model: MakeModel, work: Path) -> None:
    spec = ToolSpec("weather", "Tells the weather.", {"type": "object", "properties": {"city": {"type": "string"}}})
    async with Agent(model({"tool_calls": [call("weather", city="Rome")]}, SEEN), cwd=work) as agent:
        session = await agent.session()
        async for event in agent.stream("how is it?", tools=[spec]):
            if isinstance(event, ClientToolRequested):
                [asked] = event.calls
                session.submit(ClientResult(asked.id, f"sun in {asked.input['city']}"))
    assert isinstance(event, Done)
    assert event.text == "So: sun in Rome"


def test_two_tools_of_one_name_are_refused(model: MakeModel, work: Path) -> None:
    tool = Tool("bash", "Mine.", Weather, weather, "read", source="mine")
    with pytest.raises(UsageError, match="two tools named 'bash'"):
        Agent(model({"text": "ok"}), cwd=work, tools=[tool]).run_sync("go")


async def test_hooks_look_in_and_may_end_a_turn(model: MakeModel, work: Path) -> None:
    class Once(NoHooks):
        turns = 0

        async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
            self.turns += 1
            return turn < 2

    hooks = Once()
    looking = {"text": "Looking.", "tool_calls": [call("think", thought="Hm.")]}
    async with Agent(model(looking, looking, {"text": "never"}), cwd=work, hooks=hooks) as agent:
        done = await agent.run("go")
    assert (done.reason, done.turns, hooks.turns) == ("stopped", 2, 2)


async def test_a_system_text_of_one_s_own_is_used(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "ok"}), cwd=work, system_prompt="You are a poet.") as agent:
        await agent.run("go")
        session = await agent.session()
        provider, _ = await session.runtime.resolve(session.state)
    assert provider.requests[0].system == "You are a poet."


async def test_a_prompt_that_is_given_up_is_interrupted_and_the_next_gets_its_own_answer(
    model: MakeModel, work: Path
) -> None:
    async with Agent(model(LATE, {"text": "Second."}), cwd=work) as agent:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(agent.run("first"), 0.05)
        assert not (await agent.session()).is_busy
        assert (await agent.run("second")).text == "Second."


async def test_a_stream_that_nobody_follows_to_its_end_is_interrupted(model: MakeModel, work: Path) -> None:
    async with Agent(model(LATE, {"text": "Second."}), cwd=work) as agent:
        stream = agent.stream("first")
        await anext(stream)
        await stream.aclose()
        assert not (await agent.session()).is_busy
        assert (await agent.run("second")).text == "Second."


async def test_prompts_given_at_once_get_their_own_answers(model: MakeModel, work: Path) -> None:
    replies = [{"text": f"Answer {n}.", "delay_ms": 5} for n in range(3)]
    async with Agent(model(*replies), cwd=work) as agent:
        answers = await asyncio.gather(*(agent.run(f"{n}") for n in range(3)))
    assert [answer.text for answer in answers] == ["Answer 0.", "Answer 1.", "Answer 2."]


def test_two_agents_live_side_by_side(model: MakeModel, work: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"text": "Other."}\n')

    async def both() -> list[Done]:
        async with Agent(model({"text": "One."}), cwd=work) as one, Agent(f"scripted/{other}", cwd=work) as two:
            return await asyncio.gather(one.run("a"), two.run("b"))

    assert [done.text for done in asyncio.run(both())] == ["One.", "Other."]


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"model": "claude"}, UsageError, "PROVIDER/MODEL"),
        ({"model": "scripted/missing"}, UserError, "missing"),
        ({}, UsageError, "agentcli local install"),
        ({"model": "a/b", "permission_mode": "yolo"}, ConfigError, "permissions.mode"),
        ({"model": "a/b", "settings": {"limits": {"max_turns": 0}}}, ConfigError, "limits.max_turns"),
        ({"model": "a/b", "settings": {"limit": {}}}, ConfigError, "limit"),
    ],
)
def test_what_is_wrong_is_raised_with_what_to_do(how: Any, error: type[Exception], says: str, work: Path) -> None:
    with pytest.raises(error) as raised:
        Agent(**how, cwd=work).run_sync("go")
    assert says in str(raised.value)
