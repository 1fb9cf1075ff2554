"""Compares two texts, as a unified diff and as hunks; applies some hunks of a change, and merges two changes."""

import difflib
import itertools
import re
from collections.abc import Collection, Iterator, Sequence

from agentcli.patterns import lazy_pattern
from agentcli.tools.observation import MAX_LINE_CHARS, cut_line
from agentcli.tools.text.encoding import decode, without_surrogates

CONTEXT = 3  # unchanged lines around a change
CONTEXT_CHARS = 200  # unchanged characters around a change in a long line
_MAX_COMPARED = 4_000_000  # product of both texts' lines; beyond it, the whole middle is one change
# `@@ -12,3 +12,4 @@`: the first line and the number of lines, before and after. A missing count is 1.
_HEADER = lazy_pattern(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*\n?", re.MULTILINE)
_FILE_NAMES = lazy_pattern(r"--- (?:a/)?([^\t\n]*).*\n\+\+\+ (?:b/)?([^\t\n]*).*\n")

Opcode = tuple[str, int, int, int, int]  # as in difflib: tag, start and end in the old lines, in the new lines


def unified_diff(path: str, before: str, after: str) -> str:
    """Return a unified diff that ignores line ends, with only the changed part of long lines; empty for no change."""
    old, new = lines_of(lf(before)), lines_of(lf(after))
    rows: list[str] = []
    for hunk in _KnownChanges(opcodes(old, new)).get_grouped_opcodes(CONTEXT):  # difflib joins changes that are near
        first, last = hunk[0], hunk[-1]
        rows.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n")
        for tag, start, end, new_start, new_end in hunk:
            if tag == "equal":
                rows += [f" {_cut_long_line(line)}" for line in old[start:end]]
            else:
                before_lines, after_lines = _changed_parts(old[start:end], new[new_start:new_end])
                rows += [*(f"-{line}" for line in before_lines), *(f"+{line}" for line in after_lines)]
    if not rows:
        return ""
    body = "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)
    return without_surrogates(f"--- a/{path}\n+++ b/{path}\n{body}")


def bounded_diff(diff: str) -> str:
    """Return a diff without the ends of long lines, even changed ones: for a result, not for an approval."""
    return diff if len(diff) <= MAX_LINE_CHARS else "".join(map(_cut_long_line, lines_of(diff)))


def _cut_long_line(line: str) -> str:
    """Return a line without the end of its text if that is long; its line feed stays."""
    text = line.removesuffix("\n")
    return line if len(text) <= MAX_LINE_CHARS else cut_line(text) + line[len(text) :]


def _changed_parts(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the lines that replace each other; long ones are reduced to the differing part and its surroundings."""
    before, after = [*old], [*new]
    for number, (line, other) in enumerate(zip(old, new, strict=False)):
        if max(len(line), len(other)) > MAX_LINE_CHARS:
            head, tail = shared_ends(line, other)
            before[number] = _without_shared_ends(line, head, tail)
            after[number] = _without_shared_ends(other, head, tail)
    return before, after


def shared_ends(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Count the characters, or lines, that both have in common at the beginning, and at the end of the rest."""
    head = _shared_length(first, second)
    return head, _shared_length(first[head:][::-1], second[head:][::-1])


def _shared_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Count the characters, or lines, that both have in common at the beginning."""
    same, limit = 0, min(len(first), len(second))
    while same < limit:  # binary search: slices are compared much faster than single items
        middle = (same + limit + 1) // 2
        if first[same:middle] == second[same:middle]:
            same = middle
        else:
            limit = middle - 1
    return same


def _without_shared_ends(line: str, head: int, tail: int) -> str:
    """Return a line without most of the `head` and `tail` characters that both lines have in common."""
    head, tail = max(0, head - CONTEXT_CHARS), max(0, tail - CONTEXT_CHARS - 1)  # 1: the line feed
    start = f"[{head:,} characters]" if head else ""
    end = f"[{tail:,} characters]" if tail else ""
    newline = "\n" if tail and line.endswith("\n") else ""
    return f"{start}{line[head : len(line) - tail]}{end}{newline}"


def diff_hunks(diff: str) -> tuple[str, ...]:
    """Return a hunk for each run of changed lines of one file's unified diff, however close it is to the next."""
    bodies = _HEADER.split(diff)[5::5]  # after the text before the first header, and its four groups
    pairs = zip(_HEADER.finditer(diff), bodies, strict=True)
    return tuple(run for header, body in pairs for run in _split_runs(header, body))


def path_of(diff: str) -> str:
    """Return the path of a diff's file, the old path if the file was deleted; empty for any other text."""
    if (names := _FILE_NAMES.match(diff)) is None:
        return ""
    old, new = names.groups()
    return str(old if new == "/dev/null" else new)


def split_files(text: str) -> list[str]:
    """Split diffs of several files, and text before them. A `---` line inside a hunk begins no file."""
    lines, starts = lines_of(text), [0]
    old = new = 0  # lines of the hunk that are still to come
    for number, line in enumerate(lines):
        if old > 0 or new > 0:
            is_context = line.startswith((" ", "\n"))  # some programs cut off the blank of an empty line
            old -= is_context or line.startswith("-")
            new -= is_context or line.startswith("+")
        elif header := _HEADER.match(line):
            old, new = int(header[2] or 1), int(header[4] or 1)
        elif line.startswith("--- ") and "".join(lines[number + 1 : number + 2]).startswith("+++ "):
            starts.append(number)
    parts = ["".join(lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    return [part for part in parts if part.strip()] or [text]


def _split_runs(header: re.Match[str], body: str) -> Iterator[str]:
    """Yield each run of changed lines of a hunk as a hunk of its own, so that a person can choose it alone."""
    # A row that begins with a backslash says that the row before has no line end; both are treated as one row.
    rows = re.findall(r"[^\n]*\n(?:\\[^\n]*\n?)?|[^\n]+", body)
    # Unchanged and changed stretches alternate. Empty ones are added, so that a changed one is between unchanged ones.
    stretches = [[*stretch] for _, stretch in itertools.groupby(rows, key=lambda row: row.startswith(" "))]
    if rows and not rows[0].startswith(" "):
        stretches.insert(0, [])
    stretches.append([])
    # Old and new lines before the hunk. A header names the hunk's first line or, for an empty range, the one before.
    old, new = int(header[1]) - (header[2] != "0"), int(header[3]) - (header[4] != "0")
    for before, changed, after in zip(stretches[::2], stretches[1::2], stretches[2::2], strict=False):
        skipped, following = before[:-CONTEXT], after[:CONTEXT]
        run = [*before[-CONTEXT:], *changed]
        old, new = old + _count(skipped, "+"), new + _count(skipped, "-")
        old_end, new_end = old + _count(run, "+"), new + _count(run, "-")
        ranges = f"-{_range(old, old_end + len(following))} +{_range(new, new_end + len(following))}"
        yield "".join([f"@@ {ranges} @@\n", *run, *following])
        old, new = old_end, new_end


def _count(rows: Sequence[str], sign_of_others: str) -> int:
    """Count the old rows (all but those with `+`), or the new ones (all but those with `-`)."""
    return sum(not row.startswith(sign_of_others) for row in rows)


def sides_of_hunks(diff: str) -> Iterator[tuple[int, str, str]]:
    """Yield the first new line (0: a new file without lines), the old and the new text of each hunk of a diff."""
    parts = _HEADER.split(diff)  # the text before the first header, then its four groups and the body of each hunk
    for new_start, body in zip(parts[3::5], parts[5::5], strict=True):
        old, new = _old_and_new_lines(lines_of(body))
        yield int(new_start), "".join(old), "".join(new)


def _old_and_new_lines(rows: Sequence[str]) -> tuple[list[str], list[str]]:
    old: list[str] = []
    new: list[str] = []
    sides: list[list[str]] = []  # the sides that have the previous row
    for row in rows:
        if row[0] == "\\":  # `\ No newline at end of file`: the row before has no line end
            for side in sides:
                side[-1] = side[-1].removesuffix("\n")
        else:
            sides = {"-": [old], "+": [new]}.get(row[0], [old, new])
            for side in sides:
                side.append(row[1:])
    return old, new


def with_hunks(before: str, after: str, chosen: Collection[int]) -> str:
    """Return `before` with only some of the `diff_hunks` that lead to `after`; all other lines stay as they are."""
    old, new = lines_of(before), lines_of(after)  # the diff has as many lines, but with LF
    changes = changed_ranges(lines_of(lf(before)), lines_of(lf(after)))
    text: list[str] = []
    position = 0
    for number, (start, end, new_start, new_end) in enumerate(changes):
        if number in chosen:
            text += [*old[position:start], *new[new_start:new_end]]
            position = end
    return "".join([*text, *old[position:]])


def _range(start: int, end: int) -> str:
    """Return a range of lines as in a hunk's header: `3,2` for lines 3 and 4, `3` for one line, `2,0` for none."""
    length = end - start
    return f"{start + 1}" if length == 1 else f"{start + (length > 0)},{length}"


def lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends. Unlike `splitlines`, but as in other programs, only LF ends a line."""
    lines = text.split("\n")
    last = lines.pop()
    lines = [line + "\n" for line in lines]
    return [*lines, last] if last else lines


def opcodes(old: Sequence[str], new: Sequence[str]) -> list[Opcode]:
    """Return the opcodes from old lines to new ones; equal lines at both ends are not passed to difflib."""
    head, tail = shared_ends(old, new)
    old_end, new_end = len(old) - tail, len(new) - tail
    old_size, new_size = old_end - head, new_end - head
    is_plain = 0 in (old_size, new_size) or old_size == new_size == 1  # difflib would find the same
    if is_plain or old_size * new_size > _MAX_COMPARED:
        middle: list[Opcode] = [("replace", head, old_end, head, new_end)]
    else:
        matcher = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end])
        middle = [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in matcher.get_opcodes()]
    codes = [("equal", 0, head, 0, head), *middle, ("equal", old_end, len(old), new_end, len(new))]
    return [code for code in codes if code[1] < code[2] or code[3] < code[4]]


def changed_ranges(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int, int]]:
    """Return start and end of each change in the old lines (or characters), and in the new ones."""
    return [code[1:] for code in opcodes(old, new) if code[0] != "equal"]


class _KnownChanges(difflib.SequenceMatcher[str]):
    """Lets `get_grouped_opcodes` group the opcodes that `opcodes` has found, with unchanged lines around them."""

    def __init__(self, codes: list[Opcode]) -> None:
        super().__init__()
        self._codes = codes

    def get_opcodes(self) -> list[Opcode]:  # type: ignore[override]  # tags are any text here
        return list(self._codes)


def merged(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Return both changes of `base` together; None if they touch the same or neighbouring lines, or are not text."""
    if any(decode(content) is None for content in (base, ours, theirs)):
        return None
    # Latin-1 has a character for each byte, so no byte of any encoding is lost.
    lines = _merge_lines(*(lines_of(content.decode("latin-1")) for content in (base, ours, theirs)))
    return None if lines is None else "".join(lines).encode("latin-1")


def _merge_lines(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> list[str] | None:
    """Return the lines of `base` with the changes of both sides; None if two different changes touch each other."""
    lines: list[str] = []
    position = 0  # in the base
    sides = [(text, changed_ranges(base, text)) for text in (ours, theirs)]
    while any(changes for _, changes in sides):
        # The next change, and all changes of both sides that touch it or each other, form one range of the base.
        start = end = min(changes[0][0] for _, changes in sides if changes)
        touching: list[list[tuple[int, int, int, int]]] = [[], []]  # by side
        while near := [side for side, (_, changes) in enumerate(sides) if changes and changes[0][0] <= end]:
            change = sides[near[0]][1].pop(0)
            touching[near[0]].append(change)
            end = max(end, change[1])
        changed = [_new_lines(text, each, start, end) for (text, _), each in zip(sides, touching, strict=True) if each]
        if len(changed) == 2 and changed[0] != changed[1]:  # both sides changed the range, but differently
            return None
        lines += [*base[position:start], *changed[0]]
        position = end
    return [*lines, *base[position:]]


def _new_lines(
    text: Sequence[str], changes: Sequence[tuple[int, int, int, int]], start: int, end: int
) -> Sequence[str]:
    """Return the lines of a changed text that replace lines `start` to `end` of the base.

    The `changes` are those inside that range. Before the first and after the last of them, the lines are the base's.
    """
    (first_start, _, new_start, _), (_, last_end, _, new_end) = changes[0], changes[-1]
    return text[new_start - (first_start - start) : new_end + (end - last_end)]
