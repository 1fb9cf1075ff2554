"""Writes single settings into the person's config.toml; comments and the form of all else stay as they were."""

from __future__ import annotations

import os
import stat
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from agentcli.config import Config
from agentcli.errors import UserError
from agentcli.small_files import replace_file


def store_setting(config: Config, key: str, value: Any) -> str:
    """Set `section.key` in the person's own settings, or take it out with None; says where. Raises `UserError`."""
    file = config.paths.user_config
    said = store_in(file, key, value)
    above = [layer for layer in config.layers if layer.source != str(file) and layer.holds(key)]
    return f"{said} Here {above[-1].source} sets another one ({above[-1].names.get(key, key)})." if above else said


def store_in(file: Path, key: str, value: Any) -> str:
    """The same in any file of settings."""
    really = Path(os.path.realpath(file))  # a link, as to a folder of dotfiles, stays one
    try:
        before = really.read_bytes() if really.exists() else b""
        after = _changed(before.decode("utf-8-sig"), key, value).encode()
        if after != before:
            _write(really, b"\xef\xbb\xbf" * before.startswith(b"\xef\xbb\xbf") + after)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise UserError(f"{file} could not be changed: {error}") from error
    return f"{'Kept in' if value is not None else 'Taken out of'} {file}."


def _changed(text: str, key: str, value: Any) -> str:
    document = tomlkit.parse(text)
    section, _, name = key.rpartition(".")
    table: MutableMapping[str, Any] = document
    for part in section.split("."):
        if value is None and part not in table:
            return text
        table = table.setdefault(part, tomlkit.table())
    if value is not None:
        table[name] = value
    else:
        table.pop(name, None)
        if not table and not tomlkit.dumps(table).strip():  # a comment keeps its table
            document.pop(section)
    return tomlkit.dumps(document)


def _write(file: Path, content: bytes) -> None:
    """In place of the file at once, with its permission bits."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(file, content, mode=stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o600)
