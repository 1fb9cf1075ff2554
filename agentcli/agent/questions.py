"""The open questions of a session, including those of the tool `ask_user`, and the delivery of their answers."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import count

from msgspec import Struct

from agentcli.agent.calls.model import NOBODY_LEFT, Call, Decide, SessionCalls
from agentcli.agent.events import AnyQuestion, ApprovalSettled, CallApproval, Emit, Question
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.modes import PolicyDecision
from agentcli.errors import ToolError, UsageError
from agentcli.llm.messages import ToolUse
from agentcli.tools.builtin.toolset import AskUser
from agentcli.tools.tool import Ask, ToolOutput


class OpenQuestion(Struct, frozen=True):
    """A question that waits for an answer; `decide_now` returns the current permissions' decision on its call."""

    event: AnyQuestion
    decide_now: Decide | None
    answer: asyncio.Future[Approve | PolicyDecision]


class Questions:
    """Publishes questions and delivers their answers; several may be open at once."""

    def __init__(self, publish: Emit) -> None:
        self._publish = publish
        self.open: dict[str, OpenQuestion] = {}  # by id

    async def ask(self, question: AnyQuestion, decide_now: Decide | None) -> Approve | PolicyDecision:
        """Publish a question and return the person's answer, or a decision of `decide_now` if that comes first."""
        answer: asyncio.Future[Approve | PolicyDecision] = asyncio.get_running_loop().create_future()
        self.open[question.id] = OpenQuestion(question, decide_now, answer)
        self._publish(question)
        try:
            return await answer
        finally:
            self.open.pop(question.id, None)

    def answer(self, id: str, answer: Approve | PolicyDecision) -> bool:
        """Deliver an answer; return False if no such question is open."""
        question = self.open.pop(id, None)
        if question is not None and not question.answer.done():  # done if its call was cancelled a moment ago
            question.answer.set_result(answer)
        return question is not None

    def settle(self, *, is_stopped: bool = False) -> None:
        """Close the questions that the current permissions decide, or all if the turn was stopped."""
        stop = PolicyDecision(outcome="deny", reason="Not run: another call was declined") if is_stopped else None
        for id, question in list(self.open.items()):
            decision = stop or (question.decide_now() if question.decide_now is not None else None)
            if decision is not None and decision.outcome != "ask":
                self.answer(id, decision)
                self._publish(ApprovalSettled(id))


def check_offered(question: AnyQuestion, answer: Approve) -> None:
    """Raise `UsageError` if a yes has something that the question does not offer: a dry run, input, or a hunk."""
    if not answer.allowed:
        return
    if answer.scope == "try" and not question.can_try:
        raise UsageError('This call has no dry run: its question says "can_try": false.')
    takes_input = isinstance(question, CallApproval) and answer.hunks is None and answer.scope != "try"
    if answer.input is not None and not takes_input:
        raise UsageError("Other input is for a call that asks to run, without hunks and without a dry run.")
    hunks = question.hunks
    if unknown := [number for number in answer.hunks or () if not 0 <= number < len(hunks)]:
        offered = f"hunks 0 to {len(hunks) - 1}" if hunks else "no hunks; leave hunks out"
        raise UsageError(f"There is no hunk {unknown[0]}: this question has {offered}.")


def make_ask(calls: SessionCalls, call: Call | None = None) -> Ask:
    """Return a function that asks the person, during a call or outside of calls. It returns None without an answer."""
    numbers = count(1)  # for ids, because there may be several questions during one call

    async def ask(question: str, options: Sequence[str]) -> str | None:
        if calls.ask is None:
            return None
        id = f"{call.use.id if call else 'question'}-{next(numbers)}"
        use = call.use if call else ToolUse(id, "ask_user", {"question": question, "options": list(options)})
        with call.report.excluded_from_duration() if call else nullcontext():
            answer = await calls.ask(Question(id, question, call=use, options=tuple(options)), None)
        return answer.comment if isinstance(answer, Approve) and answer.allowed else None

    return ask


_NOBODY = "No one can answer here. Decide yourself, and state your assumption in your answer."


async def answer_ask_user(call: Call, arguments: AskUser) -> ToolOutput:
    """Run a call of `ask_user`. Raises `ToolError`."""
    if not arguments.question.strip():
        raise ToolError("The question is empty.", kind="invalid_parameters")
    question = Question(call.use.id, arguments.question.strip(), call=call.use, options=arguments.options or ())
    answer = await call.ask(question, decide_now=None)
    # Without `decide_now`, there is a decision only if the turn was stopped.
    if not isinstance(answer, Approve) or answer.comment == NOBODY_LEFT:
        return ToolOutput(_NOBODY, summary="no one can answer")
    if not answer.allowed or not answer.comment.strip():
        comment = f": {answer.comment}" if answer.comment.strip() else ". Decide yourself, or leave it out"
        return ToolOutput(f"The user did not answer{comment}.", summary="not answered")
    return ToolOutput(answer.comment, {"answer": answer.comment}, answer.comment)
