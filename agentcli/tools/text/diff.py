"""Changes between two texts: as a unified diff, as its hunks, and as the text with only some of them.

Merges two changes of one text, line by line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence

from agentcli.tools.observation import MAX_LINE_CHARS, cut_line
from agentcli.tools.text.encoding import decode, shown

CONTEXT = 3  # unchanged lines around a change
AROUND = 200  # unchanged characters of a long line around what differs in it
_HEAD_LINE = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@.*\n", re.MULTILINE)
_FILE_NAMES = re.compile(r"--- (?:a/)?([^\t\n]*).*\n\+\+\+ (?:b/)?([^\t\n]*).*\n")
_MOST_COMPARED = 4_000_000  # lines of one text times those of the other; beyond it everything in between has changed

Opcode = tuple[str, int, int, int, int]  # as difflib has them: tag, start and end in the old lines, in the new lines


def unified_diff(path: str, before: str, after: str) -> str:
    """A unified diff, line ends aside; of long lines the part that changed. Empty when nothing else changed."""
    old, new = lines_of(lf(before)), lines_of(lf(after))
    rows: list[str] = []
    for hunk in _hunks(old, new):
        first, last = hunk[0], hunk[-1]
        rows.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n")
        for tag, start, end, new_start, new_end in hunk:
            if tag == "equal":
                rows += [f" {_cut(line)}" for line in old[start:end]]
                continue
            before_lines, after_lines = _without_same_parts(old[start:end], new[new_start:new_end])
            rows += [f"-{line}" for line in before_lines]
            rows += [f"+{line}" for line in after_lines]
    if not rows:
        return ""
    body = "".join(row if row.endswith("\n") else row + "\n\\ No newline at end of file\n" for row in rows)
    return shown(f"--- a/{path}\n+++ b/{path}\n{body}")


def bounded_diff(diff: str) -> str:
    """The same diff without the ends of long lines, whatever is in them: for a result, not for a decision."""
    return diff if len(diff) <= MAX_LINE_CHARS else "".join(map(_cut, lines_of(diff)))


def _cut(line: str) -> str:
    text = line.removesuffix("\n")
    return line if len(text) <= MAX_LINE_CHARS else cut_line(text) + line[len(text) :]


def _without_same_parts(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines that replace each other; of long ones only what differs, with its surroundings."""
    before, after = [*old], [*new]
    for number, (line, other) in enumerate(zip(old, new, strict=False)):
        if max(len(line), len(other)) > MAX_LINE_CHARS:
            head = _shared_length(line, other)
            tail = _shared_length(line[head:][::-1], other[head:][::-1])
            before[number], after[number] = (_middle(one, head, tail) for one in (line, other))
    return before, after


def _shared_length(one: str, other: str) -> int:
    """Count the characters that both begin with."""
    same, most = 0, min(len(one), len(other))
    while same < most:
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


def _middle(line: str, head: int, tail: int) -> str:
    """A line without the beginning and the end that both lines have, except for some characters of these."""
    head, tail = max(0, head - AROUND), max(0, tail - AROUND - 1)
    start = f"[{head:,} characters]" if head else ""
    end = f"[{tail:,} characters]" if tail else ""
    newline = "\n" if tail and line.endswith("\n") else ""
    return f"{start}{line[head : len(line) - tail]}{end}{newline}"


def diff_hunks(diff: str) -> tuple[str, ...]:
    """One hunk for each run of changed lines of one file's unified diff, however close to the next it stands."""
    starts = [found.start() for found in re.finditer(r"^@@ ", diff, re.MULTILINE)]
    ends = [*starts[1:], len(diff)]
    return tuple(run for start, end in zip(starts, ends, strict=False) for run in _runs(diff[start:end]))


def path_of(diff: str) -> str:
    """Return the path of the file that a diff is of; empty for any other text."""
    head = _FILE_NAMES.match(diff)
    return "" if head is None else head[1] if head[2] == "/dev/null" else head[2]


