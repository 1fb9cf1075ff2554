"""Lays out the question of one approval: the effects of the call, the whole of it, the reach of a yes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentcli.agent.events import AnyQuestion
from agentcli.agent.ops import Approve
from agentcli.agent.permissions.rules import Rule, escaped
from agentcli.frontends.printable import exposed
from agentcli.frontends.terminal.text.diff import diff_fragments
from agentcli.frontends.terminal.text.fragments import (
    Fragment,
    Row,
    clipped,
    plain,
    row_width,
    with_spaces,
    wrapped_tail,
)
from agentcli.frontends.terminal.text.wrapping import wrapped
from agentcli.llm.messages import ToolUse
from agentcli.tools.summary import LONGEST_SUBJECT, call_title
from agentcli.tools.text.diff import split_files

RULE_ROWS = 6

_TITLE_SAYS_ALL = frozenset(("file_read", "file_list", "grep_search", "web_fetch", "web_search"))
_MARK: Fragment = ("accent", "❯")

Choice = Literal["once", "session", "always", "try", "no", "comment", "hunks"]
KEYS: dict[str, Choice] = {"y": "once", "s": "session", "a": "always", "t": "try", "n": "no", "h": "hunks"}


class ApprovalPanel:
    """One request and the answer in the making. The safe answer is the one that Enter gives at first."""

    def __init__(self, request: AnyQuestion) -> None:
        self.request = request
        self.rules = list(request.rules)
        self._rule = 0
        self.choices: list[Choice] = ["once"]
        if self.rules or request.mode:
            self.choices.append("session")
        if self.rules:
            self.choices.append("always")
        if request.can_try:
            self.choices.append("try")
        self.choices += ["no", "comment"]
        if len(request.hunks) > 1:
            self.choices.append("hunks")
        self._selected = self.choices.index("no")
        self.hunk: int | None = None  # the hunk on the screen
        self.accepted: list[int] = []
        self.comment = ""
        self.rest: list[Fragment] = []  # what is asked about and was not on the screen yet: until then there is no yes
        self.rows_left = 0

    @property
    def is_tried(self) -> bool:
        """True if a command ran on a stand-in, and the question is which of its changes stay."""
        return self.request.kind == "keep"

    @property
    def is_limit(self) -> bool:
        """True if no call asks: the limit of rounds is reached."""
        return not self.request.call.name

    @property
    def verb(self) -> str:
        return "Keep it" if self.is_tried else "Go on" if self.is_limit else "Allow it"

    def label(self, choice: Choice) -> str:
        """The key of a choice and its meaning here."""
        if choice == "hunks" and not self.is_tried:
            return f"h {len(self.request.hunks)} hunks"
        return (_KEEP_LABELS if self.is_tried else _LIMIT_LABELS if self.is_limit else _LABELS)[choice]

    @property
    def keys(self) -> frozenset[str]:
        """The letters and digits that do something now."""
        if self.hunk is not None:
            return frozenset("yna")
        numbers = (str(number) for number in range(1, len(self.choices) + 1))
        letters = (key for key, choice in KEYS.items() if choice in self.choices)
        return frozenset((*letters, *numbers, "v", *("e" if self.rules else "")))

    @property
    def rule(self) -> str:
        return self.rules[self._rule] if self.rules else ""

    @property
    def selected(self) -> Choice:
        return self.choices[self._selected]

    def move(self, by: int) -> None:
        self._selected = (self._selected + by) % len(self.choices)

    def widen(self, by: int) -> None:
        if self.rules:
            self._rule = max(0, min(self._rule + by, len(self.rules) - 1))

    def set_rule(self, text: str) -> None:
        """Add the person's own rule; the runtime checks it."""
        self.rules = [*self.rules, text]
        self._rule = len(self.rules) - 1

    def answer(self, choice: Choice) -> Approve:
        """A no without a word ends the turn; with one the model reads it and goes on."""
        id = self.request.id
        match choice:
            case "once":
                return Approve(id, True, comment=self.comment)
            case "try":
                return Approve(id, True, "try")
            case "session" if self.request.mode:
                return Approve(id, True, "session", comment=self.comment, mode=self.request.mode)
            case "session" | "always":
                return Approve(id, True, choice, comment=self.comment, rule=self.rule)
            case _:
                return Approve(id, False, comment=self.comment, stops=not self.comment)

    def take_hunk(self, *, accepted: bool, with_rest: bool = False, comment: str = "") -> Approve | None:
        """Decide on the hunk that is shown, or on all that are left; the answer once the last one is decided."""
        assert self.hunk is not None
        self.comment = "; ".join(part for part in (self.comment, comment) if part)
        after = len(self.request.hunks) if with_rest else self.hunk + 1
        if accepted:
            self.accepted += range(self.hunk, after)
        self.hunk = after
        if self.hunk < len(self.request.hunks):
            return None
        if not self.accepted:
            return self.answer("no")
        return Approve(self.request.id, True, comment=self.comment, hunks=tuple(self.accepted))

    # In the transcript

    def preview(self, columns: int) -> list[Fragment]:
        """The effects, then all of the command, the arguments or the diff; nothing in it is invisible."""
        request = self.request
        head = [*wrapped(self._headline(), columns, hang=2), ("", "\n")]
        if self.is_limit or _title_says_all(request.call):
            return head
        if self.is_tried:
            shown = self._changes(columns)
        elif is_diff(request.preview):
            shown = diff_fragments(request.preview, width=columns, most_lines=None)
        else:
            mark = "$ " if request.call.name == "bash" else "  "
            lines = exposed(request.preview).split("\n")
            shown = [("", f"  {'  ' if n else mark}{with_spaces(line)[0]}\n") for n, line in enumerate(lines)]
        if len(self._coverage_lines(columns)) > RULE_ROWS:  # the panel has no room for it
            shown.append(("muted", f"  {self.coverage}\n"))
        return [*head, *shown]

    def _headline(self) -> list[Fragment]:
        request = self.request
        effects = [("bold error" if text in request.grave else "", exposed(text)) for text in request.effects]
        if self.is_tried or self.is_limit:
            parts = [("bold", exposed(request.title)), ("muted", exposed(request.reason))]
        elif request.call.name == "bash":
            (role, text), *rest = effects or [("", "Run a command")]
            parts = [(role or "bold", text[:1].upper() + text[1:]), *rest]
        else:
            parts = [("bold", exposed(call_title(request.call.name, request.call.input))), *effects]
        line: list[Fragment] = [("bold error" if request.grave else "bold", "? "), parts[0]]
        for part in parts[1:]:
            line += [("muted", " · "), part]
        return line

    def _changes(self, columns: int) -> list[Fragment]:
        """The changes that a tried command made, file by file."""
        shown: list[Fragment] = []
        hunks = iter(self.request.hunks)
        for change in self.request.changes:
            first, *_ = [next(hunks) for _ in range(change.hunks)]
            shown += _files(change.diff or first, columns)
        return shown

    def hunk_preview(self, columns: int) -> list[Fragment]:
        assert self.hunk is not None
        number, count = self.hunk + 1, len(self.request.hunks)
        hunk = self.request.hunks[self.hunk]
        if self.is_tried:  # a whole file's change, or one that no diff shows, or those of a repository
            (_, name), *shown = _files(hunk, columns)
            return [("bold", f"Change {number} of {count}: {name.lstrip()}"), *shown]
        return [("bold", f"Hunk {number} of {count}\n"), *diff_fragments(hunk, width=columns, most_lines=None)]

    # Below it

    def rows(self, columns: int, more: int, *, is_writing: bool = False, is_ready: bool = True) -> list[Row]:
        """The panel; `more` is how many requests wait behind this one.

        It takes no keys while somebody writes, nor before it `is_ready`.
        """
        if is_writing:
            text = "It waits for a yes: send or stash (Ctrl-S) what you write, then answer"
            return _rows("warning", f"? {text}", columns)
        if self.rest:
            left = f"{self.rows_left:,} more row{'' if self.rows_left == 1 else 's'}"
            hint = f"Read to the end to answer ({left}): ↓ next row · PageDown next page · v open in pager"
            noes = [self._choice(choice, is_ready=is_ready) for choice in ("no", "comment")]
            if self.hunk is not None:
                noes = [[("", f" {label}")] for label in _HUNK_NOES]
            return [*_rows("warning", hint, columns), *_side_by_side(noes, columns)]
        if self.hunk is not None:
            head: Row = [("bold", f"Hunk {self.hunk + 1} of {len(self.request.hunks)}:")]
            return _side_by_side([head, *([("", f" {label}")] for label in _HUNK_LABELS)], columns)
        head = [("bold", f"{self.verb}?"), *([("muted", f" +{more} more")] if more else [])]
        choices = (self._choice(choice, is_ready=is_ready) for choice in self.choices)
        return [*_side_by_side([head, *choices], columns), *self._coverage_rows(columns)]

    @property
    def coverage(self) -> str:
        """The calls that a yes for longer would cover; empty where there is none."""
        whole = str(Rule("bash", escaped(str(self.request.call.input.get("command", "")).strip())))
        rule = "this very command" if self.rule == whole else exposed(self.rule).replace("\n", "␊")
        if self.request.mode:
            return "s all edits this session" + (f" · a {rule}" if rule else "")
        return f"s, a {rule}" if rule else ""

    def _coverage_rows(self, columns: int) -> list[Row]:
        rows = self._coverage_lines(columns)
        if len(rows) <= RULE_ROWS:
            return rows
        return [*rows[: RULE_ROWS - 1], clipped([("muted", "    … v shows all of it")], columns)]

    def _coverage_lines(self, columns: int) -> list[Row]:
        if not self.coverage:
            return []
        reach = " · ←/→ narrower or wider" if len(self.rules) > 1 else ""
        edits = " · e edits" if self.rules else ""
        return _rows("muted", f"  {self.coverage}{reach}{edits}", columns)

    def _choice(self, choice: Choice, *, is_ready: bool) -> Row:
        label = self.label(choice)
        if choice == self.selected:
            return [_MARK, ("selected" if is_ready else "muted", label)]
        return [("" if is_ready else "muted", f" {label}")]


