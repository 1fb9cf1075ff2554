"""Matches globs as ripgrep reads them, for what its options cannot say: which files that are not ignored match.

Its `--glob` brings back what ignore rules leave out. A file type does not, but sees only a file's own name: that is
enough for most globs, for the others the folders before it are judged here. What is not understood here is None, and
has to be asked of ripgrep in two steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

_MOST_ALTERNATIVES = 64
_ONE_BYTE = "[\\0-.0-\x7f\udc80-\udcff]"  # but a slash, in a name as `os.fsdecode` gives it
_BRACES = re.compile(r"\{([^{}]*)\}")


def name_globs(glob: str) -> list[str] | None:
    """Globs for a file's own name, one of which it has to match for `glob` to match the file. None when all do."""
    if is_about_names(glob):
        return [glob.removeprefix("**/")]
    names = [whole.rpartition("/")[2] for whole in _alternatives(glob) or ["*"]]
    return None if any(name in ("*", "**", "") or name.startswith("include:") for name in names) else names


def is_about_names(glob: str) -> bool:
    """True if it judges files by their own names alone, wherever they are."""
    name = glob.removeprefix("**/")
    return bool(name) and "/" not in name and not name.startswith(("!", "include:"))


def path_matcher(glob: str) -> Callable[[str], object] | None:
    """Tells whether a path, relative to where the glob starts, matches. None when the glob is not understood here."""
    alternatives = _alternatives(glob)
    if alternatives is None:
        return None
    expressions = [_expression(alternative) for alternative in alternatives]
    if None in expressions:
        return None
    return re.compile("|".join(filter(None, expressions)), re.DOTALL).fullmatch


def _alternatives(glob: str) -> list[str] | None:
    """Expand braces, which are not nested: `a/{b,c}` gives `a/b` and `a/c`."""
    globs = [glob]
    while found := _BRACES.search(globs[0]):
        inner = found[1].split(",")
        if not all(inner) or any("**" in part for part in inner) or len(globs) * len(inner) > _MOST_ALTERNATIVES:
            return None
        globs = [whole.replace(found[0], part, 1) for whole in globs for part in inner]  # in all it is the first
    return None if re.search(r"[\[\]{}\\]", globs[0]) or glob.startswith(("!", "#")) else globs


def _expression(glob: str) -> str | None:
    """A regular expression for a glob without braces; it starts where the glob starts, as it holds a slash."""
    parts = glob.removeprefix("/").split("/")
    if not all(parts) or any(first == second == "**" for first, second in pairwise(parts)):
        return None
    *folders, name = [_part(part) for part in parts]
    return "".join(f"{folder}/" if folder else "(?:.*/)?" for folder in folders) + (name or ".*[^/]")


def _part(part: str) -> str:
    """A name between slashes. Empty for `**`, which stands for any number of folders. `?` is a byte, as for ripgrep."""
    if part == "**":
        return ""
    signs = re.split(r"(\*+|\?)", part)
    return "".join("[^/]*" if "*" in sign else _ONE_BYTE if sign == "?" else re.escape(sign) for sign in signs)
