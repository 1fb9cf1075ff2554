"""Reads what git's configuration names, by asking git: hook folders, included files, the worktree.

The answers are kept by the content of a file, so git starts only for what it has not read yet. What is named is only
ever protected, so a condition of an include counts as met.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

SYSTEM_GIT = "/usr/bin/git"
_MAX_INCLUDE_DEPTH = 10  # git's own limit
_MAX_INCLUDED = 100
_MAX_BYTES = 1_000_000
_MAX_GIT_S = 5.0
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
_SECTIONS = ("core", "include", "includeif", "extensions")
_NAMES_A_PATH = re.compile(r"(?i)\b(hookspath|path|worktree)\s*=([^\n]*)")


class Setting(NamedTuple):
    """`section` and `key` are in lower case. A key without `=` has the value None, which git takes for true."""

    section: str
    subsection: str
    key: str
    value: str | None


class Configuration(NamedTuple):
    """The settings of a file; of one that git refuses, or where there is no git, what looks like names of paths."""

    settings: tuple[Setting, ...]
    is_refused: bool


@lru_cache(maxsize=32)
def find_git(search_path: str, writable: tuple[Path | str, ...]) -> str:
    """Return the git on the PATH that commands cannot have put there; empty without one."""
    for folder in map(Path, search_path.split(os.pathsep)):
        found = shutil.which("git", path=str(folder)) if folder.is_absolute() else None
        places = (folder.resolve(), Path(found).resolve()) if found else ()
        if found and not any(place.is_relative_to(around) for place in places for around in writable):
            return found
    return SYSTEM_GIT if os.access(SYSTEM_GIT, os.X_OK) else ""


def read_configuration(text: str, git: str = SYSTEM_GIT) -> Configuration:
    """Return the settings that git reads in a file with this content."""
    if not text:
        return Configuration((), is_refused=False)
    try:
        return _read(text, git)
    except (OSError, subprocess.SubprocessError):
        return Configuration(_path_names(text), is_refused=True)


@lru_cache(maxsize=128)
def _read(text: str, git: str) -> Configuration:
    """Raises `OSError` and `SubprocessError`."""
    done = subprocess.run(
        [git, "config", "--file", "-", "--no-includes", "--null", "--list"],
        cwd="/",
        env=_ENVIRONMENT,
        input=text.encode(errors="surrogateescape"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_MAX_GIT_S,
        check=False,
    )
    settings = tuple(map(parse_setting, done.stdout.decode(errors="surrogateescape").split("\0")[:-1]))
    is_refused = done.returncode != 0
    return Configuration((*settings, *(_path_names(text) if is_refused else ())), is_refused)


def parse_setting(text: str) -> Setting:
    """Split a whole name at its first and its last dot, as git does."""
    name, separator, value = text.partition("\n")
    section, _, rest = name.partition(".")
    subsection, _, key = rest.rpartition(".")
    return Setting(section, subsection, key, value if separator else None)


def _path_names(text: str) -> tuple[Setting, ...]:
    """Find what an ordinary configuration says of paths, where git does not."""
    sections = {"hookspath": "core", "worktree": "core", "path": "include"}
    found = ((match[1].lower(), re.split("[#;]", match[2], maxsplit=1)[0]) for match in _NAMES_A_PATH.finditer(text))
    return tuple(Setting(sections[key], "", key, value.strip().strip('"')) for key, value in found)


@dataclass(kw_only=True)
class NamedPaths:
    """`hooks` as they are written, `included` and `worktree` as absolute paths whose symlinks are not resolved."""

    hooks: list[str] = field(default_factory=list)
    included: list[str] = field(default_factory=list)
    worktree: str | None = None
    has_worktree_config: bool = False
    is_refused: bool = False


def named_paths(files: list[str], home: str, git: str) -> NamedPaths:
    """Collect what files and those they include name. Only the first one and its neighbours name the worktree."""
    found = NamedPaths()
    depths = dict.fromkeys(files, 0)
    for file in (waiting := [*files]):  # it grows meanwhile
        settings, is_refused = read_configuration(text_of(file), git)
        found.is_refused |= is_refused
        for setting in settings:
            if setting.section not in _SECTIONS:  # a large repository has branches and remotes by the thousand
                continue
            match setting:
                case Setting("core", "", "hookspath", str(value)) if value:
                    found.hooks.append(_at_home(value, home))
                case Setting("core", "", "worktree", str(value)) if value:
                    if file in files and Path(file).parent == Path(files[0]).parent:
                        found.worktree = str(Path(file).parent / value)
                case Setting("extensions", "", "worktreeconfig", _):
                    found.has_worktree_config = True
                case Setting("include" | "includeif", _, "path", str(value)) if value:
                    path = str(Path(file).parent / _at_home(value, home))
                    if path not in depths and len(depths) < _MAX_INCLUDED and depths[file] < _MAX_INCLUDE_DEPTH:
                        depths[path] = depths[file] + 1
                        waiting.append(path)
                case _:
                    pass
    found.included = waiting[len(files) :]
    return found


def _at_home(value: str, home: str) -> str:
    return home + value[1:] if home and value.startswith("~/") else value


def path_in(file: str, prefix: str = "") -> str | None:
    """The real path that one of git's files names, read as git does; None where git would not take it for one."""
    text = text_of(file)
    named = text.removeprefix(prefix).rstrip("\r\n")
    if not named or not text.startswith(prefix):
        return None
    return os.path.realpath(Path(file).parent / named.partition("\0")[0])


