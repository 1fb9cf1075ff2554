"""Lets the person decide on a change hunk by hunk, and comment on the lines of a plan."""

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache

from agentcli.agent.events import AnyQuestion
from agentcli.agent.ops import Approve
from agentcli.frontends.choices import Choice
from agentcli.frontends.printable import escape_hidden
from agentcli.frontends.terminal.text.code import diff_fragments
from agentcli.frontends.terminal.text.fragments import Row, clipped, in_rows, lines_of, row_width, with_spaces, wrapped
from agentcli.tools.command import ChangeSummary
from agentcli.tools.observation import diff_counts
from agentcli.tools.text.diff import path_of, split_files

MARK, NO_MARK = ("accent", "❯"), ("", " ")
_HUNK_CHOICES = (Choice("take", "y", "Yes"), Choice("leave", "n", "No"))
_FILE_CHOICES = (
    Choice("take_file", "f", "Yes to all in this file"),
    Choice("leave_file", "d", "Next file, leaving the rest of this one"),
)
_REST_CHOICES = (Choice("take_all", "a", "Yes to all the rest"), Choice("leave_all", "q", "No to all the rest"))
_BACK = Choice("back", "Esc", "Back")
_COMMENT = Choice("words", "Tab", "Comment on the marked line (or Enter, or just type)")


def hunk_word(question: AnyQuestion) -> str:
    """Return "hunk", or "file" if each change has only one hunk; "part" if some changes are of folders."""
    if len(question.hunks) != len(question.changes):
        return "hunk"
    return "file" if all(change.what not in ("folder", "repository", "tree") for change in question.changes) else "part"


def is_risky(change: ChangeSummary) -> bool:
    """Return True for a change that takes something away, or of a file that other programs run by themselves."""
    return change.kind == "deleted" or bool(change.permanent_loss) or change.is_auto_executed


class HunkReview:
    """A review of hunks, of one file or several, in which each is accepted or declined."""

    page_rows = 1  # by which PageUp and PageDown scroll: one row less than are shown
    comment = ""  # a comment on a hunk is complete once it is sent

    def __init__(self, question: AnyQuestion) -> None:
        self._question = question
        # An edit's hunks lack the lines with the file's name, which tells the language to colour them in.
        is_edit = path_of(question.preview) and not question.changes
        file_lines = question.preview.partition("@@ ")[0] if is_edit else ""
        self._hunks = [file_lines + hunk for hunk in question.hunks]
        self._changes: list[ChangeSummary] = []  # the change of each hunk; empty for an edit of a single file
        self._file_ends: list[int] = []  # for each hunk, the index after its file's last hunk
        for change in question.changes:
            self._changes += [change] * change.hunks
            self._file_ends += [len(self._changes)] * change.hunks
        self._file_ends = self._file_ends or [len(self._hunks)] * len(self._hunks)
        self._index = self._top = 0  # of the hunk being decided, and of its first row on the screen
        self.has_shown_end = False  # True once the last row of that hunk was on the screen
        self._accepted: list[int] = []  # indices of hunks
        self._comments: list[str] = []

    @property
    def heading(self) -> str:
        return f"Apply {hunk_word(self._question)} {self._index + 1} of {len(self._hunks)}?"

    @property
    def default_id(self) -> str:
        return "leave" if self._changes and is_risky(self._changes[self._index]) else "take"

    @property
    def choices(self) -> list[Choice]:
        next_hunk, end_of_file, end = self._index + 1, self._file_ends[self._index], len(self._hunks)
        of_file = _FILE_CHOICES if next_hunk < end_of_file < end else ()  # more hunks follow, here and in other files
        of_rest = _REST_CHOICES if next_hunk < end else ()
        return [*_HUNK_CHOICES, *of_file, *of_rest, Choice("words", "Tab", "No, and say why"), _BACK]

    def visible_rows(self, columns: int, max_rows: int) -> list[Row]:
        """Return the rows of the hunk from the top one on, below the name of its file if there are several."""
        change = self._changes[self._index] if self._changes else None
        rows = _hunk_rows(self._hunks[self._index], change, columns)
        shown, self._top = _scrolled_rows(rows, self._top, max_rows, columns)
        self.page_rows = max(1, max_rows - 2)  # the note takes a row
        hunk_rows = len(shown) if len(shown) == len(rows) else len(shown) - 1  # without the note about more rows
        self.has_shown_end |= self._top + hunk_rows >= len(rows)
        return shown

    def move(self, by: int) -> None:
        self._top = max(0, self._top + by)

    def decide(self, choice_id: str, comment: str = "") -> Approve | None:
        """Decide on the hunk that is shown, or on several; return the answer after the last one."""
        self._comments += [comment] if comment else []
        end = self._index + 1  # of the hunks that the choice is about
        if choice_id.endswith("_file"):
            end = self._file_ends[self._index]
        elif choice_id.endswith("_all"):
            end = len(self._hunks)
        if choice_id.startswith("take"):
            self._accepted += range(self._index, end)
        self.has_shown_end, self._top = False, 0
        if end < len(self._hunks):
            self._index = end
            return None
        self._index = 0  # the review may be drawn once more
        hunks = tuple(self._accepted)
        return Approve(self._question.id, allowed=bool(hunks), comment="; ".join(self._comments), hunks=hunks or None)


