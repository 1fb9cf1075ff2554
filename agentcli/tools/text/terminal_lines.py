"""Turns a command's output into what a terminal shows in the end: progress bars, backspaces and colours are applied."""

from __future__ import annotations

import re

# Colours, and others that show nothing here: titles, character sets, bells. Cursor movements within a line are kept. So
# is NUL, which separates the names that `git ls-files -z` or `find -print0` list.
_INVISIBLE = re.compile(
    r"\x1b\[[0-9:;<=>?]*[ -/]*[@-BE-FH-JL-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|\Z)|\x1b[PX^_][^\x1b]*(?:\x1b\\|\Z)"
    r"|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]|[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]"
)
# An escape character that begins nothing stays: the text behind it may still hide the beginning of a secret.
_MOVE = re.compile(r"\r|\x08|\x1b\[(\d{0,5})\d*(?:;\d*)*([CDGK])")
_CONTROL = re.compile(r"[\x01-\x08\x0d-\x1f\x7f]")
_MAX_COLUMN = 10_000  # no terminal is wider


def as_shown(text: str) -> str:
    """Return the lines that a terminal shows after all of `text` was written; line ends become LF."""
    if not _CONTROL.search(text):
        return text
    text = _INVISIBLE.sub("", text).replace("\r\n", "\n")
    if "\r" not in text and "\b" not in text and "\x1b" not in text:
        return text
    return "\n".join(map(_last_state, text.split("\n")))


def _last_state(line: str) -> str:
    shown, column, position = "", 0, 0
    for move in _MOVE.finditer(line):
        shown, column = _write(shown, column, line[position : move.start()])
        position = move.end()
        count = min(int(move[1] or (0 if move[2] == "K" else 1)), _MAX_COLUMN)
        if move[2] == "K":  # erases to the end of the line, from its start, or all of it
            start = " " * min(column + 1, len(shown)) + shown[column + 1 :]
            shown = {0: shown[:column], 1: start}.get(count, "")
        else:
            right = min(column + count, _MAX_COLUMN)
            columns = {"\r": 0, "\b": column - 1, "C": right, "D": column - count, "G": count - 1}
            column = max(0, columns[move[2] or move[0]])
    return _write(shown, column, line[position:])[0]


def _write(shown: str, column: int, text: str) -> tuple[str, int]:
    if not text:
        return shown, column
    end = column + len(text)
    return f"{shown[:column].ljust(column)}{text}{shown[end:]}", end
