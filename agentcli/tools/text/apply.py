"""Find and replace that changes only what it names: what stands around it stays the same, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.tools.text import Edit
from agentcli.tools.text.diff import lf, lines_of, opcodes
from agentcli.tools.text.encoding import BOM, DecodedText, require_encodable, shown
from agentcli.tools.text.match import LADDER, Place, exact_places, places_with_other_line_ends, without_overlaps
from agentcli.tools.text.nearest import nearest

# Of two bytes, the second is one of these in Shift-JIS, GBK and Big5; of four, in GB18030, also a digit.
_SECOND_BYTES = frozenset([*"0123456789", *map(chr, range(0x40, 0x7F))])


class Applied(Struct, frozen=True):
    """The outcome of edits: the file's bytes, their text, and a note about each edit that did not match exactly."""

    content: bytes
    decoded: DecodedText
    notes: tuple[str, ...] = ()


class _Replacement(Struct, frozen=True):
    """Characters `start` to `end` of the text become `new`."""

    start: int
    end: int
    new: str


def apply_edits(content: bytes, decoded: DecodedText, edits: Sequence[Edit]) -> Applied:
    """Apply edits one after the other to bytes and their text. Raises `ToolError`, naming the edit that does not apply.

    An edit whose `old_string` begins with the byte order mark of the file can take that away.
    """
    notes: list[str] = []
    for number, edit in enumerate(edits, 1):
        which = f"Edit {number} of {len(edits)}: " if len(edits) > 1 else ""
        names_mark = bool(decoded.bom) and edit.old_string.startswith(BOM)
        file = decoded.with_mark_in_text() if names_mark else decoded
        try:
            replacements, note = _find(file.text, edit)
            content, text = _spliced(content, file, replacements)
        except ToolError as error:
            raise ToolError(f"{which}{error}", kind=error.kind, code=error.code) from error
        if names_mark and text.startswith(BOM):
            file, text = decoded, text.removeprefix(BOM)
        decoded = replace(file, text=text)
        if note:
            notes.append(f"[{which}{note}]")
    return Applied(content, decoded, tuple(notes))


def changes_only_ascii(before: str, after: str) -> bool:
    """True if all other characters stay, also where an ASCII byte behind one may be its second half."""
    old_lines, new_lines = lines_of(before), lines_of(after)
    for tag, start, end, new_start, new_end in opcodes(old_lines, new_lines):
        if tag == "equal":
            continue
        old, new = "".join(old_lines[start:end]), "".join(new_lines[new_start:new_end])
        for part, first, last, new_first, new_last in opcodes(old, new):
            if part == "equal":
                continue
            if not (old[first:last].isascii() and new[new_first:new_last].isascii()):
                return False
            if first and not old[first - 1].isascii() and old[first : first + 1] in _SECOND_BYTES:
                return False
    return True


def _find(text: str, edit: Edit) -> tuple[list[_Replacement], str]:
    """Return the replacements, from top to bottom, and how the text differs from `old_string`. Raises `ToolError`."""
    old, new = edit.old_string, edit.new_string
    if old == new:
        raise ToolError("old_string and new_string are the same.", kind="invalid_parameters")
    if not old:
        raise ToolError(
            "old_string is empty: use file_write to create a file, or name the line to change.",
            kind="invalid_parameters",
        )
    require_encodable(new, "new_string")
    if edit.replace_all:  # what a reader sees as the same is replaced as the same: line ends do not count
        places = places_with_other_line_ends(text, old)
        if places and (lf(old) != lf(new) or any(_is_literal(text, place, old) for place in places)):
            return [_replacement(text, place, old, new) for place in without_overlaps(places)], ""
    elif places := exact_places(text, old):
        place, note = _only_one(text, places, "")
        notes = (note, _untouched_note(text, old, place), _other_ends(old, new))
        return [_replacement(text, place, old, new)], " ".join(filter(None, notes))
    if lf(old) == lf(new):
        raise ToolError(
            "old_string and new_string differ in line ends alone, and old_string's are not those of the file.",
            kind="invalid_parameters",
        )
    for look, difference, note in LADDER:
        if places := look(text, old):
            place, more = _only_one(text, places, difference)
            return [_replacement(text, place, old, new)], f"Matched apart from {difference}{note} {more}".rstrip()
    raise ToolError(f"old_string is not in the file. {nearest(lf(text), lf(old))}", kind="not_found")


def _untouched_note(text: str, old: str, taken: Place) -> str:
    """A note when the same lines stand elsewhere with other line ends: a reader does not see which is which."""
    if "\r\n" not in text or "\n" not in old:
        return ""
    places = places_with_other_line_ends(text, old)
    more = sum(place.end <= taken.start or place.start >= taken.end for place in places)
    return f"The same text with other line ends stands {more} times more and was left alone." if more > 0 else ""


