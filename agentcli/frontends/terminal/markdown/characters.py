"""Classifies characters for emphasis: spaces, punctuation, letters of scripts without spaces."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def flanks(char: str, before: str, after: str) -> tuple[bool, bool]:
    """True for each if a delimiter between two characters can open, and can close (CommonMark 0.31, section 6.2)."""
    left, right = _kind(before), _kind(after)
    opens = right != " " and (right != "." or left != "a")
    closes = left != " " and (left != "." or right != "a")
    if char == "_":
        return opens and (not closes or left == "."), closes and (not opens or right == ".")
    return opens, closes


@lru_cache(maxsize=1024)
def _kind(char: str) -> str:
    """A space " ", punctuation ".", a letter of a script without spaces "c", or anything else "a".

    CommonMark (0.31, section 2.1) does not know "c", and so does not close `**注意：**请`.
    """
    if char.isspace():
        return " "
    if char in PUNCTUATION or (not char.isascii() and unicodedata.category(char)[0] in "PS"):
        return "."
    return "c" if _is_wide(char) else "a"


def last_wide(text: str, at: int) -> int:
    """The end of the last character of a script without spaces that nothing can join any more; `at` without one."""
    for end in range(len(text) - 1, at, -1):
        if _is_wide(text[end - 1]) and unicodedata.category(text[end])[0] not in "MC":
            return end
    return at


def _is_wide(char: str) -> bool:
    return "\u2e80" <= char <= "\ud7ff" or "\uff00" <= char <= "\uffef"
