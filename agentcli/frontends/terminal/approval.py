"""Asks whether a call may run: what, why, and how far a yes should reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from agentcli.agent.events import ApprovalRequested, Approve
from agentcli.frontends.printable import exposed, printable
from agentcli.frontends.terminal.diff import diff_fragments
from agentcli.frontends.terminal.fragments import Fragment
from agentcli.frontends.terminal.screen import Row
from agentcli.frontends.terminal.text_width import clipped, row_width

LAST_LINES = 3
LONGEST_LINE = 2_000

_REST = ": v shows all of it"

Choice = Literal["once", "session", "always", "try", "no", "comment", "hunks"]


class ApprovalPanel:
    """One request, and what the person is about to answer. The safe answer is the one that Enter gives at first."""

    def __init__(self, request: ApprovalRequested) -> None:
        self.request = request
        self.rules = list(request.rules)
        self._rule = 0
        self.choices: list[Choice] = ["once"]
        if self.rules:
            self.choices += ["session", "always"]
        if request.can_try:
            self.choices.append("try")
        self.choices += ["no", "comment"]
        if len(request.hunks) > 1:
            self.choices.append("hunks")
        self._selected = self.choices.index("no")
        self.hunk: int | None = None  # the hunk that is being looked at
        self.accepted: list[int] = []
        self.comment = ""

    @property
    def is_tried(self) -> bool:
        """Whether a command ran on a stand-in and the question is what stays of its changes."""
        return self.request.call.name == "bash" and bool(self.request.hunks)

    @property
    def verb(self) -> str:
        return "Keep" if self.is_tried else "Allow"

    def label(self, choice: Choice) -> str:
        """The key of a choice, and what it means here."""
        return (_KEEP_LABELS if self.is_tried else _LABELS)[choice]

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
        """The person's own rule; the runtime checks it."""
        self.rules = [*self.rules, text]
        self._rule = len(self.rules) - 1

    def answer(self, choice: Choice) -> Approve:
        id = self.request.id
        match choice:
            case "once":
                return Approve(id, True, comment=self.comment)
            case "try":
                return Approve(id, True, "try")
            case "session" | "always":
                return Approve(id, True, choice, comment=self.comment, rule=self.rule)
            case _:
                return Approve(id, False, comment=self.comment)

    def take_hunk(self, *, accepted: bool) -> Approve | None:
        """Decide on the hunk that is shown; the answer once the last one is decided."""
        assert self.hunk is not None
        if accepted:
            self.accepted.append(self.hunk)
        self.hunk += 1
        if self.hunk < len(self.request.hunks):
            return None
        if not self.accepted:
            return Approve(self.request.id, False, comment=self.comment)
        return Approve(self.request.id, True, comment=self.comment, hunks=tuple(self.accepted))

    def preview(self, columns: int, most_lines: int) -> list[Fragment]:
        """For the transcript: the exact command or the diff, a long one with its end; nothing in it is invisible."""
        request = self.request
        title = exposed(request.title) if self.is_tried or request.call.name != "bash" else "Run a command"
        head: list[Fragment] = [
            ("warning", f"? {title}"),
            ("muted", f" — {printable(request.reason)}\n"),
        ]
        if self.is_tried:
            return [*head, *self._changes(columns, most_lines)]
        if is_diff(request.preview):
            return [*head, *self._effects(), *_diff_of(request.preview, columns, most_lines)]
        lines = exposed(request.preview).split("\n")
        mark = "$ " if request.call.name == "bash" else "  "
        shown: list[Fragment] = [("", f"  {mark if n == 0 else '  '}{_cut(line)}\n") for n, line in enumerate(lines)]
        if len(lines) > most_lines:  # how it ends is where a long command hides what it really does
            hidden = ("warning", f"  … {len(lines) - most_lines:,} more lines{_REST}\n")
            shown = [*shown[: most_lines - LAST_LINES], hidden, *shown[-LAST_LINES:]]
        return [*head, *shown, *self._effects()]

    def _changes(self, columns: int, most_lines: int) -> list[Fragment]:
        """What a command that was tried did, file by file."""
        shown: list[Fragment] = []
        each = max(LAST_LINES, most_lines // len(self.request.hunks))
        for hunk in self.request.hunks[:most_lines]:
            shown += [("", f"  {_file_of(hunk)}\n"), *(_diff_of(hunk, columns, each))]
        if (left := len(self.request.hunks) - most_lines) > 0:
            shown.append(("warning", f"  … {left:,} more changes{_REST}\n"))
        return shown

    def _effects(self) -> list[Fragment]:
        """What it would touch, a line each; a warning where something leaves the sandbox."""
        return [
            ("warning" if "OUTSIDE" in line or line.startswith(("deletes", "opens")) else "muted", f"  {line}\n")
            for line in map(exposed, self.request.effects)
        ]

    def hunk_preview(self, columns: int) -> list[Fragment]:
        assert self.hunk is not None
        number, count = self.hunk + 1, len(self.request.hunks)
        hunk = self.request.hunks[self.hunk]
        if self.is_tried:  # a whole file's change, or one that no diff shows
            return [("warning", f"Change {number} of {count}: {_file_of(hunk)}\n"), *_diff_of(hunk, columns, None)]
        return [("warning", f"Hunk {number} of {count}\n"), *diff_fragments(hunk, width=columns, most_lines=None)]

    def rows(self, columns: int, more: int, *, is_writing: bool = False, is_ready: bool = True) -> list[Row]:
        """The panel; `more` is how many requests wait behind this one.

        While somebody writes it takes no keys, nor before it `is_ready`.
        """
        if is_writing:
            return [
                clipped(
                    [("warning", "? It waits for a yes: send or stash (Ctrl-S) what you write, then answer")], columns
                )
            ]
        if self.hunk is not None:
            text = "y accept · n reject · a accept the rest · Tab comment · Esc back"
            return [
                clipped([("warning", f"? Hunk {self.hunk + 1} of {len(self.request.hunks)}: "), ("", text)], columns)
            ]
        head: Row = [("warning", f"? {self.verb} it{f' (+{more} more)' if more else ''}?")]
        rows = _wrapped([head, *(self._choice(choice, is_ready=is_ready) for choice in self.choices)], columns)
        if self.rules:
            reach = " ←/→ narrower or wider · e edits" if len(self.rules) > 1 else " e edits"
            rows.append(
                clipped(
                    [("muted", "  rule: "), ("", exposed(self.rule).replace("\n", "␊")), ("muted", f" ·{reach}")],
                    columns,
                )
            )
        return rows

    def _choice(self, choice: Choice, *, is_ready: bool) -> Row:
        label = self.label(choice)
        if not is_ready:
            return [("muted", f" {label}")]
        if choice == self.selected:
            return [("accent", "❯"), ("selected", label)]
        return [("", f" {label}")]


_LABELS: dict[Choice, str] = {
    "once": "y once",
    "session": "s this session",
    "always": "a always",
    "try": "t try first",
    "no": "n no",
    "comment": "Tab no, but…",
    "hunks": "h hunk by hunk",
}
_KEEP_LABELS = {**_LABELS, "once": "y keep", "no": "n drop", "comment": "Tab drop, and…", "hunks": "h one by one"}


def _file_of(hunk: str) -> str:
    """The file a diff is of, or what a change without one says of itself."""
    if not is_diff(hunk):
        return exposed(hunk.strip())
    before, after = (line[4:].split("\t")[0] for line in hunk.split("\n", 2)[:2])
    return exposed(before.removeprefix("a/") if after == "/dev/null" else after.removeprefix("b/"))


def _diff_of(hunk: str, columns: int, most_lines: int | None) -> list[Fragment]:
    return diff_fragments(hunk, width=columns, most_lines=most_lines, rest=_REST) if is_diff(hunk) else []


def is_diff(preview: str) -> bool:
    return preview.startswith("--- ") and "\n+++ " in preview


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… ({len(line):,} characters)"


def _wrapped(parts: Sequence[Row], columns: int) -> list[Row]:
    """Parts side by side, in as few rows as fit."""
    rows: list[Row] = [[("", " ")]]
    for part in parts:
        if len(rows[-1]) > 1 and row_width(rows[-1]) + row_width(part) + 2 > columns:
            rows.append([("", " ")])
        rows[-1] = [*rows[-1], *part, ("", "  ")]
    return [clipped(row, columns) for row in rows]
