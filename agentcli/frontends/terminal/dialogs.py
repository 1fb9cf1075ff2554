"""Manages everything that waits for the person: lists, a session's questions, answers typed into the input."""

import asyncio
import sys
import time
from collections.abc import Callable, Collection

from prompt_toolkit.buffer import Buffer

from agentcli.agent.events import AnyQuestion
from agentcli.agent.ops import Approve
from agentcli.errors import UserError
from agentcli.frontends.choices import Choice
from agentcli.frontends.terminal.composer import Composer, Purpose
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.prompt import Picker
from agentcli.frontends.terminal.letters import KEY_ALONE_S, TYPING_PAUSE_S, TypedLetters
from agentcli.frontends.terminal.panel import QuestionPanel
from agentcli.frontends.terminal.programs import edit_text, run_pager
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, first_rows, in_rows, plain, rows_of

REACTION_S = 0.25  # no key answers a question sooner, because nobody can have read it
LINGER_S = 0.6  # an answered question stays this long while nobody types: another often replaces it
_STEPS = {"left": -1, "right": 1, "up": -1, "down": 1, "pageup": -1, "pagedown": 1, "end": sys.maxsize}  # by key
MAX_WORK_ROWS = 3  # of running work, shown beside a question
MAX_ANSWER_ROWS = 3  # of a written answer, below the hunk or the plan that it is about
ROWS_AROUND = 4  # beside the question and its answers: a gap, the status line, what the screen keeps free


