"""Writes settings into a config.toml; comments and the form of all else stay as they were."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import tomlkit
from msgspec import Struct
from tomlkit.exceptions import TOMLKitError

from agentcli.errors import UserError
from agentcli.settings.files import replace_file
from agentcli.settings.load import Config, Layer, check_layer


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


class Merged(Struct, frozen=True):
    """A file with new settings: its text, what was added of them, and the keys that had other values, which stay."""

    text: str
    added: dict[str, Any]
    stays: tuple[str, ...]


def merged(file: Path, values: dict[str, Any]) -> Merged:
    """`file` with what is not set in it yet; items are added to its lists. Raises `UserError`."""
    try:
        document = tomlkit.parse(file.read_bytes().decode("utf-8-sig") if file.exists() else "")
        stays: list[str] = []
        added = _add(document, values, "", stays)
        text = tomlkit.dumps(document)
        check_layer(Layer(str(file), written := tomllib.loads(text), text))
    except (OSError, UnicodeDecodeError, TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file} could not be read: {error}") from error
    if lost := _add(written, values, "", []):  # parts of a table with others between them
        raise UserError(f"{file} has the parts of [{next(iter(lost))}] in several places: move them together first.")
    return Merged(text, added, tuple(stays))


_WHOLE = ("providers", "mcp_servers")  # tables in which one that is there is not added to: half of it would be another


def _add(table: MutableMapping[str, Any], values: dict[str, Any], key: str, stays: list[str]) -> dict[str, Any]:
    """Put into a table what it does not have; gives that."""
    added: dict[str, Any] = {}
    for name, value in values.items():
        there, at = table.get(name), f"{key}.{name}" if key else name
        if there is None:
            table[name] = value
            added[name] = value
        elif isinstance(there, MutableMapping) and isinstance(value, dict) and key not in _WHOLE:
            if within := _add(there, value, at, stays):
                added[name] = within
        elif isinstance(there, list) and isinstance(value, list):
            if more := [item for item in value if item not in there]:
                for item in more:
                    there.append(item)
                added[name] = more
        elif there != value:
            stays.append(at)
    return added


def write_settings(file: Path, text: str, *, mode: int) -> None:
    """Write a whole file, in place of the one before at once. Raises `UserError`."""
    try:
        _write(Path(os.path.realpath(file)), text.encode(), mode=mode)
    except OSError as error:
        raise UserError(f"{file} could not be written: {error.strerror}.") from error


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


def _write(file: Path, content: bytes, *, mode: int = 0o600) -> None:
    """In place of the file at once, with its permission bits; a new one gets `mode`."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(file, content, mode=stat.S_IMODE(file.stat().st_mode) if file.exists() else mode)
