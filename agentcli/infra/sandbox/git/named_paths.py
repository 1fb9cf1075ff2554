"""Finds the paths that a repository's configuration names: hook folders, further configuration, the worktree.

What is found is only ever protected, so finding too much does no harm: a condition of an include counts as met.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from agentcli.infra.sandbox.git.config import Setting, read_configuration

DEEPEST_INCLUDE = 10  # git's own limit
_MOST_INCLUDED = 100
_LARGEST = 1_000_000  # bytes


@dataclass
class NamedPaths:
    """`hooks` as they are written, `included` and `worktree` as absolute paths whose symlinks are not resolved."""

    hooks: list[str] = field(default_factory=list)
    included: list[str] = field(default_factory=list)
    worktree: str | None = None
    has_worktree_config: bool = False


def named_paths(files: list[str], home: str) -> NamedPaths:
    """Collect what these files name, and the files they include, each read once.

    The worktree is what the first one and its neighbours say: git does not look for it in what they include.
    """
    found = NamedPaths()
    read = [*files]
    for file, setting in _settings_with_files(read, home):
        match setting:
            case Setting("core", "", "hookspath", str(value)) if value:
                found.hooks.append(_at_home(value, home))
            case Setting("core", "", "worktree", str(value)) if value:
                if file in files and Path(file).parent == Path(files[0]).parent:
                    found.worktree = str(Path(file).parent / value)
            case Setting("extensions", "", "worktreeconfig", _):
                found.has_worktree_config = True
            case _:
                pass
    found.included = read[len(files) :]
    return found


def settings_of(files: list[str], home: str) -> Iterator[Setting]:
    """The settings in these files, and in those that they include, that name a file or a program.

    Included files are added to `files`.
    """
    return (setting for _, setting in _settings_with_files(files, home))


def are_understood(files: list[str]) -> bool:
    """False where git may read more in these than is read here: too many, too large, a pipe, one with a NUL in it."""
    return len(files) < _MOST_INCLUDED and all(_is_plain(file) for file in files)


def _is_plain(file: str) -> bool:
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return True
    if stat.S_ISDIR(found.st_mode):  # which git cannot read either
        return True
    return stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST and "\0" not in text_of(file)


def path_in(file: str, prefix: str = "") -> str | None:
    """The real path that one of git's files names, from its own folder; None where git would not take it for one.

    As git reads it: it drops only the ends of lines at the end, and what follows a NUL.
    """
    text = text_of(file)
    named = text.removeprefix(prefix).rstrip("\r\n")
    if not named or not text.startswith(prefix):
        return None
    return os.path.realpath(Path(file).parent / named.partition("\0")[0])


def _settings_with_files(files: list[str], home: str) -> Iterator[tuple[str, Setting]]:
    """Yield settings, each with its file. Included files are added to `files`."""
    depths = dict.fromkeys(files, 0)
    for file in files:  # it grows meanwhile
        for setting in read_telling(text_of(file)):
            if setting.section in ("include", "includeif") and setting.key == "path" and setting.value:
                path = str(Path(file).parent / _at_home(setting.value, home))
                if path not in depths and len(depths) < _MOST_INCLUDED and depths[file] < DEEPEST_INCLUDE:
                    depths[path] = depths[file] + 1
                    files.append(path)
            yield file, setting


_PLAIN_KEYS = frozenset("fetch merge rebase pushremote name email active repositoryformatversion".split())


@lru_cache(maxsize=128)
def read_telling(text: str) -> tuple[Setting, ...]:
    """The settings in a file, without those that a large repository has by the thousand: of branches and remotes."""
    found = read_configuration(text).settings
    return tuple(setting for setting in found if setting.key not in _PLAIN_KEYS or setting.section == "pretty")


def _at_home(value: str, home: str) -> str:
    return home + value[1:] if home and value.startswith("~/") else value


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
        return os.read(descriptor, min(found.st_size, _LARGEST)).decode(errors="surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
