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
from agentcli.frontends.terminal.approval.panel import KEYS, ApprovalPanel, Choice
from agentcli.frontends.terminal.approval.picker import Picker
from agentcli.frontends.terminal.output.screen import Row
from agentcli.frontends.terminal.text.text_width import clipped

if TYPE_CHECKING:
    from agentcli.frontends.terminal.app import TerminalApp

TYPING_PAUSE_S = 0.8  # what was typed so shortly before an approval came up belongs to a sentence that goes on
REACTION_S = 0.12  # nobody answers faster than this what has just come up
KEY_ALONE_S = 0.3  # a letter is an answer once nothing has followed it for so long
LINGER_S = 0.6  # an answered panel keeps its place so long while nobody types: the next one mostly comes up there

Purpose = Literal["prompt", "comment", "rule", "secret"]
MARKS: dict[Purpose, str] = {"prompt": "› ", "comment": "no, because: ", "rule": "rule: ", "secret": "key: "}
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
        self._answered: ApprovalPanel | None = None  # while it lingers
        self._shown_at = self._answered_at = 0.0
        self._is_writing = False  # a message, while an approval waits for its end
        self._letters = ""  # typed at an approval, which may yet become a word
        self._is_early = False  # of the letters: nobody can have read what stands there now
        self._letters_timer: asyncio.TimerHandle | None = None
        self._draft = ""  # of the prompt, while approvals take its place
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
            if self.approval is None:
                return self.picker.rows(columns, most)
            waits: Row = [("warning", "? It waits for a yes: leave the list (Esc), then answer")]
            return [*self.picker.rows(columns, most - 1), clipped(waits, columns)]
        if self.approval is not None:
            if self.purpose != "prompt":
                return []
            more = len(self._approvals) - 1
            is_ready = time.monotonic() - self._shown_at >= REACTION_S
            return self.approval.rows(columns, more, is_writing=self._is_writing, is_ready=is_ready)
        if self._lingering is not None:
            return self._lingering.rows(columns, 0, is_ready=False)
        return []

    async def choose(self, title: str, options: Sequence[tuple[str, str]]) -> int | None:
        picked = await self.pick(Picker(title, options)) if options else None
        return None if picked is None else picked.number

    def pick(self, picker: Picker) -> asyncio.Future[Picked | None]:
        """Let the person take something from a list, None when they leave it. It is there at once, for the next key."""
        self.end_picker(taken=False)
        self.picker = picker
        self._picked = picked = asyncio.get_running_loop().create_future()
        self._app.changed()
        return picked

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
        return self.approval is not None and self.purpose == "prompt" and not self._is_writing

    @property
    def hides_input(self) -> bool:
        """Whether a list or the choices of an approval stand where the prompt was; its text comes back behind them."""
        return self.picker is not None or self.takes_approval_keys or self._lingering is not None

    @property
    def _lingering(self) -> ApprovalPanel | None:
        is_free = self.approval is None and self.purpose == "prompt" and not self._app.composer.area.buffer.text
        return self._answered if is_free else None

    def ask_approval(self, request: ApprovalRequested) -> None:
        self._approvals.append(ApprovalPanel(request))
        self._show_approval()
        self._app.notify(f"Waits for your yes: {request.title}", is_urgent=True)

    def _show_approval(self) -> None:
        panel = self.approval
        if panel is None or panel is self._shown_approval:
            return
        self._shown_approval, self._answered = panel, None
        self._shown_at = time.monotonic()
        self._is_writing = self.purpose == "prompt" and self._is_in_mid_sentence()
        self._lay_draft_aside()
        asyncio.get_running_loop().call_later(REACTION_S + 0.02, self._app.changed)  # the choices look as they are
        self._app.view.block(panel.preview(self._app.console.columns, self._app.console.preview_lines), "question")
        self._app.view.was_previewed(panel.request.id)
        self._app.changed()

    def _is_in_mid_sentence(self) -> bool:
        text, now = self._app.composer.area.buffer.text, time.monotonic()
        if len(text) == 1 and now - self._answered_at < TYPING_PAUSE_S:
            self._app.composer.area.replace_text("")
            self._wait_for_more(text, is_early=True)  # the answer before this one, given twice, or a word's beginning
            return False
        return bool(text) and now - self._app.last_typed < TYPING_PAUSE_S

    def text_changed(self) -> None:
        """What was being written is sent or laid aside: now the approval takes keys."""
        if self._is_writing and not self._app.composer.area.buffer.text:
            self._is_writing = False
            self._shown_at = time.monotonic()
            self._lay_draft_aside()

    def _lay_draft_aside(self) -> None:
        if self.takes_approval_keys:
            area = self._app.composer.area
            area.completes = False
            if text := area.buffer.text:
                self._draft = f"{self._draft}{text}"
                area.replace_text("")

    def _bring_draft_back(self) -> None:
        """Behind the last approval; what was typed since then stands behind it."""
        if self.approval is None and self.purpose == "prompt":
            area = self._app.composer.area
            self._answered, self._is_writing = None, False
            area.completes = True
            if self._draft:
                draft, self._draft = self._draft, ""
                area.replace_text(f"{draft}{area.buffer.text}")
                area.buffer.cursor_position = len(area.buffer.text)
        self._app.changed()

    def forget_approval(self, call_id: str) -> None:
        """The question was settled otherwise; words that were being written to it go back into the prompt."""
        panel = self.approval
        self._approvals = [panel for panel in self._approvals if panel.request.id != call_id]
        if panel is not None and panel is not self.approval:
            self._drop_letters()
            if self.purpose in ("comment", "rule"):
                if self.purpose == "comment":
                    self._draft += self._app.composer.area.buffer.text
                self.end_answer()
            self._show_approval()
            self._bring_draft_back()

    def forget_approvals(self) -> None:
        while self._approvals:
            self.forget_approval(self._approvals[-1].request.id)
        self._bring_draft_back()

    # Keys at an approval

    def type_at_approval(self, text: str) -> None:
        """A key that writes: it chooses when it can and nothing follows it; else it begins an answer in words."""
        panel = self.approval
        assert panel is not None
        is_early = time.monotonic() - self._shown_at < REACTION_S
        was_early, letters = self._is_early, self._drop_letters() + text
        if text in panel.keys and (letters == text or (was_early and letters == 2 * text)):
            self._wait_for_more(letters, is_early=is_early)
        else:
            self.start_answer("comment", letters)

    def _wait_for_more(self, letters: str, *, is_early: bool) -> None:
        self._letters, self._is_early = letters, is_early
        self._letters_timer = asyncio.get_running_loop().call_later(KEY_ALONE_S, self._take_letter)

    def paste_at_approval(self, data: str) -> None:
        self.start_answer("comment", self._drop_letters())
        self._app.composer.paste(data)

    def _drop_letters(self) -> str:
        letters, self._letters = self._letters, ""
        if self._letters_timer is not None:
            self._letters_timer.cancel()
            self._letters_timer = None
        self._is_early = False
        return letters

    def _take_letter(self) -> None:
        """The letter stood alone; one that came early was meant for what stood there before."""
        is_early, letter, panel = self._is_early, self._drop_letters()[-1:], self.approval
        if panel is None or is_early or letter not in panel.keys or not self.takes_approval_keys:
            return
        if panel.hunk is not None:
            if letter == "a":
                self._accept_remaining_hunks()
            else:
                self.decide_hunk(accepted=letter == "y")
        elif letter.isdecimal():
            self.decide(panel.choices[int(letter) - 1])
        elif letter == "e":
            self.start_answer("rule", panel.rule)
        elif letter == "v":
            self._app.page(exposed(panel.request.preview))
        else:
            self.decide(KEYS[letter])

    def enter_at_approval(self) -> None:
        """Takes a letter that was just typed, else the marked choice; not what has only just come up."""
        panel = self.approval
        assert panel is not None
        if self._letters:
            self._take_letter()
        elif time.monotonic() - self._shown_at >= REACTION_S and panel.hunk is None:
            self.decide(panel.selected)

    def escape_at_approval(self) -> None:
        """Back from the hunks, else no."""
        panel = self.approval
        assert panel is not None
        self._drop_letters()
        if panel.hunk is None:
            self.decide("no")
        else:
            panel.hunk, panel.comment = None, ""
            self._app.changed()

    def erase_at_approval(self) -> None:
        self._drop_letters()

    def decide(self, choice: Choice) -> None:
        """Answer the approval, or open what the answer takes."""
        panel = self.approval
        assert panel is not None
        self._drop_letters()
        if choice == "comment":
            self.start_answer("comment")
        elif choice == "hunks":
            panel.hunk, panel.accepted = 0, []
            self._app.view.block(panel.hunk_preview(self._app.console.columns), "question")
        else:
            self._answer(panel.answer(choice))
        self._app.changed()

    def move_choice(self, by: int) -> None:
        assert self.approval is not None
        self._drop_letters()
        self.approval.move(by)
        self._app.changed()

    def widen(self, by: int) -> None:
        assert self.approval is not None
        self._drop_letters()
        self.approval.widen(by)
        self._app.changed()

    def decide_hunk(self, *, accepted: bool, comment: str = "") -> None:
        panel = self.approval
        assert panel is not None
        answer = panel.take_hunk(accepted=accepted, comment=comment)
        if answer is not None:
            self._answer(answer)
        else:
            self._app.view.block(panel.hunk_preview(self._app.console.columns), "question")
        self._app.changed()

    def _accept_remaining_hunks(self) -> None:
        panel = self.approval
        while panel is not None and panel is self.approval and panel.hunk is not None:
            answer = panel.take_hunk(accepted=True)
            if answer is not None:
                self._answer(answer)
                return

    def _answer(self, answer: Approve) -> None:
        answered = self._answered = self._approvals.pop(0)
        answered.hunk = None
        self._answered_at = time.monotonic()
        self.end_answer()
        self._app.controller.answer(answer)
        self._show_approval()
        asyncio.get_running_loop().call_later(LINGER_S, self._linger_no_more, answered)
        self._app.changed()

    def _linger_no_more(self, answered: ApprovalPanel) -> None:
        if self._answered is answered:
            self._bring_draft_back()

    def start_answer(self, purpose: Purpose, text: str = "") -> None:
        """The input takes a comment or a rule; what stood in it comes back afterwards."""
        self._set_aside = self._app.composer.area.buffer.text
        self.purpose = purpose
        self._app.console.insert_mode()
        self._app.composer.area.completes = False
        self._app.composer.area.is_secret = purpose == "secret"
        self._app.composer.area.set_text(text)
        self._app.changed()

    def end_answer(self) -> None:
        if self.purpose != "prompt":
            self.purpose = "prompt"
            self._app.composer.area.completes = self.approval is None
            self._app.composer.area.is_secret = False
            self._give_secret(None)
            self._app.composer.area.replace_text(self._set_aside)
            self._set_aside = ""
            self._lay_draft_aside()

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
            self.decide_hunk(accepted=False, comment=text)
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
