"""Draws one question: the call and its effects, all of what is asked about, the choices, the reach of a yes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from agentcli.agent.events import AnyQuestion, CallApproval, ChangesApproval, PlanApproval, Question
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.rules import Rule
from agentcli.frontends.choices import HEADINGS, Choice, choices_for
from agentcli.frontends.printable import exposed
from agentcli.frontends.terminal.text.diff import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, lines_of, row_width, with_spaces
from agentcli.frontends.terminal.text.wrapping import wrap_line, wrapped
from agentcli.llm.messages import ToolUse
from agentcli.safety.commands.records import escaped
from agentcli.tools.summary import MAX_SUBJECT_CHARS, call_title
from agentcli.tools.text.diff import path_of, split_files

MAX_RULE_ROWS = 6
MAX_BESIDE = 3  # choices beside the question
MAX_ROWS = 100  # of the choices, where the window has no limit

_COMPLETE_TITLES = frozenset(("file_read", "file_list", "grep_search", "web_fetch", "web_search"))
_MARK: Fragment = ("accent", "❯")
_VIEW, _RULE = Choice("view", "v", "View all of it"), Choice("rule", "e", "Edit the rule")
_HUNK_CHOICES = [
    Choice("take", "y", "Yes"),
    Choice("leave", "n", "No"),
    Choice("take_rest", "a", "Yes to all the rest"),
    Choice("words", "Tab", "No, and say why"),
    Choice("back", "Esc", "Back"),
]
_NOES = frozenset(("no", "not-yet", "words", "leave", "back"))


class QuestionPanel:
    """A question and the answer in the making. Where a call asks, Enter says no until another choice is marked."""

    def __init__(self, question: AnyQuestion) -> None:
        self.question = question
        self.hunks: tuple[str, ...] = question.hunks
        self.rules: list[str] = list(question.rules)
        self.asks_permission = not isinstance(question, Question | PlanApproval)
        self._rule = 0
        self._marked = "no" if self.asks_permission else ""  # the id of a choice
        self.hunk: int | None = None  # the hunk on the screen
        self._accepted: list[int] = []
        self._comment = ""  # on hunks
        self.rest: list[Fragment] = []  # what was not on the screen yet; only after it a yes counts
        self.rows_left = 0

    @property
    def choices(self) -> list[Choice]:
        if self.hunk is not None:
            return _HUNK_CHOICES
        made = [choice for choice in choices_for(self.question, self.rules[self._rule :][:1]) if choice.key]
        match self.question:
            case Question():
                made.insert(-1, Choice("words", "Tab", "Something else, in your own words"))
            case PlanApproval():
                made.insert(-1, Choice("edit", "e", "Edit the plan first"))
                made.append(Choice("words", "Tab", "No, and say what to change"))
            case _:
                made.append(Choice("words", "Tab", "No, and say what to do instead"))
        if len(self.hunks) > 1:
            made.append(Choice("hunks", "h", f"Choose among {len(self.hunks)} {self._hunk_word}s"))
        return made

    @property
    def _hunk_word(self) -> str:
        return "change" if isinstance(self.question, ChangesApproval) else "hunk"

    @property
    def offered(self) -> list[Choice]:
        """The choices that can be made now: before all was on the screen, only to say no."""
        return [choice for choice in self.choices if not self.rest or choice.id in _NOES]

    @property
    def no(self) -> Choice:
        """The choice that Esc makes."""
        ids = ("no", "not-yet", "back")
        return next(choice for choice in self.choices if choice.id in ids)

    def choice_for(self, key: str) -> Choice | None:
        """The choice of a letter, or of a digit by its place; other letters and digits may begin an answer in words."""
        if isinstance(self.question, Question):
            return next((choice for choice in self.choices if choice.key == key and key.isdecimal()), None)
        by_key = {str(number): choice for number, choice in enumerate(self.choices, 1)} | {"v": _VIEW}
        by_key |= {"e": _RULE} if self.rules and self.hunk is None else {}
        return (by_key | {choice.key: choice for choice in self.choices}).get(key)

    @property
    def rule(self) -> str:
        return self.rules[self._rule] if self.rules else ""

    @property
    def selected(self) -> Choice:
        return next((choice for choice in self.offered if choice.id == self._marked), self.offered[0])

    def move(self, by: int) -> None:
        offered = self.offered
        self._marked = offered[(offered.index(self.selected) + by) % len(offered)].id

    def widen(self, by: int) -> None:
        if self.rules:
            self._rule = max(0, min(self._rule + by, len(self.rules) - 1))

    def set_rule(self, text: str) -> None:
        """Add the person's own rule; the runtime checks it."""
        self.rules = [*self.rules, text]
        self._rule = len(self.rules) - 1

    def refusal(self, comment: str = "") -> Approve:
        """Say no to a call: without a word it ends the turn, with one the model reads it and goes on."""
        return Approve(self.question.id, False, comment=comment, stops=self.asks_permission and not comment)

    def answer(self, choice: Choice) -> Approve:
        return choice.answer if choice.answer is not None and choice.is_yes else self.refusal()

    def answer_in_words(self, text: str) -> Approve:
        """The answer to the model's question; else a no with what to do instead."""
        is_answer = isinstance(self.question, Question)
        return Approve(self.question.id, True, comment=text) if is_answer else self.refusal(text)

    def start_hunks(self) -> None:
        self.hunk, self._accepted, self._marked = 0, [], "leave"

    def leave_hunks(self) -> None:
        self.hunk, self._comment, self._marked, self.rest = None, "", "no", []  # all of it was shown before

    def decide_hunk(self, choice: str, comment: str = "") -> Approve | None:
        """Decide on the hunk that is shown, or on all that are left; the answer once the last one is decided."""
        assert self.hunk is not None
        self._comment = "; ".join(part for part in (self._comment, comment) if part)
        after = len(self.hunks) if choice == "take_rest" else self.hunk + 1
        if choice != "leave":
            self._accepted += range(self.hunk, after)
        self.hunk = after
        if self.hunk < len(self.hunks):
            return None
        if not self._accepted:
            return self.refusal(self._comment)
        return Approve(self.question.id, True, comment=self._comment, hunks=tuple(self._accepted))

    # In the transcript

    def preview(self, columns: int) -> list[Fragment]:
        """The effects, then all of the command, the arguments or the diff; nothing in it is invisible."""
        if self.hunk is not None:
            return self._hunk_preview(self.hunk, columns)
        head, question = [*wrapped(self._headline(), columns, hang=2), ("", "\n")], self.question
        match question:
            case PlanApproval(preview=text):
                text = text.replace("\r\n", "\n")
                is_plain = exposed(text) == text  # else the answer above left characters out
                return head if is_plain else [("", f"{exposed(text).rstrip()}\n"), *head]
            case ChangesApproval(changes=changes):
                firsts = accumulate((change.hunks for change in changes), initial=0)
                texts = (change.diff or self.hunks[first] for change, first in zip(changes, firsts, strict=False))
                shown = [fragment for text in texts for fragment in _files(text, columns)]
            case CallApproval(preview=text) if not _is_title_complete(question.call):
                if path_of(text):
                    shown = diff_fragments(text, width=columns, most_lines=None)
                else:
                    mark = "$ " if question.call.name == "bash" else "  "
                    lines = exposed(text).split("\n")
                    shown = [("", f"  {'  ' if n else mark}{with_spaces(line)[0]}\n") for n, line in enumerate(lines)]
            case _:
                return head
        if len(self._rule_rows(columns)) == MAX_RULE_ROWS:  # the panel may have no room for it
            shown.append(("muted", f"  {self._rule_text}\n"))
        return [*head, *shown]

    def _headline(self) -> list[Fragment]:
        question, call = self.question, self.question.call
        if isinstance(question, CallApproval):
            parts = [("bold error" if text in question.grave else "", exposed(text)) for text in question.effects]
            if call.name != "bash":
                parts.insert(0, ("bold", exposed(call_title(call.name, call.input))))
            elif parts:
                role, text = parts[0]
                parts[0] = (role or "bold", text[:1].upper() + text[1:])
            else:
                parts = [("bold", "Run a command")]
        else:
            said = (("bold", question.title), ("muted", question.reason))
            parts = [(role, exposed(text)) for role, text in said if text or role == "bold"]
        between = [fragment for part in parts[1:] for fragment in (("muted", " · "), part)]
        return [("bold error" if question.grave else "bold", "? "), parts[0], *between]

    def _hunk_preview(self, number: int, columns: int) -> list[Fragment]:
        place, hunk = f"{self._hunk_word.capitalize()} {number + 1} of {len(self.hunks)}", self.hunks[number]
        if isinstance(self.question, ChangesApproval):  # a file's change, or one that no diff shows, or a repository's
            (_, name), *shown = _files(hunk, columns)
            return [("bold", f"{place}: {name.lstrip()}"), *shown]
        return [("bold", f"{place}\n"), *diff_fragments(hunk, width=columns, most_lines=None)]

    # Below it

    def rows(
        self, columns: int, more: int = 0, *, most: int = MAX_ROWS, is_writing: bool = False, is_ready: bool = True
    ) -> list[Row]:
        """The choices, in one row if they are few; `more` questions wait behind. No keys count until it `is_ready`."""
        if is_writing:
            return _rows("warning", "? Waiting for your approval. Send or stash (Ctrl-S) your draft first.", columns)
        if self.rest:
            left = f"{self.rows_left:,} more row{'' if self.rows_left == 1 else 's'}"
            head = _rows("warning", f"Read to the end to answer ({left}): ↓ row · PageDown page · v pager", columns)
        else:
            text = HEADINGS[type(self.question)]
            if self.hunk is not None:
                text = f"Apply {self._hunk_word} {self.hunk + 1} of {len(self.hunks)}?"
            head = [clipped([("bold", text), *([("muted", f" +{more} more")] if more else [])], columns)]
        below = [] if self.rest or self.hunk is not None else self._rule_rows(columns)
        offered, marked, key_role = self.offered, self.selected, "accent" if is_ready else "muted"
        in_one = list(head[-1])
        rows: list[Row] = []
        for choice in offered:
            mark = _MARK if choice == marked else ("", " ")
            role = "muted" if not is_ready else "selected" if choice == marked else ""
            in_one += [("", " "), mark, (key_role, choice.key), (role, f" {choice.label}")]
            row: Row = [mark, (key_role, f" {choice.key:<4}"), (role, choice.label)]
            rows += _folded(row, columns, hang=10)
        if (self.hunk is not None or len(offered) <= MAX_BESIDE) and row_width(in_one) <= columns:
            return [*head[:-1], in_one, *below]
        room = max(1, most - len(head) - len(below))
        first = max(0, min(marked_cell(rows)[0] - room // 2, len(rows) - room))
        return [*head, *rows[first : first + room], *below]

    @property
    def _rule_text(self) -> str:
        """The calls that a yes for longer would cover; empty where there is none."""
        keys = "/".join(choice.key for choice in self.choices if choice.rule)
        whole = str(Rule("bash", escaped(str(self.question.call.input.get("command", "")).strip())))
        rule = "exactly this command" if self.rule == whole else exposed(self.rule).replace("\n", "␊")
        return f"Rule for {keys}: {rule}" if keys else ""

    def _rule_rows(self, columns: int) -> list[Row]:
        keys = "e to edit, ←/→ narrower or wider" if len(self.rules) > 1 else "e to edit"
        rows = _rows("muted", f"  {self._rule_text} ({keys})", columns) if self._rule_text else []
        if len(rows) <= MAX_RULE_ROWS:
            return rows
        return [*rows[: MAX_RULE_ROWS - 1], clipped([("muted", "    … v shows all of it")], columns)]

    def in_lines(self) -> list[str]:
        """The question and its answers as lines of text, without those that only a live screen has."""
        answers = (choice for choice in self.choices if choice.answer is not None)
        rows = [f"  {choice.key.replace('Esc', 'Enter')}  {choice.label}" for choice in answers]
        return [HEADINGS[type(self.question)], *rows, *([f"  {self._rule_text}"] if self._rule_text else [])]


def marked_cell(rows: Sequence[Row]) -> tuple[int, int]:
    """Row and column of the marked choice, where the cursor rests; without one, the end of the last row."""
    for number, row in enumerate(rows):
        if _MARK in row:
            return number, row_width(row[: row.index(_MARK)])
    return max(0, len(rows) - 1), row_width(rows[-1]) if rows else 0


def _is_title_complete(call: ToolUse) -> bool:
    """Return True if the title of a call holds all of its arguments, as they are."""
    if call.name not in _COMPLETE_TITLES or len(call.input) != 1:
        return False
    text = str(*call.input.values())
    is_whole = len(text) <= MAX_SUBJECT_CHARS and text == " ".join(text.split())
    return is_whole and call_title(call.name, call.input).endswith(text)


def _files(change: str, columns: int) -> list[Fragment]:
    """Show git's words about a repository, then the diffs of its files, each below its name; else the one change."""
    shown: list[Fragment] = []
    for part in split_files(change):
        path = path_of(part)
        diff = diff_fragments(part, width=columns, most_lines=None) if path else []
        shown += [("", f"  {exposed(path or part.strip())}\n"), *diff]
    return shown


def _rows(role: str, line: str, columns: int) -> list[Row]:
    return _folded([(role, with_spaces(line)[0])], columns, hang=4)


def _folded(row: Row, columns: int, *, hang: int) -> list[Row]:
    """Break a row at words; a word longer than a row is broken too."""
    broken = wrap_line(row, columns, [("", " " * hang)], breaks_words=True)
    return [clipped(part, columns) for part in lines_of(broken)]