def marked_cell(rows: Sequence[Row]) -> tuple[int, int]:
    """Row and column of the marked choice, where the cursor rests; without one, the end of the last row."""
    for number, row in enumerate(rows):
        if _MARK in row:
            return number, row_width(row[: row.index(_MARK)])
    return max(0, len(rows) - 1), row_width(rows[-1]) if rows else 0


_LABELS: dict[Choice, str] = {
    "once": "y once",
    "session": "s session",
    "always": "a always",
    "try": "t try first",
    "no": "n no",
    "comment": "Tab no, because…",
    "hunks": "h one by one",
}
_KEEP_LABELS = {
    **_LABELS,
    "once": "y keep",
    "session": "s keep, and run such commands directly",
    "always": "a always so",
    "no": "n drop",
    "comment": "Tab drop, because…",
}
_LIMIT_LABELS = {**_LABELS, "once": "y go on", "no": "n stop", "comment": "Tab stop, and do…"}
_HUNK_LABELS = ("y take", "n leave", "a take the rest", "Tab leave, because…", "Esc back")
_HUNK_NOES = ("n leave", "Tab leave, because…", "Esc back")


def _title_says_all(call: ToolUse) -> bool:
    """Return True if the title of a call holds all of its arguments, as they are."""
    if call.name not in _TITLE_SAYS_ALL or len(call.input) != 1:
        return False
    text = str(*call.input.values())
    is_whole = len(text) <= LONGEST_SUBJECT and text == " ".join(text.split())
    return is_whole and call_title(call.name, call.input).endswith(text)


