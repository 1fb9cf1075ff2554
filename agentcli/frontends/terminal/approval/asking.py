"""Asks the person: lists to choose from, approvals, and answers that are typed into the input."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from prompt_toolkit.buffer import Buffer

from agentcli.agent.events import AnyQuestion
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.rules import parse_rule
from agentcli.errors import UsageError
from agentcli.frontends.terminal.approval.letters import Letters
from agentcli.frontends.terminal.approval.panel import KEYS, ApprovalPanel, Choice
from agentcli.frontends.terminal.approval.picker import Picking
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.programs import run_pager
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, first_rows, plain, rows_of

TYPING_PAUSE_S = 0.8  # text typed so shortly before an approval came up belongs to a sentence that goes on
REACTION_S = 0.12  # nobody answers a question faster than this
ROWS_BESIDE = 3  # of running work that are shown beside a question
ROWS_AROUND = 4  # that neither the question nor its answers have: a gap, the status line, what the screen keeps free
LINGER_S = 0.6  # an answered panel keeps its place so long while nobody types: the next one mostly comes up there

Purpose = Literal["prompt", "comment", "rule", "secret", "words"]
_MARKS: dict[Purpose, str] = {
    "prompt": "› ", "comment": "no, because: ", "rule": "rule: ", "secret": "key: ", "words": "answer: ",
}  # fmt: skip
_HINTS: dict[Purpose, str] = {
    "prompt": "",
    "comment": "Enter sends it to the model · Esc goes back",
    "rule": "Enter takes the rule · Esc goes back",
    "secret": "Enter takes the key · Esc goes back",
    "words": "Enter sends it to the model · Esc leaves it",
}


class Asking:
    """The questions that are open; `purpose` is the use of the input just now."""

    def __init__(
        self,
        console: Console,
        controller: TerminalController,
        composer: Composer,
        *,
        notify: Callable[[str], None],
    ) -> None:
        self._console = console
        self._controller = controller
        self._composer = composer
        self._area = composer.area
        self._view = controller.view
        self._notify = notify
        self.picking = Picking(console.changed)
        self.purpose: Purpose = "prompt"
        self._typed: asyncio.Future[str | None] | None = None
        self._approvals: list[ApprovalPanel] = []
        self._shown_approval: ApprovalPanel | None = None
        self._answered: ApprovalPanel | None = None  # while it lingers
        self._shown_at = self._answered_at = self._typed_at = 0.0
        self._is_writing = False  # a message, while an approval waits for its end
        self._letters = Letters(self._take_letter)
        self._draft = ""  # of the prompt, while approvals take its place
        self._set_aside = ""
        self._area.buffer.on_text_changed += self._text_changed

    @property
    def mark(self) -> str:
        return _MARKS[self.purpose]

    @property
    def hint(self) -> str:
        return _HINTS[self.purpose]

    @property
    def asks(self) -> bool:
        """True if a list or an approval stands open."""
        return self.picking.is_open or self.approval is not None

    @property
    def is_open(self) -> bool:
        return self.asks or self.purpose != "prompt"

    def page(self, text: str) -> None:
        """Show a text in the pager, or print it where there is none."""

        async def page() -> None:
            async with self._console.hand_over():
                was_shown = await run_pager(text, self._console.environment)
            if not was_shown:
                self._view.line(text)

        self._controller.spawn(page())

    def rows(self, columns: int, most: int) -> list[Row]:
        if (picker := self.picking.picker) is not None:
            if self.approval is None:
                return picker.rows(columns, most)
            waits: Row = [("warning", "? It waits for a yes: leave the list (Esc), then answer")]
            return [*picker.rows(columns, most - 1), clipped(waits, columns)]
        if self.approval is not None:
            if self.purpose != "prompt":
                return []
            more = len(self._approvals) - 1
            is_ready = time.monotonic() - self._shown_at >= REACTION_S
            return self.approval.rows(columns, more, is_writing=self._is_writing, is_ready=is_ready)
        if self._lingering is not None:
            return self._lingering.rows(columns, 0, is_ready=False)
        return []

    # Approvals

    @property
    def approval(self) -> ApprovalPanel | None:
        return self._approvals[0] if self._approvals else None

    @property
    def takes_approval_keys(self) -> bool:
        return self.approval is not None and self.purpose == "prompt" and not self._is_writing

    @property
    def hides_input(self) -> bool:
        """True while a list or the choices of an approval stand in place of the prompt, whose text comes back."""
        return self.picking.is_open or self.takes_approval_keys or self._lingering is not None

    @property
    def _lingering(self) -> ApprovalPanel | None:
        is_free = self.approval is None and self.purpose == "prompt" and not self._area.buffer.text
        return self._answered if is_free else None

    def ask_approval(self, request: AnyQuestion) -> None:
        self._approvals.append(ApprovalPanel(request))
        self._show_approval()
        self._notify(f"Waits for your yes: {request.title}")

    def _show_approval(self) -> None:
        panel = self.approval
        if panel is None or panel is self._shown_approval:
            return
        self._shown_approval, self._answered = panel, None
        self._shown_at = time.monotonic()
        self._is_writing = self.purpose == "prompt" and self._is_in_mid_sentence()
        self._lay_draft_aside()
        asyncio.get_running_loop().call_later(REACTION_S + 0.02, self._console.changed)  # the choices look as they are
        self._show(panel, panel.preview(self._console.columns))

    def _show(self, panel: ApprovalPanel, fragments: list[Fragment], most_rows: int = 0) -> None:
        """Print what is asked about, as much of it as the window has room for; the person has the rest brought in."""
        columns = self._console.columns
        is_next, panel.rest = bool(panel.rest), []
        below = len(panel.rows(columns, len(self._approvals) - 1))
        page = max(1, self._console.rows - below - ROWS_BESIDE - ROWS_AROUND)
        shown, rest = first_rows(fragments, columns, most_rows or page)
        panel.rest, panel.rows_left = rest, rows_of(rest, columns) if rest else 0
        self._view.block(shown, "question")
        if not rest and is_next:
            self._shown_at = time.monotonic()  # no key pressed again and again to get here is an answer
            asyncio.get_running_loop().call_later(REACTION_S + 0.02, self._console.changed)
        if not rest and panel.hunk is None:
            self._view.was_previewed(panel.request.id)

    def _is_in_mid_sentence(self) -> bool:
        text, now = self._area.buffer.text, time.monotonic()
        if len(text) == 1 and now - self._answered_at < TYPING_PAUSE_S:
            self._area.replace_text("")
            self._letters.wait(text, are_early=True)  # the answer before this one, given twice, or a word's beginning
            return False
        return bool(text) and now - self._typed_at < TYPING_PAUSE_S

    def _text_changed(self, _: Buffer) -> None:
        """Once the sentence is sent or laid aside, let the approval take keys."""
        self._typed_at = time.monotonic() if self._area.buffer.text else 0.0
        if self._is_writing and not self._area.buffer.text:
            self._is_writing = False
            self._shown_at = time.monotonic()
            self._lay_draft_aside()

    def _lay_draft_aside(self) -> None:
        if self.takes_approval_keys:
            self._area.completes = False
            if text := self._area.buffer.text:
                self._draft = f"{self._draft}{text}"
                self._area.replace_text("")

    def _bring_draft_back(self) -> None:
        """After the last approval; text typed since then stands behind the draft."""
        if self.approval is None and self.purpose == "prompt":
            self._answered, self._is_writing = None, False
            self._area.completes = True
            if self._draft:
                draft, self._draft = self._draft, ""
                self._area.replace_text(f"{draft}{self._area.buffer.text}")
                self._area.buffer.cursor_position = len(self._area.buffer.text)
        self._console.changed()

    def forget_approval(self, call_id: str) -> None:
        """Withdraw a question that was settled otherwise; words being written to it go back into the prompt."""
        panel = self.approval
        self._approvals = [panel for panel in self._approvals if panel.request.id != call_id]
        if panel is not None and panel is not self.approval:
            self._letters.drop()
            if self.purpose in ("comment", "rule"):
                if self.purpose == "comment":
                    self._draft += self._area.buffer.text
                self.end_answer()
            self._show_approval()
            self._bring_draft_back()

    def forget_approvals(self) -> None:
        while self._approvals:
            self.forget_approval(self._approvals[-1].request.id)
        self._bring_draft_back()

    # Keys at an approval

    def type_at_approval(self, text: str) -> None:
        """Take a key that writes: alone it may choose, else it begins an answer in words."""
        panel = self._approvals[0]
        before, were_early = self._letters.drop()
        letters = before + text
        if text in panel.keys and (not before or (were_early and before == text)):
            self._letters.wait(letters, are_early=time.monotonic() - self._shown_at < REACTION_S)
        else:
            self.start_answer("comment", letters)

    def paste_at_approval(self, data: str) -> None:
        self.start_answer("comment", self._letters.drop()[0])
        self._composer.paste(data)

    def _take_letter(self, letter: str, is_early: bool) -> None:
        """Take a letter that stood alone, unless it was meant for the question before."""
        self._console.changed()
        panel = self.approval
        if panel is None or is_early or letter not in panel.keys or not self.takes_approval_keys:
            return
        if panel.hunk is not None:
            self._decide_hunk(accepted=letter in "ya", with_rest=letter == "a")
        elif letter.isdecimal():
            self.decide(panel.choices[int(letter) - 1])
        elif letter == "e":
            self.start_answer("rule", panel.rule)
        elif letter == "v":
            columns = self._console.columns
            self.page(plain(panel.preview(columns) if panel.hunk is None else panel.hunk_preview(columns)))
        else:
            self.decide(KEYS[letter])

    def enter_at_approval(self) -> None:
        """Take the letter that was just typed, else the marked choice, unless the question has only just come up."""
        panel = self._approvals[0]
        if self._letters:
            self._letters.end()
        elif time.monotonic() - self._shown_at >= REACTION_S and panel.hunk is None:
            self.decide(panel.selected)

    def escape_at_approval(self) -> None:
        """Go back from the hunks, else answer no."""
        panel = self._approvals[0]
        self._letters.drop()
        if panel.hunk is None:
            self.decide("no")
        else:
            panel.hunk, panel.comment, panel.rest = None, "", []  # all of it was shown before

    def erase_at_approval(self) -> None:
        self._letters.drop()

    def decide(self, choice: Choice) -> None:
        """Answer the approval, or open the input or the hunks for the answer."""
        panel = self._approvals[0]
        self._letters.drop()
        if choice == "comment":
            self.start_answer("comment")
        elif panel.rest and choice != "no":
            self._console.hint.show("Read to the end first: ↓ or PageDown.")
        elif choice == "hunks":
            panel.hunk, panel.accepted = 0, []
            self._show(panel, panel.hunk_preview(self._console.columns))
        else:
            self._answer(panel.answer(choice))

    def move_choice(self, by: int) -> None:
        """Mark another choice; while there is more to show, Down brings in the next row of it."""
        panel = self._approvals[0]
        self._letters.drop()
        if not panel.rest:
            panel.move(by)
        elif by > 0:
            self._show(panel, panel.rest, 1)

    def page_down(self) -> None:
        panel = self._approvals[0]
        self._letters.drop()
        if panel.rest:
            self._show(panel, panel.rest)

    def widen(self, by: int) -> None:
        self._letters.drop()
        self._approvals[0].widen(by)

    def _decide_hunk(self, *, accepted: bool, with_rest: bool = False, comment: str = "") -> None:
        panel = self._approvals[0]
        if accepted and panel.rest:
            self._console.hint.show("Read to the end first: ↓ or PageDown.")
            return
        answer = panel.take_hunk(accepted=accepted, with_rest=with_rest, comment=comment)
        if answer is not None:
            self._answer(answer)
        else:
            self._show(panel, panel.hunk_preview(self._console.columns))

    def _answer(self, answer: Approve) -> None:
        answered = self._answered = self._approvals.pop(0)
        answered.hunk = None
        self._answered_at = time.monotonic()
        self.end_answer()
        self._controller.answer(answer)
        self._show_approval()
        asyncio.get_running_loop().call_later(LINGER_S, self._linger_no_more, answered)

    def _linger_no_more(self, answered: ApprovalPanel) -> None:
        if self._answered is answered:
            self._bring_draft_back()

    # Answers in the input

    async def ask_typed(self, question: str, purpose: Purpose) -> str | None:
        """A secret, or words; None when nothing was typed."""
        if question:
            self._view.line(question, "accent")
        self._typed = asyncio.get_running_loop().create_future()
        self.start_answer(purpose)
        try:
            return await self._typed
        except asyncio.CancelledError:
            self.end_answer()
            raise

    def start_answer(self, purpose: Purpose, text: str = "") -> None:
        """Let the input take an answer; its text comes back afterwards."""
        self._set_aside = self._area.buffer.text
        self.purpose = purpose
        self._console.begin_inserting()
        self._area.completes = False
        self._area.is_secret = purpose == "secret"
        self._area.set_text(text)

    def end_answer(self) -> None:
        if self.purpose != "prompt":
            self.purpose = "prompt"
            self._area.completes = self.approval is None
            self._area.is_secret = False
            self._give_typed(None)
            self._area.replace_text(self._set_aside)
            self._set_aside = ""
            self._lay_draft_aside()

    def _give_typed(self, text: str | None) -> None:
        if self._typed is not None and not self._typed.done():
            self._typed.set_result(text or None)
        self._typed = None

    def accept_answer(self) -> None:
        panel, text, purpose = self.approval, self._composer.text.strip(), self.purpose
        if purpose in ("secret", "words"):
            self._give_typed(text)
        self.end_answer()
        if panel is None:
            return
        if purpose == "rule":
            if text and is_rule(text):
                panel.set_rule(text)
            elif text:
                self._console.hint.show("That is no rule: write TOOL or TOOL(pattern).")
        elif panel.hunk is not None:
            self._decide_hunk(accepted=False, comment=text)
        else:
            panel.comment = text
            self._answer(panel.answer("no"))


def is_rule(text: str) -> bool:
    try:
        parse_rule(text)
    except UsageError:
        return False
    return True