def split_files(text: str) -> list[str]:
    """Split diffs of several files, and any text before them. Lines that a hunk's head counts begin no file."""
    lines, starts = lines_of(text), [0]
    old = new = 0  # lines of the hunk that are still to come
    for number, line in enumerate(lines):
        if old > 0 or new > 0:
            old, new = old - line.startswith(("-", " ", "\n")), new - line.startswith(("+", " ", "\n"))
        elif found := _RANGES.match(line):
            old, new = (int(size) if size else 1 for size in found.groups())
        elif line.startswith("--- ") and "".join(lines[number + 1 : number + 2]).startswith("+++ "):
            starts.append(number)
    parts = ["".join(lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]
    return [part for part in parts if part.strip()] or [text]


def _runs(hunk: str) -> Iterator[str]:
    """Each run of changed lines of a hunk, with the unchanged lines between it and its neighbours."""
    head, *lines = lines_of(hunk)
    rows: list[str] = []
    for line in lines:
        if line.startswith("\\"):  # says of the line before it that no line end follows
            rows[-1] += line
        else:
            rows.append(line)
    old, new = (int(start) - (length != "0") for start, length in _RANGE.findall(head))
    edges = [0, *(number for number in range(len(rows) + 1) if _parts(rows, number)), len(rows)]
    position = 0
    for before, start, end, after in zip(edges[::2], edges[1::2], edges[2::2], edges[3::2], strict=False):
        first, last = max(before, start - CONTEXT), min(after, end + CONTEXT)
        old, new = old + _count(rows[position:first], "+"), new + _count(rows[position:first], "-")
        position, run = first, rows[first:last]
        old_range, new_range = _range(old, old + _count(run, "+")), _range(new, new + _count(run, "-"))
        yield "".join([f"@@ -{old_range} +{new_range} @@\n", *run])


_RANGE = re.compile(r"[-+](\d+)(?:,(\d+))?")
_RANGES = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def _parts(rows: Sequence[str], number: int) -> bool:
    """Return True if a run of changed rows begins or ends before the row of that number."""
    is_changed, was_changed = (0 <= n < len(rows) and not rows[n].startswith(" ") for n in (number, number - 1))
    return is_changed != was_changed


def _count(rows: Sequence[str], other: str) -> int:
    """Count the rows of the text whose lines are not marked with `other`."""
    return sum(not row.startswith(other) for row in rows)


def sides_of_hunks(diff: str) -> Iterator[tuple[int, str, str]]:
    """Each hunk of one file's diff: its first new line (from 1 on; 0 where none is left), its old and its new text."""
    parts = _HEAD_LINE.split(diff)
    for start, body in zip(parts[1::2], parts[2::2], strict=True):
        old, new = _sides(lines_of(body))
        yield int(start), "".join(old), "".join(new)


def _sides(rows: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines that a hunk takes away or leaves, and those that it leaves or brings."""
    old: list[str] = []
    new: list[str] = []
    last: tuple[list[str], ...] = ()
    for row in rows:
        match row[0]:
            case "\\":  # the line above has no end
                for side in last:
                    side[-1] = side[-1].removesuffix("\n")
                continue
            case "-":
                last = (old,)
            case "+":
                last = (new,)
            case _:
                last = (old, new)
        for side in last:
            side.append(row[1:])
    return old, new


def with_hunks(before: str, after: str, chosen: Collection[int]) -> str:
    """`before` with only some of the `diff_hunks` that lead to `after`; every other line keeps its own bytes."""
    old, new = lines_of(before), lines_of(after)  # as many lines as the diff sees, with the line ends they really have
    changes = [code for code in opcodes(lines_of(lf(before)), lines_of(lf(after))) if code[0] != "equal"]
    text: list[str] = []
    position = 0
    for number, (_, start, end, new_start, new_end) in enumerate(changes):
        if number in chosen:
            text += [*old[position:start], *new[new_start:new_end]]
            position = end
    return "".join([*text, *old[position:]])


def lines_of(text: str) -> list[str]:
    """Lines with their ends. A form feed or U+2028 ends none: for the file's other readers it is a character."""
    lines = text.split("\n")
    last = lines.pop()
    lines = [line + "\n" for line in lines]
    return [*lines, last] if last else lines


def opcodes(old: Sequence[str], new: Sequence[str]) -> list[Opcode]:
    """Return the opcodes between lines. Those that both begin and end with, most of any edited file, are skipped."""
    head = _shared(old, new)
    tail = _shared(old[: head - 1 if head else None : -1], new[: head - 1 if head else None : -1])
    old_end, new_end = len(old) - tail, len(new) - tail
    old_size, new_size = old_end - head, new_end - head
    codes: list[Opcode] = [("equal", 0, head, 0, head)] if head else []
    if min(old_size, new_size) == 0 or old_size == new_size == 1 or old_size * new_size > _MOST_COMPARED:
        if old_size or new_size:
            codes.append(("replace", head, old_end, head, new_end))
    else:
        matcher = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end])
        codes += [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in matcher.get_opcodes()]
    if tail:
        codes.append(("equal", old_end, len(old), new_end, len(new)))
    return codes


