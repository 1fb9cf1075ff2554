"""Lets the person decide on a change hunk by hunk, and comment on the lines of a plan."""

from collections.abc import Sequence
from functools import lru_cache

from agentcli.agent.events import AnyQuestion, ChangesApproval
from agentcli.agent.ops import Approve
from agentcli.frontends.choices import Choice
from agentcli.frontends.printable import exposed
from agentcli.frontends.terminal.text.code import diff_fragments
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped, lines_of, with_spaces, wrap_line
from agentcli.tools.command import ChangeSummary
from agentcli.tools.text.diff import path_of, split_files

MARK: Fragment = ("accent", "❯")
_TAKE, _LEAVE = Choice("take", "y", "Yes"), Choice("leave", "n", "No")
_TAKE_FILE = Choice("take_file", "f", "Yes to all in this file")
_LEAVE_FILE = Choice("leave_file", "d", "Next file, leaving the rest of this one")
_LEAVE_ALL = Choice("leave_file", "d", "No to all the rest")
_TAKE_ALL = Choice("take_all", "a", "Yes to all the rest")
_LEAVE_WHY = Choice("words", "Tab", "No, and say why")
_BACK = Choice("back", "Esc", "Back")
_COMMENT = Choice("words", "Tab", "Comment on the marked line (or Enter, or just type)")


def hunk_word(question: AnyQuestion) -> str:
    return "change" if isinstance(question, ChangesApproval) else "hunk"


def is_risky(change: ChangeSummary) -> bool:
    """Return True for a change that takes something away, or that other programs run or obey."""
    return change.kind == "deleted" or bool(change.loses) or change.is_obeyed


class HunkReview:
    """The hunks of a change or of several files, of which each is taken or left."""

    def __init__(self, question: AnyQuestion) -> None:
        self._question = question
        self._hunks: tuple[str, ...] = question.hunks
        self._changes: list[ChangeSummary] = []  # that each hunk belongs to; empty for an edit, which is of one file
        self._ends: list[int] = []  # for each hunk one past the last hunk of its file
        for change in question.changes:
            self._changes += [change] * change.hunks
            self._ends += [len(self._changes)] * change.hunks
        self._ends = self._ends or [len(self._hunks)] * len(self._hunks)
        self._number = 0
        self._accepted: list[int] = []
        self._comments: list[str] = []
        self.top = 0  # the first of the rows that is shown

    @property
    def heading(self) -> str:
        return f"Apply {hunk_word(self._question)} {self._number + 1} of {len(self._hunks)}?"

    @property
    def default(self) -> str:
        return "leave" if self._changes and is_risky(self._changes[self._number]) else "take"

    @property
    def choices(self) -> list[Choice]:
        next_hunk, end, last = self._number + 1, self._ends[self._number], len(self._hunks)
        of_file = [_TAKE_FILE, _LEAVE_FILE] if next_hunk < end < last else []
        of_rest = [_TAKE_ALL, *([_LEAVE_ALL] if end == last else [])] if next_hunk < last else []
        return [_TAKE, _LEAVE, *of_file, *of_rest, _LEAVE_WHY, _BACK]

    def rows(self, columns: int) -> Sequence[Row]:
        """Return the hunk, below the name of its file if there are several."""
        change = self._changes[self._number] if self._changes else None
        return _hunk_rows(self._hunks[self._number], change, columns)

    def page(self, by: int) -> None:
        self.top = max(0, self.top + by)

    def decide(self, choice_id: str, comment: str = "") -> Approve | None:
        """Decide on the hunk that is shown, or on several; return the answer after the last one."""
        self._comments += [comment] if comment else []
        end = self._number + 1
        if choice_id.endswith("_file"):
            end = self._ends[self._number]
        elif choice_id == "take_all":
            end = len(self._hunks)
        if choice_id.startswith("take"):
            self._accepted += range(self._number, end)
        self._number, self.top = end, 0
        if self._number < len(self._hunks):
            return None
        self._number = 0  # the review may still be drawn
        comment = "; ".join(self._comments)
        if not self._accepted:
            return Approve(self._question.id, False, comment=comment)
        return Approve(self._question.id, True, comment=comment, hunks=tuple(self._accepted))


