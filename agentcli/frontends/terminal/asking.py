"""What the person is asked: lists to choose from, approvals, and answers that are typed into the input."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from agentcli.agent.commands.command import Picked
from agentcli.agent.events import ApprovalRequested, Approve
from agentcli.agent.rules import parse_rule
from agentcli.errors import UsageError
from agentcli.frontends.printable import exposed
from agentcli.frontends.terminal.approval import ApprovalPanel, Choice
from agentcli.frontends.terminal.picker import Picker
from agentcli.frontends.terminal.screen import Row

if TYPE_CHECKING:
    from agentcli.frontends.terminal.app import TerminalApp

TYPING_PAUSE_S = 0.8  # an approval that comes up while somebody types takes no key before such a pause
REACTION_S = 0.3  # nobody answers faster than this what has just come up

Purpose = Literal["prompt", "comment", "rule", "secret"]
MARKS: dict[Purpose, str] = {"prompt": "› ", "comment": "no, but: ", "rule": "rule: ", "secret": "key: "}
_HINTS: dict[Purpose, str] = {
    "prompt": "",
    "comment": "Enter sends it to the model · Esc goes back",
    "rule": "Enter takes the rule · Esc goes back",
    "secret": "Enter takes the key · Esc goes back",
}


class Asking:
    """Questions that are open. keys.py calls its public methods; `purpose` is what the input takes just now."""

    def __init__(self, app: TerminalApp) -> None:
        self._app = app
        self.picker: Picker | None = None
        self.purpose: Purpose = "prompt"
        self._picked: asyncio.Future[Picked | None] | None = None
        self._secret: asyncio.Future[str | None] | None = None
        self._approvals: list[ApprovalPanel] = []
        self._shown_approval: ApprovalPanel | None = None
        self._shown_at = 0.0
        self._is_armed = False
        self._set_aside = ""

    @property
    def mark(self) -> str:
        return MARKS[self.purpose]

    @property
    def hint(self) -> str:
        return _HINTS[self.purpose]

    @property
    def is_open(self) -> bool:
        return self.picker is not None or self.approval is not None or self.purpose != "prompt"

    def rows(self, columns: int, most: int) -> list[Row]:
        if self.picker is not None:
            return self.picker.rows(columns, most)
        if self.approval is not None:
            is_writing = bool(self._app.composer.area.buffer.text) and self.purpose == "prompt"
            more = len(self._approvals) - 1
            return self.approval.rows(columns, more, is_writing=is_writing, is_ready=self.takes_approval_keys)
        return []

    async def choose(self, title: str, options: Sequence[tuple[str, str]]) -> int | None:
        picked = await self.pick(Picker(title, options)) if options else None
        return None if picked is None else picked.number

    async def pick(self, picker: Picker) -> Picked | None:
        """Let the person take something from a list; None when they leave it."""
        self.end_picker(taken=False)
        self.picker = picker
        self._picked = asyncio.get_running_loop().create_future()
        self._app.changed()
        return await self._picked

    def end_picker(self, *, taken: bool, keeps: bool = False) -> None:
        picker, picked = self.picker, self._picked
        self.picker = self._picked = None
        if picker is not None and picked is not None and not picked.done():
            chosen = picker.chosen if taken else None
            picked.set_result(None if chosen is None else Picked(chosen, keeps))
        self._app.changed()

    def move_picker(self, by: int) -> None:
        assert self.picker is not None
        self.picker.move(by)
        self._app.changed()

    def type_in_picker(self, text: str) -> None:
        """Add to what narrows the list; an empty text takes a character away."""
        assert self.picker is not None
        if text:
            self.picker.type(text)
        else:
            self.picker.backspace()
        self._app.changed()

    async def ask_secret(self, question: str) -> str | None:
        self._app.view.line(question, "accent")
        self._secret = asyncio.get_running_loop().create_future()
        self.start_answer("secret")
        return await self._secret

    @property
    def approval(self) -> ApprovalPanel | None:
        return self._approvals[0] if self._approvals else None

    @property
    def takes_approval_keys(self) -> bool:
        """Not while the input holds anything, nor before the panel has stood through a pause in typing."""
        if self.approval is None or self.purpose != "prompt" or self._app.composer.area.buffer.text:
            return False
        if not self._is_armed:
            now = time.monotonic()
            self._is_armed = now - self._shown_at > REACTION_S and now - self._app.last_typed > TYPING_PAUSE_S
        return self._is_armed

    def ask_approval(self, request: ApprovalRequested) -> None:
        self._approvals.append(ApprovalPanel(request))
        self._app.live.asked.add(request.id)
        self._show_approval()
        self._app.notify(f"Waits for your yes: {request.title}", is_urgent=True)

    def _show_approval(self) -> None:
        panel = self.approval
        if panel is None or panel is self._shown_approval:
            return
        self._shown_approval = panel
        self._shown_at, self._is_armed = time.monotonic(), False
        for pause in (REACTION_S, TYPING_PAUSE_S):  # the choices are shown as such once they can be taken
            asyncio.get_running_loop().call_later(pause + 0.02, self._app.changed)
        self._app.view.block(panel.preview(self._app.console.columns, self._app.console.preview_lines))
        self._app.view.was_previewed(panel.request.id)
        self._app.changed()

    def forget_approval(self, call_id: str) -> None:
        before = len(self._approvals)
        self._app.live.asked.discard(call_id)
        self._approvals = [panel for panel in self._approvals if panel.request.id != call_id]
        if len(self._approvals) != before:
            self.end_answer()
            self._show_approval()

    def forget_approvals(self) -> None:
        self._approvals.clear()
        self.end_answer()

    def decide(self, choice: Choice | None) -> None:
        """Answer the approval; None takes the marked choice."""
        panel = self.approval
        assert panel is not None
        choice = choice or panel.selected
        if choice == "comment":
            self.start_answer("comment")
        elif choice not in panel.choices:
            self._app.hint("That choice is not offered here.")
        elif choice == "hunks":
            panel.hunk, panel.accepted = 0, []
            self._app.view.block(panel.hunk_preview(self._app.console.columns))
        else:
            self._answer(panel.answer(choice))
        self._app.changed()

    def decide_number(self, number: int) -> None:
        panel = self.approval
        assert panel is not None
        if number < len(panel.choices):
            self.decide(panel.choices[number])

    def move_choice(self, by: int) -> None:
        assert self.approval is not None
        self.approval.move(by)
        self._app.changed()

    def widen(self, by: int) -> None:
        assert self.approval is not None
        self.approval.widen(by)
        self._app.changed()

    def edit_rule(self) -> None:
        assert self.approval is not None
        if self.approval.rules:
            self.start_answer("rule", self.approval.rule)

    def decide_hunk(self, *, accepted: bool) -> None:
        panel = self.approval
        assert panel is not None
        answer = panel.take_hunk(accepted=accepted)
        if answer is not None:
            self._answer(answer)
        else:
            self._app.view.block(panel.hunk_preview(self._app.console.columns))
        self._app.changed()

    def accept_remaining_hunks(self) -> None:
        panel = self.approval
        while panel is not None and panel is self.approval and panel.hunk is not None:
            answer = panel.take_hunk(accepted=True)
            if answer is not None:
                self._answer(answer)
                return

    def leave_hunks(self) -> None:
        assert self.approval is not None
        self.approval.hunk = None
        self._app.changed()

    def view_whole_request(self) -> None:
        assert self.approval is not None
        self._app.page(exposed(self.approval.request.preview))

    def _answer(self, answer: Approve) -> None:
        self._app.live.asked.discard(self._approvals.pop(0).request.id)
        self._app.view.was_previewed(answer.id, as_made=answer.hunks is None)
        self.end_answer()
        self._app.desk.session.submit(answer)
        self._show_approval()
        self._app.changed()

    def start_answer(self, purpose: Purpose, text: str = "") -> None:
        """The input takes a comment or a rule; what stood in it comes back afterwards."""
        self._set_aside = self._app.composer.area.buffer.text
        self.purpose = purpose
        self._app.composer.area.completes = False
        self._app.composer.area.is_secret = purpose == "secret"
        self._app.composer.area.set_text(text)
        self._app.changed()

    def end_answer(self) -> None:
        if self.purpose != "prompt":
            self.purpose = "prompt"
            self._app.composer.area.completes = True
            self._app.composer.area.is_secret = False
            self._give_secret(None)
            self._app.composer.area.replace_text(self._set_aside)
            self._set_aside = ""

    def _give_secret(self, text: str | None) -> None:
        if self._secret is not None and not self._secret.done():
            self._secret.set_result(text or None)
        self._secret = None

    def accept_answer(self) -> None:
        panel, text, purpose = self.approval, self._app.composer.text.strip(), self.purpose
        if purpose == "secret":
            self._give_secret(text)
        self.end_answer()
        if panel is None:
            return
        if purpose == "rule":
            if text and is_rule(text):
                panel.set_rule(text)
            elif text:
                self._app.hint("That is no rule: write TOOL or TOOL(pattern).")
        elif panel.hunk is not None:
            panel.comment = text
        else:
            panel.comment = text
            self._answer(panel.answer("no"))
        self._app.changed()


def is_rule(text: str) -> bool:
    try:
        parse_rule(text)
    except UsageError:
        return False
    return True
