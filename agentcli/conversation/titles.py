"""Names a conversation by what the person said in it, without asking a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from agentcli.conversation.entries import Entry, User

LONGEST_TITLE = 80  # characters

_MARKS = re.compile(r"^(?:[#>*+-]+\s+)+")
_NO_PROSE = re.compile(r"(?:```|~~~).*|</?\w[^<>]*>|\W*")  # a fence, a tag, a rule
_SAYS_LITTLE = re.compile(r"\W*(?:\w+\W*)?")  # one word, as a greeting


def title_of(entries: Iterable[Entry]) -> str:
    """The first prompt in a line."""
    return next((short_prompt(entry.body) for entry in entries if entry.is_prompt), "")


def last_prompt_of(entries: Iterable[Entry]) -> str:
    """The newest prompt in a line."""
    return next((short_prompt(entry.body) for entry in reversed([*entries]) if entry.is_prompt), "")


def short_prompt(body: object) -> str:
    """The first line of a prompt that says something, shortened; empty for what is no prompt."""
    if not isinstance(body, User) or body.is_reminder:
        return ""
    lines = [" ".join(_MARKS.sub("", line.strip()).split()) for line in body.text.splitlines()]
    lines = [line for line in lines if not _NO_PROSE.fullmatch(line)]
    telling = (line for line in lines if not _SAYS_LITTLE.fullmatch(line) or not line.isascii())
    return shortened(next(telling, next(iter(lines), "")), LONGEST_TITLE)


def shortened(line: str, most: int) -> str:
    """A line of at most so many characters, cut between words where one ends in its second half."""
    if len(line) <= most:
        return line
    cut = line[: most - 1]
    at = cut.rfind(" ") if not line[most - 1].isspace() else -1
    return f"{(cut[:at] if at >= most // 2 else cut).rstrip(' ,;:.-')}…"


def listed_names(names: Sequence[str], most: int) -> str:
    """Return the first names as `a, b and 3 more`."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
