"""Reads git's configuration files by running git.

Results are cached by a file's content, so git runs only for new contents. The paths that a configuration names are
only used for protection, so every conditional include is treated as included.
"""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

SYSTEM_GIT = "/usr/bin/git"
_MAX_INCLUDED = 100  # files, with those that they include
MAX_CONFIGURATION_BYTES = 1_000_000  # the rest of a larger file is not read
_MAX_GIT_S = 5.0
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
_SECTIONS = ("core", "include", "includeif", "extensions")
_NAMES_A_PATH = re.compile(r"(?i)\b(hookspath|path|worktree)\s*=([^\n]*)")


class Setting(NamedTuple):
    """One setting; `section` and `key` are in lower case. A key without `=` has the value None, which means true."""

    section: str
    subsection: str
    key: str
    value: str | None

    @classmethod
    def parse(cls, text: str) -> "Setting":
        """Parse a setting as `git config --list --null` prints it: `remote.origin.url`, a line end, the value."""
        name, separator, value = text.partition("\n")
        section, _, rest = name.partition(".")  # as in git, at the first dot and then at the last one
        subsection, _, key = rest.rpartition(".")
        return cls(section, subsection, key, value if separator else None)

    @property
    def name(self) -> str:
        return ".".join(filter(None, self[:3]))


class Configuration(NamedTuple):
    """The settings of a file."""

    settings: tuple[Setting, ...]
    is_refused: bool  # git could not read the file, or there is no git: settings that seem to name paths are added


@lru_cache(maxsize=32)
def find_git(search_path: str, writable: tuple[Path | str, ...]) -> str:
    """Return the first git on the PATH that is not in a `writable` folder; empty if there is none."""
    for folder in map(Path, search_path.split(os.pathsep)):
        found = shutil.which("git", path=str(folder)) if folder.is_absolute() else None
        real_paths = (folder.resolve(), Path(found).resolve()) if found else ()  # either may be a link to elsewhere
        if found and not any(path.is_relative_to(around) for path in real_paths for around in writable):
            return found
    return SYSTEM_GIT if os.access(SYSTEM_GIT, os.X_OK) else ""


def run_git(
    command: Sequence[str],
    *,
    cwd: Path | str = "/",
    environment: Mapping[str, str] = _ENVIRONMENT,
    stdin: bytes = b"",
    timeout_s: float = _MAX_GIT_S,
) -> subprocess.CompletedProcess[bytes]:
    """Run git, and return its output and exit code. Raises `OSError` and, at the limit, `TimeoutExpired`."""
    output, errors = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.run(
        command, cwd=cwd, env=environment, input=stdin, stdout=output, stderr=errors, timeout=timeout_s, check=False
    )


def read_configuration(text: str, git: str = SYSTEM_GIT) -> Configuration:
    """Return the settings that git reads in a file with this content."""
    try:
        return _read_with_git(text, git) if text else Configuration((), is_refused=False)
    except (OSError, subprocess.SubprocessError):
        return Configuration(_guess_named_paths(text), is_refused=True)


@lru_cache(maxsize=128)
def _read_with_git(text: str, git: str) -> Configuration:
    done = run_git(
        [git, "config", "--file", "-", "--no-includes", "--null", "--list"], stdin=text.encode(errors="surrogateescape")
    )
    settings = tuple(map(Setting.parse, done.stdout.decode(errors="surrogateescape").split("\0")[:-1]))
    is_refused = done.returncode != 0
    return Configuration((*settings, *(_guess_named_paths(text) if is_refused else ())), is_refused)


def _guess_named_paths(text: str) -> tuple[Setting, ...]:
    """Find settings that seem to name paths, in any section of a text that git could not read."""
    sections = {"hookspath": "core", "worktree": "core", "path": "include"}
    found = ((match[1].lower(), re.split("[#;]", match[2], maxsplit=1)[0]) for match in _NAMES_A_PATH.finditer(text))
    return tuple(Setting(sections[key], "", key, value.strip().strip('"')) for key, value in found)


class NamedPaths(Struct, kw_only=True):
    """The paths that a configuration names: `hooks` as written, the others absolute; symlinks are not resolved."""

    hooks: list[str] = field(default_factory=list)
    included: list[str] = field(default_factory=list)
    worktree: str | None = None
    has_worktree_config: bool = False  # git also reads config.worktree
    is_refused: bool = False  # git could not read one of the files


def find_named_paths(files: list[str], home: str, git: str) -> NamedPaths:
    """Return the paths named in git's configuration files and in files they include; these may lead git to programs."""
    found = NamedPaths()
    for file in (waiting := [*files]):  # the list grows in the loop
        text = read_small_file(file)
        settings, is_refused = read_configuration(text, git)
        found.is_refused |= is_refused or len(os.fsencode(text)) == MAX_CONFIGURATION_BYTES  # more of it may follow
        for setting in settings:
            if setting.section not in _SECTIONS:  # skips branches and remotes, of which there may be thousands
                continue
            match setting:
                case Setting("core", "", "hookspath", str(value)) if value:
                    found.hooks.append(_expand_home(value, home))
                case Setting("core", "", "worktree", str(value)) if value:
                    # It counts only in the repository's own files: git ignores it in included ones. A file in another
                    # folder is that of a linked worktree, which has a worktree of its own.
                    if file in files and Path(file).parent == Path(files[0]).parent:
                        found.worktree = str(Path(file).parent / value)
                case Setting("extensions", "", "worktreeconfig", _):
                    found.has_worktree_config = True
                case Setting("include" | "includeif", _, "path", str(value)) if value:
                    path = str(Path(file).parent / _expand_home(value, home))
                    if path not in waiting and len(waiting) < _MAX_INCLUDED:
                        waiting.append(path)
    found.included = waiting[len(files) :]
    return found


def _expand_home(value: str, home: str) -> str:
    return home + value[1:] if home and value.startswith("~/") else value


def read_linked_path(file: str, prefix: str = "") -> str | None:
    """Return the real path that one of git's files names, parsed as git does; None if git would not accept the file."""
    text = read_small_file(file)
    named = text.removeprefix(prefix).rstrip("\r\n")
    if not named or not text.startswith(prefix):
        return None
    return os.path.realpath(Path(file).parent / named.partition("\0")[0])


def read_small_file(file: str) -> str:
    """Return the first `MAX_CONFIGURATION_BYTES` of a regular file, else "". Does not block on a named pipe."""
    with suppress(OSError, ValueError):
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a file object makes twice the calls
        try:
            found = os.fstat(descriptor)
            if stat.S_ISREG(found.st_mode):
                return os.read(descriptor, min(found.st_size, MAX_CONFIGURATION_BYTES)).decode(errors="surrogateescape")
        finally:
            os.close(descriptor)
    return ""
