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
    """Return True if a path glob covers an absolute path.

    - `//x` is absolute, `~/x` is below home, `./x` and `a/b` are below the working directory.
    - `/x` is below the project, or absolute if it begins with the project, the working directory or home.
    - A glob without a slash is a name at any depth below the working directory.
    - `*` stays within a folder, `**` does not; `{a,b}` is either. The glob of a folder covers all that is in it.
    """
    return any(_regex(_anchored(each, ground)).fullmatch(str(path)) for each in _alternatives(pattern))


@lru_cache(maxsize=1_000)
def _alternatives(pattern: str) -> tuple[str, ...]:
    """Return the globs that one with braces stands for, and the glob itself, which may be a file's name."""
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
        folders = [escaped(str(folder)) for folder in (ground.root, ground.cwd, ground.home)]
        return pattern if pattern.startswith(tuple(f"{folder}/" for folder in folders)) else f"{folders[0]}{pattern}"
    depth = "" if "/" in pattern else "**/"
    return f"{escaped(str(ground.cwd))}/{depth}{pattern.removeprefix('./')}"


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
    """Return False for a glob whose brackets make no sense."""
    try:
        return all(_regex(each) for each in _alternatives(pattern))
    except re.error:
        return False
