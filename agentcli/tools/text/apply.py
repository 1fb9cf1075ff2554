"""Replaces parts of a file's text so that everything around them stays the same, byte for byte."""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.tools.builtin.toolset import Edit
from agentcli.tools.observation import MAX_LINE_CHARS, cut_line, cut_middle
from agentcli.tools.text.diff import changed_ranges, lf, lines_of, opcodes
from agentcli.tools.text.encoding import DecodedText, require_encodable, without_surrogates
from agentcli.tools.text.match import MATCHERS, Match, find_exact, find_with_any_line_ends

# ASCII bytes that may be part of another character: second bytes of two in Shift-JIS, GBK and Big5, and digits among
# the four bytes of GB18030.
_SECOND_BYTES = frozenset([*"0123456789", *map(chr, range(0x40, 0x7F))])
_MAX_LISTED = 10  # line numbers of ambiguous matches


def apply_edits(decoded: DecodedText, edits: Sequence[Edit]) -> tuple[DecodedText, tuple[str, ...]]:
    """Apply edits one after the other; return the file, and a note about each edit that did not match exactly.

    Raises `ToolError` if an edit does not apply; the message names the edit.
    """
    notes: list[str] = []
    for number, edit in enumerate(edits, 1):
        which = f"Edit {number} of {len(edits)}: " if len(edits) > 1 else ""
        try:
            replacements, note = _find_replacements(decoded.text, edit)
            decoded = replace(decoded, text=_splice(decoded, replacements))
        except ToolError as error:
            raise ToolError(f"{which}{error}", kind=error.kind, code=error.code) from error
        if note:
            notes.append(f"[{which}{note}]")
    return decoded, tuple(notes)


def changes_only_ascii(before: str, after: str) -> bool:
    """Return True if a change suits any charset: ASCII replaces ASCII, not inside a character of several bytes."""
    old_lines, new_lines = lines_of(before), lines_of(after)
    for start, end, new_start, new_end in changed_ranges(old_lines, new_lines):
        old, new = "".join(old_lines[start:end]), "".join(new_lines[new_start:new_end])
        for first, last, new_first, new_last in changed_ranges(old, new):
            if not (old[first:last].isascii() and new[new_first:new_last].isascii()):
                return False
            if _may_be_inside_character(old, first):
                return False
    return True


def _may_be_inside_character(text: str, position: int) -> bool:
    """Return True if the bytes on both sides of a position may be one character of an unknown charset."""
    before, following = text[max(0, position - 2) : position], text[position : position + 1]
    if before and not before[-1].isascii():
        return following in _SECOND_BYTES or not following.isascii()
    # After the second of four bytes of GB18030, such as 0x81 0x30 0x89 0x38.
    return len(before) == 2 and not before[0].isascii() and before[1].isdecimal() and not following.isascii()


def _find_replacements(text: str, edit: Edit) -> tuple[list[tuple[Match, str]], str]:
    """Return the matches with their replacements, and a note on an inexact match. Raises `ToolError`.

    `old_string` is first looked for as it is written (with `replace_all`, line ends may differ), then in the less exact
    ways of `MATCHERS`. Only `replace_all` may find several places, and only as written.
    """
    old, new = edit.old_string, edit.new_string
    if old == new:
        raise ToolError("old_string and new_string are the same.", kind="invalid_parameters")
    if not old:
        message = "old_string is empty: use file_write to create a file, or name the line to change."
        raise ToolError(message, kind="invalid_parameters")
    require_encodable(new, "new_string")
    if edit.replace_all:  # LF and CRLF are equal, because the model cannot see which of them a line has
        matches = find_with_any_line_ends(text, old)
        changes_words = lf(old) != lf(new)  # an edit that only changes line ends must quote those of the file
        if matches and (changes_words or any(_has_line_ends_of_file(text, match, old) for match in matches)):
            return [(match, _replacement(text, match, old, new)) for match in matches], ""
    elif matches := find_exact(text, old):
        match = _only_match(text, matches, "")
        return [(match, _replacement(text, match, old, new))], ""
    if lf(old) == lf(new):
        message = "old_string and new_string differ in line ends alone, and old_string's are not those of the file."
        raise ToolError(message, kind="invalid_parameters")
    for find, difference, note in MATCHERS:
        if matches := find(text, old):
            match = _only_match(text, matches, difference)
            return [(match, _replacement(text, match, old, new))], f"Matched apart from {difference}{note}"
    raise ToolError(f"old_string is not in the file. {describe_nearest(lf(text), lf(old))}", kind="not_found")


