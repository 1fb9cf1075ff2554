"""Which files a project brings, and whether the person has trusted them as they are now."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from agentcli.errors import ConfigError
from agentcli.paths import Paths, folder_text, markdown_files, project_root
from agentcli.small_files import is_file, read_small_file


def project_files(cwd: Path) -> list[Path]:
    """What of a project is used only when it is trusted: its settings, its slash commands."""
    folder = project_folder(cwd)
    settings = [file for file in (folder / "config.toml", folder / "config.local.toml") if is_file(file)]
    return [*settings, *project_commands(cwd)]


def project_commands(cwd: Path) -> list[Path]:
    """None where the folder is a link: a repository has no say about what lies elsewhere."""
    root = project_root(cwd)
    folder = project_folder(cwd) / "commands"
    return markdown_files(folder) if os.path.realpath(folder) == f"{os.path.realpath(root)}/.agentcli/commands" else []


def project_folder(cwd: Path) -> Path:
    return project_root(cwd) / ".agentcli"


def is_trusted(paths: Paths, cwd: Path) -> bool:
    """Whether the person has trusted this project's files as they are now."""
    try:
        trusted = msgspec.json.decode((paths.state / "trust.json").read_bytes(), type=dict[str, str])
        return trusted.get(folder_text(project_root(cwd))) == _fingerprint(cwd)
    except (OSError, msgspec.DecodeError):
        return False


def trust_project(paths: Paths, cwd: Path) -> None:
    """Remember that this project's files, as they are now, may be used. Raises `ConfigError`."""
    file = paths.state / "trust.json"
    try:
        paths.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        trusted = msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.exists() else {}
        trusted[folder_text(project_root(cwd))] = _fingerprint(cwd)
        file.write_bytes(msgspec.json.encode(trusted))
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"could not be written ({error}).", file=str(file)) from error


def _fingerprint(cwd: Path) -> str:
    digest = hashlib.sha256()
    for file in project_files(cwd):
        digest.update(os.fsencode(file) + b"\0" + read_small_file(file) + b"\0")
    return digest.hexdigest()
