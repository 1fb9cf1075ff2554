"""Finds the folders of configuration, state and cache, each in the platform's own place."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

import platformdirs
from msgspec import Struct

from agentcli.errors import UsageError

_MOST_FILES = 1_000
_DEEPEST = 10


class Paths(Struct, frozen=True):
    """Folders; none of them need exist yet."""

    config: Path
    state: Path
    cache: Path

    @property
    def user_config(self) -> Path:
        return self.config / "config.toml"

    @property
    def credentials(self) -> Path:
        """The keys the person keeps."""
        return self.config / "credentials.json"

    @property
    def sessions(self) -> Path:
        return self.state / "sessions.db"

    @property
    def secret(self) -> tuple[Path, ...]:
        """Keys, and what was said in any project."""
        return self.user_config, self.credentials, self.state

    @property
    def models(self) -> Path:
        """Weights of the embedded model."""
        return self.cache / "models"


def find_paths(home: str | None) -> Paths:
    """Everything below `home` (AGENTCLI_HOME) when it is given, else the platform's folders."""
    if home:
        folder = from_home(home, "AGENTCLI_HOME").absolute()
        return Paths(folder, folder / "state", folder / "cache")
    dirs = platformdirs.PlatformDirs("agentcli", appauthor=False)
    return Paths(dirs.user_config_path, dirs.user_state_path, dirs.user_cache_path)


def from_home(name: str, given_as: str = "") -> Path:
    """A path in which `~` may stand for a home. Raises `UsageError` for that of somebody who is not known here."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{f'{given_as}: ' * bool(given_as)}{name} names a home that is not there.") from error


def current_folder() -> Path:
    """Raises `UsageError` when it is gone."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError("The current folder is gone: `cd` to another one.") from error


def home_of(environment: Mapping[str, str]) -> Path:
    """The person's home folder."""
    home = environment.get("HOME", "")
    return Path(home) if home.startswith("/") else Path.home()


def is_writable(folder: Path) -> bool:
    """True for a folder that can be written, or made."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - never raises
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def project_root(cwd: Path) -> Path:
    """The nearest folder upwards that holds `.git`, else `cwd` itself."""
    return next((folder for folder in (cwd, *cwd.parents) if os.path.exists(folder / ".git")), cwd)  # noqa: PTH110


def folder_text(folder: Path) -> str:
    """Return a folder as text; one that is no UTF-8 as its `file:` address, which no other folder's path equals."""
    text = str(folder)
    try:
        text.encode()
    except UnicodeEncodeError:
        return folder.absolute().as_uri()
    return text


def markdown_files(folder: Path) -> list[Path]:
    """Return the Markdown files of a folder and its sub-folders, bounded in number and depth, without linked ones."""
    found: list[Path] = []
    waiting = [(folder, 0)]
    while waiting and len(found) < _MOST_FILES:
        here, depth = waiting.pop()
        try:
            with os.scandir(here) as entries:
                for entry in itertools.islice(entries, _MOST_FILES):
                    if entry.is_dir(follow_symlinks=False) and depth < _DEEPEST:
                        waiting.append((here / entry.name, depth + 1))
                    elif entry.name.endswith(".md") and entry.is_file():
                        found.append(here / entry.name)
        except OSError:  # not there, or not to be looked into
            continue
    return sorted(found)
