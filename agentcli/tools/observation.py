"""Shapes results for the model (levels, pages), and titles and output for the person."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentcli.patterns import lazy_pattern
from agentcli.tools.tool import LazyResult, OutputLevel

MAX_UNPAGED_BYTES = 30_000  # a larger result is shown page by page
PAGE_BYTES = 29_500  # of a page; a tool may add notes below it
MAX_INLINE_BYTES = 1_000_000  # a larger result is stored as a data file
MAX_LINE_CHARS = 2_000
BRIEF_CHARS = 100
STANDARD_CHARS = 500
STANDARD_ITEMS = 10


class Levels(msgspec.Struct, frozen=True):
    """The output levels of the settings, usual and by tool. With `gives_all`, programs get large results, too."""

    usual: OutputLevel = "standard"
    by_tool: Mapping[str, OutputLevel] = {}
    gives_all: bool = False

    def level_for(
        self, tool: str, *, asked: OutputLevel | None, own: OutputLevel | None, window_share: float
    ) -> OutputLevel:
        """Return the level that the call `asked` for, else that of the settings for the tool, else the tool's `own`.

        Without any of them results are brief if the conversation fills most of the model's window (`window_share`, from
        0 to 1).
        """
        if chosen := asked or self.by_tool.get(tool) or own:
            return chosen
        return "brief" if window_share > 0.8 else self.usual


def lazy_if_large(content: str, make: Callable[[], Any]) -> Any:
    """Return the structured result that goes with a content; for a large content it is made only on demand."""
    return LazyResult(make) if len(content) > MAX_INLINE_BYTES else make()


def format_value(value: Any, level: OutputLevel) -> str:
    """Return a structured result as text.

    A brief one is the number of items, the status of a mapping, or 100 characters; a standard one the first 10 items,
    or 500 characters; a full one is everything, lists and mappings as JSON.
    """
    if isinstance(value, Mapping) and level == "brief":
        status = value.get("status")
        return f"{len(value)} fields" if status is None else f"status: {cut_line(str(status), BRIEF_CHARS)}"
    if _is_list(value) and level != "full":
        return _format_items(value, level)
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return text if level == "full" else cut_line(text, BRIEF_CHARS if level == "brief" else STANDARD_CHARS)


def is_shortened(value: Any, content: str, full: str, level: OutputLevel) -> bool:
    """Return True if `content`, the text of a structured result at a level, leaves out parts of its `full` text."""
    if full == content:
        return False
    # By length alone, because the text of a short list may be longer than its JSON.
    return level == "brief" or len(full) > len(content) or (_is_list(value) and len(value) > STANDARD_ITEMS)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _format_items(items: Sequence[Any], level: OutputLevel) -> str:
    count = f"Found {len(items)} item{'' if len(items) == 1 else 's'}"
    if level == "brief" or not items:
        return count
    rows = [cut_line(format_value(item, "full"), BRIEF_CHARS) for item in items[:STANDARD_ITEMS]]
    more = [f"and {len(items) - STANDARD_ITEMS} more"] if len(items) > STANDARD_ITEMS else []
    return "\n".join([f"{count}:", *rows, *more])


def pages_of(text: str, page_bytes: int = PAGE_BYTES) -> list[str]:
    """Return pages of at most `page_bytes` bytes of UTF-8, which end after a line if one ends in their second half."""
    data = text.encode()
    pages: list[str] = []
    start = 0
    while start < len(data):
        end = min(start + page_bytes, len(data))
        if end < len(data):
            line_end = data.rfind(b"\n", start + page_bytes // 2, end)
            if line_end > 0:
                end = line_end + 1
            while data[end] & 0xC0 == 0x80:  # a byte that continues a character of UTF-8
                end -= 1
        pages.append(data[start:end].decode())
        start = end
    return pages or [""]


def cut_middle(text: str, max_chars: int = PAGE_BYTES) -> str:
    """Return a text, its middle replaced by a note if it is longer than `max_chars`; whole lines where possible."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    head, tail = text[:half], text[-half:]
    head = head[: head.rfind("\n") + 1] or head  # or a part of a line, if there is no whole one
    tail = tail[tail.find("\n") + 1 :] or tail
    return f"{head}[{len(text) - len(head) - len(tail):,} characters cut]\n{tail}"


