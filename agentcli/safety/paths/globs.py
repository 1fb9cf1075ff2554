"""Matches paths with globs: `src/**`, `*.{py,md}`, `~/x`, `//from/the/root`."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from agentcli.safety.commands.records import escaped
from agentcli.safety.paths.judge import PathGround

_MAX_BRACES = 5


def is_literal(pattern: str) -> bool:
    """Return True if a glob matches one text only."""
    return not re.search(r"[*?[]", re.sub(r"\[[*?[]\]", "", pattern))


def matches_path(pattern: str, path: Path, ground: PathGround) -> bool:
    """Return True if a path glob speaks of an absolute path. `*` stays within a folder, `**` does not.

    `//x` is absolute, `~/x` below home, `/x` below the project (or absolute, where it spells out one of these
    folders), `./x` and `a/b` below the working directory; a glob without a slash is a name at any depth below it. A
    folder's glob speaks of all that is in it. `{a,b}` is either.
    """
    return any(_regex(_anchored(each, ground)).fullmatch(str(path)) for each in _alternatives(pattern))


@lru_cache(maxsize=1_000)
def _alternatives(pattern: str) -> tuple[str, ...]:
    """Without its braces; also as it is, which may be a file's name."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern) if pattern.count("{") <= _MAX_BRACES else None
    if found is None:
        return (pattern,)
    before, behind = pattern[: found.start()], pattern[found.end() :]
    return (pattern, *(each for choice in found[1].split(",") for each in _alternatives(f"{before}{choice}{behind}")))


def _anchored(pattern: str, ground: PathGround) -> str:
    if pattern.startswith("//"):
        return pattern[1:]
    if pattern == "~" or pattern.startswith("~/"):
        return f"{escaped(str(ground.home))}{pattern[1:]}"
    if pattern.startswith("/"):
        folders = (ground.root, ground.cwd, ground.home)
        is_absolute = any(pattern.startswith(f"{escaped(str(folder))}/") for folder in folders)
        return pattern if is_absolute else f"{escaped(str(ground.root))}{pattern}"
    below = escaped(str(ground.cwd))
    if "/" not in pattern:
        return f"{below}/**/{pattern}"
    return f"{below}/{pattern.removeprefix('./')}"


@lru_cache(maxsize=1_000)
def _regex(glob: str) -> re.Pattern[str]:
    clean = re.sub(r"/(\.?/)+", "/", f"{glob}/").rstrip("/")  # `a//b` and `a/./b` are `a/b`
    return re.compile(_GLOB_PART.sub(_part_as_regex, clean) + "(?:/.*)?", re.DOTALL)


_GLOB_PART = re.compile(r"/\*\*/|\*+|\?|\[([!^]?)(\]?[^\]]*)\]|.", re.DOTALL)


def _part_as_regex(found: re.Match[str]) -> str:
    if found[2] is not None:
        members = re.sub(r"([\\[&~|])", r"\\\1", found[2])
        return f"[{'^' if found[1] else ''}{members}]"
    known = {"/**/": "/(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return known.get(found[0]) or (".*" if found[0].startswith("**") else re.escape(found[0]))


def is_path_glob(pattern: str) -> bool:
    """False for a glob whose brackets make no sense."""
    try:
        return all(_regex(each) for each in _alternatives(pattern))
    except re.error:
        return False
