"""Knows where files are: the folders of configuration, state and cache, homes, and the root of a project."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import platformdirs
from msgspec import Struct

from agentcli.errors import UsageError

_MAX_FILES = 1_000
_MAX_DEPTH = 10


class Paths(Struct, frozen=True):
    """The folders of the program. They need not exist."""

    config: Path
    state: Path
    cache: Path

    @property
    def user_config(self) -> Path:
        return self.config / "config.toml"

    @property
    def credentials(self) -> Path:
        """The file of the keys that the person gave."""
        return self.config / "credentials.json"

    @property
    def sessions(self) -> Path:
        return self.state / "sessions.db"

    @property
    def secret(self) -> tuple[Path, ...]:
        """The files and folders with keys, and with what was said in any project."""
        return self.user_config, self.credentials, self.state

    @property
    def models(self) -> Path:
        """The folder with the weights of the embedded model."""
        return self.cache / "models"


def find_paths(home: str | None) -> Paths:
    """Return the folders below `home` (AGENTCLI_HOME) if it is given, else the platform's own folders."""
    if home:
        folder = from_home(home, "AGENTCLI_HOME").absolute()
        return Paths(folder, folder / "state", folder / "cache")
    dirs = platformdirs.PlatformDirs("agentcli", appauthor=False)
    return Paths(dirs.user_config_path, dirs.user_state_path, dirs.user_cache_path)


def from_home(name: str, given_as: str = "") -> Path:
    """Return a path in which `~` or `~user` may stand for a home. Raises `UsageError` for an unknown user.

    `given_as` is the name of the setting or variable for the error.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{f'{given_as}: ' * bool(given_as)}{name} names a home that is not there.") from error


def current_folder() -> Path:
    """Return the current folder. Raises `UsageError` if it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError("The current folder is gone: `cd` to another one.") from error


def home_of(environment: Mapping[str, str]) -> Path:
    """Return the person's home folder."""
    home = environment.get("HOME", "")
    return Path(home) if home.startswith("/") else Path.home()


def is_writable(folder: Path) -> bool:
    """Return True for a folder that can be written, or made."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - never raises
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def project_root(cwd: Path) -> Path:
    """Return the nearest folder upwards with a `.git`, else `cwd` itself."""
    return next((folder for folder in (cwd, *cwd.parents) if os.path.exists(folder / ".git")), cwd)  # noqa: PTH110


def folder_text(folder: Path) -> str:
    """Return a folder as text; if its name is no UTF-8, as its `file:` address, which no other folder has."""
    try:
        return str(folder).encode().decode()
    except UnicodeEncodeError:
        return folder.absolute().as_uri()


def markdown_files(folder: Path) -> list[Path]:
    """Return the Markdown files in a folder and below, bounded in number and depth; linked folders are left out."""
    found: list[Path] = []
    waiting = [(folder, 0)]
    while waiting and len(found) < _MAX_FILES:
        current, depth = waiting.pop()
        with suppress(OSError), os.scandir(current) as entries:  # it may not exist, or not be readable
            for entry in itertools.islice(entries, _MAX_FILES):
                if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
                    waiting.append((current / entry.name, depth + 1))
                elif entry.name.endswith(".md") and entry.is_file():
                    found.append(current / entry.name)
    return sorted(found)
