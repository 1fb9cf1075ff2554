"""Asks the questions that are no yes or no: the model's own, and whether a plan is carried out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from agentcli.agent.events import AnyQuestion
from agentcli.agent.ops import Approve
from agentcli.errors import UserError
from agentcli.frontends.printable import exposed
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.protocols import TerminalActions

_OWN_WORDS = ("Something else…", "in your own words")


class _Way(NamedTuple):
    """A way to go on with a plan."""

    label: str
    detail: str
    mode: str = ""


_WAYS = (
    _Way("Carry it out", "in the mode of before"),
    _Way("Carry it out, accepting edits", "commands that act beyond the project still ask", "acceptEdits"),
    _Way("Carry it out by yourself", "asks only beyond the project", "auto"),
    _Way("Change it first", "in your editor"),
    _Way("Not yet: say what to change", "plan mode goes on"),
)
_EDIT, _REJECT = 3, 4


class WordQuestions:
    """Asks one at a time; `answer` takes what the person says. A question that is withdrawn is closed."""

    def __init__(self, terminal: TerminalActions, view: TurnView, answer: Callable[[Approve], None]) -> None:
        self._terminal = terminal
        self._view = view
        self._answer = answer
        self._waiting: deque[AnyQuestion] = deque()
        self._task: asyncio.Task[None] | None = None

    def ask(self, request: AnyQuestion) -> None:
        self._waiting.append(request)
        if self._task is None:
            self._begin()

    def forget(self, id: str) -> None:
        """Withdraw a question that was settled otherwise."""
        if self._waiting and self._waiting[0].id == id and self._task is not None:
            self._task.cancel()
        else:
            self._waiting = deque(request for request in self._waiting if request.id != id)

    def forget_all(self) -> None:
        while len(self._waiting) > 1:
            self._waiting.pop()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._ask(self._waiting[0]))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if self._waiting:
            self._waiting.popleft()
        if self._waiting:
            self._begin()

    async def _ask(self, request: AnyQuestion) -> None:
        self._answer(await (self._about_plan(request) if request.kind == "plan" else self._in_words(request)))

    async def _in_words(self, request: AnyQuestion) -> Approve:
        self._view.line(f"? {request.title}", "accent")
        words: str | None = None
        if request.options:
            picked = await self._terminal.choose("Answer", [*((each, "") for each in request.options), _OWN_WORDS])
            if picked is None:
                return Approve(request.id, False)
            words = request.options[picked] if picked < len(request.options) else None
        if words is None:
            words = await self._terminal.ask_words("")
        if not words:
            return Approve(request.id, False)
        self._view.line(f"  {words}")
        return Approve(request.id, True, comment=words)

    async def _about_plan(self, request: AnyQuestion) -> Approve:
        plan = request.preview.replace("\r\n", "\n")
        if (escaped := exposed(plan)) != plan:  # the answer above left these characters out
            self._view.line("The plan has characters that cannot be seen, here as escapes:", "warning")
            self._view.block([("", f"{escaped.rstrip()}\n")])
        picked = await self._terminal.choose(request.title, [(way.label, way.detail) for way in _WAYS])
        if picked == _EDIT:
            changed: str | None = None
            with suppress(UserError):  # no editor: the question is asked again
                changed = await self._terminal.edit(request.preview)
            if changed and changed.strip():
                self._view.markdown(changed)
                return Approve(request.id, True, comment="" if changed == request.preview else changed)
            return await self._about_plan(request)
        if picked == _REJECT:
            return Approve(request.id, False, comment=await self._terminal.ask_words("What is to change?") or "")
        if picked is None:
            return Approve(request.id, False)
        self._view.line(f"  {_WAYS[picked].label}", "muted")
        return Approve(request.id, True, mode=_WAYS[picked].mode)