def _other_ends(old: str, new: str) -> str:
    """A note when lines get other ends than they had: that was asked for, or is a slip."""
    if "\n" not in old or not (brought := _ends_in(new) - _ends_in(old)):
        return ""
    return f"new_string was written with its own line ends: {' and '.join(sorted(brought))}."


def _ends_in(text: str) -> set[str]:
    crlf = text.count("\r\n")
    return {*(["CRLF"] if crlf else []), *(["LF"] if text.count("\n") > crlf else [])}


def _only_one(text: str, places: Sequence[Place], difference: str) -> tuple[Place, str]:
    """Return the one place, and a note where the text stands once more within it. Raises `ToolError` for several."""
    first, *others = without_overlaps(places)
    if not others:
        within = f"It begins once more in line {_line(text, places[1])}, within it." if len(places) > 1 else ""
        return first, within
    times = len(others) + 1
    lines = ", ".join(str(_line(text, place)) for place in (first, *others[:9]))
    more = ", …" if times > 10 else ""
    if difference:
        said = f"old_string is not in the file as it is; apart from {difference} it stands {times} times"
        raise ToolError(f"{said} (lines {lines}{more}): write it as one of them stands there.", kind="not_found")
    raise ToolError(
        f"old_string stands {times} times (lines {lines}{more}): make it longer, or set replace_all.",
        kind="validation_error",
    )


def _line(text: str, place: Place) -> int:
    return text.count("\n", 0, place.start) + 1


def _is_literal(text: str, place: Place, old: str) -> bool:
    """Return True if `old_string` has the exact line ends of the file: then those of `new_string` are meant too."""
    return "\n" in old and text[place.start : place.end] == old


def _replacement(text: str, place: Place, old: str, new: str) -> _Replacement:
    """Return the replacement of a place: lines that stay keep their ends, a new line gets that of the one before it."""
    if _is_literal(text, place, old):
        _require_no_stand_in(old, new)
        return _Replacement(place.start, place.end, new)
    new = place.adapted(new)
    replaced = text[place.start : place.end]
    _require_no_stand_in(replaced, new)
    if "\n" not in new or "\r" not in text:
        return _Replacement(place.start, place.end, new)
    *lines, last = replaced.split("\n")
    ends = ["\r\n" if line.endswith("\r") else "\n" for line in lines]
    old_lines, new_lines = [*(line.removesuffix("\r") for line in lines), last], new.split("\n")
    if len(set(ends)) > 1:
        made = _aligned(old_lines, ends, new_lines)
    else:
        made = [ends[0] if ends else _end_of_line_at(text, place)] * (len(new_lines) - 1)
    return _Replacement(place.start, place.end, "".join(map("".join, zip(new_lines, [*made, ""], strict=True))))


def _aligned(old_lines: list[str], ends: list[str], new_lines: list[str]) -> list[str]:
    """The ends of the new lines but the last, which has none, where those of the old ones are mixed."""
    made: list[str] = []
    for _, start, end, new_start, new_end in opcodes(old_lines, new_lines):
        own = ends[start:end]
        for number in range(new_end - new_start):
            usual = made[-1] if made else ends[0]
            made.append(own[number] if number < len(own) else usual)
    return made[: len(new_lines) - 1]


def _require_no_stand_in(replaced: str, new: str) -> None:
    """Raises `ToolError` when U+FFFD, by which bytes are shown that are no characters, would take their place."""
    if "\ufffd" in new and new.count("\ufffd") > replaced.count("\ufffd") and shown(replaced) != replaced:
        raise ToolError(
            "U+FFFD stands here for bytes that are no characters: leave those out of the lines you change.",
            kind="validation_error",
        )


def _end_of_line_at(text: str, place: Place) -> str:
    """The line end behind a place, else the one before it."""
    end = text.find("\n", place.end)
    if end < 0:
        end = text.rfind("\n", 0, place.start)
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _spliced(content: bytes, decoded: DecodedText, replacements: Sequence[_Replacement]) -> tuple[bytes, str]:
    """Bytes and text with some parts replaced. Raises `ToolError` for a character the encoding does not have."""
    pieces: list[bytes] = []
    texts: list[str] = []
    byte, kept, position = len(decoded.bom), 0, 0  # `kept`: bytes of `content` that are dealt with
    for replacement in replacements:
        before = decoded.text[position : replacement.start]
        byte += len(decoded.part(before))
        pieces += [content[kept:byte], decoded.part(replacement.new)]
        texts += [before, replacement.new]
        byte += len(decoded.part(decoded.text[replacement.start : replacement.end]))
        kept, position = byte, replacement.end
    return b"".join([*pieces, content[kept:]]), "".join([*texts, decoded.text[position:]])