def _only_match(text: str, matches: Sequence[Match], difference: str) -> Match:
    """Return the only match. Raises `ToolError` for several.

    `difference` says how the matches differ from `old_string`; it is empty for exact ones.
    """
    times = len(matches)
    if times == 1:
        return matches[0]
    shown = ", ".join(str(text.count("\n", 0, match.start) + 1) for match in matches[:_MAX_LISTED])
    lines = shown + (", …" if times > _MAX_LISTED else "")
    if difference:
        message = f"old_string is not in the file as it is written. Apart from {difference} it occurs {times} times "
        raise ToolError(f"{message}(lines {lines}). Copy one of these places exactly.", kind="not_found")
    message = f"old_string occurs {times} times (lines {lines}). Make it longer, or set replace_all."
    raise ToolError(message, kind="validation_error")


def _has_line_ends_of_file(text: str, match: Match, old: str) -> bool:
    """Return True if `old_string` has the file's line ends: then those of `new_string` are meant as they are."""
    return "\n" in old and text[match.start : match.end] == old


def _replacement(text: str, match: Match, old: str, new: str) -> str:
    """Return the replacement of a match by `new_string`, adapted to the file unless `old_string` has its line ends.

    When it is adapted, kept lines keep their line ends, and new lines get that of the line before. Raises `ToolError`.
    """
    is_meant_as_written = _has_line_ends_of_file(text, match, old)
    if not is_meant_as_written:
        new = match.adapt(new)
    replaced = text[match.start : match.end]
    # The model saw U+FFFD for each broken byte. If it writes U+FFFD back, those bytes would be lost.
    if new.count("\ufffd") > replaced.count("\ufffd") and without_surrogates(replaced) != replaced:
        message = "U+FFFD is shown for bytes that are no characters, and cannot be written in their place."
        advice = "Leave these characters out of old_string and new_string."
        raise ToolError(f"{message} {advice}", kind="validation_error")
    needs_line_ends = not is_meant_as_written and "\n" in new and "\r" in text
    return _with_line_ends(text, match, new) if needs_line_ends else new


def _with_line_ends(text: str, match: Match, new: str) -> str:
    """Return a replacement that was written with LF, with the line ends of the lines that it replaces."""
    *lines, last = text[match.start : match.end].split("\n")
    ends = ["\r\n" if line.endswith("\r") else "\n" for line in lines]
    new_lines = new.split("\n")
    if len(set(ends)) > 1:  # with mixed line ends each new line gets that of the old line in its place
        new_ends = _align_line_ends([*(line.removesuffix("\r") for line in lines), last], ends, new_lines)
    else:
        new_ends = [ends[0] if ends else _line_end_near(text, match)] * (len(new_lines) - 1)
    return "".join(line + end for line, end in zip(new_lines, [*new_ends, ""], strict=True))


def _align_line_ends(old_lines: list[str], ends: list[str], new_lines: list[str]) -> list[str]:
    """Return a line end for each new line but the last, which has none: that of the old line in its place.

    An added line gets that of the line before. `old_lines` has one line more than `ends`: the last, without an end.
    """
    new_ends: list[str] = []
    for _, start, end, new_start, new_end in opcodes(old_lines, new_lines):
        replaced_ends = ends[start:end]
        for number in range(new_end - new_start):
            previous = new_ends[-1] if new_ends else ends[0]
            new_ends.append(replaced_ends[number] if number < len(replaced_ends) else previous)
    return new_ends[: len(new_lines) - 1]


