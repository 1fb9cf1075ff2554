"""Break prose between words, and indent the rows that follow."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache

from wcwidth import iter_graphemes

from agentcli.frontends.terminal.text.fragments import (
    Fragment,
    advance,
    lines_of,
    merged,
    plain,
    row_width,
    width,
    with_spaces,
)

_PARTS = re.compile(r"[ \t]+|[^ \t]+")
# Scripts written without spaces: rows may end between any two of their characters, but for the exceptions below.
_WIDE = re.compile("[\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]")
# Characters that begin no row and characters that end none (JIS X 4051 and GB/T 15834, as in UAX #14's CL, EX, NS, OP).
_NEVER_FIRST = frozenset(
    "、。，．・：；？！％‰℃ー々〻ヽヾゝゞ）］｝〕〉》」』】〙〗〟｠»’”…‥—～"
    "ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶㇰㇱㇲㇳㇴㇵㇶㇷㇸㇹㇺㇻㇼㇽㇾㇿ,.:;?!)]}%"
)
_NEVER_LAST = frozenset("（［｛〔〈《「『【〘〖〝｟«‘“￥＄￡([{$£")
_GAP = re.compile(r"[ ]{2,}")
_COLUMN_BEHIND_GAP = re.compile(r"[ ]*\S(?:[^ ]| (?! ))*[ ]{2,}(?=\S)")
_COLUMN_BEHIND_MARK = re.compile(r"[ ]*(?:[^\w\s\"'(\[`/~$<@#.]{1,2} |\d{1,3}[.)] )?")


def wrap_line(
    line: Sequence[Fragment], columns: int, hang: Sequence[Fragment] = (), *, breaks_words: bool = False
) -> list[Fragment]:
    """Break a line between words to fit `columns`; later rows begin with `hang`. Only `breaks_words` cuts words."""
    if sum(len(text) for _, text in line) <= columns and width(text := plain(line)) <= columns and "\t" not in text:
        return list(line)
    begins = hang if 2 * row_width(hang) <= columns else ()
    indent = row_width(begins)
    out: list[Fragment] = []
    column = 0
    for gap, word in _words(line):
        cells = row_width(word)
        start = with_spaces(gap[1], column)[1]
        if start + cells > columns and column > indent and (breaks_words or cells <= columns - indent):
            out += [("", "\n"), *begins]
            column = indent
        else:
            out.append(gap)
            column = start
        if breaks_words and column + cells > columns:
            word, column = _broken(word, column, columns), 0
            cells = row_width(lines_of(word)[-1])
        out += word
        column += cells
        if column > columns:  # the terminal has broken a long word
            column = advance(0, " " * column, columns)[1]
    return out


def _broken(word: Sequence[Fragment], column: int, columns: int) -> list[Fragment]:
    """Break a word that begins in a column wherever a row is full."""
    out: list[Fragment] = []
    for roles, grapheme in ((roles, grapheme) for roles, text in word for grapheme in iter_graphemes(text)):
        if column and column + width(grapheme) > columns:
            out.append(("", "\n"))
            column = 0
        out.append((roles, grapheme))
        column += width(grapheme)
    return out


def hang_of(prefix: Sequence[Fragment]) -> list[Fragment]:
    """Return what rows begin with behind the first row of a line with these marks: quote marks, else spaces."""
    return [(roles, text) if text == "> " else ("", " " * width(text)) for roles, text in prefix]


def _words(line: Sequence[Fragment]) -> Iterator[tuple[Fragment, list[Fragment]]]:
    """Yield the parts of a line that no row may end in, each with the space before it."""
    gap: Fragment = ("", "")
    word: list[Fragment] = []
    last = ""
    for roles, text in line:
        for part in _PARTS.findall(text):
            if part[0] in " \t":
                if word:
                    yield gap, word
                    gap, word, last = ("", ""), [], ""
                gap = (roles, gap[1] + part)
                continue
            start = 0
            for position, character in enumerate(part) if not (part.isascii() and last.isascii()) else ():
                before = part[position - 1] if position else last
                if before and _may_part(before, character):
                    if position > start:
                        word.append((roles, part[start:position]))
                        start = position
                    yield gap, word
                    gap, word = ("", ""), []
            word.append((roles, part[start:]))
            last = part[-1]
    if word:
        yield gap, word


def wrapped(fragments: Sequence[Fragment], columns: int, *, hang: int | None = None) -> list[Fragment]:
    """Break whole lines at words; the rows that follow are indented by `hang` columns.

    None: to the end of a mark at the line's start, or to the column behind a gap of two spaces; where that leaves less
    than half of the row, the meaning stands below its name.
    """
    out: list[Fragment] = []
    for number, line in enumerate(lines_of(fragments, keeps_last=True)):
        rows = [line]
        if hang is None and len(line) == 1:
            rows = [[(line[0][0], row)] for row in _folded(line[0][1], columns)]
        for row in rows:
            if (indent := hang) is None:
                found = _COLUMN_BEHIND_GAP.match(plain(row))
                if found is None or 2 * width(found[0]) > columns:
                    found = _COLUMN_BEHIND_MARK.match(plain(row))
                indent = width(found[0]) if found else 0
            out += [("", "\n" if out or number else ""), *wrap_line(row, columns, [("", " " * indent)])]
    return merged(out)


def _folded(line: str, columns: int) -> list[str]:
    """The line, or a name and below it its meaning, when little room is left beside the name."""
    *names, meaning = _GAP.split(line.strip())
    if not names or width(line) <= columns or 2 * width(line[: line.rindex(meaning)]) <= columns:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return [f"{indent}{' '.join(names)}", f"{indent}  {meaning}"]


@lru_cache(maxsize=4096)
def _may_part(before: str, after: str) -> bool:
    """True if a row may end between two neighbouring characters."""
    if not (_WIDE.match(before) or _WIDE.match(after)):
        return False
    return before not in _NEVER_LAST and after not in _NEVER_FIRST and unicodedata.category(after)[0] != "M"
