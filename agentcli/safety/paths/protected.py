"""Recognizes auto-executed files: what programs run or obey unasked, such as git hooks, shell profiles, editor tasks.

`auto_executed.toml` beside this module lists them. It is read when the first path is judged, not at the start.
"""

from __future__ import annotations

import itertools
import tomllib
from functools import cache
from pathlib import Path, PurePath
from typing import NamedTuple

from agentcli.safety.paths.folding import fold_name, folded_parts, holds, is_short_for


class AutoExecuted(NamedTuple):
    """The lists of `auto_executed.toml`, all groups together; `start` are the names and home files with `at_start`."""

    names: tuple[str, ...]
    reviewed: tuple[str, ...]
    home: tuple[str, ...]
    git: tuple[str, ...]
    in_dot_folders: tuple[str, ...]
    start: tuple[str, ...]


@cache
def auto_executed() -> AutoExecuted:
    """The lists, read once."""
    groups = tomllib.loads(Path(__file__).with_name("auto_executed.toml").read_text("utf-8")).values()

    def joined(kind: str, *, at_start: bool = False) -> tuple[str, ...]:
        return tuple(name for group in groups if group.get("at_start") or not at_start for name in group.get(kind, ()))

    return AutoExecuted(
        joined("names"),
        joined("reviewed"),
        joined("home"),
        joined("git"),
        joined("in_dot_folders"),
        (*joined("names", at_start=True), *joined("home", at_start=True)),
    )


@cache
def _single_names() -> tuple[frozenset[str], tuple[str, ...]]:
    """The names of one part that commands cannot write: whole ones, and the ends of others."""
    names = [name for name in auto_executed().names if "/" not in name]
    return frozenset(name for name in names if "*" not in name), tuple(name[1:] for name in names if "*" in name)


def is_read_only_name(name: str) -> bool:
    """True for the name of a file or folder that sandboxed commands can neither write nor create."""
    whole, ends = _single_names()
    return name in whole or name.endswith(ends)


def is_protected(path: PurePath) -> bool:
    """True if programs would run or obey what is written to `path`, which is relative to the workspace."""
    parts = folded_parts(path)
    return _is_kept(parts) or _is_reviewed(parts)


def is_reviewed(path: PurePath) -> bool:
    """True if `path`, relative to the workspace, is protected, but commands write it as they write build files."""
    parts = folded_parts(path)
    return _is_reviewed(parts) and not _is_kept(parts)


def _is_kept(parts: tuple[str, ...]) -> bool:
    table = auto_executed()
    if _holds(table.names, parts) or holds(table.home, parts, starts=range(len(parts))):
        return True
    # A bare repository may have any name; by convention it ends in `.git`.
    return any(folder.endswith(".git") and name in table.git for folder, name in itertools.pairwise(parts))


def _is_reviewed(parts: tuple[str, ...]) -> bool:
    table = auto_executed()
    if _holds(table.reviewed, parts):
        return True
    names = frozenset(table.in_dot_folders)
    return any(folder.startswith(".") and name in names for folder, name in itertools.pairwise(parts))


def _holds(names: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    ends = _ends(names)
    return holds(names, parts, starts=range(len(parts))) or any(
        part.endswith(ends) or is_short_for(part, names) for part in parts
    )


@cache
def _ends(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(fold_name(name[1:]) for name in names if name.startswith("*"))