def _line_end_near(text: str, match: Match) -> str:
    """Return the line end after a match, or else the one before it."""
    end = text.find("\n", match.end)
    if end < 0:
        end = text.rfind("\n", 0, match.start)
    return "\r\n" if end > 0 and text[end - 1] == "\r" else "\n"


def _splice(decoded: DecodedText, replacements: Sequence[tuple[Match, str]]) -> str:
    """Return the text with some parts replaced. Raises `ToolError` for a character that the encoding lacks."""
    parts: list[str] = []
    position = 0
    for match, new in replacements:
        decoded.encoded_part(new)  # raises the error
        parts += [decoded.text[position : match.start], new]
        position = match.end
    return "".join([*parts, decoded.text[position:]])


_MAX_COMPARED_LINES = 5_000  # whose letters are compared
_MAX_PAIRS = 1_000  # of equal lines, one in each text: more frequent lines, such as `return`, prove nothing


def describe_nearest(text: str, wanted: str) -> str:
    """Return a sentence with the lines of `text` most like `wanted`, numbered; at most a page. Line ends are LF."""
    lines, sought = text.split("\n"), [line.strip() for line in wanted.strip("\n").split("\n")]
    bare = [line.strip() for line in lines]
    start = _find_by_equal_lines(bare, sought)
    if start is None:
        start = _find_by_longest_line(bare, sought)
    if start is None:
        return "Nothing in it is similar. Read the file again."
    start = max(0, start)  # the wanted text may begin with lines that the file does not have
    end = min(len(lines), start + min(len(sought), 40) + 1)  # 1: the line after them
    numbered = "\n".join(f"{n + 1}\t{cut_line(lines[n])}" for n in range(start, end))
    return f"The nearest lines are:\n{without_surrogates(cut_middle(numbered))}"


def _find_by_equal_lines(lines: Sequence[str], sought: Sequence[str]) -> int | None:
    """Return the index where `sought` would begin so that most of its lines match; None if the file has none of them.

    Short and frequent lines are ignored. The index is negative if `sought` would begin before the first line.
    """
    indexes: defaultdict[str, list[int]] = defaultdict(list)  # of each line in `sought`
    for number, line in enumerate(sought):
        if len(line) > 3:  # not `}`, `end` and the like
            indexes[line].append(number)
    counts = Counter(line for line in lines if line in indexes)
    telling = {line: numbers for line, numbers in indexes.items() if counts[line] * len(numbers) <= _MAX_PAIRS}
    # Each equal line suggests an index for the first line sought; the index that most of them suggest is returned.
    starts = Counter(number - index for number, line in enumerate(lines) for index in telling.get(line, ()))
    return min(starts, key=lambda start: (-starts[start], start)) if starts else None


def _find_by_longest_line(lines: Sequence[str], sought: Sequence[str]) -> int | None:
    """Return the index where `sought` would begin if its longest line were the most similar line. None: no line is."""
    longest_index = max(range(len(sought)), key=lambda number: len(sought[number]))
    longest = sought[longest_index][:MAX_LINE_CHARS]
    if not longest:
        return None
    matcher = difflib.SequenceMatcher(None, "", longest, autojunk=False)
    best_ratio, best_index = 0.0, 0
    indices: Sequence[int] = range(len(lines))
    if len(lines) > _MAX_COMPARED_LINES:  # only lines with its longest words are compared
        words = sorted(set(re.findall(r"\w{3,}", longest)), key=len, reverse=True)[:3]
        indices = [index for index in indices if any(word in lines[index] for word in words)][:_MAX_COMPARED_LINES]
    for index in indices:  # by `quick_ratio`, which ignores the order of letters, because `ratio` is much slower
        matcher.set_seq1(lines[index][:MAX_LINE_CHARS])
        if matcher.real_quick_ratio() > best_ratio and (ratio := matcher.quick_ratio()) > best_ratio:
            best_ratio, best_index = ratio, index
    return best_index - longest_index if best_ratio >= 0.6 else None  # less is not similar
