"""Writes settings as TOML, and changes a config.toml so that its comments and layout stay as they were."""

import os
import re
import stat
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentcli.errors import ConfigError, UsageError, UserError
from agentcli.settings.check import find_error, setting_type
from agentcli.settings.files import replace_file
from agentcli.settings.load import Config, SettingsLayer, check_layer
from agentcli.settings.structs import Settings

MASKED = "[masked]"
_SECRET_TABLES = ("env", "headers", "http_headers")  # their values are not shown
_WHOLE_TABLES = ("providers", "mcp_servers")  # nothing is added to an existing member, which would become a mixture


def store_setting(config: Config, key: str, value: Any) -> str:
    """Set a dotted key in the user settings; return a sentence about that, and about what overrides it."""
    return f"{store_in(config.paths.user_config, key, value)}{describe_override(config, key, config.paths.user_config)}"


def describe_override(config: Config, key: str, file: Path) -> str:
    """Return a sentence about the source that also sets a key and wins over the file; empty if none does."""
    sources = [layer.source for layer in config.layers]
    position = sources.index(str(file)) if str(file) in sources else -1  # -1: every source wins over the file
    winner = next((layer for layer in reversed(config.layers[position + 1 :]) if layer.holds(key)), None)
    if winner is None:
        return ""
    name = winner.names.get(key, key).removesuffix(f" ({key})")  # the name of a flag includes its setting
    return f" {name} ({winner.source}) overrides it here."


def store_in(file: Path, key: str, value: Any) -> str:
    """Set a dotted key in a file of settings, or remove it with None; return a sentence. Raises `UserError`."""
    write_settings(file, with_setting(file, key.split("."), value))
    return f"{'Saved in' if value is not None else 'Removed from'} {file}."


def with_setting(file: Path, key: Sequence[str], value: Any) -> str:
    """Return the text of a file with a setting set, or removed with None. Raises `UserError`."""
    import tomlkit  # 50 ms that only changing a file needs
    from tomlkit.exceptions import TOMLKitError

    *groups, name = key
    try:
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else ""
        document = tomlkit.parse(text)
        table: MutableMapping[str, Any] = document
        for group in groups:
            if value is None and group not in table:
                return text
            table = table.setdefault(group, tomlkit.table())
            if not isinstance(table, MutableMapping):
                raise UserError(f"Could not change {file}: {group} is not a table.")
        if value is not None:
            table[name] = value
        else:
            table.pop(name, None)
        return tomlkit.dumps(document)
    except (OSError, UnicodeDecodeError, TOMLKitError) as error:
        raise UserError(f"Could not change {file}: {error}") from error


class MergedFile(msgspec.Struct, frozen=True):
    text: str
    added: dict[str, Any]
    conflicts: tuple[str, ...]  # keys that already have other values, which stay


def merge_settings(file: Path, values: dict[str, Any]) -> MergedFile:
    """Add settings to the text of a file: those that it does not set, and new items of lists. Raises `UserError`."""
    import tomllib

    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    conflicts: list[str] = []
    try:
        document = tomlkit.parse(file.read_bytes().decode("utf-8-sig") if file.exists() else "")
        added = _add_missing(document, values, "", conflicts)
        text = tomlkit.dumps(document)
        merged = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, TOMLKitError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"Could not read {file}: {error}") from error
    check_layer(SettingsLayer(str(file), merged, text))
    # Read again, the text must have every value: tomlkit loses additions to a table with others between its parts.
    if lost := _add_missing(merged, values, "", []):
        raise UserError(f"{file} has parts of [{next(iter(lost))}] in several places. Move them together first.")
    return MergedFile(text, added, tuple(conflicts))


