"""Breaks prose between words, as it comes in, and indents the rows that follow."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache

from agentcli.frontends.terminal.text.fragments import Fragment, advance, merged, width, with_spaces

UNBOUNDED = 1 << 30  # columns: lines are left for the terminal to break

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


class WordWrap:
    """Gives text on to `emit`, broken so that rows fit into `columns()`; a word is given out once it is whole.

    The output depends on the text alone, not on the pieces it came in. A word longer than a row is left for the
    terminal to break, so that an address can be copied whole.
    """

    def __init__(self, emit: Callable[[str, str], None], columns: Callable[[], int]) -> None:
        self._emit = emit
        self._columns = columns
        self._word: list[Fragment] = []
        self._word_width = 0
        self._last = ""  # the last character of the word
        self._begin_line()

    def _begin_line(self) -> None:
        self._column = 0
        self._gap: Fragment | None = None  # spaces that are dropped where a row ends
        self._hang: list[Fragment] = []
        self._hang_width = 0
        self._has_text = False
        self._is_long = False  # the word is given out as it comes

    @property
    def held(self) -> str:
        """The text that has come in and is not given out yet."""
        return "".join(text for _, text in [*([self._gap] if self._gap else []), *self._word])

    def hang(self, indent: Sequence[Fragment]) -> None:
        """Begin the following rows of this line with `indent`; else marks and spaces at its start decide."""
        self._hang = list(indent)
        self._hang_width = sum(width(text) for _, text in indent)
        self._has_text = True

    def put(self, roles: str, text: str) -> None:
        """Add text that is not broken; a mark or an indentation at a line's start is what its rows hang from."""
        self.flush()
        if text == "\n":
            self._emit(roles, text)
            self._begin_line()
        elif text:
            self._put_whole(roles, text)

    def add(self, roles: str, text: str) -> None:
        """Add prose, or a line end as a text of its own."""
        if text == "\n":
            self.put(roles, text)
            return
        if not self._has_text and (roles == "marker" or not text.strip(" \t")):
            self._put_whole(roles, text)
            return
        self._has_text = True
        is_plain = text.isascii() and self._last.isascii()
        if is_plain and " " in text and not self._is_long and self._add_fitting(roles, text):
            return
        for part in _PARTS.findall(text):
            if part[0] in " \t":
                self.flush()
                self._gap = (roles, (self._gap[1] if self._gap else "") + part)
            elif is_plain:
                self._add_to_word(roles, part)
            else:
                self._add_wide(roles, part)

    def _add_fitting(self, roles: str, text: str) -> bool:
        """Give out all words but the last at once when no row ends in them: the usual case is cheap."""
        whole, _, last = text.rpartition(" ")
        words = whole.rstrip(" ")
        gap = self._gap[1] if self._gap else ""
        end = self._column + len(gap) + self._word_width + len(words)
        if end > self._columns() or "\t" in text or "\t" in gap:
            return False
        if words or self._word:
            if self._gap:
                self._emit(*self._gap)
            for part in self._word:
                self._emit(*part)
            if words:
                self._emit(roles, words)
            self._column, gap = end, ""
            self._word, self._word_width, self._last = [], 0, ""
        self._gap = (roles, gap + " " * (len(text) - len(words) - len(last)))
        if last:
            self._add_to_word(roles, last)
        return True

    def flush(self) -> None:
        """The word is whole."""
        if self._word:
            self._give_word()
        self._word, self._word_width, self._last = [], 0, ""
        self._is_long = False

    def _put_whole(self, roles: str, text: str) -> None:
        if not self._has_text and (roles == "marker" or not text.strip()):
            self._hang.append((roles, text) if text == "> " else ("", " " * width(text)))
            self._hang_width += width(text)
        else:
            self._has_text = True
        self._emit_here(roles, text)

    def _add_wide(self, roles: str, part: str) -> None:
        """Add a part of a word in which rows may end between characters."""
        start = 0
        for position, character in enumerate(part):
            before = part[position - 1] if position > start else self._last
            if before and _may_part(before, character):
                if position > start:
                    self._add_to_word(roles, part[start:position])
                    start = position
                self.flush()
        self._add_to_word(roles, part[start:])

    def _add_to_word(self, roles: str, text: str) -> None:
        self._last = text[-1]
        if self._is_long:
            self._emit_here(roles, text)
            return
        self._word.append((roles, text))
        self._word_width += width(text)
        if self._word_width > self._columns() - self._hang_width:
            self._give_word(is_long=True)
            self._word, self._is_long = [], True

    def _give_word(self, *, is_long: bool = False) -> None:
        columns = self._columns()
        if self._column > columns:  # the window has become narrower
            self._column = advance(0, " " * self._column, columns)[1]
        _, start = with_spaces(self._gap[1], self._column) if self._gap else ("", self._column)
        if start + self._word_width > columns and self._column > self._hang_width and not is_long:
            self._emit("", "\n")
            self._column = 0
            if 2 * self._hang_width <= columns:
                for roles, text in self._hang:
                    self._emit_here(roles, text)
        elif self._gap:
            self._emit(*self._gap)
            self._column = start
        self._gap = None
        for roles, text in self._word:
            self._emit_here(roles, text)

    def _emit_here(self, roles: str, text: str) -> None:
        self._emit(roles, text)
        self._column += width(text)


def wrapped(fragments: Sequence[Fragment], columns: int, *, hang: int | None = None) -> list[Fragment]:
    """Whole lines broken at words; the rows that follow are indented by `hang` columns.

    None: as far as a mark at the line's start reaches, or to the column behind a gap of two spaces, as in a list of
    names with their meanings; where that leaves less than half of the row, the meaning stands below its name.
    """
    out: list[Fragment] = []
    wrap = WordWrap(lambda roles, text: out.append((roles, text)), lambda: columns)
    line: list[Fragment] = []

    def end_line() -> None:
        nonlocal line
        if hang is None and len(line) == 1 and len(rows := _folded(line[0][1], columns)) > 1:
            roles = line[0][0]
            line = [(roles, rows[0])]
            end_line()
            wrap.put("", "\n")
            line = [(roles, rows[1])]
        indent = hang if hang is not None else _hanging("".join(text for _, text in line), columns)
        wrap.hang([("", " " * indent)] if indent else [])
        for roles, text in line:
            wrap.add(roles, text)
        wrap.flush()
        line = []

    for roles, text in fragments:
        first, *rest = text.split("\n")
        line.append((roles, first))
        for part in rest:
            end_line()
            wrap.put("", "\n")
            line.append((roles, part))
    end_line()
    return merged(out)


def _folded(line: str, columns: int) -> list[str]:
    """The line, or a name and below it its meaning, when little room is left beside the name."""
    *names, meaning = _GAP.split(line.strip())
    if not names or width(line) <= columns or 2 * width(line[: line.rindex(meaning)]) <= columns:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return [f"{indent}{' '.join(names)}", f"{indent}  {meaning}"]


def _hanging(line: str, columns: int) -> int:
    found = _COLUMN_BEHIND_GAP.match(line)
    if found and 2 * width(found[0]) <= columns:
        return width(found[0])
    mark = _COLUMN_BEHIND_MARK.match(line)
    return width(mark[0]) if mark else 0


@lru_cache(maxsize=4096)
def _may_part(before: str, after: str) -> bool:
    """True if a row may end between two neighbouring characters."""
    if not (_WIDE.match(before) or _WIDE.match(after)):
        return False
    return before not in _NEVER_LAST and after not in _NEVER_FIRST and unicodedata.category(after)[0] != "M"
