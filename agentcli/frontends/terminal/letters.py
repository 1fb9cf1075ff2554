"""Distinguishes letters that answer a question from letters that begin a sentence."""

import asyncio
import time
from collections.abc import Callable

from agentcli.frontends.choices import Choice
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.panel import QuestionPanel
from agentcli.frontends.terminal.reviews import HunkReview

TYPING_PAUSE_S = 0.8  # keys that follow each other within this time belong to one sentence
KEY_ALONE_S = 0.3  # a letter that nothing follows within this time is an answer; else it begins a sentence


class TypedLetters:
    """The letters typed at a question. `decide` gets the choice for an answer, `begin_text` the beginning of a text."""

    def __init__(self, console: Console, decide: Callable[[Choice], None], begin_text: Callable[[str], None]) -> None:
        self._console, self._decide, self._begin_text = console, decide, begin_text
        # Letters that may be an answer or begin a sentence; early ones came before anybody could read the question.
        self.held, self._are_early = "", False
        self._timer: asyncio.TimerHandle | None = None  # ends the wait for a letter that follows
        self._sentence_until = 0.0  # until then, letters and Enter at a hunk are not answers

    def hold(self, panel: QuestionPanel, letters: str, *, is_early: bool, for_s: float = KEY_ALONE_S) -> None:
        self.held, self._are_early = letters, is_early
        self._timer = asyncio.get_running_loop().call_later(for_s, self.answer_with_held, panel)

    def forget_held(self) -> None:
        self.held = ""
        if self._timer is not None:
            self._timer.cancel()

    def answer_with_held(self, panel: QuestionPanel) -> None:
        """Answer with the held letter, unless it was typed too early to be meant for this question."""
        choice = panel.choice_for(self.held[-1:])  # a repeated letter is held twice
        self.forget_held()
        self._console.draw_soon()
        if choice is not None and not self._are_early:
            self._decide(choice)

    def consume_enter(self, panel: QuestionPanel) -> bool:
        """Answer with the held letter. Return True if Enter belongs to it, or to a sentence typed at a hunk."""
        if self.held:
            self.answer_with_held(panel)
            return True
        return time.monotonic() < self._sentence_until

    def type(self, panel: QuestionPanel, text: str, *, is_early: bool) -> None:
        """Handle a typed character: alone it may be an answer; with others it begins a text, except at a hunk."""
        held, choice = self.held, panel.choice_for(text)
        held_choice = None if self._are_early else panel.choice_for(held)
        self.forget_held()
        if isinstance(panel.review, HunkReview) and text != "/":  # a command is typed in the input
            self._type_at_hunk(panel, held, text)
        elif held_choice is not None and held_choice.id == "hunks" and text in ("y", "n"):
            # A practised person types `h`, which opens the hunks, and the answer about the first one in a row.
            self._decide(held_choice)
            self.hold(panel, text, is_early=False)
        # A letter that came too early to be an answer may be typed again.
        elif choice is not None and (not held or (self._are_early and held == text)):
            self.hold(panel, held + text, is_early=is_early)
        elif held or text == "/" or panel.text_purpose != "denial":  # a denial in words begins with Tab
            self._begin_text(held + text)
        else:  # no answer, but a sentence if more letters follow; as an early letter, it never answers
            self.hold(panel, text, is_early=True, for_s=TYPING_PAUSE_S)
            self._console.hint.show(f"“{text}” is not an answer here.", 2.0)

    def _type_at_hunk(self, panel: QuestionPanel, held: str, text: str) -> None:
        """Hold a letter back: it answers unless it begins a sentence. Only y and n may be answers in a row."""
        now, review, held_choice = time.monotonic(), panel.review, panel.choice_for(held)
        are_answers = panel.choice_for(text) is not None and (not held or {held, text} <= {"y", "n"})
        if not are_answers or now < self._sentence_until:
            self._sentence_until = now + TYPING_PAUSE_S
            self._console.hint.show(f"“{text}” is not taken: letters here are answers, one at a time.", 2.0)
            return
        if held_choice is not None:
            self._decide(held_choice)
        if panel.review is review:  # else the held letter decided the last hunk
            self.hold(panel, text, is_early=False)
