"""Finds configuration that a command created or changed and that other programs obey by themselves.

Of the names a project does not have, only the few that count most are kept from being made: each of them costs a mount
and an empty folder. The others are looked for when the command has ended, so that the person learns of them; and of
what a project reviews whether it is what it was.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path

from agentcli.infra.sandbox.git.config import read_configuration
from agentcli.infra.sandbox.git.folders import looks_like_the_inside
from agentcli.infra.sandbox.git.named_paths import path_in, text_of
from agentcli.infra.sandbox.mounts.mount_points import is_mount_point_of_ours
from agentcli.safety.paths.protected import auto_executed
from agentcli.settings.files import read_small_file

# Settings that `git init`, `clone` and `remote add` write, and a name and address: none starts a program.
_HARMLESS_SECTION = re.compile(r'\[(?:user|init|(?:remote|branch)(?: "[^"\\]*")?)\]', re.IGNORECASE)
_HARMLESS_CORE = re.compile(
    r"(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol|worktree)\s*="
    r"|(?:name|email|defaultbranch|url|fetch|remote|merge|rebase)\s*=",
    re.IGNORECASE,
)
_MOST_SUBMODULES = 100
_RUNS_A_HELPER = re.compile(r"=\s*ext::", re.IGNORECASE)


State = tuple[int, ...] | None  # of a file or a folder with what is in it, None when it is not there
_FOLDER_LEVELS = 3  # of a reviewed folder, such as `.agents/skills/NAME`
_MAX_ENTRIES = 1_000  # in all of it


def watched(roots: Iterable[Path]) -> dict[Path, State]:
    """The names of a workspace that may yet appear, and the reviewed files that are there.

    Among them what makes a repository of a root itself, and of submodules that are not there yet: git, started in the
    workspace, obeys those too.
    """
    states: dict[Path, State] = {}
    names, reviewed = auto_executed().names, auto_executed().reviewed
    for root in roots:
        for name in (*names, *reviewed, "HEAD", *_of_submodules(text_of(f"{root}/.gitmodules"))):
            # Of a folder whose program writes it all the time only what that program obeys counts, which is in `names`.
            is_whole = name in reviewed and not any(other.startswith(f"{name}/") for other in names)
            state = _state(path := root / name, _FOLDER_LEVELS if is_whole else 0)
            if state is None or name in reviewed:
                states[path] = state
            if "*" in name:
                states |= {found: _state(found) for found in root.glob(name)}
    return states


def made_or_changed(before: Mapping[Path, State]) -> list[Path]:
    """Those that are there by now and not as they were; a repository only where it would start programs."""
    new = [path for glob in before if "*" in glob.name for path in glob.parent.glob(glob.name) if path not in before]
    others = [path for path, state in before.items() if _is_other(path, state)] + new
    return [path for path in others if _is_obeyed(path)]


def _is_other(path: Path, before: State) -> bool:
    levels = _FOLDER_LEVELS if before is not None and len(before) > _NUMBERS else 0
    now = _state(path, levels)
    return now is not None and now != before


def starts_programs(git: Path) -> bool:
    """True if hooks or settings of a repository would make git start a program; anything unusual counts."""
    try:
        if any(not hook.name.endswith(".sample") for hook in (git / "hooks").iterdir()):
            return True
    except OSError:
        pass
    try:
        lines = read_small_file(git / "config").decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return git.is_file() or (git / "config").exists()
    settings = [line.strip() for line in lines if line.strip()]
    return any(
        "\0" in line
        or _RUNS_A_HELPER.search(line)
        or not (line == "[core]" or _HARMLESS_SECTION.fullmatch(line) or _HARMLESS_CORE.match(line))
        for line in settings
    )


@lru_cache(maxsize=8)
def _of_submodules(modules: str) -> tuple[str, ...]:
    """The folders and files that make repositories of the submodules in a `.gitmodules` (gitmodules(5))."""
    settings = [each for each in read_configuration(modules).settings if each.section == "submodule" and each.value]
    kept = [f".git/modules/{each.subsection}" for each in settings if each.key == "path"]
    links = [f"{each.value}/.git" for each in settings if each.key == "path"]
    return tuple(path for path in (*kept[:_MOST_SUBMODULES], *links[:_MOST_SUBMODULES]) if _stays_below(path))


def _stays_below(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


def _is_obeyed(path: Path) -> bool:
    if path.name == "HEAD":
        return looks_like_the_inside(str(path.parent)) and starts_programs(path.parent)
    if "/.git/modules/" in str(path):
        return starts_programs(path)
    if path.name != ".git":
        return True
    if not path.is_file():
        return starts_programs(path)
    kept = Path(path_in(str(path), "gitdir: ") or path.parent)
    return not (kept / "config").is_file() or (kept / "commondir").exists() or starts_programs(kept)


def _state(path: Path, levels: int = 0) -> State:
    """What tells a file from what it was; for so many `levels` of folders also what is in them."""
    try:
        status = path.lstat()
    except OSError:
        return None
    if is_mount_point_of_ours(str(path)):
        return None
    state = (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)
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
