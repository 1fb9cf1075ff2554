"""Finds the text that a model wants to replace.

Models misquote line ends, indentation, quotation marks and the like. `find_exact` looks for the text as it is given;
`MATCHERS` are further ways to look for it, strictest first, each tried only if all ways before it found nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.tools.text.diff import lf, lines_of, opcodes, shared_ends

_BLANKS = " \t\n"


class Match(Struct, frozen=True):
    """A range of the file's text that corresponds to `old_string`, in characters."""

    start: int
    end: int
    # Turns `new_string` into the replacement, with LF and, for example, the file's margins or quotes instead of those
    # in `old_string`. It may raise `ToolError`.
    adapt: Callable[[str], str] = lf


def find_exact(text: str, old: str) -> list[Match]:
    """Return all occurrences of `old` from top to bottom, none inside another. None begins or ends in a CRLF."""

    def is_whole(start: int, end: int) -> bool:  # neither end is inside a CRLF
        return text[max(start - 1, 0) : start + 1] != "\r\n" and text[end - 1 : end + 1] != "\r\n"

    return [Match(start, end) for start, end in _find(text, old, is_whole)]


def find_with_any_line_ends(text: str, old: str) -> list[Match]:
    """Return all occurrences of `old`, none inside another; LF and CRLF are treated as equal."""
    view = with_lf(text)
    return [Match(view.origin(start), view.origin(end)) for start, end in _find(view.text, lf(old))]


def _find_look_alikes(text: str, old: str) -> list[Match]:
    """Return the matches of `old` if quotes, dashes and spaces that look alike are equal."""
    view, sought = folded(text), folded(old).text
    matches: list[Match] = []
    for start, end in _find(view.text, sought):
        first, last = view.origin(start), view.origin(end)
        matches.append(Match(first, last, partial(_with_characters_of_file, lf(text[first:last]), sought)))
    return matches


def _with_characters_of_file(in_file: str, old: str, new: str) -> str:
    """Return `new` with the characters that it keeps from `old` as they are `in_file`: `old` is that text folded."""
    file_lines, old_lines = lines_of(in_file), lines_of(old)  # of the same lengths
    new_lines, new_views = lines_of(lf(new)), lines_of(folded(new).text)
    parts: list[str] = []
    for _, start, end, new_start, new_end in opcodes(old_lines, new_views):
        # In each stretch, the equal characters at both ends are the file's; those between them are new.
        head, tail = shared_ends("".join(old_lines[start:end]), "".join(new_views[new_start:new_end]))
        file_part, new_part = "".join(file_lines[start:end]), "".join(new_lines[new_start:new_end])
        parts += [file_part[:head], new_part[head : len(new_part) - tail], file_part[len(file_part) - tail :]]
    return "".join(parts)


def _find(
    text: str, sought: str, is_whole: Callable[[int, int], bool] = lambda start, end: True
) -> Iterator[tuple[int, int]]:
    """Yield start and end of each whole occurrence that does not begin inside the one before."""
    start = text.find(sought)
    while start >= 0:
        end = start + len(sought)
        if is_whole(start, end):
            yield start, end
            start = text.find(sought, end)
        else:
            start = text.find(sought, start + 1)


