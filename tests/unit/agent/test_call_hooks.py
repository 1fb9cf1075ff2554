"""Hooks around calls, and the entries about questions and answers."""

from __future__ import annotations

from pathlib import Path as Folder
from typing import Any

from agentcli.agent.events import QuestionEvent
from agentcli.agent.interfaces import CallRecord, HookAnswer
from agentcli.agent.ops import Approve, SetAttended
from agentcli.conversation.entries import CallAllowed, CallAsked, CallDenied, Result
from agentcli.llm.messages import ToolResult
from tests.unit.agent.stage import Stage, Works, call, on_stage

END = {"text": "Done."}


class Answering:
    """A call hook that answers every call alike."""

    def __init__(self, answer: HookAnswer | None = None, after: str = "") -> None:
        self.answer = answer
        self.after = after
        self.inputs: list[dict[str, Any]] = []

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        self.inputs.append(input)
        return self.answer

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        return self.after


async def hooked(folder: Folder, *hooks: Answering, **how: Any) -> Stage:
    """A stage on which one edit, which the mode asks about, ran or did not under these hooks."""
    works = Works()
    replies = [{"tool_calls": [call("works", "given", id="c")]}, END]
    async with on_stage(folder, replies, tools=[works.tool("works", "edit")], **how) as stage:
        stage.session.runtime.calls.services.hooks = hooks
        await stage.ask("Go")
    return stage


async def test_a_hook_may_allow_what_would_ask(tmp_path: Folder) -> None:
    stage = await hooked(tmp_path, Answering(HookAnswer("allow")))
    assert stage.results["c"].content == "did given"


async def test_a_hook_allows_nothing_that_a_rule_denies(tmp_path: Folder) -> None:
    stage = await hooked(tmp_path, Answering(HookAnswer("allow")), deny=["works"])
    assert stage.results["c"].is_error
    assert "did" not in str(stage.results["c"].content)


async def test_a_hook_may_deny_with_its_reason_and_any_later_one_over_an_allow(tmp_path: Folder) -> None:
    stage = await hooked(
        tmp_path, Answering(HookAnswer("allow")), Answering(HookAnswer("deny", "Not on Fridays.")), mode="acceptEdits"
    )
    assert stage.results["c"].content == "permission_denied: Not on Fridays."


async def test_a_hook_may_ask_about_what_the_mode_lets_through(tmp_path: Folder) -> None:
    ask = Answering(HookAnswer("ask", "look at this one"))
    stage = await hooked(tmp_path, ask, Answering(HookAnswer("allow")), mode="bypassPermissions")
    assert stage.results["c"].content == "permission_denied: look at this one, and no one can approve it."


async def test_each_hook_sees_the_arguments_as_the_one_before_left_them(tmp_path: Folder) -> None:
    first, second = Answering(HookAnswer(input={"name": "changed"})), Answering()
    stage = await hooked(tmp_path, first, second, mode="acceptEdits")
    assert (first.inputs, second.inputs) == ([{"name": "given"}], [{"name": "changed"}])
    assert stage.results["c"].content == "did changed"


async def test_context_added_by_hooks_reaches_the_model_with_the_result(tmp_path: Folder) -> None:
    hook = Answering(HookAnswer(context="The build is red."), after="Run the linter next.")
    stage = await hooked(tmp_path, hook, mode="acceptEdits")
    told = str(stage.provider.requests[-1].messages[-1])
    assert "did given" in told
    assert told.index("The build is red.") < told.index("Run the linter next.")


async def test_a_question_and_its_answer_are_entries_and_so_is_a_refusal(tmp_path: Folder) -> None:
    calls = [call("bash", command=f"touch {name}", id=name) for name in ("yes", "no", "refused")]
    replies = [{"tool_calls": calls}, END]
    async with on_stage(tmp_path, replies, can_ask=True, deny=["bash(touch refused)"]) as stage:
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(Approve("yes", True))
        await stage.heard(QuestionEvent, 2)
        stage.submit(Approve("no", False, comment="not that"))
        await stage.ended()
    kinds = (CallAsked, CallAllowed, CallDenied)
    told = [entry.body for entry in stage.entries if isinstance(entry.body, kinds)]
    assert [(type(body), body.id) for body in told] == [
        (CallAsked, "yes"), (CallAllowed, "yes"), (CallAsked, "no"), (CallDenied, "no"), (CallDenied, "refused"),
    ]  # fmt: skip
    assert isinstance(told[3], CallDenied)
    assert told[3].why == "not that"


async def test_a_call_whose_question_nobody_answered_did_not_run_and_the_model_is_informed(tmp_path: Folder) -> None:
    calls = [call("bash", command=f"touch {name}", id=name) for name in ("a", "b")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END], can_ask=True) as stage:
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(Approve("a", True))
        await stage.heard(QuestionEvent, 2)
        stored = [entry for entry in stage.entries if not isinstance(entry.body, Result)]  # the program dies here
    async with on_stage(tmp_path, [END], entries=stored) as stage:
        await stage.ask("And now?")
    assert "may have partially run" in str(stage.results["a"].content)
    assert "agentcli exited before the user approved" in str(stage.results["b"].content)


async def test_when_nobody_attends_any_more_questions_are_refused(tmp_path: Folder) -> None:
    calls = [call("bash", command=f"touch {name}", id=name) for name in ("a", "b")]
    async with on_stage(tmp_path, [{"tool_calls": calls}, END, {"tool_calls": calls}, END], can_ask=True) as stage:
        stage.say("Go")
        await stage.heard(QuestionEvent)
        stage.submit(SetAttended(False))
        await stage.ended()
        assert all("no one can approve it" in str(result.content) for result in stage.results.values())
        stage.submit(SetAttended(True))
        stage.say("Again")
        await stage.heard(QuestionEvent, 2)