class Dialogs:
    """The open list and the open questions; `purpose` says what the input is used for."""

    def __init__(
        self, console: Console, controller: TerminalController, composer: Composer, *, notify: Callable[[str], None]
    ) -> None:
        self._console, self._controller, self._composer = console, controller, composer
        self._area, self._view, self._notify = composer.area, controller.view, notify
        self._picker: Picker | None = None
        self._list_result: asyncio.Future[int | None] | None = None  # the option picked in `_picker`
        self.purpose: Purpose = "prompt"
        self._secret_result: asyncio.Future[str | None] | None = None  # the text that `ask_secret` waits for
        self._panels: list[QuestionPanel] = []  # the open questions; the first one is shown
        self._shown_panel: QuestionPanel | None = None  # the question whose subject is the last thing that was printed
        self._answered_panel: QuestionPanel | None = None  # it stays on the screen for `LINGER_S`
        self._shown_at = self._answered_at = self._typed_at = 0.0  # by `time.monotonic()`
        self._enter_answers = True  # False after a typed command was set aside: another Enter is meant to send it
        self.is_writing_message = False  # True while a question waits until the person has written a message
        # It holds back letters that may still be a choice's key.
        self._letters = TypedLetters(console, decide=self.decide, begin_text=self._begin_answer_or_message)
        self._draft = ""  # a prompt that questions hide
        self._text_before_answer = ""  # what the input contained before an answer was typed there
        self._area.buffer.on_text_changed += self._text_changed

    @property
    def is_open(self) -> bool:
        return self.picker is not None or self.panel is not None

    async def show_in_pager(self, text: str, *, line: int = 1) -> None:
        """Show a text from a line on in the pager. Raises `UserError` without a pager."""
        await self._console.lend_to(run_pager(text, self._console.environment, line=line))
        self.reprint_question()

    def rows(self, columns: int, max_rows: int) -> list[Row]:
        """Return the rows of the open list, else of the first question; empty if nothing is open."""
        if self.picker is not None:
            warning: Row = [("warning", "? Waiting for your approval. Close the list (Esc) first.")]
            below = [clipped(warning, columns)] if self.panel is not None else []
            return [*self.picker.rows(columns, max_rows - len(below)), *below]
        if self.panel is None:
            panel = self._lingering_panel
            return panel.rows(columns, max_rows=max_rows, is_ready=False) if panel else []
        if self.purpose != "prompt":  # an answer is being typed below
            return self.panel.review_rows(columns, max_rows - MAX_ANSWER_ROWS)
        if self.is_writing_message:
            text = "? Waiting for your approval. Send (Enter) or set aside (Esc) your draft first."
            return in_rows([("warning", text)], columns, hang=4)
        others, is_ready = len(self._panels) - 1, time.monotonic() - self._shown_at >= REACTION_S
        return self.panel.rows(columns, others, max_rows=max_rows, is_ready=is_ready)

    @property
    def picker(self) -> Picker | None:
        return self._picker if self._list_result is not None and not self._list_result.done() else None

    def pick(self, picker: Picker) -> asyncio.Future[int | None]:
        """Open a list at once, so that the next key is for it. The result is None if the person closes it."""
        self.close_list()
        self._stop_showing()  # prints held output, which may explain the list; the question returns after it
        self._picker, self._list_result = picker, asyncio.get_running_loop().create_future()
        self._list_result.add_done_callback(lambda _: self._show_question())
        self._console.draw_soon()
        return self._list_result

    def close_list(self, *, chooses: bool = False) -> None:
        """Close the list. With `chooses`, the result is the marked option."""
        if self.picker is None or self._list_result is None or (chooses and self.picker.marked_index is None):
            return  # no list is open, or one in which no option matches the typed text: it stays open
        self._list_result.set_result(self.picker.marked_index if chooses else None)

    @property
    def panel(self) -> QuestionPanel | None:
        return self._panels[0] if self._panels else None

    @property
    def takes_keys(self) -> bool:
        is_shown = self._shown_panel is not None and self._shown_panel is self.panel
        return is_shown and self.purpose == "prompt" and not self.is_writing_message

    @property
    def hides_input(self) -> bool:
        """True while a list or a question's choices replace the prompt, whose text returns afterwards."""
        list_hides = self.picker is not None and not self.picker.is_startup
        return list_hides or self.takes_keys or self._lingering_panel is not None

    @property
    def _lingering_panel(self) -> QuestionPanel | None:
        is_free = self.panel is None and self.purpose == "prompt" and not self._area.buffer.text
        return self._answered_panel if is_free else None

    def ask_question(self, question: AnyQuestion) -> None:
        self._panels.append(QuestionPanel(question, self._view.activity.agent_title(question.agent_id)))
        self._show_question()
        self._notify(f"Waiting for your answer: {question.title}")

    def _show_question(self) -> None:
        """Show the first question. It waits for an open list or a secret, which would separate it from its choices."""
        self._console.draw_soon()
        panel = self.panel
        if panel is not self._shown_panel:
            self._stop_showing()
        if panel is not None and self._shown_panel is None and self.picker is None and self.purpose != "secret":
            self._shown_panel, self._answered_panel, self._enter_answers = panel, None, True
            self._hold_lone_letter(panel)  # before it counts as a message that is being written
            self.is_writing_message = self.purpose == "prompt" and self._is_typing()
            self._set_draft_aside()
            self._ignore_answers()
            self._print_preview(panel, panel.preview(self._console.columns))

    def _stop_showing(self) -> None:
        """Let other text be printed; the question takes no keys until it is printed again below that text."""
        self._shown_panel = None
        self._view.release_held_output()

    def suspend(self) -> None:
        self._console.suspend()
        self.reprint_question()

    def reprint_question(self) -> None:
        """Print the open question again, below text that was printed since, or on a screen that was cleared."""
        self._stop_showing()
        self._show_question()

    def _ignore_answers(self, after_s: float = 0.0) -> None:
        """Ignore answers until the person can have read the question; its choices are muted until then."""
        self._shown_at = time.monotonic() + after_s
        asyncio.get_running_loop().call_later(after_s + REACTION_S + 0.02, self._console.draw_soon)

    def _print_preview(self, panel: QuestionPanel, fragments: list[Fragment], max_rows: int = 0) -> None:
        """Print at most `max_rows` of a preview (0: as many as fit into the window); a key prints the rest."""
        columns, review = self._console.columns, panel.review
        continues_preview = bool(panel.unread)  # the person pressed the key for the rest
        panel.unread, panel.review = [], None  # so that only the choices are measured
        room = self._console.output.get_size().rows - MAX_WORK_ROWS - ROWS_AROUND - len(panel.rows(columns))
        panel.review = review
        shown, panel.unread = first_rows(fragments, columns, max_rows or max(1, room))
        panel.unread_rows = rows_of(panel.unread, columns) if panel.unread else 0
        self._view.print_question(shown)
        if not panel.unread and continues_preview:
            self._ignore_answers()  # another press of that key is not an answer

    def _hold_lone_letter(self, panel: QuestionPanel) -> None:
        """Hold the only letter in the input: it may begin a word, or repeat the answer to the previous question."""
        text = self._area.buffer.text
        was_just_answered = time.monotonic() - self._answered_at < TYPING_PAUSE_S
        is_prompt = self.purpose == "prompt" and not self.is_writing_message
        if len(text) == 1 and was_just_answered and is_prompt:
            self._area.replace_text("")
            self._letters.hold(panel, text, is_early=True)

    def _is_typing(self) -> bool:
        """Return True in the middle of a message, which a question must not interrupt."""
        was_just_typed = time.monotonic() - self._typed_at < TYPING_PAUSE_S
        return bool(self._area.buffer.text) and (self.is_writing_message or was_just_typed)

    def _text_changed(self, _: Buffer) -> None:
        """Let the question take keys once the message is sent or stashed, which empties the input."""
        self._typed_at = time.monotonic() if self._area.buffer.text else 0.0
        if self.is_writing_message and not self._area.buffer.text:
            self.stop_waiting_for_message()

    def stop_waiting_for_message(self) -> None:
        """Let the question take keys; an unsent message or command is set aside, and returns after the answer."""
        self.is_writing_message, self._enter_answers = False, not self._area.buffer.text.startswith("/")
        self._ignore_answers(KEY_ALONE_S)  # a second Enter is not an answer
        self._set_draft_aside()

    def _set_draft_aside(self) -> None:
        """Empty the input while a question takes the keys; `_restore_draft` brings the text back."""
        if self.takes_keys:
            self._area.takes_prompt = False
            if text := self._area.buffer.text:
                self._draft += text
                self._area.replace_text("")

    def _restore_draft(self) -> None:
        """Restore the draft after the last question; text typed since then follows it."""
        if self.panel is None and self.purpose == "prompt":
            self._answered_panel, self.is_writing_message = None, False
            self._area.takes_prompt = True
            if self._draft:
                self._area.replace_text(self._draft + self._area.buffer.text)
                self._area.buffer.cursor_position = len(self._area.buffer.text)
                self._draft = ""
        self._console.draw_soon()

    def forget_question(self, id: str) -> None:
        """Withdraw a question that was decided elsewhere; an answer being typed becomes part of the prompt."""
        before = self.panel
        self._panels = [panel for panel in self._panels if panel.question.id != id]
        if before is not None and before is not self.panel:
            self._letters.forget_held()
            if self.purpose in ("denial", "answer"):
                self._draft += self._area.buffer.text
            if self.purpose != "secret":
                self.end_answer()
            self._show_question()
            self._restore_draft()

    def forget_questions(self, *, keep: Collection[str] = ()) -> None:
        """Withdraw all questions but those in `keep`, the newest first, so that no other one is shown meanwhile."""
        for id in [panel.question.id for panel in reversed(self._panels) if panel.question.id not in keep]:
            self.forget_question(id)
        self._restore_draft()

    def type(self, text: str) -> None:
        self._letters.type(self._panels[0], text, is_early=time.monotonic() - self._shown_at < REACTION_S)

    def _begin_answer_or_message(self, text: str) -> None:
        """Begin an answer with `text` if the question takes words; else a message, for which the question waits."""
        if self._panels[0].text_purpose != "denial":  # a denial in words begins with Tab
            self._begin_answer(text)
            return
        self.is_writing_message = self._area.takes_prompt = True
        self._console.begin_inserting()
        self._area.set_text(text)

    def _begin_answer(self, text: str = "") -> None:
        """Open the input for a written answer or a comment; without `text`, the comment so far can be edited."""
        panel = self._panels[0]
        self.start_answer(panel.text_purpose, text or (panel.review.comment if panel.review else ""))

    def paste(self, data: str) -> None:
        """Begin an answer or a message with the paste; a letter that was held back is its beginning, and no answer."""
        self._begin_answer_or_message(self._letters.held)
        self._letters.forget_held()
        self._composer.paste(data)
        self.is_writing_message &= bool(self._area.buffer.text)  # an empty paste begins no message

    def press(self, key: str) -> None:
        """Apply a key that is no character to the first question, or to the review of its hunks or plan.

        Enter answers only if it was meant to: not just after a draft was set aside or the question appeared. While a
        part of the question is unread, Down, PageDown and End print more of it; later, Up and Down move between the
        choices. In a review, PageUp, PageDown and End scroll.
        """
        panel, step = self._panels[0], _STEPS.get(key, 0)
        self._console.hint.show("", 0.0)  # removes the last hint
        if key == "enter" and self._letters.consume_enter(panel):  # it belonged to letters typed just before
            return
        self._letters.forget_held()
        self._enter_answers |= key != "enter"  # a person who presses another key is looking at the question
        match key:
            case "enter" if not self._enter_answers:
                self._console.hint.show("The command waits. Answer with a letter, or with ↑ ↓ and Enter.")
            case "enter" if time.monotonic() - self._shown_at >= (TYPING_PAUSE_S if self._draft else REACTION_S):
                self.decide(panel.selected)  # if a draft was just set aside, Enter may have been meant for it
            case "escape":
                self.decide(panel.no)
            case "tab":
                self._begin_answer()
            case "left" | "right":
                panel.select_rule(step)
            case "down" | "pagedown" | "end" if panel.unread and panel.review is None:
                # The arrow prints one more row, End prints all, and PageDown (0) as many as fit into the window.
                self._print_preview(panel, panel.unread, 0 if key == "pagedown" else step)
            case "up" | "down" if not panel.unread or panel.review is not None:
                panel.move(step)
            case "pageup" | "pagedown" | "end" if panel.review is not None:
                panel.review.move(step * panel.review.page_rows)

    def decide(self, choice: Choice) -> None:
        """Answer the question, or open what leads to its answer: the input, the hunks or the editor."""
        self._letters.forget_held()
        if not self.takes_keys:  # a letter was held back, and meanwhile a list or the input got the keys
            return
        panel = self._panels[0]
        match choice.id:
            case "words":
                self._begin_answer()
            case "view":
                whole = panel.preview(self._console.columns, is_whole=True)
                self._controller.spawn(self._console.lend_to(run_pager(plain(whole), self._console.environment)))
            case "rule":
                self.start_answer("rule", panel.rule)
            case _ if choice not in panel.selectable_choices:  # a yes, before all of the question was on the screen
                more = "For several hunks: Esc, then End" if panel.review else "Or End"
                self._console.hint.show(f"Scroll to the end first: PageDown. {more}.")
            case "edit":
                self._controller.spawn(self._edit_plan(panel))
            case "hunks" | "comments":
                panel.start_review(choice)
                self._ignore_answers()  # nobody can have read the first hunk or line yet
            case "back":
                panel.end_review()
            case _ if panel.review is not None:
                self._decide_in_review(choice.id)
            case _:
                self._submit_answer(panel.answer(choice))

    async def _edit_plan(self, panel: QuestionPanel) -> None:
        """Accept the plan as it is after the person has edited it; the answer's comment is the edited plan."""
        plan = panel.question.preview
        try:
            edited = await self._console.lend_to(edit_text(plan, self._console.environment))
        except UserError as error:
            self._console.hint.show(str(error), 8.0)
            return
        if edited.strip() and panel is self.panel:  # else the question was withdrawn meanwhile
            self._view.release_held_output()  # else the edited plan would be held back, too
            self._view.print_markdown(edited)
            self._submit_answer(Approve(panel.question.id, allowed=True, comment="" if edited == plan else edited))

    def _decide_in_review(self, choice_id: str, comment: str = "") -> None:
        if (answer := self._panels[0].decide_in_review(choice_id, comment)) is not None:
            self._submit_answer(answer)

    def _submit_answer(self, answer: Approve) -> None:
        """Answer the first question, print what was answered, and show the next question."""
        answered = self._answered_panel = self._panels.pop(0)
        answered.end_review()
        self._view.print_answer(answer, answered.outcome(answer, self._console.columns))
        self._answered_at = time.monotonic()
        self.end_answer()
        self._controller.answer(answer)
        self._show_question()
        asyncio.get_running_loop().call_later(LINGER_S, self._end_lingering, answered)

    def _end_lingering(self, panel: QuestionPanel) -> None:
        if self._answered_panel is panel:  # else another question has taken its place
            self._restore_draft()

    async def ask_secret(self, question: str) -> str | None:
        """Return a secret that the person types unseen, or None if they cancel; an open question returns after it."""
        self._stop_showing()
        self._view.print_line(question, "accent")
        self._secret_result = asyncio.get_running_loop().create_future()
        self.start_answer("secret")
        try:
            return await self._secret_result
        finally:
            if self._secret_result.cancelled():  # because the command that asked was interrupted
                self.end_answer()
            self._show_question()

    def start_answer(self, purpose: Purpose, text: str = "") -> None:
        """Let the input take an answer; the text in it returns afterwards."""
        self._text_before_answer, self.purpose = self._area.buffer.text, purpose
        self._console.begin_inserting()
        self._area.takes_prompt, self._area.is_secret = False, purpose == "secret"
        self._area.set_text(text)

    def end_answer(self, *, secret: str = "") -> None:
        """Return the input to the prompt; an open request for a secret gets `secret`, or None if it is empty."""
        if self.purpose != "prompt":
            self.purpose = "prompt"
            self._area.takes_prompt, self._area.is_secret = self.panel is None, False
            if self._secret_result is not None and not self._secret_result.done():
                self._secret_result.set_result(secret or None)
            self._area.replace_text(self._text_before_answer)
            self._set_draft_aside()  # if a question is still open, the text returns only after it

    def accept_answer(self) -> None:
        """Use the text in the input for its purpose, and return the input to the prompt."""
        panel, text, purpose = self.panel, self._composer.typed.expand().strip(), self.purpose
        self.end_answer(secret=text)
        if panel is None or purpose == "secret":
            return
        if purpose == "rule":
            if text and not panel.set_rule(text):
                self._console.hint.show("Not a rule: write TOOL or TOOL(pattern).")
        elif panel.review is not None:
            self._decide_in_review("words", text)
            self._ignore_answers()  # a second Enter is not an answer
        elif text or purpose == "denial":  # a no needs no words, but an answer does
            self._submit_answer(panel.answer_in_words(text))