def _find_lines(text: str, old: str, *, view_of: Callable[[str], View]) -> list[Match]:
    """Return the places whose lines equal those of `old` apart from margins, which must all differ in the same way.

    Both texts are compared as `view_of` shows them, without margins and with a line feed at both ends of every line, so
    that only whole lines are found. Line numbers lead from a place in the stripped text back to the file.
    """
    view, old_lines = view_of(text), lines_of(view_of(old).text)
    sought, lines = _without_margins(old_lines), lines_of(view.text)
    bare_text = _without_margins(lines)
    start = bare_text.find(sought) if sought.strip() else -1
    offsets = [0, *accumulate(map(len, lines))]  # where each line begins in the view
    line_feeds = [found.start() for found in re.finditer("\n", bare_text)]  # each line of `bare_text` begins behind one
    matches: list[Match] = []
    while start >= 0:
        line_index = bisect_left(line_feeds, start)  # `sought` begins with the line feed before its first line
        end_index = line_index + len(old_lines)
        found_lines = lines[line_index:end_index]
        shift = learn_shift(old_lines, found_lines)
        if shift is not None:
            end = offsets[end_index]
            if found_lines[-1].endswith("\n") and not old_lines[-1].endswith("\n"):
                end -= 1  # the line end stays outside of the match
            line_starts = [view.origin(offset) for offset in (*offsets[line_index:end_index], end)]
            file_lines = [lf(text[first:last]) for first, last in pairwise(line_starts)]
            adapt = partial(_adapt_lines, file_lines, old_lines, view_of, shift)
            matches.append(Match(line_starts[0], line_starts[-1], adapt))
        # No match begins inside another; two may share the line feed between them.
        start = bare_text.find(sought, start + 1 if shift is None else start + len(sought) - 1)
    return matches


def _without_margins(lines: Sequence[str]) -> str:
    """Return the lines without white space at both ends, each between line feeds."""
    return "".join(f"\n{line.strip(_BLANKS)}" for line in lines) + "\n"


def _adapt_lines(
    file_lines: list[str], old_lines: list[str], view_of: Callable[[str], View], shift: Callable[[str], str], new: str
) -> str:
    """Return a replacement in which kept lines are as in the file and new lines have the file's margin.

    `old_lines` are the lines of `old_string` as `view_of` shows them, `file_lines` the corresponding lines of the file.
    """
    lines = lines_of(lf(new))
    lacks_end = old_lines[-1].endswith("\n") and not file_lines[-1].endswith("\n")  # the file ends without a line end
    if lacks_end:
        file_lines = [*file_lines[:-1], file_lines[-1] + "\n"]  # new lines may follow it
    parts: list[str] = []
    for tag, start, end, new_start, new_end in opcodes(old_lines, lines_of(view_of(new).text)):
        parts += file_lines[start:end] if tag == "equal" else map(shift, lines[new_start:new_end])
    return "".join(parts).removesuffix("\n") if lacks_end else "".join(parts)


_LOOK_ALIKES = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′ʼ＇", "'"),
        **dict.fromkeys("“”„‟″＂", '"'),
        **dict.fromkeys("‐‑‒–—―−﹘﹣－", "-"),
        **dict.fromkeys("\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a", " "),
        **dict.fromkeys("\u202f\u205f\u3000", " "),
        **dict.fromkeys(map(chr, range(0xD800, 0xE000)), "\ufffd"),  # a byte that is not text is shown like this
    }
)


class View(Struct, frozen=True):
    """A text in which each CRLF is LF, and a map from its places to those of the original.

    The map has pieces: place `starts[n]` is `origins[n]` in the original, and the places up to the next start follow.
    """

    text: str
    starts: list[int]
    origins: list[int]

    def origin(self, place: int) -> int:
        """Return where in the original a place is."""
        index = bisect_right(self.starts, place) - 1
        return self.origins[index] + place - self.starts[index]


def with_lf(text: str) -> View:
    """Return a view in which each CRLF is LF; behind each of them a new piece of its map begins."""
    origins = [0, *(crlf.end() for crlf in re.finditer("\r\n", text))]
    starts = [origin - removed for removed, origin in enumerate(origins)]  # without the CRs before it
    return View(lf(text), starts, origins)


def folded(text: str) -> View:
    """Return a view in which quotes, dashes and spaces are those of ASCII, character by character."""
    view = with_lf(text)
    return View(view.text.translate(_LOOK_ALIKES), view.starts, view.origins)


# Rows of: the function that finds matches, the name of the difference, and how it is handled (for the note).
_KEPT = "; the file's own were kept where new_string keeps those of old_string."
_INDENTED = "; new_string was indented as the file is."
MATCHERS: tuple[tuple[Callable[[str, str], list[Match]], str, str], ...] = (
    (find_with_any_line_ends, "line ends", "; the file's own were kept."),
    (partial(_find_lines, view_of=with_lf), "indentation or the last line end", _INDENTED),
    (_find_look_alikes, "look-alike characters (quotes, dashes, spaces)", _KEPT),
    (partial(_find_lines, view_of=folded), "look-alike characters and indentation", _KEPT),
)


