"""Programs decide about calls: `approve` allows them, with other input where it wants to, and `answer` answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions, Allow, Deny, QuestionEvent, ToolFinished, UsageError
from agentcli.agent.interfaces import CallRecord, HookAnswer
from agentcli.agent.ops import Interrupt
from agentcli.conversation.entries import CallAllowed
from agentcli.conversation.evidence.verdicts import ActivityRecord
from agentcli.errors import ToolError
from agentcli.events import Question
from agentcli.llm.messages import ToolResult
from tests.app.conftest import MakeModel
from tests.app.running import Place, call

Approve = Callable[[QuestionEvent], Any]

TOUCH = {"tool_calls": [call("bash", command="touch made")]}
WRITE = {"tool_calls": [call("file_write", path="notes.txt", content="milk\n")]}
SEEN = {"text": "So: {{last_result}}"}
NO_TRY = AgentOptions(settings={"permissions": {"try": False}})

pytestmark = pytest.mark.usefixtures("library_home")


def change(**input: Any) -> Approve:
    return lambda request: Allow(input=input)


async def finished(agent: Agent[Any]) -> ToolFinished:
    return [event async for event in agent.stream("go") if isinstance(event, ToolFinished)][-1]


async def test_a_call_runs_with_the_input_that_the_person_gave(model: MakeModel, work: Path) -> None:
    approve = change(command="touch other; echo ok")
    async with Agent(model(TOUCH, SEEN), cwd=work, approve=approve, options=NO_TRY) as agent:
        end = await finished(agent)
        log = (await agent.session()).state.conversation.path
    assert [(work / name).exists() for name in ("made", "other")] == [False, True]
    remarks = (
        '[The user changed the input: {"command":"touch other; echo ok"}]\n[changes to the workspace: 1 file created]'
    )
    assert end.result.content == f"ok\n{remarks}"
    assert end.answer == "allowed with changed input"
    allowed = [entry.body for entry in log if isinstance(entry.body, CallAllowed)]
    assert [body.input for body in allowed] == [{"command": "touch other; echo ok"}]
    assert [run.command for run in ActivityRecord(log, str(work)).calls] == ["touch other; echo ok"]


@pytest.mark.parametrize(
    ("input", "why"),
    [
        ({"command": "rm -rf /"}, "denied in every mode"),
        ({"command": "cat secret.txt"}, "denies it"),
        ({"command": 7.5}, "Expected `str`"),
        ({}, "missing required field `command`"),
    ],
)
async def test_changed_input_is_checked_like_the_models_own(
    model: MakeModel, work: Path, input: dict[str, Any], why: str
) -> None:
    rules = AgentOptions(settings={"permissions": {"try": False, "deny": ["bash(cat secret.txt)"]}})
    async with Agent(model(TOUCH, SEEN), cwd=work, approve=change(**input), options=rules) as agent:
        end = await finished(agent)
    assert end.result.is_error
    assert why in str(end.result.content)
    assert "[The user changed the input: " in str(end.result.content)


async def test_a_file_that_was_not_read_is_not_replaced_by_changed_input(model: MakeModel, work: Path) -> None:
    (work / "other.txt").write_text("keep me\n")
    for path, content in (("other.txt", "keep me\n"), ("new.txt", "milk\n")):
        approve = change(path=path, content="milk\n")
        async with Agent(model(WRITE, SEEN), cwd=work, approve=approve) as agent:
            end = await finished(agent)
        assert (work / path).read_text() == content
        assert end.result.is_error is (path == "other.txt")
    assert not (work / "notes.txt").exists()


def test_what_changed_input_wrote_is_undone(place: Place) -> None:
    with place.talk(place.script(WRITE, {"text": "done"})) as running:
        running.say("go")
        asked = running.wait_for(lambda line: line.get("subtype") == "approval_requested")
        running.control("approve", id=asked["id"], input={"path": "other.txt", "content": "x"})
        session = running.wait_for(lambda line: line["type"] == "result")["session_id"]
    assert (place.folder / "other.txt").read_text() == "x"
    place.run("undo", "--session", session, "--yes")
    assert not (place.folder / "other.txt").exists()


async def test_a_lasting_yes_to_changed_input_covers_what_ran(model: MakeModel, work: Path) -> None:
    asked: list[str] = []

    def approve(request: QuestionEvent) -> Allow:
        asked.append(request.preview)
        return Allow(input={"command": "touch other"}, remember="session")

    again = {"tool_calls": [call("bash", command="touch other")]}
    async with Agent(model(TOUCH, again, TOUCH, SEEN), cwd=work, approve=approve, options=NO_TRY) as agent:
        await agent.run("go")
    assert asked == ["touch made", "touch made"]


class Guard:
    """Denies what has `other` in it, and records what ran."""

    def __init__(self) -> None:
        self.inputs: list[dict[str, Any]] = []

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        self.inputs.append(input)
        if "other" in str(input):
            raise ToolError("a hook says no", kind="permission_denied")
        return None

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        return None


async def test_hooks_see_changed_input_and_may_deny_it(model: MakeModel, work: Path) -> None:
    guard, approve = Guard(), change(command="touch other")
    options = AgentOptions(settings=NO_TRY.settings, call_hooks=[guard])
    async with Agent(model(TOUCH, SEEN), cwd=work, approve=approve, options=options) as agent:
        end = await finished(agent)
    assert guard.inputs == [{"command": "touch made"}, {"command": "touch other"}]
    assert "a hook says no" in str(end.result.content)
    assert not (work / "other").exists()


async def test_what_a_hook_makes_of_changed_input_is_asked_about_once_more(model: MakeModel, work: Path) -> None:
    class Rewriter(Guard):
        async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
            return HookAnswer(input={"command": "touch other"}) if input["command"] == "touch mine" else None

    asked: list[str] = []
    options = AgentOptions(settings=NO_TRY.settings, call_hooks=[Rewriter()])

    def approve(request: QuestionEvent) -> Allow:
        asked.append(request.preview)
        return Allow(input={"command": "touch mine"})

    async with Agent(model(TOUCH, SEEN), cwd=work, approve=approve, options=options) as agent:
        end = await finished(agent)
    assert asked == ["touch made", "touch other"]
    assert "Its input cannot change after a dry run, or twice" in str(end.result.content)
    assert [*work.glob("*")] == []


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_no_has_a_reason_and_may_stop_the_turn(model: MakeModel, work: Path, is_async: bool) -> None:
    answers = [Deny("not here"), Deny("enough", stop=True)]

    async def approve(request: QuestionEvent) -> Deny:
        return answers.pop(0)

    def approve_now(request: QuestionEvent) -> Deny:
        return answers.pop(0)

    script = model(WRITE, TOUCH, SEEN)
    async with Agent(script, cwd=work, approve=approve if is_async else approve_now, options=NO_TRY) as agent:
        ends = [event async for event in agent.stream("go") if isinstance(event, ToolFinished)]
        done = await agent.run("and now?")
    assert [end.answer for end in ends] == ["declined: not here", "declined: enough"]
    assert done.text.startswith("So: ")


@pytest.mark.parametrize(
    "answer", [None, "x", Allow(hunks=(7,)), Allow(input={"path": "a", "content": ""}, hunks=(0,))]
)
async def test_an_answer_that_fits_no_question_denies_and_is_raised(
    model: MakeModel, work: Path, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with Agent(model(WRITE, {"text": "Back."}), cwd=work, approve=lambda request: answer) as agent:
        if answer == "x":  # deprecated: a yes with a comment
            with pytest.deprecated_call():
                await agent.run("go")
            assert (work / "notes.txt").exists()
            return
        with pytest.raises(UsageError), caplog.at_level(logging.ERROR, "agentcli"):
            await agent.run("go")
        assert (await agent.run("again")).text == "Back."
    assert "a callback failed; the call was denied: Write notes.txt" in caplog.text
    assert not (work / "notes.txt").exists()


async def test_an_error_in_a_callback_denies_the_call_and_is_raised_by_call_tool_too(
    model: MakeModel, work: Path
) -> None:
    def approve(request: QuestionEvent) -> bool:
        raise RuntimeError("no window to ask in")

    async with Agent(model(WRITE, SEEN), cwd=work, approve=approve) as agent:
        with pytest.raises(RuntimeError, match="no window"):
            await agent.run("go")
        with pytest.raises(RuntimeError, match="no window"):
            await agent.call_tool("file_write", {"path": "notes.txt", "content": ""})
        results = [result async for result in agent.stream("What happened?")]
    assert "the program that decides about calls failed" in results[-1].text
    assert not (work / "notes.txt").exists()


async def test_a_callback_that_never_returns_ends_with_the_turn(model: MakeModel, work: Path) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def approve(request: QuestionEvent) -> bool:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return True

    async with Agent(model(WRITE, WRITE, {"text": "Back."}), cwd=work, approve=approve) as agent:
        running = asyncio.create_task(agent.run("go"))
        await began.wait()
        (await agent.session()).submit(Interrupt())
        assert (await running).reason == "interrupted"
        assert ended.is_set()
        began.clear()
        cancelled = asyncio.create_task(agent.run("again"))
        await began.wait()
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert (await agent.run("and now?")).text == "Back."
    assert not (work / "notes.txt").exists()


@pytest.mark.parametrize("answered", ["blue", None])
async def test_questions_of_the_model_go_to_a_function_of_their_own(
    model: MakeModel, work: Path, answered: str | None
) -> None:
    def approve(request: QuestionEvent) -> bool:
        raise AssertionError(request)

    async def answer(question: Question) -> str | None:
        return answered if question.title == "Which one?" else "wrong"

    script = model({"tool_calls": [call("ask_user", question="Which one?")]}, SEEN)
    async with Agent(script, cwd=work, approve=approve, options=AgentOptions(answer=answer)) as agent:
        text = (await agent.run("go")).text
    assert text == ("So: blue" if answered else "So: The user did not answer. Decide yourself, or leave it out.")


async def test_with_answer_alone_calls_that_ask_are_denied(model: MakeModel, work: Path) -> None:
    options = AgentOptions(answer=lambda question: "yes")
    async with Agent(model(WRITE, SEEN), cwd=work, options=options) as agent:
        done = await agent.run("go")
    assert "no one can approve it" in done.text
    assert [denial.call.name for denial in done.denials] == ["file_write"]