def _files(change: str, columns: int) -> list[Fragment]:
    """What git says of a repository, and then the diffs of its files, each below its name; else the one change."""
    shown: list[Fragment] = []
    for part in split_files(change):
        diff = diff_fragments(part, width=columns, most_lines=None) if is_diff(part) else []
        shown += [("", f"  {_file_of(part)}\n"), *diff]
    return shown


def _file_of(hunk: str) -> str:
    """The file of a diff; for a change without a diff, its description."""
    if not is_diff(hunk):
        return exposed(hunk.strip())
    before, after = (line[4:].split("\t")[0] for line in hunk.split("\n", 2)[:2])
    return exposed(before.removeprefix("a/") if after == "/dev/null" else after.removeprefix("b/"))


def is_diff(preview: str) -> bool:
    return preview.startswith("--- ") and "\n+++ " in preview


def _side_by_side(parts: Sequence[Row], columns: int) -> list[Row]:
    """Lay parts beside each other, in as few rows as fit; none is split."""
    rows: list[Row] = []
    for part in parts:
        if rows and row_width(rows[-1]) + 1 + row_width(part) <= columns:
            rows[-1] = [*rows[-1], ("", " "), *part]
        else:
            rows.append(list(part))
    return [clipped(row, columns) for row in rows]


def _rows(role: str, line: str, columns: int) -> list[Row]:
    """A line as rows, broken at words; a word longer than a row is broken too."""
    lines = plain(wrapped([(role, line)], columns, hang=4)).split("\n")
    return [[(role, row)] for line in lines for row in wrapped_tail(line, max(1, columns), len(line) + 1)]