def _add_missing(
    table: MutableMapping[str, Any], values: dict[str, Any], key: str, conflicts: list[str]
) -> dict[str, Any]:
    """Add missing values to the table at `key`, and return them; `conflicts` gets the keys with other values."""
    added: dict[str, Any] = {}
    for name, value in values.items():
        old, path = table.get(name), f"{key}.{name}" if key else name
        if old is None:
            table[name] = added[name] = value
        elif isinstance(old, MutableMapping) and isinstance(value, dict) and key not in _WHOLE_TABLES:
            added[name] = _add_missing(old, value, path, conflicts)
        elif isinstance(old, list) and isinstance(value, list):
            added[name] = [item for item in value if item not in old]
            old.extend(added[name])
        elif old != value:
            conflicts.append(path)
    return {name: value for name, value in added.items() if value not in ({}, [])}


def write_settings(file: Path, text: str, *, mode: int = 0o600) -> None:
    """Replace a file atomically and keep its permission bits; a new file gets `mode`. Raises `UserError`."""
    real = Path(os.path.realpath(file))  # a link, as to a folder of dotfiles, stays a link
    content = text.encode()
    try:
        if real.exists():
            if real.read_bytes() != content:
                replace_file(real, content, mode=stat.S_IMODE(real.stat().st_mode))
        elif content:  # an empty file would set nothing
            real.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(real, content, mode=mode)
    except OSError as error:
        raise UserError(f"Could not write {file}: {error.strerror}.") from error


def key_parts(key: str) -> tuple[str, ...]:
    """Return the names in a dotted key; names with dots of their own are quoted. Raises `UsageError`."""
    import tomllib

    parts: list[str] = []
    try:
        value: Any = tomllib.loads(f"{key} = 0")
        while isinstance(value, dict):
            ((name, value),) = value.items()
            parts.append(name)
    except ValueError as error:
        raise UsageError(f"{key!r} is not the name of a setting. Write SECTION.KEY, such as retry.max.") from error
    return tuple(parts)


def parse_value(text: str, key: Sequence[str]) -> Any:
    """Return the value of a setting from TOML or, if it is a string, from plain text. Raises `ConfigError`."""
    import tomllib

    kind = setting_type(key)
    value: Any = text
    with suppress(ValueError):
        (value,) = tomllib.loads(f"value = {text}").values()
    if find_error(value, kind) and not find_error(text, kind):  # such as 3 for a setting that is a string
        value = text
    if found := find_error(value, kind, ".".join(key)):
        wrong_key, message = found
        hint = ' Write a list as ["a", "b"].' if isinstance(value, str) and "array" in message else ""
        raise ConfigError(message + hint, key=wrong_key)
    return value


def without_secrets(value: Any, mask: Callable[[str], str] = str) -> Any:
    """Replace the secrets in settings: all values of headers and variables, passwords, and what `mask` finds."""
    match value:
        case Mapping():
            shown = {name: without_secrets(item, mask) for name, item in value.items()}
            for name in [name for name in _SECRET_TABLES if value.get(name)]:  # the names in these tables stay
                shown[name] = dict.fromkeys(value[name], MASKED) if isinstance(value[name], Mapping) else MASKED
            return shown
        case list() | tuple():
            return [without_secrets(item, mask) for item in value]
        case str():
            text = re.sub(r"(?<=password=)[^&]*", MASKED, value)  # `?password=…` in an address
            return mask(re.sub(r"(?<=//)[^/]*@", f"{MASKED}@", text))  # `//user:password@host`
    return value


def readable_settings(settings: Settings) -> str:
    """Return the settings that differ from the defaults as TOML, without known secrets. Callers must mask it."""
    return to_toml(without_secrets(changed_values(settings))).rstrip() or "# All settings have their defaults."


def to_toml(settings: Settings | dict[str, Any]) -> str:
    """Return the settings that differ from the defaults, as a config.toml that loads to the same settings."""
    import tomli_w  # 2 ms that no start needs

    return tomli_w.dumps(changed_values(settings))


def changed_values(value: Any) -> Any:
    """Return a struct as a table of the values that differ from its defaults."""
    if isinstance(value, msgspec.Struct):
        value = {
            field.encode_name: getattr(value, field.name)
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != _default(field)
        }
    if isinstance(value, dict):
        return {key: changed_values(item) for key, item in value.items() if item is not None}
    return msgspec.to_builtins(value)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
