"""Handles text with roles, which decide its look: its width in cells, its rows, and line breaks between words."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

from wcwidth import iter_graphemes, wcwidth

from agentcli.patterns import lazy_pattern

# `(roles, text)`: role names separated by spaces, `""` for plain text; a line break in the text ends a line.
Fragment = tuple[str, str]
# One row of the screen, without a line end.
Row = list[Fragment]


def plain(fragments: Iterable[Fragment]) -> str:
    return "".join(text for _, text in fragments)


def merged(fragments: list[Fragment]) -> list[Fragment]:
    """Return the same text with neighbours of the same roles in one fragment, and without empty fragments."""
    filled = (fragment for fragment in fragments if fragment[1])
    return [(roles, "".join(text for _, text in run)) for roles, run in groupby(filled, key=itemgetter(0))]


def lines_of(fragments: Iterable[Fragment], *, keeps_empty_end: bool = False) -> list[Row]:
    """Split text into lines without their ends; an empty last line is left out unless `keeps_empty_end`."""
    lines: list[Row] = [[]]
    for roles, text in fragments:
        first, *rest = text.split("\n")
        if first:
            lines[-1].append((roles, first))
        lines += [[(roles, part)] if part else [] for part in rest]
    return lines if keeps_empty_end or lines[-1] else lines[:-1]


# Characters on whose width terminals disagree: joiners, variation selectors, soft hyphens, flags, skin tones, jamo, the
# spacing marks of Brahmic and other scripts, and characters that Unicode 16 made wide.
# Among them are all that wcwidth 0.9 and glibc measure differently.
_DISPUTED_WIDTH = lazy_pattern(
    "[\u00ad\u0900-\u0dff\u0f00-\u109f\u1160-\u11ff\u1700-\u17ff\u1900-\u1cff\u200b-\u200f\u2028\u2029\u2060-\u206f"
    "\u2630-\u2637\u268a-\u268f\u302e\u302f\u3164\u3248-\u324f\ua800-\ua8ff\ua930-\ua95f\ua980-\uabff\ud7b0-\ud7ff"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U00011000-\U00011fff\U00016f00-\U00016fff\U0001d165-\U0001d172\U0001d300-\U0001d37f"
    "\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff\U000e0000-\U000e0fff]"
)
TAB = 8
_TABS_AND_LINE_ENDS = lazy_pattern(r"(\t|\n)")
MAX_TAIL_CHARS = 2_000  # if only a text's end is shown, up to twice as many characters are laid out


def has_disputed_width(text: str) -> bool:
    """Return True if a terminal may count more or fewer cells for this text than `width` does."""
    return not text.isascii() and _DISPUTED_WIDTH.search(text) is not None


def width(text: str) -> int:
    """Return the number of cells of a text without line ends."""
    return len(text) if text.isascii() else sum(max(0, wcwidth(character)) for character in text)


def advance(column: int, text: str, columns: int) -> tuple[int, int]:
    """Return how many new rows `text` needs, printed from `column` on, and the column after it, up to `columns`."""
    if text.isascii():
        end = column + len(text)
        rows = (end - 1) // columns if end > columns else 0
        return rows, end - rows * columns
    rows = 0
    for character in text:
        cells = min(max(0, wcwidth(character)), columns)
        if column + cells > columns:
            rows, column = rows + 1, 0
        column += cells
    return rows, column


def rows_of(fragments: Iterable[Fragment], columns: int) -> int:
    """Count the rows of a window that whole lines take."""
    lines = plain(fragments).removesuffix("\n").split("\n")
    return sum(1 + advance(0, line, max(1, columns))[0] for line in lines)


def first_rows(fragments: Sequence[Fragment], columns: int, max_rows: int) -> tuple[list[Fragment], list[Fragment]]:
    """Return the text that fits into `max_rows`, and the rest; a character of disputed width is taken as wide."""
    row = column = 0
    for number, (roles, text) in enumerate(fragments):
        for position, character in enumerate(text):
            if character == "\n":  # it belongs to the row that it ends
                own_row, row, column = row, row + 1, 0
            else:
                cells = min(2 if has_disputed_width(character) else max(0, wcwidth(character)), columns)
                if column + cells > columns:
                    row, column = row + 1, 0
                own_row, column = row, column + cells
            if own_row >= max_rows:
                shown = [*fragments[:number], (roles, text[:position])]
                ends_line = plain(shown).endswith("\n")
                rest = [(roles, text[position:]), *fragments[number + 1 :]]
                return shown if ends_line else [*shown, ("", "\n")], rest
    return list(fragments), []


def clipped(fragments: Iterable[Fragment], columns: int) -> list[Fragment]:
    """Return the first line as one row: cut at `columns` cells with an ellipsis, with tabs as single spaces."""
    # With `keeps_empty_end` there is a first line, even of an empty text.
    row = lines_of(((roles, text.replace("\t", " ")) for roles, text in fragments), keeps_empty_end=True)[0]
    if row_width(row) <= columns:
        return row
    cut, room = list[Fragment](), columns - 1
    for roles, text in row:
        for position, character in enumerate(text):
            room -= max(0, wcwidth(character))
            if room < 0:
                return [*cut, (roles, f"{text[:position]}…")] if columns > 0 else []
        cut.append((roles, text))
    return cut  # it fits after all: `width` counts a cell for each control character in ASCII text


def wrapped_tail(text: str, columns: int, max_rows: int, roles: str = "") -> list[Row]:
    # The beginning is dropped in large steps, so that the last rows do not change as the text grows.
    start = max(0, len(text) // MAX_TAIL_CHARS - 1) * MAX_TAIL_CHARS
    lines = text[start:].rstrip("\n").split("\n")[-max_rows:]
    return [row for line in lines for row in in_rows([(roles, line)], columns, hang=0)][-max_rows:]


def with_spaces(text: str, column: int = 0) -> tuple[str, int]:
    """Return text that begins at a column of its line with spaces in place of tabs, and the column after it."""
    parts: list[str] = []
    for part in _TABS_AND_LINE_ENDS.split(text):
        shown = " " * (TAB - column % TAB) if part == "\t" else part
        column = 0 if part == "\n" else column + width(shown)
        parts.append(shown)
    return "".join(parts), column


def common_prefix_length(one: Sequence[object], other: Sequence[object]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def without_end_blanks(row: Row) -> Row:
    """Return a row without spaces at its end, unless they have a role."""
    while row and not row[-1][0] and not row[-1][1].strip(" "):
        row = row[:-1]
    return [*row[:-1], ("", row[-1][1].rstrip(" "))] if row and not row[-1][0] else row


def row_width(row: Sequence[Fragment]) -> int:
    return sum(width(text) for _, text in row)


# Scripts written without spaces: rows may end between any two of their characters, with the exceptions below.
_WIDE_RANGES = "\u2e80-\u312f\u3190-\ua4cf\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff"
_WIDE = lazy_pattern(f"[{_WIDE_RANGES}]")
_PARTS = lazy_pattern(rf"[ \t]+|[{_WIDE_RANGES}]|[^ \t{_WIDE_RANGES}]+")
# Characters that begin no row and characters that end none (JIS X 4051 and GB/T 15834, as in UAX #14's CL, EX, NS, OP).
_NEVER_FIRST = frozenset(
    "、。，．・：；？！％‰℃ー々〻ヽヾゝゞ）］｝〕〉》」』】〙〗〟｠»’”…‥—～"
    "ぁぃぅぇぉっゃゅょゎゕゖァィゥェォッャュョヮヵヶㇰㇱㇲㇳㇴㇵㇶㇷㇸㇹㇺㇻㇼㇽㇾㇿ,.:;?!)]}%"
)
_NEVER_LAST = frozenset("（［｛〔〈《「『【〘〖〝｟«‘“￥＄￡([{$£")
_COLUMN_AFTER_GAP = lazy_pattern(r"[ ]*\S(?:[^ ]| (?! ))*[ ]{2,}(?=\S)")  # a name and a gap of two spaces
_COLUMN_AFTER_MARK = lazy_pattern(r"[ ]*(?:[^\w\s\"'(\[`/~$<@#.]{1,2} |\d{1,3}[.)] )?")  # such as `• `, `12. `


def wrap_line(
    line: Sequence[Fragment], columns: int, hang: Sequence[Fragment] = (), *, breaks_words: bool = False
) -> list[Fragment]:
    """Break a line between words to fit `columns`; later rows begin with `hang`. Only `breaks_words` cuts words.

    Otherwise the terminal breaks a word that is longer than a row. Such a word begins in the current row if at least
    half of it is free, because a new row would leave a large gap.
    """
    if sum(len(text) for _, text in line) <= columns and width(text := plain(line)) <= columns and "\t" not in text:
        return list(line)
    hang = hang if 2 * row_width(hang) <= columns else ()  # a narrow window has no room for it
    out, column, indent = list[Fragment](), 0, row_width(hang)
    for gap, word in _words(line):
        cells = row_width(word)
        _, start = with_spaces(gap[1], column)
        may_move = breaks_words or cells <= columns - indent or 2 * start > columns
        if start + cells > columns and column > indent and may_move:
            out += [("", "\n"), *hang]
            column = indent
        else:
            out.append(gap)
            column = start
        if breaks_words and column + cells > columns:
            word = _broken_word(word, column, columns, hang)
            column, cells = 0, row_width(lines_of(word)[-1])  # the width of its last row, `hang` included
        out += word
        column += cells
        if column > columns:  # the terminal has broken a long word
            _, column = advance(0, " " * column, columns)
    return out


def _broken_word(word: Sequence[Fragment], column: int, columns: int, hang: Sequence[Fragment]) -> list[Fragment]:
    """Break a word that begins at `column` wherever a row is full; later rows begin with `hang`."""
    out, indent = list[Fragment](), row_width(hang)
    for roles, grapheme in ((roles, grapheme) for roles, text in word for grapheme in iter_graphemes(text)):
        if column > indent and column + width(grapheme) > columns:
            out += [("", "\n"), *hang]
            column = indent
        out.append((roles, grapheme))
        column += width(grapheme)
    return out


def in_rows(row: Row, columns: int, *, hang: int) -> list[Row]:
    """Break a row at words; later rows are indented by `hang` columns."""
    rows = lines_of(wrap_line(row, columns, [("", " " * hang)], breaks_words=True))
    return [clipped(part, columns) for part in rows]


def hang_of(prefix: Sequence[Fragment]) -> list[Fragment]:
    """Return the start of the rows that follow a row with these marks: quote marks stay, others become spaces."""
    return [(roles, text) if text == "> " else ("", " " * width(text)) for roles, text in prefix]


def _words(line: Sequence[Fragment]) -> Iterator[tuple[Fragment, list[Fragment]]]:
    """Yield the parts of a line that must not be broken, each with the space before it."""
    gap, word = ("", ""), list[Fragment]()
    for roles, text in line:
        for part in _PARTS.findall(text):
            is_gap = part[0] in " \t"
            # `word[-1][1][-1]` is the last character of the word's last fragment.
            if word and (is_gap or _may_break_between(word[-1][1][-1], part[0])):
                yield gap, word
                gap, word = ("", ""), []
            if is_gap:
                gap = (roles, gap[1] + part)
            else:
                word.append((roles, part))
    if word:
        yield gap, word


def wrapped(fragments: Sequence[Fragment], columns: int, *, hang: int | None = None) -> list[Fragment]:
    """Break whole lines at words; the rows that follow are indented by `hang` columns.

    Without `hang`, they are indented to the end of a mark at the line's start, or to the column after a gap of two
    spaces. If that leaves less than half of the row, the text after the gap is put on a line of its own.
    """
    out: list[Fragment] = []
    for number, line in enumerate(lines_of(fragments, keeps_empty_end=True)):
        for row in _description_below_name(line, columns) if hang is None else [line]:
            indent = _text_column(plain(row), columns) if hang is None else hang
            out += [("", "\n" if out or number else ""), *wrap_line(row, columns, [("", " " * indent)])]
    return merged(out)


def _text_column(row: str, columns: int) -> int:
    """Return the column after a gap in the first half of a row, else the one after the mark at its start."""
    found = _COLUMN_AFTER_GAP.match(row)
    if found is None or 2 * width(found[0]) > columns:
        found = _COLUMN_AFTER_MARK.match(row)
    return width(found[0]) if found else 0


def _description_below_name(line: Row, columns: int) -> list[Row]:
    """Split a line such as `/name   description` that is too wide and whose description begins in the right half."""
    if len(line) != 1:  # only lines of one role, as the output of slash commands has
        return [line]
    roles, text = line[0]
    *names, description = re.split(" {2,}", text.strip())
    if not names or width(text) <= columns or 2 * width(text[: text.rindex(description)]) <= columns:
        return [line]
    indent = " " * (len(text) - len(text.lstrip()))
    return [[(roles, f"{indent}{' '.join(names)}")], [(roles, f"{indent}  {description}")]]


@lru_cache(maxsize=4096)
def _may_break_between(before: str, after: str) -> bool:
    """Return True if a row may end between two characters without a space: mostly in Chinese and Japanese."""
    if not (_WIDE.match(before) or _WIDE.match(after)):
        return False
    return before not in _NEVER_LAST and after not in _NEVER_FIRST and unicodedata.category(after)[0] != "M"
