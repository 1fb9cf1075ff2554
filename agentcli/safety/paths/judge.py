"""Classifies a path by its text alone: plain, outside, secret, protected or odd."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Literal

from agentcli.safety.paths.disguises import is_odd, is_special
from agentcli.safety.paths.folding import is_below
from agentcli.safety.paths.protected import is_protected
from agentcli.safety.paths.secret import is_secret

PathKind = Literal["plain", "outside", "secret", "protected", "odd"]


def judge_path(
    path: str, *, access: Literal["read", "write"], cwd: Path, roots: Sequence[Path], home: Path | None
) -> PathKind:
    """The most serious kind that applies to `path` as a tool was given it; `cwd`, `roots` and `home` are absolute.

    odd: not what it seems, or not a file. secret: likely to hold keys. protected (writes only): programs would run or
    obey it. outside: in none of the roots. A person decides about everything that is not plain.
    """
    # The owner chose the workspace's name, so only the part below it can be odd.
    below = next((path[len(str(root)) + 1 :] for root in roots if f"{path}/".startswith(f"{root}/")), path)
    if (below or not path) and is_odd(below):
        return "odd"
    if home is not None and (path == "~" or path.startswith("~/")):
        path = f"{home}{path[1:]}"
    full = PurePath(posixpath.normpath(posixpath.join(cwd, path)))
    root = next((root for root in roots if is_below(full, root)), None)
    if is_secret(full, home):
        return "secret"
    # A workspace in /dev/shm is one like any other.
    if (is_special(PurePath(path)) or is_special(full)) and not (root and is_special(root)):
        return "odd"
    # Protected names above the workspace do not count: `~/.claude/worktrees/x` is a fine place to work in.
    if access == "write" and is_protected(full if root is None else full.relative_to(root)):
        return "protected"
    return "outside" if root is None else "plain"
