"""Draws what the person chooses from: lists, and the questions of a session with their choices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from agentcli.agent.events import AnyQuestion, CallApproval, ChangesApproval, PlanApproval, Question
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.rules import Rule
from agentcli.frontends.choices import HEADINGS, Choice, choices_for
from agentcli.frontends.printable import exposed, printable
from agentcli.frontends.terminal.text.code import diff_fragments
from agentcli.frontends.terminal.text.fragments import (
    Fragment,
    Row,
    clipped,
    lines_of,
    row_width,
    width,
    with_spaces,
    wrap_line,
    wrapped,
)
from agentcli.llm.messages import ToolUse
from agentcli.safety.commands.records import escaped
from agentcli.tools.observation import MAX_SUBJECT_CHARS, call_title
from agentcli.tools.text.diff import path_of, split_files

MAX_OPTIONS = 8  # of a list that are shown at a time
MIN_DETAIL_COLUMNS = 12  # with the marks at the start of a row and the gap between the columns
MAX_RULE_ROWS = 6
MAX_BESIDE = 3  # choices beside the question
MAX_CHOICE_ROWS = 100  # where the window has no limit

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
_REFUSALS = frozenset(("no", "not-yet", "words", "leave", "back"))


class Picker:
    """A list to choose from: arrows move, typing narrows, Enter selects."""

    def __init__(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> None:
        """`options` are a label and a detail each; the one at `current` is marked, and selected first."""
        self.title = printable(title)
        self.can_keep = can_keep
        self._options = [(printable(label), printable(detail)) for label, detail in options]
        self._current = current
        self._query = ""
        self._selected = current or 0

    @property
    def shown(self) -> list[int]:
        """The numbers of the options that have all words of the query."""
        words = self._query.lower().split()
        return [
            number
            for number, (label, detail) in enumerate(self._options)
            if all(word in f"{label} {detail}".lower() for word in words)
        ]

    @property
    def chosen(self) -> int | None:
        shown = self.shown
        return shown[min(self._selected, len(shown) - 1)] if shown else None

    def move(self, by: int) -> None:
        if count := len(self.shown):
            self._selected = (min(self._selected, count - 1) + by) % count

    def type(self, text: str) -> None:
        """Add to the text that narrows the list; an empty text removes its last character."""
        self._query = self._query + printable(text).replace("\n", " ") if text else self._query[:-1]
        self._selected = 0

    @property
    def cursor(self) -> int:
        return width(f"{self.title} {self._query}")

    def rows(self, columns: int, max_rows: int) -> list[Row]:
        shown = self.shown
        hint = "(type to narrow)" if len(self._options) > MAX_OPTIONS else ""
        head: Row = [("accent", self.title), ("muted", f" {self._query or hint}")]
        room = max(1, min(MAX_OPTIONS, max_rows - 2))
        at = min(self._selected, max(0, len(shown) - 1))
        first = max(0, min(at - room // 2, len(shown) - room))
        # Details stand behind the widest label that leaves room for the first word of one.
        widths = (width(label) for label, detail in self._options if detail)
        label_width = max((cells for cells in widths if cells <= columns - MIN_DETAIL_COLUMNS), default=0)
        rows = [clipped(head, columns)]
        for position, number in enumerate(shown[first : first + room], first):
            label, detail = self._options[number]
            mark, role = ("❯ ", "selected") if position == at else ("  ", "")
            row: Row = [("accent", mark)]
            if self._current is not None:
                row.append(("ok", "● " if number == self._current else "  "))
            row.append((role, label))
            if detail:
                row.append(("muted", " " * max(2, 2 + label_width - width(label)) + detail))
            rows.append(clipped(row, columns))
        if not shown:
            rows.append(clipped([("muted", "  no match")], columns))
        keep = " · Ctrl-S to keep it for good" if self.can_keep else ""
        rows.append(clipped([("muted", f"  {len(shown)} · Enter to select{keep} · Esc to cancel")], columns))
        return rows[: max(0, max_rows)]


class QuestionPanel:
    """A question, and the state of the answer: the marked choice, the rule, the hunks that were decided.

    If a call asks, Enter says no until another choice is marked.
    """

    def __init__(self, question: AnyQuestion) -> None:
        self.question = question
        self.hunks: tuple[str, ...] = question.hunks
        self.rules: list[str] = list(question.rules)
        self.asks_permission = not isinstance(question, Question | PlanApproval)
        self._rule = 0
        self._marked = "no" if self.asks_permission else ""  # the id of a choice
        self.hunk: int | None = None  # the hunk that is being decided
        self._accepted_hunks: list[int] = []
        self._comment = ""  # on hunks
        self.rest: list[Fragment] = []  # of the preview: nobody can say yes before all of it was on the screen
        self.rows_left = 0

    @property
    def choices(self) -> list[Choice]:
        if self.hunk is not None:
            return _HUNK_CHOICES
        choices = [choice for choice in choices_for(self.question, self.rules[self._rule :][:1]) if choice.key]
        match self.question:
            case Question():
                choices.insert(-1, Choice("words", "Tab", "Something else, in your own words"))
            case PlanApproval():
                choices.insert(-1, Choice("edit", "e", "Edit the plan first"))
                choices.append(Choice("words", "Tab", "No, and say what to change"))
            case _:
                choices.append(Choice("words", "Tab", "No, and say what to do instead"))
        if len(self.hunks) > 1:
            choices.append(Choice("hunks", "h", f"Choose among {len(self.hunks)} {self._hunk_word}s"))
        return choices

    @property
    def _hunk_word(self) -> str:
        return "change" if isinstance(self.question, ChangesApproval) else "hunk"

    @property
    def offered(self) -> list[Choice]:
        """The choices that can be made now: only refusals before all of the preview was on the screen."""
        return [choice for choice in self.choices if not self.rest or choice.id in _REFUSALS]

    @property
    def no(self) -> Choice:
        return next(choice for choice in self.choices if choice.id in ("no", "not-yet", "back"))

    def choice_for(self, key: str) -> Choice | None:
        """Return the choice of a letter, or of a digit by its place; other keys may begin an answer in words."""
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
        """Return a no. Without a comment, a no to a call ends the turn; else the model reads it and goes on."""
        return Approve(self.question.id, False, comment=comment, stops=self.asks_permission and not comment)

    def answer(self, choice: Choice) -> Approve:
        return choice.answer if choice.answer is not None and choice.is_yes else self.refusal()

    def answer_in_words(self, text: str) -> Approve:
        """Return the answer to the model's question; to other questions, a no that says what to do instead."""
        is_answer = isinstance(self.question, Question)
        return Approve(self.question.id, True, comment=text) if is_answer else self.refusal(text)

    def start_hunks(self) -> None:
        self.hunk, self._accepted_hunks, self._marked = 0, [], "leave"

    def leave_hunks(self) -> None:
        self.hunk, self._comment, self._marked, self.rest = None, "", "no", []  # the whole preview was shown before

    def decide_hunk(self, choice: str, comment: str = "") -> Approve | None:
        """Decide on the hunk that is shown, or on all that are left; return the answer after the last one."""
        assert self.hunk is not None
        self._comment = "; ".join(part for part in (self._comment, comment) if part)
        after = len(self.hunks) if choice == "take_rest" else self.hunk + 1
        if choice != "leave":
            self._accepted_hunks += range(self.hunk, after)
        self.hunk = after
        if self.hunk < len(self.hunks):
            return None
        if not self._accepted_hunks:
            return self.refusal(self._comment)
        return Approve(self.question.id, True, comment=self._comment, hunks=tuple(self._accepted_hunks))

    # In the transcript

    def preview(self, columns: int) -> list[Fragment]:
        """Return the effects, then all of the command, the arguments or the diff; nothing in it is invisible."""
        if self.hunk is not None:
            return self._hunk_preview(self.hunk, columns)
        head, question = [*wrapped(self._headline(), columns, hang=2), ("", "\n")], self.question
        match question:
            case PlanApproval(preview=text):
                text = text.replace("\r\n", "\n")
                is_plain = exposed(text) == text  # else the plan that was printed above left characters out
                return head if is_plain else [("", f"{exposed(text).rstrip()}\n"), *head]
            case ChangesApproval(changes=changes):
                firsts = accumulate((change.hunks for change in changes), initial=0)
                texts = (change.diff or self.hunks[first] for change, first in zip(changes, firsts, strict=False))
                shown = [fragment for text in texts for fragment in _files(text, columns)]
            case CallApproval(preview=text) if not _is_title_complete(question.call):
                if path_of(text):
                    shown = diff_fragments(text, width=columns, max_lines=None)
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
            texts = (("bold", question.title), ("muted", question.reason))
            parts = [(role, exposed(text)) for role, text in texts if text or role == "bold"]
        between = [fragment for part in parts[1:] for fragment in (("muted", " · "), part)]
        return [("bold error" if question.grave else "bold", "? "), parts[0], *between]

    def _hunk_preview(self, number: int, columns: int) -> list[Fragment]:
        place, hunk = f"{self._hunk_word.capitalize()} {number + 1} of {len(self.hunks)}", self.hunks[number]
        if isinstance(self.question, ChangesApproval):  # a file's change, or one that no diff shows, or a repository's
            (_, name), *shown = _files(hunk, columns)
            return [("bold", f"{place}: {name.lstrip()}"), *shown]
        return [("bold", f"{place}\n"), *diff_fragments(hunk, width=columns, max_lines=None)]

    # Below it

    def rows(
        self,
        columns: int,
        more: int = 0,
        *,
        max_rows: int = MAX_CHOICE_ROWS,
        is_writing: bool = False,
        is_ready: bool = True,
    ) -> list[Row]:
        """Return the choices, in one row if they are few; `more` questions wait. No keys count until it `is_ready`."""
        if is_writing:
            return _rows("warning", "? Waiting for your approval. Send or stash (Ctrl-S) your draft first.", columns)
        if self.rest:
            count = f"{self.rows_left:,} more row{'' if self.rows_left == 1 else 's'}"
            head = _rows("warning", f"Read to the end to answer ({count}): ↓ row · PageDown page · v pager", columns)
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
        room = max(1, max_rows - len(head) - len(below))
        first = max(0, min(marked_cell(rows)[0] - room // 2, len(rows) - room))
        return [*head, *rows[first : first + room], *below]

    @property
    def _rule_text(self) -> str:
        """The calls that a lasting yes would cover; empty if there is no such choice."""
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
        """Return the question and its answers as lines of text, without those that only a live screen has."""
        rows = [f"  {one.key.replace('Esc', 'Enter')}  {one.label}" for one in self.choices if one.answer is not None]
        return [HEADINGS[type(self.question)], *rows, *([f"  {self._rule_text}"] if self._rule_text else [])]


def marked_cell(rows: Sequence[Row]) -> tuple[int, int]:
    """Return row and column of the marked choice for the cursor; without one, the end of the last row."""
    for number, row in enumerate(rows):
        if _MARK in row:
            return number, row_width(row[: row.index(_MARK)])
    return max(0, len(rows) - 1), row_width(rows[-1]) if rows else 0


def _is_title_complete(call: ToolUse) -> bool:
    if call.name not in _COMPLETE_TITLES or len(call.input) != 1:
        return False
    text = str(*call.input.values())
    is_whole = len(text) <= MAX_SUBJECT_CHARS and text == " ".join(text.split())
    return is_whole and call_title(call.name, call.input).endswith(text)


def _files(change: str, columns: int) -> list[Fragment]:
    """Return git's description of a repository and the diffs of its files, each below its name; else the one change."""
    shown: list[Fragment] = []
    for part in split_files(change):
        path = path_of(part)
        diff = diff_fragments(part, width=columns, max_lines=None) if path else []
        shown += [("", f"  {exposed(path or part.strip())}\n"), *diff]
    return shown


def _rows(role: str, line: str, columns: int) -> list[Row]:
    return _folded([(role, with_spaces(line)[0])], columns, hang=4)


def _folded(row: Row, columns: int, *, hang: int) -> list[Row]:
    broken = wrap_line(row, columns, [("", " " * hang)], breaks_words=True)
    return [clipped(part, columns) for part in lines_of(broken)]
