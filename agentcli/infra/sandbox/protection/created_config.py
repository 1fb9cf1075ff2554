"""Finds configuration that a command created or changed and that other programs obey by themselves.

Of the names a project does not have, only the few that count most are kept from being made: each of them costs a mount
and an empty folder. The others are looked for when the command has ended, so that the person learns of them; and of
what a project reviews whether it is what it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path

from agentcli.infra.sandbox.git.config import Setting, path_in, read_configuration, text_of
from agentcli.infra.sandbox.git.folders import looks_like_the_inside
from agentcli.infra.sandbox.mounts.mount_points import is_mount_point_of_ours
from agentcli.safety.paths.judge import auto_executed

# Settings that `git init`, `clone` and `remote add` write, and a name and address: none starts a program.
_HARMLESS = {
    "core": frozenset(
        "repositoryformatversion filemode bare logallrefupdates ignorecase precomposeunicode symlinks autocrlf eol"
        " worktree".split()
    ),
    **dict.fromkeys(
        ("user", "init", "remote", "branch"),
        frozenset("name email defaultbranch url fetch remote merge rebase".split()),
    ),
}

State = tuple[int, ...] | None  # of a file or a folder with what is in it, None when it is not there
_FOLDER_LEVELS = 3  # of a reviewed folder, such as `.agents/skills/NAME`
_MAX_ENTRIES = 1_000  # in all of it


@cache
def _names() -> dict[str, int | None]:
    """The names to look for, those that a project reviews with the levels of folders that are looked into.

    Among them what makes a repository of a root itself: git, started in the workspace, obeys that too.
    """
    names, reviewed = auto_executed().names, auto_executed().reviewed
    # Of a folder whose program writes it all the time only what that program obeys counts, which is in `names`.
    written = {name[:end] for name in names for end, letter in enumerate(name) if letter == "/"}
    globs = {name: 0 for name in names if "*" in name}
    levels = {name: 0 if name in written else _FOLDER_LEVELS for name in reviewed}
    return dict.fromkeys(name for name in (*names, "HEAD") if "*" not in name) | levels | globs


@cache
def _by_first_part(names: tuple[str, ...]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """The names by the first of their parts; and the ends that globs stand for."""
    by_first: dict[str, list[str]] = {}
    for name in names:
        by_first.setdefault(name.partition("/")[0].lower(), []).append(name)
    return by_first, tuple(name[1:] for name in names if name[0] == "*")


def present_names(root: Path, names: tuple[str, ...]) -> list[str]:
    """Return the names, relative to a folder, that may exist in it; `*.x` stands for all with that ending.

    Case is ignored, because some disks ignore it.
    """
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
            levels = _names().get(name, 0)
            if (state := _state(root / name, levels or 0)) is not None:
                states[root / name] = () if levels is None else state
    return states


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
    try:
        if any(not hook.name.endswith(".sample") for hook in (folder / "hooks").iterdir()):
            return True
    except OSError:
        pass
    text = text_of(str(folder / "config"))
    if not text:
        return os.path.lexists(folder / "config")
    found = read_configuration(text, git)
    return found.is_refused or "\0" in text or not all(map(_is_harmless, found.settings))


def _is_harmless(setting: Setting) -> bool:
    starts_a_helper = setting.key == "url" and (setting.value or "").lower().startswith("ext::")
    return setting.key in _HARMLESS.get(setting.section, ()) and not starts_a_helper


def _state(path: Path, levels: int = 0) -> State:
    """Return a stamp that differs once a file changed; it covers the contents of `levels` levels of folders."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if is_mount_point_of_ours(str(path)):
        return None
    state = (status.st_ino, status.st_mode, status.st_size, status.st_ctime_ns)
    return (*state, *islice(_inside(path, levels), _NUMBERS * _MAX_ENTRIES))


def _inside(folder: Path, levels: int) -> Iterator[int]:
    if not levels:
        return
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, _MAX_ENTRIES))
    except OSError:  # no folder
        return
    for name in names:
        yield from _state(folder / name) or ()
        yield from _inside(folder / name, levels - 1)


_NUMBERS = 4  # of one file