def text_of(file: str) -> str:
    """Read a small file; empty for anything else. A pipe is not waited for."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return ""
        return os.read(descriptor, min(found.st_size, _MAX_BYTES)).decode(errors="surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


# Nothing in these means more to git, ssh or a shell than it says; a branch may have a sign of its own.
_WHO = r"(?:\w[\w.+%-]*(?::[\w.+%-]*)?@)?"
_HOST = r"[^\W_][\w.-]*"
_REMOTE_ADDRESS = re.compile(
    rf"(?:https?|ssh|git)://{_WHO}{_HOST}(?::\d+)?(?:/[\w.~+%@,=/-]*)?|\w[\w.+-]*@{_HOST}:[\w.~/][\w.~+%@,=/-]*",
    re.ASCII,
)
_FETCHED = re.compile(r"\+?refs/[\w.*/-]+:refs/(?:remotes|tags)/[\w.*/-]+")
_NAME = re.compile(r"\w[\w./@#+-]*")


def adds_only_remotes(before: bytes, now: bytes) -> bool:
    """True for a git configuration in which no more changed than `git push -u` and `git remote add` write."""
    if b"\0" in now:
        return False
    mine, its = (read_configuration(os.fsdecode(content)) for content in (before, now))
    remotes = {setting.subsection for setting in mine.settings if setting.section == "remote"}
    added = {setting.subsection for setting in its.settings if setting.section == "remote"} - remotes
    return not its.is_refused and _telling(mine.settings, added) == _telling(its.settings, added)


def _telling(settings: Sequence[Setting], added: set[str]) -> list[Setting]:
    """Return the settings that could start a program or redirect a push or fetch, except those of `added` remotes."""
    # The name of one without an address is its address.
    remotes = {setting.subsection for setting in settings if (setting.section, setting.key) == ("remote", "url")}

    def is_new(name: str) -> bool:
        return name in added and _NAME.fullmatch(name) is not None

    def is_harmless(setting: Setting) -> bool:
        match setting:
            case Setting("user", "", "name" | "email"):
                return True
            case Setting("branch", name, "merge" | "rebase" | "description"):
                return _NAME.fullmatch(name) is not None
            case Setting("branch", name, "remote" | "pushremote", value):
                return _NAME.fullmatch(name) is not None and (value == "." or value in remotes)
            case Setting("remote", name, "fetch", str(value)):
                return is_new(name) and _FETCHED.fullmatch(value) is not None
            case Setting("remote", name, "url", str(value)):
                return is_new(name) and _REMOTE_ADDRESS.fullmatch(value) is not None
        return False

    return [setting for setting in settings if not is_harmless(setting)]
