"""Turns a command's output into what a terminal shows in the end: progress bars, backspaces and colours are applied."""

from __future__ import annotations

import re

# Colours, and what else shows nothing here: titles, character sets, bells. Cursor movements within a line are kept, and
# so is NUL, which separates the names that `git ls-files -z` or `find -print0` list.
_INVISIBLE = re.compile(
    r"\x1b\[[0-9:;<=>?]*[ -/]*[@-BE-FH-JL-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|\Z)|\x1b[PX^_][^\x1b]*(?:\x1b\\|\Z)"
    r"|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]|[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]"
)
# An escape character that begins nothing stays: what follows it may still hide the beginning of a secret.
_MOVE = re.compile(r"\r|\x08|\x1b\[(\d{0,5})\d*(?:;\d*)*([CDGK])")
_MAX_COLUMN = 10_000  # no terminal is wider


def as_shown(text: str) -> str:
    """Return the lines as they stand after all of `text` was written; line ends become LF."""
    if not _CONTROL.search(text):
        return text
    text = _INVISIBLE.sub("", text).replace("\r\n", "\n")
    if "\r" not in text and "\b" not in text and "\x1b" not in text:
        return text
    return "\n".join(map(_last_state, text.split("\n")))


_CONTROL = re.compile(r"[\x01-\x08\x0d-\x1f\x7f]")


def _last_state(line: str) -> str:
    shown, column, position = "", 0, 0
    for move in _MOVE.finditer(line):
        shown, column = _write(shown, column, line[position : move.start()])
        position = move.end()
        shown, column = _moved(shown, column, move)
    shown, _ = _write(shown, column, line[position:])
    return shown


def _write(shown: str, column: int, text: str) -> tuple[str, int]:
    if not text:
        return shown, column
    end = column + len(text)
    return f"{shown[:column].ljust(column)}{text}{shown[end:]}", end


def _moved(shown: str, column: int, move: re.Match[str]) -> tuple[str, int]:
    count = min(int(move[1] or (0 if move[2] == "K" else 1)), _MAX_COLUMN)
    match move[2] or move[0]:
        case "\r":
            column = 0
        case "\b":
            column = max(0, column - 1)
        case "C":
            column = min(column + count, _MAX_COLUMN)
        case "D":
            column = max(0, column - count)
        case "G":
            column = max(0, count - 1)
        case "K" if count == 0:
            shown = shown[:column]
        case "K" if count == 1:
            shown = " " * min(column + 1, len(shown)) + shown[column + 1 :]
        case "K":
            shown = ""
        case _:
            pass
    return shown, column
