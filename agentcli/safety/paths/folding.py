"""Normalizes file names the way NTFS and APFS compare them, so that another spelling of a name is no way around a rule.

That is: case folded, NFKC, no invisible characters, no trailing dots or spaces, and short names such as `GIT~1`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import PurePath


def folded_parts(path: PurePath) -> tuple[str, ...]:
    return tuple(map(fold_name, path.parts))


@lru_cache(4_096)
def is_below(path: PurePath, folder: PurePath) -> bool:
    """True for the folder itself too. `is_relative_to` takes the square of a path's length in Python 3.13."""
    return path.parts[: len(folder.parts)] == folder.parts


def fold_name(name: str) -> str:
    """The form of `name` that the most forgiving file systems compare."""
    name = unicodedata.normalize("NFKC", name)
    name = "".join(letter for letter in name if unicodedata.category(letter) != "Cf").casefold()
    # On NTFS a colon begins the name of an alternate data stream of the file.
    return name.partition(":")[0].rstrip(". ") or name


def is_short_for(name: str, names: Sequence[str]) -> bool:
    """True if `name` may be the 8.3 short name that Windows gives one of `names`: six characters and a number."""
    match = re.fullmatch(r"([^~.]{1,6})~\d{1,4}(?:\.[^.]{0,3})?", name)
    return match is not None and match[1] in _stems(tuple(names))


@lru_cache
def _stems(names: tuple[str, ...]) -> frozenset[str]:
    hidden = (name.lstrip(".") for name in names if name.startswith(".") and "*" not in name)
    return frozenset(re.sub(r"[ .]", "", name.rpartition(".")[0] or name)[:6] for name in hidden)


def holds(paths: tuple[str, ...], parts: tuple[str, ...], *, starts: Iterable[int]) -> bool:
    """True if one of `paths` begins at one of the indexes `starts` of `parts`."""
    by_first_part = _by_first_part(paths)
    return any(
        parts[start : start + len(path)] == path for start in starts for path in by_first_part.get(parts[start], ())
    )


@lru_cache
def _by_first_part(paths: tuple[str, ...]) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for path in paths:
        folded = tuple(map(fold_name, path.split("/")))
        found.setdefault(folded[0], []).append(folded)
    return found
