"""`from agentcli import Agent`: the library's front door."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

import agentcli
from agentcli import Agent, AgentFailed, AgentOptions, Settings, tool
from agentcli.agent.events import ClientToolRequested, Done, EntryStored, QuestionEvent, TextDelta, ToolFinished
from agentcli.agent.events import Compaction as Compacted
from agentcli.agent.interfaces import CallRecord, HookAnswer, NoHooks
from agentcli.agent.ops import ClientResult
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Compaction
from agentcli.errors import ConfigError, ToolError, UsageError, UserError
from agentcli.llm.messages import Message, ToolResult, Usage
from agentcli.llm.provider import ToolSpec
from agentcli.settings.structs import LimitSettings
from agentcli.tools.tool import Tool, ToolContext, ToolOutput
from agentcli.tools.workspace import SearchResult
from tests.app.conftest import MakeModel
from tests.app.running import call
from tests.conformance.confining import confinement_for
from tests.conformance.replies import chat_reply
from tests.conformance.servers import chat_server, json_reply

ASKS = {"tool_calls": [call("bash", command="touch made")]}
SEEN = {"text": "So: {{last_result}}"}
LATE = {"text": "late", "delay_ms": 10_000}


pytestmark = pytest.mark.usefixtures("library_home")


def test_a_prompt_is_answered_without_an_event_loop(model: MakeModel, work: Path) -> None:
    done = Agent(model({"text": "It prints hi.", "usage": {"input_tokens": 3}}), cwd=work).run_sync("what is a.py?")
    assert done == Done("It prints hi.", 1, Usage(3), "end_turn", 0.0)


def test_a_conversation_continues_without_an_event_loop_and_in_a_new_one(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [chat_reply("One."), json_reply({"error": {"message": "No."}}, 400), *map(chat_reply, ("Two.", "Three."))]
    with chat_server(replies) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        agent, other = (Agent("openai/test-model", cwd=work) for _ in range(2))
        assert agent.run_sync("first").text == "One."
        with pytest.raises(AgentFailed):
            other.run_sync("beside it")
        assert asyncio.run(agent.run("second")).text == "Two."
        assert agent.run_sync("third").text == "Three."
        said = [message["content"].rpartition("\n")[2] for message in server.requests[3].json["messages"]]
    assert said[-5:] == ["first", "One.", "second", "Two.", "third"]


async def test_a_conversation_continues_from_prompt_to_prompt(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "One."}, {"text": "Two."}), cwd=work) as agent:
        assert (await agent.run("first")).text == "One."
        assert (await agent.run("second")).text == "Two."
        session = await agent.session()
        provider, _ = await session.runtime.models.resolve(session.state)
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
        provider, _ = await session.runtime.models.resolve(session.state)
    assert '<file path="a.txt">\n1\tblue\n</file>' in provider.requests[0].messages[0].text


async def test_a_failure_is_raised_and_the_agent_continues(model: MakeModel, work: Path) -> None:
    broken = {"text": "Half", "error": {"kind": "connection", "message": "The line went dead."}}
    async with Agent(model(broken, {"text": "Back."}), cwd=work) as agent:
        with pytest.raises(AgentFailed, match="The line went dead") as failed:
            await agent.run("first")
        assert failed.value.is_retryable
        assert (await agent.run("second")).text == "Back."


async def test_without_anybody_to_ask_a_call_is_denied(model: MakeModel, work: Path) -> None:
    async with Agent(model(ASKS, SEEN), cwd=work) as agent:
        assert "no one can approve them" in (await agent.run("go")).text
    assert not (work / "made").exists()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_callback_decides_what_may_run(model: MakeModel, work: Path, allowed: bool) -> None:
    asked: list[QuestionEvent] = []

    async def approve(request: QuestionEvent) -> bool:
        asked.append(request)
        return allowed

    settings = {"permissions": {"try": False}}
    async with Agent(model(ASKS, SEEN), cwd=work, approve=approve, options=AgentOptions(settings=settings)) as agent:
        await agent.run("go")
    assert [request.preview for request in asked] == ["touch made"]
    assert (work / "made").exists() is allowed


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_callback_decides_what_stays_of_what_a_command_made(
    model: MakeModel, work: Path, allowed: bool
) -> None:
    asked: list[QuestionEvent] = []

    async def approve(request: QuestionEvent) -> bool:
        asked.append(request)
        return allowed

    confinement_for(f"bubblewrap, {'root' if os.getuid() == 0 else 'user'}")  # else nothing is tried
    async with Agent(model(ASKS, SEEN), cwd=work, approve=approve) as agent:
        await agent.run("go")
    assert [[change.name for change in request.changes] for request in asked] == [["made"]]
    assert (work / "made").exists() is allowed


async def test_a_callback_that_fails_ends_the_prompt_and_lets_nothing_run(model: MakeModel, work: Path) -> None:
    async def approve(request: QuestionEvent) -> bool:
        raise RuntimeError("no window to ask in")

    async with Agent(model(ASKS, {"text": "Back."}), cwd=work, approve=approve) as agent:
        with pytest.raises(RuntimeError, match="no window"):
            await agent.run("go")
        assert (await agent.run("again")).text == "Back."
    assert not (work / "made").exists()


@pytest.mark.parametrize("settings", [{"limits": {"max_turns": 1}}, Settings(limits=LimitSettings(max_turns=1))])
async def test_a_permission_mode_and_settings_are_taken(
    model: MakeModel, work: Path, settings: dict[str, Any] | Settings
) -> None:
    async with Agent(
        model(ASKS, SEEN), cwd=work, permissions="bypassPermissions", options=AgentOptions(settings=settings)
    ) as agent:
        done = await agent.run("go")
    assert done.reason == "max_turns"
    async with Agent(model(ASKS, SEEN), cwd=work, permissions="bypassPermissions") as agent:
        await agent.run("go")
    assert (work / "made").exists()


class Weather(Struct, frozen=True):
    city: str
    days: int = 1


async def weather(given: Weather, context: ToolContext) -> ToolOutput:
    if given.city == "Atlantis":
        raise ToolError("There is no Atlantis: ask for a city above the sea.", kind="not_found")
    return ToolOutput(f"{given.days} days of sun in {given.city}, seen from {context.workspace.cwd.name}")


async def test_a_custom_tool_is_described_and_run(model: MakeModel, work: Path) -> None:
    tool = Tool("weather", "Tells the weather.", Weather, weather, "read", source="mine")
    calls = [call("weather", city="Rome", days=3), call("weather", city="Atlantis"), call("weather")]
    async with Agent(model({"tool_calls": calls}, {"text": "ok"}), cwd=work, tools=[tool]) as agent:
        await agent.run("how is it?")
        session = await agent.session()
        provider, _ = await session.runtime.models.resolve(session.state)
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
    async with Agent(model(looking, looking, {"text": "never"}), cwd=work, options=AgentOptions(hooks=hooks)) as agent:
        done = await agent.run("go")
    assert (done.reason, done.turns, hooks.turns) == ("stopped", 2, 2)


async def test_a_context_policy_may_compact_before_a_request_and_a_transform_changes_one(
    work: Path, model: MakeModel
) -> None:
    seen: list[tuple[Message, ...]] = []

    async def policy(conversation: Conversation, **about: Any) -> Compaction | None:
        if len(conversation.messages) < 3 or any(isinstance(entry.body, Compaction) for entry in conversation.path):
            return None
        newest = conversation.path[-1].id
        return Compaction(carried="They said one and two.", first_kept=newest, tokens_before=900, tokens_after=90)

    async def transform(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        seen.append(messages)
        return messages

    async with Agent(
        model({"text": "One."}, {"text": "Two."}, {"text": "Three."}),
        cwd=work,
        options=AgentOptions(context_policy=policy, context_transform=transform),
    ) as agent:
        for prompt in ("one", "two", "three"):
            events = [event async for event in agent.stream(prompt)]
            if prompt == "two":
                assert [(e.tokens_before, e.tokens_after) for e in events if isinstance(e, Compacted)] == [(900, 90)]
    assert "two" in seen[1][-1].text
    assert "one" not in "".join(message.text for message in seen[1][:1]).replace("They said one and two.", "")
    assert [message.text for message in seen[2]] == ["They said one and two.two", "Two.", "three"]


async def test_call_hooks_and_locks_of_the_caller_are_used(work: Path, model: MakeModel) -> None:
    class Refusing:
        async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer:
            return HookAnswer("deny", f"No {record.tool} by {record.caller}.")

        async def after_call(self, record: CallRecord, result: ToolResult) -> None:
            pass

    async with Agent(model(ASKS, SEEN), cwd=work, options=AgentOptions(call_hooks=[Refusing()])) as agent:
        assert (await agent.run("go")).text == "So: permission_denied: No bash by main."


async def test_a_custom_system_prompt_is_used(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "ok"}), cwd=work, instructions="You are a poet.") as agent:
        await agent.run("go")
        session = await agent.session()
        provider, _ = await session.runtime.models.resolve(session.state)
    assert provider.requests[0].system == "You are a poet."


async def test_a_prompt_that_is_given_up_is_interrupted_and_the_next_gets_its_own_answer(
    model: MakeModel, work: Path
) -> None:
    async with Agent(model(LATE, {"text": "Second."}), cwd=work) as agent:
        session = await agent.session()
        provider, _ = await session.runtime.models.resolve(session.state)
        first = asyncio.create_task(agent.run("first"))
        while not provider.requests:
            await asyncio.sleep(0.01)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not session.is_busy
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
        messages = (await agent.session()).snapshot().conversation.messages
    assert [message.role for message in messages] == ["user", "assistant"] * 3
    given = {prompt.text[-1]: answer.text for prompt, answer in zip(messages[::2], messages[1::2], strict=True)}
    assert [answer.text for answer in answers] == [given[f"{n}"] for n in range(3)]
    assert sorted(given.values()) == ["Answer 0.", "Answer 1.", "Answer 2."]


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
        ({"model": "a/b", "permissions": "yolo"}, ConfigError, "permissions.mode"),
        ({"options": AgentOptions(settings={"limits": {"max_turns": 0}})}, ConfigError, "limits.max_turns"),
        ({"options": AgentOptions(settings={"limit": {}})}, ConfigError, "limit"),
    ],
)
def test_what_is_wrong_is_raised_with_what_to_do(how: Any, error: type[Exception], says: str, work: Path) -> None:
    with pytest.raises(error) as raised:
        Agent(**how, cwd=work).run_sync("go")
    assert says in str(raised.value)


# Tools of the caller's own functions.


@tool
def add(a: int, b: int = 1) -> str:
    """Adds two numbers."""
    return f"{a + b}"


@tool(name="look_up", description="Looks a name up.")
async def find(name: str, context: ToolContext) -> dict[str, str]:
    context.emit("looking")
    return {"name": name, "cwd": context.workspace.cwd.name}


async def results(agent_model: str, work: Path, tools: list[Any], **how: Any) -> dict[str, str]:
    """The contents of the results of one prompt, by the name of their call."""
    async with Agent(agent_model, cwd=work, tools=tools, **how) as agent:
        events = [event async for event in agent.stream("go")]
    assert isinstance(events[-1], Done), events[-1]
    ended = [event for event in events if isinstance(event, ToolFinished)]
    assert all(event.result.is_error == bool(event.error_kind) for event in ended)
    return {event.result.tool_use_id: str(event.result.content) for event in ended}


async def test_functions_become_tools_sync_and_async(model: MakeModel, work: Path) -> None:
    def plain(text: str) -> None:
        """Does nothing."""

    calls = [
        {**call("add", a=2), "id": "sum"},
        {**call("look_up", name="x"), "id": "data"},
        {**call("plain", text="x"), "id": "none"},
        {**call("add"), "id": "wrong"},
    ]
    script = model({"tool_calls": calls}, {"text": "ok"})
    assert await results(script, work, [add, find, plain]) == {
        "sum": "3",
        "data": '{"name":"x","cwd":"work"}',
        "none": "",
        "wrong": "invalid_parameters: Wrong arguments for add: Object missing required field `a`. It takes a, b?.",
    }
    assert (add.name, add.description, find.name) == ("add", "Adds two numbers.", "look_up")
    assert add.spec().input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
    }
    assert list(find.spec().input_schema["properties"]) == ["name"]


async def test_a_run_that_is_sync_or_gives_text_is_taken(model: MakeModel, work: Path) -> None:
    def sync(given: Weather, context: ToolContext) -> str:
        context.emit(f"asking about {given.city}")
        return f"sun in {given.city}"

    async def text(given: Weather, context: ToolContext) -> str:
        return f"rain in {given.city} \ud800"

    tools = [Tool(name, "Tells.", Weather, run, "read") for name, run in (("sync", sync), ("text", text))]
    calls = [{**call(name, city="Rome"), "id": name} for name in ("sync", "text")]
    said = await results(model({"tool_calls": calls}, {"text": "ok"}), work, tools)
    assert said == {"sync": "sun in Rome", "text": "rain in Rome ?"}


def raising(error: BaseException) -> Callable[..., Any]:
    def fails(city: str) -> str:
        raise error

    return fails


def raising_later(error: BaseException) -> Callable[..., Any]:
    async def fails(city: str) -> str:
        raise error

    return fails


@pytest.mark.parametrize("make", [raising, raising_later])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such city"), "execution_error: fails failed: ValueError: no such city"),
        (FileNotFoundError(2, "gone"), "execution_error: fails failed: FileNotFoundError: [Errno 2] gone"),
        (TimeoutError(), "timeout: fails failed: TimeoutError"),
        (SystemExit(3), "execution_error: fails failed: SystemExit: 3"),
        (asyncio.CancelledError(), "execution_error: fails failed: CancelledError"),
        (StopIteration(), "execution_error: fails failed: "),
        (ToolError("Ask for another.", kind="not_found"), "not_found: Ask for another."),
    ],
)
async def test_any_exception_of_a_tool_becomes_a_result(
    model: MakeModel,
    work: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    make: Callable[[BaseException], Any],
    error: BaseException,
    said: str,
) -> None:
    calls = [{**call("fails", city="Rome"), "id": "a"}, {**call("add", a=1), "id": "b"}]
    found = await asyncio.wait_for(results(model({"tool_calls": calls}, {"text": "ok"}), work, [make(error), add]), 10)
    assert found["a"].startswith(said)
    assert found["b"] == "2"
    assert ("Traceback" in caplog.text) == (not isinstance(error, ToolError))
    assert capfd.readouterr() == ("", "")


async def test_failures_around_a_tools_run_become_results_too(model: MakeModel, work: Path) -> None:
    async def run(given: Weather, context: ToolContext) -> ToolOutput:
        return ToolOutput(structured={"city": given.city})

    def broken(*given: Any) -> Any:
        raise KeyError("hm")

    async def yes(request: QuestionEvent) -> bool:
        return True

    tools = [
        Tool("shown", "Shows.", Weather, run, "none", show=broken),
        Tool("edited", "Edits.", Weather, run, "foreign", dry_run=broken),
    ]
    calls = [{**call(name, city="Rome"), "id": name} for name in ("shown", "edited")]
    said = await results(model({"tool_calls": calls}, {"text": "ok"}), work, tools, approve=yes)
    assert said == {name: f"execution_error: {name} failed: KeyError: 'hm'" for name in ("shown", "edited")}


def test_a_sync_tool_that_hangs_or_fails_keeps_nothing_waiting_and_prints_nothing(
    tmp_path: Path, model: MakeModel, work: Path
) -> None:
    script = model({"tool_calls": [call("fails"), call("hangs")]}, {"text": "{{last_result}}"})
    program = tmp_path / "program.py"
    program.write_text(
        "import time\nfrom agentcli import Agent, tool\n"
        "@tool\ndef fails() -> str:\n    raise ValueError\n"
        "@tool(time_limit_s=0.2)\ndef hangs() -> str:\n    time.sleep(60)\n    return ''\n"
        f"print(Agent({script!r}, cwd={str(work)!r}, tools=[fails, hangs]).run_sync('go').text)\n"
    )
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    assert (ran.stdout, ran.stderr) == ("timeout: hangs took longer than 0.2 s.\n", "")


def _variadic(*names: str) -> str:
    return ""


def _untyped(name) -> str:
    return ""


@pytest.mark.parametrize("function", [_variadic, _untyped, lambda: "", len])
def test_a_function_that_cannot_be_a_tool_is_refused_at_once(function: Any) -> None:
    with pytest.raises(UsageError):
        tool(function)


# Where it works, and what lies beside.


@pytest.mark.parametrize("name", ["missing", "file"])
def test_a_working_directory_that_does_not_exist_is_an_error_at_once(work: Path, name: str) -> None:
    (work / "file").write_text("")
    with pytest.raises(UsageError, match=f"Could not work in {work / name}"):
        Agent("a/b", cwd=work / name)


GIVEN_UP = "still open"


@pytest.mark.slow
async def test_a_prompt_beside_a_stream_that_nobody_reads_on_is_an_error(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "One.", "delay_ms": 100}, {"text": "Two."}), cwd=work) as agent:
        stream = agent.stream("first")
        await anext(stream)
        with pytest.raises(UsageError, match=GIVEN_UP):
            await agent.run("second")
        with pytest.raises(UsageError, match=GIVEN_UP):
            await asyncio.wait_for(agent.run("second"), 5)
        await stream.aclose()
        assert (await agent.run("second")).text == "Two."


async def test_a_prompt_beside_the_stream_of_a_task_that_has_ended_is_an_error(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "One."}, {"text": "Two."}), cwd=work) as agent:
        streams = []

        async def begin() -> None:
            streams.append(agent.stream("first"))
            await anext(streams[0])

        await asyncio.create_task(begin())
        with pytest.raises(UsageError, match=GIVEN_UP):
            await asyncio.wait_for(agent.run("second"), 5)


async def test_a_prompt_waits_for_a_stream_that_is_read_slowly(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "One.", "chunk": 1}, {"text": "Two."}), cwd=work) as agent:

        async def follow() -> str:
            text = ""
            async for event in agent.stream("first"):
                await asyncio.sleep(0.05)
                text += event.text if isinstance(event, TextDelta) else ""
            return text

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.05)
        assert (await agent.run("second")).text == "Two."
        assert await following == "One."


async def test_a_stream_that_is_left_with_its_last_event_has_ended(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "One."}, {"text": "Two."}), cwd=work) as agent:
        stream = agent.stream("first")
        async for event in stream:
            if isinstance(event, Done):
                break
        assert (await agent.run("second")).text == "Two."


# Names and types.


def test_every_name_comes_from_the_package_and_importing_it_is_cheap() -> None:
    for name in agentcli.__all__:
        assert getattr(agentcli, name) is not None
    assert set(agentcli.__all__) <= set(dir(agentcli))
    assert len(agentcli.__all__) <= 40
    program = (
        "import agentcli, sys; assert not hasattr(agentcli, '__wrapped__'); "
        "print(sorted(name for name in sys.modules if name.startswith('agentcli')))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "['agentcli', 'agentcli.version']\n"


BEFORE = {  # names that `agentcli` had itself, and where they are now
    "events": "CommandApproval HookRan LimitQuestion OutputDelta Retry SetMode SubagentEnded ThinkingDelta",
    "stores": "ConversationStore MemoryEvents PostgresSessions SqliteSessions StreamEvent StreamState readable_from",
    "hooks": "CallHooks HookAnswer MCPClient NoHooks RemoteTool Sandbox TurnHooks create_context_transform",
    "tokens": "TokenEncoder count_conversation_tokens count_tokens encoders",
    "skills": "Activation Skill SkillRegistry read_skill",
    "providers": "CacheControl Provider ToolSpec get_model_info",
}


@pytest.mark.parametrize("module", BEFORE)
def test_names_that_have_moved_are_still_found_with_a_warning(module: str) -> None:
    for name in BEFORE[module].split():
        with pytest.warns(DeprecationWarning, match=rf"agentcli\.{name} is agentcli\.{module}\.{name} now") as warned:
            old = getattr(agentcli, name)
        assert old is getattr(getattr(agentcli, module), name)
        assert warned[0].filename == __file__


def test_the_old_name_of_questions_still_works() -> None:
    with pytest.warns(DeprecationWarning, match="QuestionEvent"):
        old = agentcli.ApprovalRequested
    with pytest.warns(DeprecationWarning, match=r"agentcli\.ops is agentcli\.events now"):
        assert agentcli.ops.Steer is agentcli.Steer
    asked = agentcli.events.LimitQuestion("limit_1", "More?", reason="The limit.")
    assert isinstance(asked, old)
    assert (asked.kind, asked.call.name, asked.rules, asked.preview) == ("run", "", (), "")
    with pytest.raises(AttributeError, match="Agnet"):
        agentcli.Agnet  # noqa: B018


def test_the_old_name_of_the_line_of_an_error_still_works() -> None:
    error = agentcli.ToolError("a.txt does not exist.", kind="not_found", code="ENOENT")
    with pytest.warns(DeprecationWarning, match=r"ToolError\.line"):
        assert error.told == error.line == "not_found (ENOENT): a.txt does not exist."


SNIPPET = """
import asyncio
from agentcli import Agent, AgentFailed, QuestionEvent, Done, TextDelta, Tool, ToolContext, ToolOutput, events, tool
from msgspec import Struct

