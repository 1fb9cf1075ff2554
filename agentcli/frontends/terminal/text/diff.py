"""Lays out a unified diff: line numbers, signs, the colours of its language, and the words that differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate, groupby, islice, pairwise
from operator import itemgetter
from typing import Literal

from msgspec import Struct

from agentcli.frontends.printable import exposed
from agentcli.frontends.terminal.text.fragments import Fragment, common_length, merged
from agentcli.frontends.terminal.text.highlight import CodeHighlighter

MIN_NUMBER_COLUMNS = 24  # of a window that has room for line numbers

# These limit the cost of comparing words.
_MAX_LINE_CHARS = 500
_MAX_PAIRS = 400  # of lines in a diff
_MAX_COMPARISONS = 2_500  # words of one line times those of the other
_MIN_SIMILARITY = 0.5  # the part of both lines that must be equal

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_FILE_LINES = ("--- ", "+++ ", "diff --git ", "index ", "new file mode ", "deleted file mode ")
_WORD = re.compile(r"\w+|\s+|[^\w\s]")

_Kind = Literal["added", "removed", "", "muted", "hunk"]
_SIGNS: dict[_Kind, str] = {"added": "+ ", "removed": "- ", "": "  ", "muted": "  ", "hunk": "⋯"}


class _Row(Struct, frozen=True):
    """A line of the diff, with its numbers in both files; a number is None if the file has no such line."""

    kind: _Kind
    text: str = ""
    old: int | None = None
    new: int | None = None


def diff_fragments(diff: str, *, width: int, max_lines: int | None, rest: str = "") -> list[Fragment]:
    """Return the diff without its file lines. A window of `width` columns may have room for line numbers.

    Lines beyond `max_lines` are only counted; `rest` follows their number.
    """
    lines = diff.removesuffix("\n").split("\n") if diff else []
    rows = _rows(lines)
    shown = list(islice(rows, max_lines))
    more = sum(1 for _ in rows)
    texts = [_shown_text(row) for row in shown]
    changed_words = _changed_words(shown, texts)
    digits = len(str(max((number for row in shown for number in (row.old, row.new) if number), default=1)))
    # The language is that of the ending of the changed file's name, or of the name of a file without one.
    names = [line[4:].split("\t")[0] for line in lines[:2] if line[:4] in ("--- ", "+++ ")]
    name = next((name for name in reversed(names) if name != "/dev/null"), "").rpartition("/")[2]
    painted = _painted(shown, texts, name.rpartition(".")[2])
    fragments: list[Fragment] = []
    for index, (row, parts) in enumerate(zip(shown, painted, strict=True)):
        number = f"{row.new or row.old or '':>{digits}} " if width >= MIN_NUMBER_COLUMNS and row.kind != "hunk" else ""
        fragments += _line(row, _with_words(row, parts, changed_words.get(index, ())), number)
    if more:
        fragments += [("muted", f"… {more:,} more {'line' if more == 1 else 'lines'}{rest}"), ("", "\n")]
    return fragments


def _painted(rows: Sequence[_Row], texts: Sequence[str], language: str) -> Iterator[list[Fragment]]:
    """Yield the texts in the colours of their language; both files are read from top to bottom."""
    old, new = CodeHighlighter(language), CodeHighlighter(language)
    for row, text in zip(rows, texts, strict=True):
        if row.kind in ("muted", "hunk"):
            old, new = CodeHighlighter(language), CodeHighlighter(language)
            yield [("", text)]
            continue
        if not row.kind:
            old.line(text)
        yield (old if row.kind == "removed" else new).line(text)


def _rows(lines: Sequence[str]) -> Iterator[_Row]:
    """Read the lines that a hunk's header counts by their mark; outside of them, lines can also name files."""
    old = new = old_left = new_left = 0
    is_first = True
    for line in lines:
        mark, text = line[:1], line[1:]
        if found := _HUNK.match(line):
            old, new = int(found[1]), int(found[3])
            old_left, new_left = int(found[2] or 1), int(found[4] or 1)
            if not is_first:
                yield _Row("hunk")
            is_first = False
        elif mark == "\\":
            yield _Row("muted", line)
        elif mark == "-" and (old_left > 0 or not line.startswith(_FILE_LINES)):
            yield _Row("removed", text, old=old or None)
            old, old_left = old + 1, old_left - 1
        elif mark == "+" and (new_left > 0 or not line.startswith(_FILE_LINES)):
            yield _Row("added", text, new=new or None)
            new, new_left = new + 1, new_left - 1
        elif old_left > 0 and new_left > 0 and mark in {" ", ""}:
            yield _Row("", text, old, new)
            old, old_left, new, new_left = old + 1, old_left - 1, new + 1, new_left - 1
        elif line and not line.startswith(_FILE_LINES):
            yield _Row("muted", line)


