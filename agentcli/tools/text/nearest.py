"""The part of a file most like a text that is not in it, so that the next try can be right."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Sequence

from agentcli.tools.observation import MAX_LINE_CHARS, cut_line, cut_middle
from agentcli.tools.text.encoding import shown

MOST_NEAREST = 40  # lines shown
_MOST_COMPARED = 5_000  # lines compared letter by letter
_LEAST_ALIKE = 0.6
_WORD = re.compile(r"\w{3,}")


def nearest(text: str, wanted: str) -> str:
    """A sentence with the lines of `text` most like `wanted`, numbered; a page at most. Line ends are LF."""
    lines, sought = text.split("\n"), [line.strip() for line in wanted.strip("\n").split("\n")]
    bare = [line.strip() for line in lines]
    if (start := _by_same_lines(bare, sought)) is None and (start := _by_one_line(bare, sought)) is None:
        return "Nothing in it is similar: read the file again."
    start = max(0, start)
    end = min(len(lines), start + min(len(sought), MOST_NEAREST) + 1)
    numbered = "\n".join(f"{n + 1}\t{cut_line(lines[n])}" for n in range(start, end))
    return f"The nearest lines are:\n{shown(cut_middle(numbered))}"


def _by_same_lines(lines: Sequence[str], sought: Sequence[str]) -> int | None:
    """Return the index where most of the lines sought would stand; only long and rare ones count. None without any."""
    wanted: dict[str, list[int]] = {}
    for number, line in enumerate(sought):
        if len(line) > 3:
            wanted.setdefault(line, []).append(number)
    found: dict[str, list[int]] = {line: [] for line in wanted}
    for number, line in enumerate(lines):
        if line in found:
            found[line].append(number)
    starts = Counter[int]()
    for line, numbers in found.items():
        if len(numbers) * len(wanted[line]) <= 1_000:
            starts.update(number - place for number in numbers for place in wanted[line])
    return min(starts, key=lambda start: (-starts[start], start)) if starts else None


def _by_one_line(lines: Sequence[str], sought: Sequence[str]) -> int | None:
    """Where the longest line sought would stand best, letter by letter, by index; None when nothing is like it."""
    place = max(range(len(sought)), key=lambda number: len(sought[number]))
    key = sought[place][:MAX_LINE_CHARS]
    if not key:
        return None
    matcher = difflib.SequenceMatcher(None, "", key, autojunk=False)
    best, number = 0.0, 0
    for index in _candidates(lines, key):
        matcher.set_seq1(lines[index][:MAX_LINE_CHARS])
        if matcher.real_quick_ratio() > best and (ratio := matcher.quick_ratio()) > best:
            best, number = ratio, index
    return number - place if best >= _LEAST_ALIKE else None


def _candidates(lines: Sequence[str], key: str) -> Sequence[int]:
    """The lines to compare: all of them, in a long file those that have the longest words of the line sought."""
    if len(lines) <= _MOST_COMPARED:
        return range(len(lines))
    words = sorted(set(_WORD.findall(key)), key=len, reverse=True)[:3]
    having = [index for index, line in enumerate(lines) if any(word in line for word in words)]
    return having[:_MOST_COMPARED]
