"""Finds configuration that a command created or changed and that other programs obey by themselves.

Of the names a project does not have, only the few that count most are kept from being made: each of them costs a mount
and an empty folder. The others are looked for when the command has ended, so that the person learns of them; and of
what a project reviews whether it is what it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path

from agentcli.infra.changes.state import walk
from agentcli.infra.sandbox.git.config import path_in, read_configuration, text_of
from agentcli.infra.sandbox.git.folders import looks_like_the_inside
from agentcli.infra.sandbox.mounts.mount_points import is_mount_point_of_ours
from agentcli.safety.paths.judge import auto_executed

# Settings that `git init`, `clone` and `remote add` write, and a name and address: none starts a program.
_OF_CORE = (
    "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol worktree"
)
_OF_OTHERS = "name email defaultbranch url fetch remote merge rebase"
_HARMLESS = {"core": _OF_CORE.split(), **{name: _OF_OTHERS.split() for name in ("user", "init", "remote", "branch")}}

State = tuple[tuple[int, ...], ...]  # the stamps of a file, or of a folder with what is in it
_MAX_ENTRIES = 1_000  # of a reviewed folder, such as `.agents/skills/NAME`


@cache
def _names() -> dict[str, bool | None]:
    """True for names whose contents count, None where their presence is enough, as for a bare repository."""
    names, reviewed = auto_executed().names, auto_executed().reviewed
    # Of a folder whose program writes it all the time only what that program obeys counts, which is in `names`.
    written = {name[:end] for name in names for end, letter in enumerate(name) if letter == "/"}
    counts = {name: name not in written for name in reviewed}
    return dict.fromkeys((*names, "HEAD")) | counts | {name: False for name in names if "*" in name}


@cache
def _by_first_part(names: tuple[str, ...]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """The names by the first of their parts; and the ends that globs stand for."""
    by_first: dict[str, list[str]] = {}
    for name in names:
        by_first.setdefault(name.partition("/")[0].lower(), []).append(name)
    return by_first, tuple(name[1:] for name in names if name[0] == "*")


def present_names(root: Path, names: tuple[str, ...]) -> list[str]:
    """Return the names that may exist in a folder, whatever their case; `*.x` stands for all with that ending."""
    try:
        there = sorted(os.listdir(root))  # noqa: PTH208  # a fifth of the time
    except OSError:
        return []
    by_first, ends = _by_first_part(names)
    found = [name for each in there for name in by_first.get(each.lower(), ())]
    return [*found, *(each for each in there if each.endswith(ends))]


def watched(roots: Iterable[Path]) -> dict[Path, State]:
    """The auto-executed names of a workspace that are there now, with the states of those that a project reviews."""
    states: dict[Path, State] = {}
    for root in roots:
        for name in present_names(root, tuple(_names())):
            if os.path.lexists(path := root / name) and not is_mount_point_of_ours(str(path)):
                contents_count = _names().get(name, False)
                states[path] = () if contents_count is None else _stamps(path, _MAX_ENTRIES if contents_count else 1)
    return states


def _stamps(path: Path, max_entries: int) -> State:
    """Stamps that differ once something changed; those that come before what cannot be read."""
    stamps = []
    with suppress(OSError):
        for _, entry in islice(walk(str(path), ""), max_entries):
            stamps.append(entry.stamp)
    return tuple(stamps)


def made_or_changed(before: Mapping[Path, State], roots: Iterable[Path], git: str) -> list[Path]:
    """Return the watched paths that are new or changed; a repository only where it would start programs."""
    others = [path for path, state in watched(roots).items() if before.get(path) != state]
    return [path for path in others if _may_start_programs(path, git)]


def _may_start_programs(path: Path, git: str) -> bool:
    if path.name == "HEAD":
        return looks_like_the_inside(str(path.parent)) and _starts_programs(path.parent, git)
    if path.name != ".git":
        return True
    if not path.is_file():
        return _starts_programs(path, git)
    kept = Path(path_in(str(path), "gitdir: ") or path.parent)
    return not (kept / "config").is_file() or (kept / "commondir").exists() or _starts_programs(kept, git)


def _starts_programs(folder: Path, git: str) -> bool:
    """True if hooks or settings of a repository would make git start a program; anything unusual counts."""
    with suppress(OSError):
        if any(not hook.name.endswith(".sample") for hook in (folder / "hooks").iterdir()):
            return True
    text = text_of(str(folder / "config"))
    if not text:
        return os.path.lexists(folder / "config")
    found = read_configuration(text, git)
    return (
        found.is_refused
        or "\0" in text
        or any(
            key not in _HARMLESS.get(section, ()) or (key == "url" and (value or "").lower().startswith("ext::"))
            for section, _, key, value in found.settings
        )
    )
