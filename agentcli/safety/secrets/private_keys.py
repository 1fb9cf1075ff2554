"""Finds private keys (PEM, OpenPGP, PuTTY): blocks of base64 between marker lines, in files and as tools print them.

The block may be quoted, indented, on one line with `\\n` for line ends, or prefixed on every line with a number, a file
name or an author. If the end marker is missing, all lines that look like part of the key belong to it.
"""

import re
from typing import NamedTuple

from agentcli.patterns import lazy_pattern

MAX_MARK_CHARS = 15  # the length of the longest of `_BEGINNINGS`

_MAX_LINE_CHARS = 400  # the rest of a longer line is ignored
_MAX_FRAME_CHARS = 300  # of the text before a key in its first line
_MAX_OTHER_LINES = 8  # consecutive lines without base64: headers, empty lines
# `_read_key_line` looks at most this far ahead: with fewer characters left, more text may change its result.
_MAX_STEP_CHARS = 4_200

_BASE64 = "[0-9A-Za-z+/=]"
# Between two lines of a key: line ends, quotes, marks of a diff or quotation, `file:12:` of a search, numbers.
_MARKS = r"(?:\\+[nrt]|[\s\\\"'`,;>|│┃#*+$~-])"
_FRAME = r"(?:[\w./\\-]{1,200}[:-]\d{1,7}[:-]|\d{1,7}[ \t:|│→]{1,3})"
_BETWEEN = rf"{_MARKS}{{0,60}}{_FRAME}?"
_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
_BEGINNINGS = ("-----BEGIN ", "Private-Lines: ")
_BEGINNING = lazy_pattern(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|Private-Lines: \d{1,4}")
_MAX_BEGINNING_CHARS = 80  # of a match of `_BEGINNING`
_POSSIBLE_BEGINNING = lazy_pattern("|".join(_BEGINNINGS))
_RUN_OF_BASE64 = lazy_pattern(rf"{_BETWEEN}{_BASE64}{{16}}")
_REST_OF_RUN = lazy_pattern(rf"{_BASE64}*")
_KEY_END = lazy_pattern(
    rf"(?:{_BETWEEN}{_BASE64}{{1,15}})?(?:{_BETWEEN}{_END}|(?=\s{{1,4}}{_FRAME}?\s{{0,4}}Private-(?:MAC|Hash): ))"
)
# For lines that the patterns above do not match: the parts of a line, one by one.
_LINE_END = lazy_pattern(r"[ \t\r\"'`,;+$|│)\\]{0,80}?(?:\n|\\+n)")
_ANY_LINE_END = lazy_pattern(r"\n|\\+n")
_KNOWN_FRAME = lazy_pattern(rf"{_MARKS}{{0,60}}{_FRAME}?[\s>|│┃+\"'-]{{0,60}}")
# A header of an encrypted key (RFC 1421) or of OpenPGP (RFC 9580), or an empty line.
_HEADER = lazy_pattern(r"[A-Z][A-Za-z-]{2,20}: |[\s>|│┃#*+$~\"'`,;\\-]*\Z")
_LAST_LINE = lazy_pattern(_END.replace("-----END", "-{0,5}END"))  # the frame may have matched its first dashes
_LONG_LINE = lazy_pattern(rf"{_BASE64}{{32}}")
_SHORT_LINE = lazy_pattern(rf"{_BASE64}{{1,31}}[ \t\r\"'`,;+$|│)\\]*\Z")
_END_MARK = lazy_pattern(_END)
_BODY_LINE = lazy_pattern(rf"{_BASE64}+[ \t\r\"'`,;+$|│)\\]*\Z")
_MIN_BODY_CHARS = 16


class KeyStart(NamedTuple):
    start: int
    known_end: int | None  # the key reaches at least to here; None if only more text can show if it is a key
    frame: re.Pattern[str] = _KNOWN_FRAME  # what precedes each line of the key, such as line numbers


def find_key(text: str, start: int, *, is_complete: bool) -> KeyStart | None:
    """Return the next private key from `start` on. `is_complete`: no more text will come."""
    if all(text.find(mark, start) < 0 for mark in _BEGINNINGS):  # for most texts ten times faster than the regex
        return None
    while marked := _POSSIBLE_BEGINNING.search(text, start):
        start = marked.start()
        if begun := _BEGINNING.match(text, start):
            frame = _frame_of_line(text, start)
            position, is_end = _read_key_line(text, begun.end(), frame)
            if position is not None and not is_end:  # a key has at least one line
                return KeyStart(start, position, frame)
        more_text_may_decide = len(text) - start <= _MAX_BEGINNING_CHARS + _MAX_STEP_CHARS
        if more_text_may_decide and not is_complete:
            return KeyStart(start, None)
        start += 1
    return None


def follow_key(text: str, position: int, frame: re.Pattern[str], *, is_complete: bool) -> tuple[int, bool]:
    """Return the end of the key that includes `position`, and True if text that is still to come may belong to it."""
    while True:
        if base64_run := _REST_OF_RUN.match(text, position):
            position = base64_run.end()
        next_position, is_end = _read_key_line(text, position, frame)
        if next_position is None:
            return position, not is_complete and len(text) - position <= _MAX_STEP_CHARS
        position = next_position
        if is_end:
            return position, False


def find_key_ends(text: str) -> list[tuple[int, int]]:
    """Return the spans of private keys whose beginning is missing, as on one page of a file or in shortened output."""
    found: list[tuple[int, int]] = []
    previous_end = 0  # of a key
    for mark in _END_MARK.finditer(text) if "-----END " in text else ():
        if not _POSSIBLE_BEGINNING.search(text, previous_end, mark.start()):
            start = _first_body_line(text, previous_end, mark.start())
            found += [(start, mark.end())] if start < mark.start() else []
        previous_end = mark.end()
    return found


def _first_body_line(text: str, start: int, end: int) -> int:
    """Return where the base64 lines directly above the end marker at `end` begin; `end` if there are none."""
    lines: list[tuple[int, int]] = []
    for line_end in _ANY_LINE_END.finditer(text, start, end):
        lines.append((start, line_end.start()))
        start = line_end.end()
    frames = (_frame_of_line(text, end), _KNOWN_FRAME)
    first = end
    for begin, stop in reversed(lines):
        line = text[begin:stop]
        bodies = [line[found.end() :] for found in (frame.match(line) for frame in frames) if found]
        shortest = _MIN_BODY_CHARS if first < end else 1  # the last line of a key may be short
        if not any(len(body) >= shortest and _BODY_LINE.match(body) for body in bodies):
            break
        first = begin
    return first


def _frame_of_line(text: str, begin: int) -> re.Pattern[str]:
    """Return a pattern for what precedes each line of a key, such as `key.txt:12:`, by the line that `begin` is in."""
    prefix = _ANY_LINE_END.split(text[max(0, begin - _MAX_FRAME_CHARS) : begin])[-1]
    if len(prefix) == _MAX_FRAME_CHARS or not prefix:  # cut off at its beginning, or empty
        return _KNOWN_FRAME
    # `key.txt:12: ` must match `key.txt-13- ` too, the next line in the output of a search.
    generalized = {"word": r"\w+", "blank": r"\s+", "mark": "[:-]"}
    parts = re.finditer(r"(?P<word>\w+)|(?P<blank>\s+)|(?P<mark>[:-])|.", prefix.strip())
    patterns = (generalized[part.lastgroup] if part.lastgroup else re.escape(part[0]) for part in parts)
    return re.compile(r"\s*" + "".join(patterns) + r"\s*")


def _read_key_line(text: str, position: int, frame: re.Pattern[str]) -> tuple[int | None, bool]:
    """Read the next line of a key. Return the position after it, None if there is none, and True at the key's end."""
    # The usual case: the next line is the end marker, or begins with enough base64.
    if found := _KEY_END.match(text, position):
        return found.end(), True
    if found := _RUN_OF_BASE64.match(text, position):
        return found.end(), False
    short_lines = 0  # the number of short lines so far: a key may have two of them before a long one
    for _ in range(_MAX_OTHER_LINES):  # skip headers and short lines
        if not (line_end := _LINE_END.match(text, position)):
            break
        start = line_end.end()
        next_end = _ANY_LINE_END.search(text, start, start + _MAX_LINE_CHARS)
        position = next_end.start() if next_end else min(len(text), start + _MAX_LINE_CHARS)
        line = text[start:position]
        # The base64 may follow the same frame as in the key's first line, or one of the usual frames.
        for found_frame in filter(None, (frame.match(line), _KNOWN_FRAME.match(line))):
            body = found_frame.end()  # where the text of the key begins in this line
            if found := _LAST_LINE.match(line, body):
                return start + found.end(), True
            if found := _LONG_LINE.match(line, body):
                return start + found.end(), False
            if _HEADER.match(line, body):
                break  # the next line may belong to the key
            if short_lines < 2 and _SHORT_LINE.match(line, body):
                short_lines += 1
                break
        else:  # this line cannot belong to a key
            break
    return None, False