class PlanComments:
    """Comments on the lines of a plan, by their numbers from 0. The model gets all of them in one message."""

    default = "words"  # the choice that Enter takes
    top = 0

    def __init__(self, question: AnyQuestion) -> None:
        self._question = question
        self._lines = exposed(question.preview.replace("\r\n", "\n")).rstrip().split("\n")
        self._at = 0
        self.comments: dict[int, str] = {}

    @property
    def heading(self) -> str:
        return "Comment on which line?"

    @property
    def comment(self) -> str:
        """The comment on the marked line; empty if there is none."""
        return self.comments.get(self._at, "")

    @property
    def choices(self) -> list[Choice]:
        count = f"{len(self.comments)} comment{'' if len(self.comments) == 1 else 's'}"
        send = [Choice("send", "s", f"Send {count}, keep planning")] if self.comments else []
        return [_COMMENT, *send, _BACK]

    def rows(self, columns: int) -> Sequence[Row]:
        rows: list[Row] = []
        digits = len(str(len(self._lines)))
        for number, line in enumerate(self._lines):
            mark, role = (MARK, "selected") if number == self._at else (("", " "), "")
            row: Row = [mark, ("line_number", f" {number + 1:>{digits}}  "), (role, with_spaces(line)[0])]
            rows += folded(row, columns, hang=digits + 4)
            if number in self.comments:
                comment = " ".join(exposed(self.comments[number]).split())
                rows += folded([("warning", f"{' ' * (digits + 4)}↳ {comment}")], columns, hang=digits + 6)
        return rows

    def page(self, by: int) -> None:
        self._at = max(0, min(self._at + by, len(self._lines) - 1))

    def decide(self, choice_id: str, comment: str = "") -> Approve | None:
        """Set the comment on the marked line, or remove it with an empty one; with `send` return the answer."""
        if choice_id == "send":
            return Approve(self._question.id, False, comment=self.message)
        self.comments.pop(self._at, None)
        if comment:
            self.comments[self._at] = comment
        return None

    @property
    def message(self) -> str:
        """All comments, each below the line that it is about; empty without comments."""
        parts = [
            f"On line {number + 1} of the plan:\n> {self._lines[number].strip()}\n{comment}"
            for number, comment in sorted(self.comments.items())
        ]
        return "\n\n".join(parts)


def diff_rows(diff: str, columns: int) -> list[Fragment]:
    return diff_fragments(diff, width=columns, max_lines=None, wraps=True)


def change_rows(text: str, change: ChangeSummary, columns: int) -> list[Fragment]:
    """Return git's description of a repository and the diffs of its files, each below its name; else the one change."""
    shown: list[Fragment] = []
    is_deleted = change.kind == "deleted"
    for part in split_files(text):
        path = path_of(part)
        name, _, notes = exposed(path or part.strip()).partition("\n")
        label = "  (DELETED)" if is_deleted else "  (new)" if path and change.kind == "created" else ""
        shown += [("bold error" if is_deleted else "bold", f"  {name}{label}\n")]
        shown += diff_rows(part, columns) if path else [("", f"{notes}\n")] if notes else []
    return shown


@lru_cache(maxsize=1)
def _hunk_rows(hunk: str, change: ChangeSummary | None, columns: int) -> Sequence[Row]:
    """Lay out a hunk below an empty row. Each frame asks for it again."""
    shown = diff_rows(hunk, columns) if change is None else change_rows(hunk, change, columns)
    return [[], *(clipped(row, columns) for row in lines_of(shown))]


def folded(row: Row, columns: int, *, hang: int) -> list[Row]:
    """Break a row at words; later rows are indented by `hang` columns."""
    broken = wrap_line(row, columns, [("", " " * hang)], breaks_words=True)
    return [clipped(part, columns) for part in lines_of(broken)]


def window(rows: Sequence[Row], first: int, max_rows: int, columns: int) -> tuple[list[Row], int]:
    """Return at most `max_rows` of the rows, from `first` on if that many follow, and the number of the first one."""
    if len(rows) <= max_rows:
        return list(rows), 0
    room = max(1, max_rows - 1)
    first = max(0, min(first, len(rows) - room))
    text = f"  … rows {first + 1} to {first + room} of {len(rows)} (PageUp, PageDown)"
    return [*rows[first : first + room], clipped([("muted", text)], columns)], first