def _shared(old: Sequence[str], new: Sequence[str]) -> int:
    """Count the lines that both begin with."""
    for number, (line, other) in enumerate(zip(old, new, strict=False)):
        if line != other:
            return number
    return min(len(old), len(new))


def _hunks(old: Sequence[str], new: Sequence[str]) -> Iterator[list[Opcode]]:
    """The changes in groups, with up to three unchanged lines around each."""
    hunk: list[Opcode] = []
    codes = opcodes(old, new)
    for number, (tag, start, end, new_start, new_end) in enumerate(codes):
        if tag != "equal":
            hunk.append((tag, start, end, new_start, new_end))
            continue
        size = end - start
        before = min(size, CONTEXT) if number else 0  # lines that still belong to the hunk above
        after = min(size, CONTEXT) if number < len(codes) - 1 else 0
        if hunk and after and size <= 2 * CONTEXT:
            hunk.append((tag, start, end, new_start, new_end))
            continue
        if hunk:
            if before:
                hunk.append((tag, start, start + before, new_start, new_start + before))
            yield hunk
        hunk = [(tag, end - after, end, new_end - after, new_end)] if after else []
    if any(code[0] != "equal" for code in hunk):
        yield hunk


def _range(start: int, end: int) -> str:
    """Lines as a hunk's head has them: an empty range stands behind the line before it."""
    length = end - start
    return f"{start + 1}" if length == 1 else f"{start + (length > 0)},{length}"


def lf(text: str) -> str:
    return text.replace("\r\n", "\n")


_Range = tuple[int, int, int, int]  # start and end in the common ancestor, start and end in the changed text


def merged(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """Both changes of `base` together; None where they touch the same lines, or neighbours, or are no text."""
    if any(decode(content) is None for content in (base, ours, theirs)):
        return None
    # Latin-1 gives a character for each byte, so no byte of any encoding is lost.
    old, one, other = (lines_of(content.decode("latin-1")) for content in (base, ours, theirs))
    lines = _merged_lines(old, one, other)
    return None if lines is None else "".join(lines).encode("latin-1")


def _merged_lines(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> list[str] | None:
    lines: list[str] = []
    position = 0
    ours_left, theirs_left = _changes(base, ours), _changes(base, theirs)
    while ours_left or theirs_left:
        start = end = min(changes[0][0] for changes in (ours_left, theirs_left) if changes)
        one: list[_Range] = []
        other: list[_Range] = []
        while (more := _touching(ours_left, end)) or _touching(theirs_left, end):
            left, taken = (ours_left, one) if more else (theirs_left, other)
            taken.append(left.pop(0))
            end = max(end, taken[-1][1])
        changed = [_text(text, taken, start, end) for text, taken in ((ours, one), (theirs, other)) if taken]
        if len(changed) == 2 and changed[0] != changed[1]:
            return None
        lines += [*base[position:start], *changed[0]]
        position = end
    return [*lines, *base[position:]]


def _changes(old: Sequence[str], new: Sequence[str]) -> list[_Range]:
    return [(start, end, from_, to) for tag, start, end, from_, to in opcodes(old, new) if tag != "equal"]


def _touching(changes: Sequence[_Range], end: int) -> bool:
    return bool(changes) and changes[0][0] <= end


def _text(text: Sequence[str], changes: Sequence[_Range], start: int, end: int) -> Sequence[str]:
    """The lines of a changed text that stand for lines `start` to `end` of the ancestor."""
    first, last = changes[0], changes[-1]
    return text[first[2] - (first[0] - start) : last[3] + (end - last[1])]
