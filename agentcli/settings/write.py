"""Writes settings: as TOML, and into a config.toml in which comments and the form of all else stay as they were."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agentcli.errors import ConfigError, UsageError, UserError
from agentcli.settings.check import find_error, setting_type
from agentcli.settings.files import replace_file
from agentcli.settings.load import Config, SettingsLayer, check_layer
from agentcli.settings.structs import Settings

MASKED = "[masked]"
_SECRET = ("env", "headers", "http_headers")  # tables whose values are not shown
_WHOLE = ("providers", "mcp_servers")  # tables in which one that is there is not added to: half of it would be another


def store_setting(config: Config, key: str, value: Any) -> str:
    """Set `section.key` in the person's own settings, or take it out with None; says where. Raises `UserError`."""
    return f"{store_in(config.paths.user_config, key, value)}{describe_override(config, key, config.paths.user_config)}"


def describe_override(config: Config, key: str, file: Path) -> str:
    """Return a sentence on what else sets a key here and wins over the file, or an empty string."""
    sources = [layer.source for layer in config.layers]
    above = config.layers[sources.index(str(file)) + 1 if str(file) in sources else 0 :]
    wins = next((layer for layer in reversed(above) if layer.holds(key)), None)
    return f" Here another value wins: {wins.names.get(key, key)} ({wins.source})." if wins else ""


def store_in(file: Path, key: str, value: Any) -> str:
    """Set `section.key` in any file of settings, or take it out with None; says where. Raises `UserError`."""
    write_settings(file, with_setting(file, key.split("."), value))
    return f"{'Kept in' if value is not None else 'Taken out of'} {file}."


def with_setting(file: Path, key: Sequence[str], value: Any) -> str:
    """Return the text of a file with a setting set, or taken out with None. Raises `UserError`."""
    import tomlkit  # 50 ms that only changing a file needs
    from tomlkit.exceptions import TOMLKitError

    *groups, name = key
    try:
        text = file.read_bytes().decode() if file.exists() else ""
        mark = "\ufeff" * text.startswith("\ufeff")
        document = tomlkit.parse(text.removeprefix(mark))
        table: MutableMapping[str, Any] = document
        for group in groups:
            if value is None and group not in table:
                return text
            table = table.setdefault(group, tomlkit.table())
            if not isinstance(table, MutableMapping):
                raise UserError(f"{file} could not be changed: {group} is no table there.")
        if value is not None:
            table[name] = value
        else:
            table.pop(name, None)
            if len(groups) == 1 and not table and not tomlkit.dumps(table).strip():  # a comment keeps its table
                document.pop(groups[0])
        return mark + tomlkit.dumps(document)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise UserError(f"{file} could not be changed: {error}") from error


class MergedFile(Struct, frozen=True):
    """A file with new settings: its text, what was added of them, and the keys that had other values, which stay."""

    text: str
    added: dict[str, Any]
    stays: tuple[str, ...]


def merge_settings(file: Path, values: dict[str, Any]) -> MergedFile:
    """`file` with what is not set in it yet; items are added to its lists. Raises `UserError`."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(file.read_bytes().decode("utf-8-sig") if file.exists() else "")
        stays: list[str] = []
        added = _add(document, values, "", stays)
        text = tomlkit.dumps(document)
        check_layer(SettingsLayer(str(file), written := tomllib.loads(text), text))
    except (OSError, UnicodeDecodeError, TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file} could not be read: {error}") from error
    if lost := _add(written, values, "", []):  # parts of a table with others between them
        raise UserError(f"{file} has the parts of [{next(iter(lost))}] in several places: move them together first.")
    return MergedFile(text, added, tuple(stays))


def _add(table: MutableMapping[str, Any], values: dict[str, Any], key: str, stays: list[str]) -> dict[str, Any]:
    """Put into a table what it does not have; gives that."""
    added: dict[str, Any] = {}
    for name, value in values.items():
        there, at = table.get(name), f"{key}.{name}" if key else name
        if there is None:
            table[name] = added[name] = value
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


def write_settings(file: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file at once and keep its permission bits; a new one gets `mode`. Raises `UserError`."""
    really = Path(os.path.realpath(file))  # a link, as to a folder of dotfiles, stays one
    try:
        if (really.read_bytes() if really.exists() else b"") != text.encode():
            really.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(really, text.encode(), mode=stat.S_IMODE(really.stat().st_mode) if really.exists() else mode)
    except OSError as error:
        raise UserError(f"{file} could not be written: {error.strerror}.") from error


def key_parts(key: str) -> tuple[str, ...]:
    """Return the names in a dotted key, quoted where they have dots of their own. Raises `UsageError`."""
    parts: list[str] = []
    try:
        value: Any = tomllib.loads(f"{key} = 0")
        while isinstance(value, dict):
            ((name, value),) = value.items()
            parts.append(name)
    except ValueError as error:
        raise UsageError(f"{key!r} is not the name of a setting: write SECTION.KEY, such as retry.max.") from error
    return tuple(parts)


def parse_value(text: str, key: Sequence[str]) -> Any:
    """Return the value of a setting, written as TOML or, if it is a string, as it is. Raises `ConfigError`."""
    kind = setting_type(key)
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
    except ValueError:
        value = text
    if find_error(value, kind) and not find_error(text, kind):
        value = text
    if found := find_error(value, kind, ".".join(key)):
        is_quoted = isinstance(value, str) and "array" in found[1]
        raise ConfigError(found[1] + ' Write a list as ["a", "b"].' * is_quoted, key=found[0])
    return value


def without_secrets(value: Any, mask: Callable[[str], str] = str) -> Any:
    """Return a table of settings without values of headers and variables, passwords, and what `mask` finds."""
    if isinstance(value, Mapping):
        hidden = {name: _masked(item) for name, item in value.items() if name in _SECRET and item}
        return {name: without_secrets(item, mask) for name, item in value.items()} | hidden
    if isinstance(value, list | tuple):
        return [without_secrets(item, mask) for item in value]
    if not isinstance(value, str):
        return value
    return mask(re.sub(r"(?<=//)[^/]*@", f"{MASKED}@", re.sub(r"(?<=password=)[^&]*", MASKED, value)))


def _masked(table: Any) -> Any:
    return dict.fromkeys(table, MASKED) if isinstance(table, Mapping) else MASKED


def readable_settings(settings: Settings) -> str:
    """Return the settings that differ from the defaults as TOML, without those known to be secret: mask the rest."""
    return to_toml(without_secrets(changed_values(settings))).rstrip() or "# Every setting has its default."


def to_toml(settings: Settings | dict[str, Any]) -> str:
    """The settings that differ from the defaults, as a config.toml that loads to the same settings."""
    import tomli_w  # 2 ms that no start needs

    return tomli_w.dumps(changed_values(settings))


def changed_values(value: Any) -> Any:
    """Return a struct as a table of what differs from its defaults."""
    if isinstance(value, Struct):
        return {
            field.encode_name: changed_values(given)
            for field in msgspec.structs.fields(value)
            if (given := getattr(value, field.name)) is not None and given != _default(field)
        }
    if isinstance(value, dict):
        return {key: changed_values(item) for key, item in value.items() if item is not None}
    return msgspec.to_builtins(value)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
