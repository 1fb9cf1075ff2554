"""Tells what a shell glob can find, from the glob alone (bash(1), Pathname Expansion, without `extglob`)."""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Callable, Iterator, Sequence

# The characters that may stand in one place of a name; None for a `*`.
_Place = frozenset[str] | None

_ANY = frozenset(chr(code) for code in range(0x20, 0x7F)) - {"/"}
_PLACE = re.compile(
    r"(?P<star>\*+)|(?P<any>\?)|\[(?P<not>[!^])?(?P<set>\]?(?:\[[:.=].*?[:.=]\]|[^\]])*)\]|(?P<one>.)", re.DOTALL
)
_RANGE = re.compile(r"(.)-(.)|(.)", re.DOTALL)
_DOT = frozenset(".")


@functools.lru_cache(512)
def _places(glob: str) -> tuple[_Place, ...]:
    return tuple(_place(found) for found in _PLACE.finditer(glob))


def _place(found: re.Match[str]) -> _Place:
    if found["star"]:
        return None
    if found["any"] or (found["set"] is not None and re.search(r"\[[:.=]", found["set"])):
        return _ANY
    if found["set"] is None:
        return frozenset(found["one"])
    named: set[str] = set()
    for first, last, alone in _RANGE.findall(found["set"]):
        within = {chr(code) for code in range(ord(first), min(ord(last), 0x7E) + 1)} if first else {alone}
        # In some locales a range covers both cases, and a quoted dash makes no range.
        named |= within | ({"-", *map(str.swapcase, within)} if first else set())
    return _ANY - named if found["not"] else frozenset(named)


def is_open(glob: str) -> bool:
    """True if a glob finds most names, or most hidden ones: `*`, `.*`, `[!.]*`, `[a-z]*`, `.??*`."""
    places = _places(glob)
    return None in places and all(place in (None, _DOT) or _is_wide(place) for place in places)


def _is_wide(place: _Place) -> bool:
    return place is None or len(place & set(string.ascii_lowercase)) > 13


_PLAIN = re.compile(r"(?:[^\[\]]|\[(?:\w-\w|[\w.])+\])*")


def is_plain(glob: str) -> bool:
    """True if the brackets mean the same even if parts were quoted, which can no longer be told."""
    return len(glob) < _LONGEST and _PLAIN.fullmatch(glob) is not None


_LONGEST = 64  # characters of a glob that is compared with others; usual are ten


def has_letters(glob: str) -> bool:
    """True if the glob gives at least one letter or digit of the names it finds."""
    return any(map(_is_letter, _places(glob)))


def _is_letter(place: _Place) -> bool:
    return place is not None and len(place) == 1 and next(iter(place)).isalnum()


def finds(glob: str, name: str) -> bool:
    """True if a glob of one part finds a name. A hidden name is found only by a literal dot."""
    return _may_be_hidden(glob, name) and _fits(_places(glob), name)


def _fits(places: Sequence[_Place], name: str) -> bool:
    """True if characters fit the places one by one. If one does not, the last `*` takes one more."""
    at = there = 0
    star, taken = -1, 0
    while there < len(name):
        place = places[at] if at < len(places) else frozenset()
        if place is None:
            star, taken = at, there
            at += 1
        elif name[there] in place:
            at, there = at + 1, there + 1
        elif star >= 0:
            taken += 1
            at, there = star + 1, taken
        else:
            return False
    return all(place is None for place in places[at:])


def _may_be_hidden(glob: str, name: str) -> bool:
    return not name.startswith(".") or _places(glob)[:1] == (_DOT,)


@functools.lru_cache(256)
def names_of_both(glob: str, others: tuple[str, ...]) -> frozenset[str]:
    """Examples of names that both a glob and one of the others find by giving the same letter.

    `README*` and `*.pem` have names in common, but nobody means those. There are two examples for each: where several
    characters fit, one takes the first and one the last of them.
    """
    ours = _places(glob)
    fits = (min, max) if any(place is not None and len(place) > 1 for place in ours) else (min,)
    letters = _letters(ours)
    meeting = [
        theirs for theirs, its in _all_places(others) if not letters.isdisjoint(its) and _ends_meet(ours, theirs)
    ]
    found = {name for theirs in meeting for fit in fits if (name := _name_of_both(ours, theirs, fit))}
    return frozenset(name for name in found if _may_be_hidden(glob, name))


@functools.lru_cache(4)
def _all_places(globs: tuple[str, ...]) -> tuple[tuple[tuple[_Place, ...], frozenset[str]], ...]:
    """The places of each glob, and the letters and digits it gives."""
    return tuple((places, _letters(places)) for places in map(_places, globs))


def _letters(places: Sequence[_Place]) -> frozenset[str]:
    return frozenset().union(*(place for place in places if place is not None and _is_letter(place)))


def _ends_meet(ours: Sequence[_Place], theirs: Sequence[_Place]) -> bool:
    """True if the first and last characters can be the same; for most pairs of globs they cannot."""
    return all(
        mine is None or its is None or not mine.isdisjoint(its)
        for mine, its in ((ours[0], theirs[0]), (ours[-1], theirs[-1]))
    )


def _name_of_both(ours: Sequence[_Place], theirs: Sequence[_Place], fit: Callable[[frozenset[str]], str]) -> str:
    """A name that both find, or an empty string.

    Walks through both at once. A state is the position in each, and if a letter has coincided.
    """
    reached = {(0, 0, False): ""}
    pending = [(0, 0, False)]
    while pending:
        state = pending.pop()
        if state == (len(ours), len(theirs), True):
            return reached[state]
        for after, text in _steps(ours, theirs, state, fit):
            is_hidden = not reached[state] and text.startswith(".") and ours[0] != _DOT
            if after not in reached and not is_hidden:
                reached[after] = reached[state] + text
                pending.append(after)
    return ""


def _steps(
    ours: Sequence[_Place],
    theirs: Sequence[_Place],
    state: tuple[int, int, bool],
    fit: Callable[[frozenset[str]], str],
) -> Iterator[tuple[tuple[int, int, bool], str]]:
    at, there, shares = state
    our_end, their_end = at >= len(ours), there >= len(theirs)
    mine = None if our_end else ours[at]
    its = None if their_end else theirs[there]
    if not our_end and mine is None:
        yield (at + 1, there, shares), "" if its is not None or their_end else "zz"  # both are a `*`: any text
        if its is not None:
            yield (at, there + 1, shares), fit(_usual(its))
    if not their_end and its is None:
        yield (at, there + 1, shares), "" if mine is not None or our_end else "zz"
        if mine is not None:
            yield (at + 1, there, shares), fit(_usual(mine))
    if mine is not None and its is not None and mine & its:
        yield (at + 1, there + 1, shares or (_is_letter(mine) and _is_letter(its))), fit(_usual(mine & its))


def _usual(place: frozenset[str]) -> frozenset[str]:
    """Letters and digits if there are any."""
    return frozenset(char for char in place if char.isalnum()) or place
