"""The questions of a session that wait for the person's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from agentcli.agent.calls.model import Decide
from agentcli.agent.events import AnyQuestion, ApprovalSettled, Emit
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.decide import Verdict

STOPPED = Verdict("deny", "Not run: the user declined another call")


@dataclass(frozen=True)
class Open:
    """A question that waits for its answer."""

    request: AnyQuestion
    decide: Decide | None
    answer: asyncio.Future[Approve | Verdict]

    def give(self, answer: Approve | Verdict) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class Questions:
    """Publishes questions and hands on their answers; several may be open at once, told apart by id."""

    def __init__(self, publish: Emit) -> None:
        self._publish = publish
        self._open: dict[str, Open] = {}

    @property
    def requests(self) -> dict[str, AnyQuestion]:
        """The open questions by id."""
        return {id: question.request for id, question in self._open.items()}

    async def ask(self, request: AnyQuestion, decide: Decide | None) -> Approve | Verdict:
        """Implements `Ask`: the person's answer, or the verdict that settled the question before."""
        question = self._open[request.id] = Open(request, decide, asyncio.get_running_loop().create_future())
        self._publish(request)
        try:
            return await question.answer
        finally:
            self._open.pop(request.id, None)

    def answer(self, answer: Approve) -> bool:
        """Hand on an answer; False if no such question is open."""
        question = self._open.pop(answer.id, None)
        if question is not None:
            question.give(answer)
        return question is not None

    def settle(self, verdict_of: Callable[[Open], Verdict | None]) -> None:
        """Close the questions for which there is a verdict that needs no person any more."""
        for id, question in list(self._open.items()):
            verdict = verdict_of(question)
            if verdict is not None and verdict.decision != "ask":
                del self._open[id]
                question.give(verdict)
                self._publish(ApprovalSettled(id))


def stopped(question: Open) -> Verdict:
    """The verdict on a question of a turn that the person stopped."""
    return STOPPED


def decided_now(question: Open) -> Verdict | None:
    """The verdict of the permissions as they are now."""
    return question.decide() if question.decide is not None else None