@tool
def add(a: int, b: int = 1) -> str:
    "Adds."
    return str(a + b)

@tool(name="later", effect="foreign")
async def later(text: str, context: ToolContext) -> ToolOutput:
    context.emit(text)
    return ToolOutput(text)

class City(Struct):
    city: str

def weather(given: City, context: ToolContext) -> str:
    return given.city

own: list[Tool] = [add, later, Tool("weather", "Tells.", City, weather, "read")]

def plain(text: str) -> str:
    return text

async def yes(request: QuestionEvent) -> bool:
    return bool(request.title)

async def main() -> str:
    async with Agent("anthropic/claude-sonnet-5-5", cwd=".", tools=[*own, plain], approve=yes) as agent:
        try:
            done: Done = await agent.run("go")
        except AgentFailed as failed:
            return str(failed.is_retryable)
        async for event in agent.stream("on"):
            if isinstance(event, TextDelta):
                print(event.text)
            elif isinstance(event, events.OutputDelta):
                print(event.id)
        return done.text

asyncio.run(main())
"""
WRONG = """
from agentcli import Agent, Agnet, query_sync
Agent(7)
Agent(output_type=list[int]).run_sync("go").output.append("one")
query_sync("go", output_type=int).output.upper()
"""


@pytest.mark.full
@pytest.mark.slow
def test_a_strict_type_checker_accepts_what_is_right_and_finds_what_is_wrong(tmp_path: Path) -> None:
    """As a program elsewhere sees the package: by its py.typed."""
    cache = Path(__file__).parents[2] / ".mypy_cache"
    for name, text in (("right.py", SNIPPET), ("wrong.py", WRONG)):
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "right.py", "wrong.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    lines = ran.stdout.splitlines()
    assert len(lines) == 5, ran.stdout
    assert 'has no attribute "Agnet"' in lines[0]
    assert "incompatible type" in lines[1]
    assert '"append" of "list" has incompatible type "str"; expected "int"' in lines[2]
    assert '"int" has no attribute "upper"' in lines[3]


async def test_a_stream_that_was_left_is_not_an_obstacle_to_the_next_prompt(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "one two three", "chunk": 1, "delay_ms": 5}, {"text": "Next."}), cwd=work) as agent:
        async for event in agent.stream("go"):
            if isinstance(event, TextDelta):
                break
        assert (await asyncio.wait_for(agent.run("again"), 10)).text == "Next."


async def test_a_tool_that_prompts_its_own_agent_is_an_error_and_not_waited_for(model: MakeModel, work: Path) -> None:
    agents: list[Agent] = []

    @tool
    async def ask() -> str:
        """Asks."""
        return (await agents[0].run("and you?")).text

    async with Agent(model({"tool_calls": [call("ask")]}, SEEN), cwd=work, tools=[ask]) as agent:
        agents.append(agent)
        done = await asyncio.wait_for(agent.run("go"), 10)
    assert "cannot prompt its own agent" in done.text


async def test_an_exception_that_fails_at_its_own_text_is_a_result(model: MakeModel, work: Path) -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("no")

    @tool
    def fails() -> str:
        """Fails."""
        raise Odd

    async with Agent(model({"tool_calls": [call("fails")]}, SEEN), cwd=work, tools=[fails]) as agent:
        assert "fails failed: Odd" in (await agent.run("go")).text


async def test_null_is_given_where_an_argument_may_be_none(model: MakeModel, work: Path) -> None:
    @tool
    def show(number: int | None) -> str:
        """Shows a number."""
        return f"number is {number}"

    async with Agent(model({"tool_calls": [call("show", number=None)]}, SEEN), cwd=work, tools=[show]) as agent:
        assert (await agent.run("go")).text == "So: number is None"


async def test_run_sync_within_an_event_loop_says_what_to_do(model: MakeModel, work: Path) -> None:
    with pytest.raises(UsageError, match=r"await agent\.run"):
        Agent(model({"text": "."}), cwd=work).run_sync("go")


async def test_an_agent_in_use_in_another_event_loop_is_left_alone(model: MakeModel, work: Path) -> None:
    async with Agent(model({"text": "One."}, {"text": "Two."}), cwd=work) as agent:
        await agent.run("first")
        session = await agent.session()
        with pytest.raises(UsageError, match="in another event loop"):
            await asyncio.to_thread(agent.run_sync, "beside it")
        assert (await agent.run("second")).text == "Two."
        assert await agent.session() is session


async def test_a_search_is_offered_where_the_caller_brings_what_it_asks(work: Path, model: MakeModel) -> None:
    class Shelf:
        async def search(self, query: str, max_results: int) -> list[SearchResult]:
            return [SearchResult(f"On {query}", "https://example.org/", "A page.")]

    asks = {"tool_calls": [call("web_search", query="tides")]}
    async with Agent(
        model(asks, SEEN), cwd=work, permissions="bypassPermissions", options=AgentOptions(search=Shelf())
    ) as agent:
        assert "On tides" in (await agent.run("search")).text
    async with Agent(model(asks, SEEN), cwd=work, permissions="bypassPermissions") as agent:
        assert "No tool 'web_search'" in (await agent.run("search")).text