# A margin is the white space before a line. `known` maps margins of `old_string` to those of the file's same lines;
# a rule returns the file's margin for one of `old_string`, or None if it cannot tell.
_Rule = Callable[[str], str | None]


def learn_shift(lines: Sequence[str], file_lines: Sequence[str]) -> Callable[[str], str] | None:
    """Return a function that re-indents a line of `new_string` as the file is indented.

    It learns from `lines` of `old_string` and the same lines in the file. It raises `ToolError` for a line whose margin
    cannot be derived. Return None if the margins of `lines` and `file_lines` do not all differ in the same way.
    """
    pairs = {(_margin(line), _margin(other)) for line, other in zip(lines, file_lines, strict=True) if line.strip()}
    known = dict(pairs)
    if len(known) < len(pairs):  # lines with the same margin have different ones in the file
        return None
    rule = _added_margin(known) or _removed_margin(known) or _scaled_margin(known)
    if rule is None:
        return None

    def shift(line: str) -> str:
        if not line.strip():
            return line
        margin = _margin(line)
        if (wanted := known.get(margin, rule(margin))) is None:
            raise ToolError(
                "old_string matched apart from indentation, but for a line of new_string the indentation cannot be "
                f"derived from it: {line.strip()[:80]!r}. Indent both as the file is indented.",
                kind="validation_error",
            )
        return wanted + line[len(margin) :]

    return shift


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _added_margin(known: dict[str, str]) -> _Rule | None:
    """Return a rule if every margin of the file is `old_string`'s with the same white space before it."""
    fronts = {in_file.removesuffix(old) if in_file.endswith(old) else None for old, in_file in known.items()}
    if len(fronts) > 1 or None in fronts:
        return None
    (front,) = map(str, fronts)

    def rule(margin: str) -> str | None:
        # If only their combination mixes tabs and spaces, it would be a guess at the width of a tab.
        is_mixed = len(set(front + margin)) > 1 and len(set(front)) < 2 and len(set(margin)) < 2
        return None if is_mixed else front + margin

    return rule


def _removed_margin(known: dict[str, str]) -> _Rule | None:
    """Return a rule if every margin of `old_string` is the file's with the same white space before it."""
    fronts = {old.removesuffix(in_file) if old.endswith(in_file) else None for old, in_file in known.items()}
    if len(fronts) > 1 or None in fronts:
        return None
    (front,) = map(str, fronts)
    return lambda margin: margin.removeprefix(front) if margin.startswith(front) else None


def _scaled_margin(known: dict[str, str]) -> _Rule | None:
    """Return a rule for steps of another width, such as two spaces or a tab in place of four spaces.

    Two pairs of margins (one of them may be no margin at all) give the ratio of the steps; all others must fit it.
    """
    chars, file_chars = set("".join(known)), set("".join(known.values()))
    if len(chars) != 1 or len(file_chars) != 1:
        return None
    (char,), (file_char,) = chars, file_chars
    widths = sorted((len(margin), len(in_file)) for margin, in_file in known.items())
    narrowest, file_narrowest = widths[0] if len(widths) > 1 else (0, 0)  # one pair alone is measured from no margin
    step, file_step = widths[-1][0] - narrowest, widths[-1][1] - file_narrowest
    if file_step <= 0:  # what is deeper in `old_string` is not deeper in the file
        return None
    if any((in_file - file_narrowest) * step != file_step * (width - narrowest) for width, in_file in widths):
        return None  # they are not all in proportion

    def rule(margin: str) -> str | None:
        added, remainder = divmod(file_step * (len(margin) - narrowest), step)
        is_known = set(margin) <= {char} and not remainder and file_narrowest + added >= 0
        return file_char * (file_narrowest + added) if is_known else None

    return rule
