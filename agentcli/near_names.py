"""Names what somebody probably meant who wrote a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` for a name that is nearly one of those that are known, else nothing."""
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of those that are known that is nearly `name`, or an empty string."""
    by_letters = {one.lower(): one for one in known}
    import difflib  # 5 ms that a start without a mistake need not wait for

    near = difflib.get_close_matches(name.lower(), by_letters, n=1, cutoff=0.65)
    return by_letters[near[0]] if near else ""
