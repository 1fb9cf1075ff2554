"""Asks the person: lists to choose from, questions of the session, and answers that are typed into the input."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

from prompt_toolkit.buffer import Buffer

from agentcli.agent.events import AnyQuestion, PlanApproval, Question
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.rules import parse_rule
from agentcli.errors import UsageError
from agentcli.frontends.choices import Choice
from agentcli.frontends.terminal.approval.letters import Letters
from agentcli.frontends.terminal.approval.panel import QuestionPanel
from agentcli.frontends.terminal.approval.picker import Picking
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.programs import edit_text, run_pager
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, first_rows, plain, rows_of

TYPING_PAUSE_S = 0.8  # text typed so shortly before an approval came up belongs to a sentence that goes on
REACTION_S = 0.12  # nobody answers a question faster than this
ROWS_BESIDE = 3  # of running work that are shown beside a question
ROWS_AROUND = 4  # beside the question and its answers: a gap, the status line, what the screen keeps free
LINGER_S = 0.6  # an answered panel keeps its place so long while nobody types: the next one mostly comes up there

Purpose = Literal["prompt", "comment", "rule", "secret", "words"]
_MARKS: dict[Purpose, tuple[str, str]] = {  # of the input, and what Enter does there
    "prompt": ("› ", ""),
    "comment": ("no, because: ", "send to the model"),
    "rule": ("rule: ", "use this rule"),
    "secret": ("key: ", "use this key"),
    "words": ("answer: ", "send to the model"),
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
        self._approvals: list[QuestionPanel] = []
        self._shown_approval: QuestionPanel | None = None
        self._answered: QuestionPanel | None = None  # while it lingers
        self._shown_at = self._answered_at = self._typed_at = 0.0
        self._is_writing = False  # a message, while an approval waits for its end
        self._letters = Letters(self._take_letter)
        self._draft = ""  # of the prompt, while approvals take its place
        self._set_aside = ""
        self._area.buffer.on_text_changed += self._text_changed

    @property
    def mark(self) -> str:
        return _MARKS[self.purpose][0]

    @property
    def hint(self) -> str:
        does = _MARKS[self.purpose][1]
        return f"Enter to {does} · Esc to go back" if does else ""

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
            waits: Row = [("warning", "? Waiting for your approval. Close the list (Esc) first.")]
            return [*picker.rows(columns, most - 1), clipped(waits, columns)]
        if self.approval is not None:
            if self.purpose != "prompt":
                return []
            more = len(self._approvals) - 1
            is_ready = time.monotonic() - self._shown_at >= REACTION_S
            return self.approval.rows(columns, more, most=most, is_writing=self._is_writing, is_ready=is_ready)
        if self._lingering is not None:
            return self._lingering.rows(columns, most=most, is_ready=False)
        return []

    # Approvals

    @property
    def approval(self) -> QuestionPanel | None:
        return self._approvals[0] if self._approvals else None

    @property
    def takes_approval_keys(self) -> bool:
        return self.approval is not None and self.purpose == "prompt" and not self._is_writing

    @property
    def hides_input(self) -> bool:
        """True while a list or the choices of an approval stand in place of the prompt, whose text comes back."""
        return self.picking.is_open or self.takes_approval_keys or self._lingering is not None

    @property
    def _lingering(self) -> QuestionPanel | None:
        is_free = self.approval is None and self.purpose == "prompt" and not self._area.buffer.text
        return self._answered if is_free else None

    def ask_question(self, question: AnyQuestion) -> None:
        self._approvals.append(QuestionPanel(question))
        self._show_approval()
        self._notify(f"Waiting for your answer: {question.title}")

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

    def _show(self, panel: QuestionPanel, fragments: list[Fragment], most_rows: int = 0) -> None:
        """Print what is asked about, as much of it as the window has room for; the person has the rest brought in."""
        columns = self._console.columns
        is_next, panel.rest = bool(panel.rest), fragments
        room = self._console.rows - ROWS_BESIDE - ROWS_AROUND
        page = room - len(panel.rows(columns))  # where there is more, with fewer choices below it
        panel.rest = []
        if rows_of(fragments, columns) <= page:
            page = room - len(panel.rows(columns))
        shown, rest = first_rows(fragments, columns, most_rows or max(1, page))
        panel.rest, panel.rows_left = rest, rows_of(rest, columns) if rest else 0
        self._view.block(shown, "question")
        if not rest and is_next:
            self._shown_at = time.monotonic()  # no key pressed again and again to get here is an answer
            asyncio.get_running_loop().call_later(REACTION_S + 0.02, self._console.changed)
        if not rest and panel.hunk is None:
            self._view.was_previewed(panel.question.id)

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

    def forget_question(self, call_id: str) -> None:
        """Withdraw a question that was settled otherwise; words being written to it go back into the prompt."""
        panel = self.approval
        self._approvals = [panel for panel in self._approvals if panel.question.id != call_id]
        if panel is not None and panel is not self.approval:
            self._letters.drop()
            if self.purpose in ("comment", "rule", "words"):
                if self.purpose != "rule":
                    self._draft += self._area.buffer.text
                self.end_answer()
            self._show_approval()
            self._bring_draft_back()

    def forget_questions(self) -> None:
        while self._approvals:
            self.forget_question(self._approvals[-1].question.id)
        self._bring_draft_back()

    # Keys at a question

    def type_at_approval(self, text: str) -> None:
        """Take a key that writes: alone it may choose, else it begins an answer in words."""
        panel = self._approvals[0]
        before, were_early = self._letters.drop()
        letters = before + text
        if panel.choice_for(text) is not None and (not before or (were_early and before == text)):
            self._letters.wait(letters, are_early=time.monotonic() - self._shown_at < REACTION_S)
        else:
            self.answer_in_words(letters)

    def answer_in_words(self, text: str = "") -> None:
        self.start_answer("words" if isinstance(self._approvals[0].question, Question) else "comment", text)

    def paste_at_approval(self, data: str) -> None:
        self.answer_in_words(self._letters.drop()[0])
        self._composer.paste(data)

    def _take_letter(self, letter: str, is_early: bool) -> None:
        """Take a letter that stood alone, unless it was meant for the question before."""
        self._console.changed()
        choice = self.approval.choice_for(letter) if self.approval is not None else None
        if choice is not None and not is_early and self.takes_approval_keys:
            self.decide(choice)

    def enter_at_approval(self) -> None:
        """Take the letter that was just typed, else the marked choice, unless the question has only just come up."""
        panel = self._approvals[0]
        if self._letters:
            self._letters.end()
        elif time.monotonic() - self._shown_at >= REACTION_S:
            self.decide(panel.selected)

    def escape_at_approval(self) -> None:
        """Go back from the hunks, else answer no."""
        panel = self._approvals[0]
        if panel.hunk is not None:
            self._letters.drop()
            panel.leave_hunks()
        else:
            self.decide(panel.no)

    def erase_at_approval(self) -> None:
        self._letters.drop()

    def decide(self, choice: Choice) -> None:
        """Answer the question, or open what leads to the answer: the input, the hunks, the editor."""
        panel, columns = self._approvals[0], self._console.columns
        self._letters.drop()
        match choice.id:
            case "words":
                self.answer_in_words()
            case "view":
                self.page(plain(panel.preview(columns)))
            case "rule":
                self.start_answer("rule", panel.rule)
            case _ if choice not in panel.offered:
                self._console.hint.show("Read to the end first: ↓ or PageDown.")
            case "edit":
                self._controller.spawn(self._edit_plan(panel))
            case "hunks":
                panel.start_hunks()
                self._show(panel, panel.preview(columns))
            case "back":
                panel.leave_hunks()
            case "take" | "take_rest" | "leave":
                self._decide_hunk(choice.id)
            case _:
                if isinstance(panel.question, PlanApproval):
                    self._view.line(f"  {choice.label}", "muted")
                self._answer(panel.answer(choice))

    async def _edit_plan(self, panel: QuestionPanel) -> None:
        """Have the plan edited, and carried out as it then is. Raises `UserError`."""
        plan = panel.question.preview
        async with self._console.hand_over():
            changed = await edit_text(plan, self._console.environment)
        if changed.strip() and panel is self.approval:
            self._view.markdown(changed)
            self._answer(Approve(panel.question.id, True, comment="" if changed == plan else changed))

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

    def _decide_hunk(self, choice: str, comment: str = "") -> None:
        panel = self._approvals[0]
        answer = panel.decide_hunk(choice, comment)
        if answer is not None:
            self._answer(answer)
        else:
            self._show(panel, panel.preview(self._console.columns))

    def _answer(self, answer: Approve) -> None:
        answered = self._answered = self._approvals.pop(0)
        answered.hunk = None
        self._answered_at = time.monotonic()
        self.end_answer()
        self._controller.answer(answer)
        self._show_approval()
        asyncio.get_running_loop().call_later(LINGER_S, self._linger_no_more, answered)

    def _linger_no_more(self, answered: QuestionPanel) -> None:
        if self._answered is answered:
            self._bring_draft_back()

    # Answers in the input

    async def ask_secret(self, question: str) -> str | None:
        """Return what was typed, or None where nothing was."""
        self._view.line(question, "accent")
        self._typed = asyncio.get_running_loop().create_future()
        self.start_answer("secret")
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
        if purpose == "secret":
            self._give_typed(text)
        self.end_answer()
        if panel is None or purpose == "secret":
            return
        if purpose == "rule":
            try:
                if text:
                    parse_rule(text)
                    panel.set_rule(text)
            except UsageError:
                self._console.hint.show("Not a rule: write TOOL or TOOL(pattern).")
        elif panel.hunk is not None:
            self._decide_hunk("leave", text)
        elif text or purpose == "comment":
            self._answer(panel.answer_in_words(text))
