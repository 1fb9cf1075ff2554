"""Private keys: blocks of base64 between two lines that say so (PEM, OpenPGP, PuTTY), in files and as tools show them.

The block may be quoted, indented, numbered line by line, or be one line with `\\n` in place of line ends. Where its
end is missing, what looks like a further line of the key still belongs to it.
"""

from __future__ import annotations

import re

LONGEST_MARK = 15  # of a beginning, in characters

# How far one look reaches, in characters: only with so many at hand it is sure that nothing (more) follows.
_LONGEST_HEAD = 2_000
_LONGEST_STEP = 700

# Between two lines of a key: line ends, quotes, the marks of a diff or a quotation; `file:12:` of a search, numbers.
_BETWEEN = r"(?:\\+[nrt]|[\s\\\"',;>|#*+-]){0,40}(?:[\w./\\-]{1,200}[:-]\d{1,7}[:-]|\d{1,7}[ \t:|→]{1,3})?"
_LINE = _BETWEEN + r"[0-9A-Za-z+/=]{16,}"
# Headers of encrypted keys (RFC 1421) and of OpenPGP (RFC 9580).
_HEADERS = r"(?:(?:\\+[nrt]|[\s>|#*+\"'-]){0,40}[A-Z][A-Za-z-]{2,20}: [^\n\\]{0,200}(?=[\n\\])){0,5}"
_MARKS = ("-----BEGIN ", "Private-Lines: ")
_beginning = re.compile("|".join(_MARKS))
_head = re.compile(
    rf"(?:-----BEGIN [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----{_HEADERS}|Private-Lines: \d{{1,4}}){_LINE}"
)
_line = re.compile(_LINE)
_rest_of_line = re.compile(r"[0-9A-Za-z+/=]*")
_end = re.compile(
    rf"(?:{_BETWEEN}[0-9A-Za-z+/=]{{1,15}})?"
    rf"(?:{_BETWEEN}-----END [A-Z0-9 ]{{0,40}}PRIVATE KEY(?: BLOCK)?-----|(?=\s{{1,4}}Private-(?:MAC|Hash): ))"
)


def find_key(text: str, start: int, *, is_all: bool) -> tuple[int, int | None] | None:
    """The next private key from `start` on: where it begins, and where its first line ends.

    None instead of the latter means that this takes more text to say; `is_all` says there will be none.
    """
    if all(text.find(mark, start) < 0 for mark in _MARKS):  # ten times faster than the expression, for nearly all texts
        return None
    while begun := _beginning.search(text, start):
        start = begun.start()
        if match := _head.match(text, start):
            return start, match.end()
        if not is_all and len(text) - start <= _LONGEST_HEAD:
            return start, None
        start += 1
    return None


def follow_key(text: str, position: int, *, is_all: bool) -> tuple[int, bool]:
    """How far a key goes on that `position` is within, and whether more text may belong to it."""
    while True:
        if match := _rest_of_line.match(text, position):
            position = match.end()
        if match := _end.match(text, position):
            return match.end(), False
        if not (match := _line.match(text, position)):
            return position, not is_all and len(text) - position <= _LONGEST_STEP
        position = match.end()