def _shown_text(row: _Row) -> str:
    """Return a line with spaces in place of tabs; spaces at its end become dots if they can be the change."""
    text = row.text
    if not (text.isascii() and text.isprintable()):
        text = exposed(text.removesuffix("\r")).expandtabs(8)
    stripped = text.rstrip()
    return stripped + "·" * (len(text) - len(stripped)) if row.kind in {"added", "removed"} else stripped


def _line(row: _Row, parts: Sequence[Fragment], number: str) -> Iterator[Fragment]:
    sign = _SIGNS[row.kind]
    is_blank = not (sign.strip() or parts)
    if number := number.rstrip() if is_blank else number:
        yield "line_number", number
    if not is_blank:
        yield f"{row.kind}_sign" if row.kind in ("added", "removed") else row.kind, sign if parts else sign.rstrip()
    for roles, text in parts:
        yield f"{row.kind} {roles}".strip(), text
    yield "", "\n"


def _with_words(row: _Row, parts: Sequence[Fragment], words: Sequence[tuple[int, int]]) -> list[Fragment]:
    """Give the words that differ a role of their own."""
    if not words:
        return list(parts)
    out: list[Fragment] = []
    position = 0
    for roles, text in parts:
        is_word = [any(first <= at < last for first, last in words) for at in range(position, position + len(text))]
        for differs, run in groupby(zip(is_word, text, strict=True), key=itemgetter(0)):
            part = "".join(character for _, character in run)
            out.append((f"{row.kind}_word {roles}".strip() if differs else roles, part))
        position += len(text)
    return merged(out)


def _changed_words(rows: Sequence[_Row], texts: Sequence[str]) -> dict[int, list[tuple[int, int]]]:
    """Return the differing parts of removed lines and of the added lines that follow them, compared one by one."""
    changed: dict[int, list[tuple[int, int]]] = {}
    removed: list[int] = []
    lines = [index for index, row in enumerate(rows) if row.kind != "muted"]
    for kind, group in groupby(lines, key=lambda index: rows[index].kind):
        run = list(group)
        for old, new in zip(removed, run if kind == "added" else (), strict=False):
            if len(changed) < 2 * _MAX_PAIRS:
                changed[old], changed[new] = _differences(texts[old], texts[new])
        removed = run if kind == "removed" else []
    return changed


def _differences(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the differing parts of both lines; none if the lines have too little in common, or are too long."""
    if max(len(old), len(new)) > _MAX_LINE_CHARS:
        return [], []
    a, b = _WORD.findall(old), _WORD.findall(new)
    start = common_length(a, b)
    end = common_length(a[start:][::-1], b[start:][::-1])
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    equal = [(0, 0, start)]
    if len(middle_a) * len(middle_b) <= _MAX_COMPARISONS:
        for i, j, n in SequenceMatcher(None, middle_a, middle_b, False).get_matching_blocks():
            if "".join(middle_a[i : i + n]).strip():  # two changed words with a space between them are one change
                equal.append((i + start, j + start, n))
    equal.append((len(a) - end, len(b) - end, end))
    same = sum(len("".join(a[i : i + n]).replace(" ", "")) for i, _, n in equal)
    if 2 * same < _MIN_SIMILARITY * len(old.replace(" ", "") + new.replace(" ", "")):
        return [], []
    return _gaps(a, [(i, i + n) for i, _, n in equal]), _gaps(b, [(j, j + n) for _, j, n in equal])


def _gaps(words: Sequence[str], equal: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the character positions of the stretches between equal words."""
    offsets = [0, *accumulate(map(len, words))]
    return [(offsets[end], offsets[start]) for (_, end), (start, _) in pairwise(equal) if start > end]
