"""Find and replace that changes only what it names: line ends, BOM, encoding and the last newline stay as they are."""

from __future__ import annotations

import codecs
import difflib
import re
from collections.abc import Collection

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.observation import LONGEST_LINE, cut_line, cut_middle

MOST_NEAREST = 40  # lines of a file shown in an error


class Edit(Struct, frozen=True):
    old_string: str
    new_string: str
    replace_all: bool = False


class DecodedText(Struct, frozen=True):
    """A file's text, and what its bytes need beside it. `text` encodes back to the same bytes."""

    text: str
    encoding: str
    bom: bytes = b""

    def encoded(self, text: str) -> bytes:
        """Raises `ToolError` for a character the file's encoding does not have."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise ToolError(
                f"The file is encoded as {self.encoding}, which has no {error.object[error.start]!r}.",
                kind="validation_error",
            ) from error


# UTF-32 stands first: its little-endian BOM begins with that of UTF-16.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NOT_IN_TEXT = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]")  # control characters but white space, backspace and escape
_SNIFFED = 65_536  # bytes


def decode(content: bytes) -> DecodedText | None:
    """The text of a file: by its BOM, else UTF-8, else Latin-1; None for bytes that are no text."""
    for bom, encoding in _BOMS:
        if content.startswith(bom):
            try:
                return DecodedText(content[len(bom) :].decode(encoding), encoding, bom)
            except UnicodeDecodeError:
                return None
    if b"\0" in content[:_SNIFFED]:
        return None
    try:
        return DecodedText(content.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        if _NOT_IN_TEXT.search(content, 0, _SNIFFED):
            return None
        return DecodedText(content.decode("latin-1"), "latin-1")


def apply_edits(text: str, edits: list[Edit]) -> str:
    """`text` after all edits, one after the other. Raises `ToolError`, naming the edit, when one does not apply."""
    for number, edit in enumerate(edits, 1):
        which = f"Edit {number} of {len(edits)}: " if len(edits) > 1 else ""
        text = _apply(text, edit, which)
    return text


def _apply(text: str, edit: Edit, which: str) -> str:
    """One edit, on text whose line ends are all LF meanwhile, so that an LF in it matches the file's own line ends."""
    old, new = _lf(edit.old_string), _lf(edit.new_string)
    if old == new:
        raise ToolError(f"{which}old_string and new_string are the same.", kind="invalid_parameters")
    if not old:
        raise ToolError(
            f"{which}old_string is empty: use file_write to create a file, or name the line to change.",
            kind="invalid_parameters",
        )
    plain = _lf(text)
    places = _places(plain, old)
    if not places:
        raise ToolError(f"{which}old_string is not in the file. {nearest(plain, old)}", kind="not_found")
    if len(places) > 1 and not edit.replace_all:
        lines = ", ".join(str(plain.count("\n", 0, place) + 1) for place in places[:10])
        raise ToolError(
            f"{which}old_string stands {len(places)} times (lines {lines}): make it longer, or set replace_all.",
            kind="validation_error",
        )
    return _with_line_ends(text, plain, old, new, places)


def _lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _places(text: str, old: str) -> list[int]:
    places, start = [], text.find(old)
    while start >= 0:
        places.append(start)
        start = text.find(old, start + len(old))
    return places


def _with_line_ends(text: str, plain: str, old: str, new: str, places: list[int]) -> str:
    """The replaced text with every line end outside the edits as it was, inside as in the lines replaced."""
    ends = ["\r\n" if line.endswith("\r") else "\n" for line in text.split("\n")[:-1]]
    usual = "\r\n" if ends.count("\r\n") * 2 > len(ends) else "\n"
    if "\r\n" not in ends:
        return "".join(_pieces(plain, old, new, places))
    old_count, new_count = old.count("\n"), new.count("\n")
    kept: list[str] = []
    position = first = seen = 0
    for place in places:
        first += plain.count("\n", seen, place)
        seen = place
        kept += ends[position:first]
        replaced = ends[first : first + old_count]
        style = replaced[0] if replaced else (ends[first] if first < len(ends) else usual)
        kept += (replaced + [style] * new_count)[:new_count]
        position = first + old_count
    kept += ends[position:]
    lines = "".join(_pieces(plain, old, new, places)).split("\n")
    return "".join(line + end for line, end in zip(lines, [*kept, ""], strict=True))


def _pieces(plain: str, old: str, new: str, places: list[int]) -> list[str]:
    pieces, position = [], 0
    for place in places:
        pieces += [plain[position:place], new]
        position = place + len(old)
    return [*pieces, plain[position:]]


def nearest(text: str, wanted: str) -> str:
    """The part of `text` most like `wanted`, with line numbers, so that the next try can be right; a page at most."""
    lines, sought = text.split("\n"), wanted.strip("\n").split("\n")
    if len(lines) > 20_000:
        return "Read the part you mean again."
    key = max(sought, key=lambda line: len(line.strip()), default="").strip()
    number, best = _most_like(key[:LONGEST_LINE], lines)
    if best < 0.6 or not key:
        return "Nothing in it is similar: read the file again."
    start = max(0, number - sought.index(next(line for line in sought if line.strip() == key)))
    end = min(len(lines), start + min(len(sought), MOST_NEAREST) + 1)
    shown = "\n".join(f"{n + 1}\t{cut_line(lines[n])}" for n in range(start, end))
    return f"The nearest lines are:\n{cut_middle(shown)}"


def _most_like(key: str, lines: list[str]) -> tuple[int, float]:
    """The index of the line most like `key`, the first of several, and how alike they are: 0 to 1."""
    matcher = difflib.SequenceMatcher(None, "", key, autojunk=False)
    best, number = 0.0, 0
    for index, line in enumerate(lines):
        matcher.set_seq1(line.strip()[:LONGEST_LINE])
        if matcher.real_quick_ratio() > best and (ratio := matcher.quick_ratio()) > best:
            best, number = ratio, index
    return number, best


def unified_diff(path: str, before: str, after: str) -> str:
    """A unified diff with three lines of context; empty when nothing changed."""
    lines = difflib.unified_diff(_lines(_lf(before)), _lines(_lf(after)), f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def diff_hunks(diff: str) -> tuple[str, ...]:
    """The hunks of one file's unified diff, each with the line that says where it is."""
    starts = [found.start() for found in re.finditer(r"^@@ ", diff, re.MULTILINE)]
    return tuple(diff[start:end] for start, end in zip(starts, [*starts[1:], len(diff)], strict=False))


def with_hunks(before: str, after: str, chosen: Collection[int]) -> str:
    """`before` with only some hunks of the diff that leads to `after`; every other line keeps its own bytes."""
    old, new = _lines(before), _lines(after)  # as many lines as the diff sees, with the line ends they really have
    matcher = difflib.SequenceMatcher(None, _lines(_lf(before)), _lines(_lf(after)))
    text: list[str] = []
    position = 0
    for number, hunk in enumerate(matcher.get_grouped_opcodes(3)):
        if number not in chosen:
            continue
        for tag, start, end, new_start, new_end in hunk:
            text += old[position:start]
            text += old[start:end] if tag == "equal" else new[new_start:new_end]
            position = end
    return "".join([*text, *old[position:]])


def _lines(text: str) -> list[str]:
    """Lines with their ends. A form feed or U+2028 ends none: for the file's other readers it is a character."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