def beginning_of(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters of a text, up to a line end if there is one in the last tenth."""
    if len(text) <= max_chars:
        return text
    end = text.rfind("\n", max_chars - max_chars // 10, max_chars)
    return text[: end if end > 0 else max_chars]


def cut_line(line: str, max_chars: int = MAX_LINE_CHARS) -> str:
    return line if len(line) <= max_chars else f"{line[:max_chars]}[{len(line) - max_chars:,} more characters]"


def data_summary(text: str) -> str:
    """Describe the lines of a large text, which tell how much of it can be opened at a time."""
    lines = text.rstrip("\n").split("\n")
    return f"{len(lines):,} line{'' if len(lines) == 1 else 's'}, the longest has {max(map(len, lines)):,} characters"


MAX_SUBJECT_CHARS = 300

# By tool: the verb of a title, and the argument that it is about.
_VERBS = {
    "file_read": ("Read", "path"), "file_write": ("Write", "path"), "file_edit": ("Edit", "path"),
    "file_list": ("List", "path"), "grep_search": ("Search", "pattern"), "bash": ("Run", "command"),
    "jobs": ("Jobs", "action"), "web_fetch": ("Fetch", "url"), "web_search": ("Search the web", "query"),
    "read_more": ("Read more", "result_id"), "memory": ("Memory", "command"), "recall": ("Recall", "query"),
    "skill": ("Skill", "name"), "ask_user": ("Ask", "question"), "create_subagent": ("Agent", "task"),
    "think": ("Think", "thought"), "todo": ("To-do", ""),
}  # fmt: skip


def call_title(name: str, input: dict[str, Any], max_chars: int = MAX_SUBJECT_CHARS) -> str:
    """Return a title such as `Read src/app.py` or `Run pytest -q`; for other tools the name and the first argument."""
    verb, key = _VERBS.get(name, (name, next(iter(input), "")))
    value = input.get(key)
    subject = "" if value is None else " ".join(str(value).split())
    if name == "grep_search" and input.get("path") not in (None, "."):
        subject += f" in {input['path']}"
    if len(subject) > max_chars:
        subject = subject[: max_chars - 1] + "…"
    return f"{verb} {subject}".strip()


def diff_counts(diff: str) -> str:
    """Return `+3 -1` for one file's unified diff with three lines added and one removed."""
    marks = [line[:1] for line in diff.split("\n")[2:]]  # after the two lines that name the file
    return f"+{marks.count('+')} -{marks.count('-')}"


# Codes of colours, and others without visible effect: titles, character sets, bells. Not cursor movements within a
# line, and not NUL, which separates the names that `git ls-files -z` or `find -print0` list. An escape character that
# begins none of these stays: without it, masking would take `[31m` for the beginning of the word behind it.
_INVISIBLE = lazy_pattern(
    r"\x1b\[[0-9:;<=>?]*[ -/]*[@-BE-FH-JL-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|\Z)|\x1b[PX^_][^\x1b]*(?:\x1b\\|\Z)"
    r"|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]|[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]"
)
# Group 1 is the first number of a code, group 2 its letter: C right, D left, G to a column, K erase.
_MOVE = lazy_pattern(r"\r|\x08|\x1b\[(\d{0,5})\d*(?:;\d*)*([CDGK])")
_CONTROL = lazy_pattern(r"[\x01-\x08\x0d-\x1f\x7f]")
_MAX_COLUMN = 10_000  # no terminal is wider


def as_shown(text: str) -> str:
    """Return the lines that a terminal shows once all of `text` is written; line ends become LF."""
    if not _CONTROL.search(text):
        return text
    text = _INVISIBLE.sub("", text).replace("\r\n", "\n")
    has_moves = "\r" in text or "\b" in text or "\x1b" in text
    return "\n".join(map(_last_state, text.split("\n"))) if has_moves else text


def _last_state(line: str) -> str:
    """Return what a terminal finally shows of a line with carriage returns, backspaces and cursor codes."""
    shown, column, position = "", 0, 0
    for move in _MOVE.finditer(line):
        shown, column = _overwrite(shown, column, line[position : move.start()])
        position = move.end()
        if move[2] == "K":  # erases to the line's end (0 or no number), from its start (1), or all of it (2)
            without_start = " " * min(column + 1, len(shown)) + shown[column + 1 :]
            shown = {0: shown[:column], 1: without_start}.get(int(move[1] or 0), "")
        else:
            count = min(int(move[1] or 1), _MAX_COLUMN)
            right = min(column + count, _MAX_COLUMN)
            columns = {"\r": 0, "\b": column - 1, "C": right, "D": column - count, "G": count - 1}
            column = max(0, columns[move[2] or move[0]])
    return _overwrite(shown, column, line[position:])[0]


def _overwrite(shown: str, column: int, text: str) -> tuple[str, int]:
    """Return a line after `text` was written over it from a column on, and the column after the text."""
    end = column + len(text)
    return (f"{shown[:column].ljust(column)}{text}{shown[end:]}" if text else shown), end
