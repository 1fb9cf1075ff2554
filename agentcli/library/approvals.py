"""Calls the caller's functions that answer an agent's questions: approvals of calls, and the model's questions."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal
from warnings import warn

from msgspec import Struct

from agentcli.agent.calls.model import NOBODY_LEFT, Decide
from agentcli.agent.events import AnyQuestion, ApprovalSettled, Event, Question, QuestionEvent
from agentcli.agent.ops import Approve
from agentcli.agent.questions import check_offered
from agentcli.agent.session import Session
from agentcli.errors import UsageError
from agentcli.tools.own_tools import in_thread


class Allow(Struct, frozen=True, kw_only=True):
    """Lets a call run, or a turn go on.

    `input` replaces the call's arguments; it is checked like the model's own. Unless `remember` is "once", later calls
    that `rule` covers are allowed too (empty: the narrowest rule in the question). `hunks` are the parts to apply.
    """

    input: dict[str, Any] | None = None
    remember: Literal["once", "session", "always"] = "once"
    rule: str = ""
    hunks: tuple[int, ...] | None = None


class Deny(Struct, frozen=True):
    """Denies a call; the model reads the `reason`. With `stop`, the turn ends as well."""

    reason: str = ""
    stop: bool = False


Approver = Callable[[AnyQuestion], Awaitable[Allow | Deny | bool | str] | Allow | Deny | bool | str]  # str: deprecated
Answerer = Callable[[Question], Awaitable[str | None] | str | None]


class Callbacks(Struct, frozen=True):
    """The functions that answer questions, sync or async."""

    approve: Approver | None  # without it, calls that ask are denied
    answer: Answerer | None  # without it, `approve` gets the model's questions, too

    async def decide(self, question: AnyQuestion, _: Decide | None = None) -> Approve:  # callable as an `Ask`
        """Return the caller's answer. Raises the errors of their function, and `UsageError` for a wrong answer."""
        wants_text = isinstance(question, Question) and self.answer is not None
        function: Callable[[Any], Any] | None = self.answer if wants_text else self.approve
        if function is None:
            return Approve(question.id, allowed=False, comment=NOBODY_LEFT)
        value = function(question) if inspect.iscoroutinefunction(function) else await in_thread(function, (question,))
        answer = _to_approve(question.id, await value if inspect.isawaitable(value) else value, is_text=wants_text)
        check_offered(question, answer)
        return answer


def _to_approve(id: str, answer: object, *, is_text: bool) -> Approve:
    """Return the answer of a callback as an operation; `is_text`: it answers a question of the model."""
    match answer:
        case str() | None if is_text:  # None: no answer
            return Approve(id, allowed=answer is not None, comment=answer or "")
        case Allow(input=input, remember=scope, rule=rule, hunks=hunks):
            return Approve(id, scope=scope, rule=rule, hunks=None if hunks is None else tuple(hunks), input=input)
        case Deny(reason, stop):
            return Approve(id, allowed=False, comment=reason, stops=stop)
        case bool():
            return Approve(id, allowed=answer)
        case str():
            warn("approve returns Allow or Deny; AgentOptions(answer=…) has texts.", DeprecationWarning, stacklevel=1)
            return Approve(id, allowed=True, comment=answer)
    raise UsageError(f"This is no answer to the question: {answer!r}. approve returns Allow(…), Deny(…) or a bool.")


@asynccontextmanager
async def running_callbacks(callbacks: Callbacks | None, session: Session) -> AsyncIterator[Callable[[Event], None]]:
    """Yield a function that answers an event of the turn if it is a question. Raises the first error of a callback."""
    tasks: dict[str, asyncio.Task[None]] = {}
    errors: list[BaseException] = []
    lock = asyncio.Lock()

    async def answer(question: AnyQuestion, callbacks: Callbacks) -> None:
        async with lock:  # the caller gets one question at a time
            try:
                op = await callbacks.decide(question)
            except BaseException as error:
                if (task := asyncio.current_task()) is not None and task.cancelling():  # the question was settled
                    raise
                logging.getLogger("agentcli").exception("a callback failed; the call was denied: %s", question.title)
                errors.append(error)
                reason = "the program that decides about calls failed"
                op = Approve(question.id, allowed=False, comment=reason, stops=True)
            session.submit(op)

    def answer_if_asked(event: Event) -> None:
        if isinstance(event, QuestionEvent) and callbacks is not None:
            tasks[event.id] = asyncio.create_task(answer(event, callbacks))
        elif isinstance(event, ApprovalSettled) and (task := tasks.pop(event.id, None)) is not None:
            task.cancel()  # perhaps somebody else answered

    try:
        yield answer_if_asked
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
    if errors:
        raise errors[0]