class PlanComments:
    """Comments on a plan's lines, by their numbers from 0. The model gets all of them in one message."""

    default_id = "words"  # the choice that Enter selects
    heading, page_rows = "Comment on which line?", 1

    def __init__(self, question: AnyQuestion) -> None:
        self._question = question
        self._marked_line = 0  # the number of the marked line
        self.comments: dict[int, str] = {}

    @cached_property
    def _lines(self) -> list[str]:
        return escape_hidden(self._question.preview.replace("\r\n", "\n")).rstrip().split("\n")

    @property
    def comment(self) -> str:
        return self.comments.get(self._marked_line, "")

    @property
    def choices(self) -> list[Choice]:
        count = f"{len(self.comments)} comment{'' if len(self.comments) == 1 else 's'}"
        send = [Choice("send", "s", f"Send {count}, keep planning")] if self.comments else []
        return [_COMMENT, *send, _BACK]

    def visible_rows(self, columns: int, max_rows: int) -> list[Row]:
        """Return the rows around the marked line, with the comments below their lines."""
        rows: list[Row] = []
        digits = len(str(len(self._lines)))
        for number, line in enumerate(self._lines):
            mark, role = (MARK, "selected") if number == self._marked_line else (NO_MARK, "")
            row: Row = [mark, ("line_number", f" {number + 1:>{digits}}  "), (role, with_spaces(line)[0])]
            rows += in_rows(row, columns, hang=digits + 4)  # 4: the mark and the blanks beside the number
            if comment := " ".join(escape_hidden(self.comments.get(number, "")).split()):
                rows += in_rows([("warning", f"{' ' * (digits + 4)}↳ {comment}")], columns, hang=digits + 6)
        self.page_rows = max(1, max_rows - 2)
        # Both calls return two values: here, the marked row's number and the rows to show are needed.
        return _scrolled_rows(rows, marked_cell(rows)[0] - max_rows // 2, max_rows, columns)[0]

    def move(self, by: int) -> None:
        self._marked_line = max(0, min(self._marked_line + by, len(self._lines) - 1))

    def decide(self, choice_id: str, comment: str = "") -> Approve | None:
        """Set the comment on the marked line, or remove it if it is empty. For the choice "send", return the answer."""
        if choice_id == "send":
            return Approve(self._question.id, allowed=False, comment=self.message)
        self.comments[self._marked_line] = comment
        self.comments = {line: text for line, text in self.comments.items() if text}
        return None

    @property
    def message(self) -> str:
        return "\n\n".join(
            f"On line {number + 1} of the plan:\n> {self._lines[number].strip()}\n{comment}"
            for number, comment in sorted(self.comments.items())
        )


def diff_text(diff: str, columns: int) -> Row:
    return diff_fragments(diff, width=columns, max_lines=None, wraps=True)


def change_text(text: str, change: ChangeSummary, columns: int, *, is_brief: bool = False) -> Row:
    """Lay out a change, which may have several files: each name with its diff or, if `is_brief`, its counts."""
    shown: Row = []
    for part in split_files(text):
        path, file_lines = path_of(part), part.split("\n", 2)[:2]
        name, *notes = escape_hidden(path or part.strip()).split("\n")  # without a path, the part describes the change
        # The kind is that of a single file or of a whole folder; each file of a changed folder has its own lines.
        is_deleted = change.kind == "deleted" or "+++ /dev/null" in file_lines
        is_new = change.kind == "created" or "--- /dev/null" in file_lines
        label = "  (DELETED)" if is_deleted else "  (new)" if is_new else ""
        counts = f"  {diff_counts(part)}" if path and is_brief else ""
        name = re.sub(r"(\d) (?=files?\b|bytes\b|[KMG]B\b)", "\\1\xa0", name)  # keeps number and unit in a row
        head = [("bold error" if is_deleted else "bold", f"  {name}{label if path else ''}"), ("muted", f"{counts}\n")]
        shown += wrapped(head, columns, hang=4)
        if not counts:  # then the name is followed by all of the part
            texts = [("", f"  {note}\n") for note in notes]
            shown += diff_text(part, columns) if path else wrapped(texts, columns, hang=6)
    return shown


@lru_cache(maxsize=1)
def _hunk_rows(hunk: str, change: ChangeSummary | None, columns: int) -> Sequence[Row]:
    """Lay out a hunk below an empty row. It is cached because each frame asks for it again."""
    shown = diff_text(hunk, columns) if change is None else change_text(hunk, change, columns)
    return [[], *(clipped(row, columns) for row in lines_of(shown))]


def marked_cell(rows: Sequence[Row]) -> tuple[int, int]:
    """Return row and column of the marked choice for the cursor; without one, the end of the last row."""
    for number, row in enumerate(rows):
        if MARK in row:
            return number, row_width(row[: row.index(MARK)])
    return max(0, len(rows) - 1), row_width(rows[-1]) if rows else 0


def _scrolled_rows(rows: Sequence[Row], first: int, max_rows: int, columns: int) -> tuple[list[Row], int]:
    """Return the rows that fit, from `first` on or, near the end, before it, above a note; and the first's index."""
    if len(rows) <= max_rows:
        return list(rows), 0
    room = max(1, max_rows - 1)
    first = max(0, min(first, len(rows) - room))
    text = f"  … rows {first + 1} to {first + room} of {len(rows)} (PageUp, PageDown)"
    return [*rows[first : first + room], clipped([("muted", text)], columns)], first
