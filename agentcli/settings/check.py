"""Finds and explains errors in settings."""

import re
from collections.abc import Collection, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import msgspec

from agentcli.errors import ConfigError, did_you_mean
from agentcli.settings import structs
from agentcli.settings.structs import Settings
from agentcli.settings.terminal import THEMES, ThemeName

_PATTERNS = {
    structs.MODEL_PATTERN: "write PROVIDER/MODEL, such as anthropic/claude-sonnet-5-5, or a short name such as sonnet",
    structs.VARIABLE_PATTERN: "write the name of an environment variable",
    structs.NAME_PATTERN: "write the name of an environment variable: letters, digits and _",
    structs.PATH_PATTERN: "write the path of a file or a folder",
    structs.URL_PATTERN: "write an address that begins with http:// or https://",
    structs.CHARSET_PATTERN: "unknown charset",
}
# The values of settings whose types do not list them.
_VALUES: dict[Any, tuple[str, ...]] = {ThemeName: THEMES, structs.Charset: structs.CHARSETS}


def find_error(value: Any, kind: Any, key: str = "") -> tuple[str, str] | None:
    """Return the dotted key of the first value that does not fit its type, and what would fit; None if all fit."""
    choices = [choice for choice in get_args(kind) if choice is not NoneType]
    if NoneType in get_args(kind) and value is not None and len(choices) == 1:
        kind = choices[0]  # X in `X | None`, so that the message is about X
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message = f"{explain_error(str(error), kind)}."
    else:
        return None
    if isinstance(value, Mapping) and (kinds := _member_types(kind)):
        for name, item in value.items():
            path = f"{key}.{name}" if key else str(name)
            if (member := kinds.get(name, kinds.get("*"))) is None:
                return path, unknown_setting(name, kinds)
            if error_below := find_error(item, member, path):
                return error_below
    return key, message


def _member_types(kind: Any) -> dict[str, Any]:
    """Return the types of a group's members by name; all members of a table have the type at `*`."""
    if get_origin(kind) is dict:
        return {"*": get_args(kind)[1]}
    is_group = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)} if is_group else {}


def setting_type(key: Sequence[str]) -> Any:
    """Return the type of a setting by the names in its key. Raises `ConfigError` for one that does not exist."""
    kind: Any = Settings
    for depth, name in enumerate(key):
        if kind is Any:
            return Any
        kinds = _member_types(kind)
        if (member := kinds.get(name, kinds.get("*"))) is None:
            has_no_members = f"unknown setting: {'.'.join(key[:depth])} is a single value."
            message = unknown_setting(name, kinds) if kinds else has_no_members
            raise ConfigError(message, key=".".join(key[: depth + 1]))
        kind = member
    return kind


def unknown_setting(name: str, known: Collection[str]) -> str:
    return f"unknown setting{did_you_mean(name, known)}; choose one of {', '.join(known)}."


def explain_error(message: str, kind: Any) -> str:
    """Explain a message of msgspec: describe the pattern, number the item of a list, and name the allowed values."""
    # Such a message: Expected `str` matching regex '^[a-z]+$' - at `$[1]`
    message, _, place = message.partition(" - at `$")
    pattern = message.partition("matching regex ")[2].strip("'").replace("\\\\", "\\")
    message = _PATTERNS.get(pattern, message)
    if item := re.match(r"\[(\d+)\]", place):
        message += f" (item {int(item[1]) + 1} of the list)"
    if allowed := allowed_values(kind):
        message += f"; choose one of {', '.join(allowed)}"
    return message


def allowed_values(kind: Any) -> tuple[str, ...]:
    """Return the values that a setting of this type can have, as text; () if they cannot be listed."""
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    if kind is bool:
        return ("true", "false")
    if kind in _VALUES:
        return _VALUES[kind]
    if NoneType in get_args(kind) or get_origin(kind) is tuple:  # `X | None`, `tuple[X, ...]`: the values of X
        return tuple(value for member in get_args(kind) for value in allowed_values(member))
    return ()


def is_table(kind: Any) -> bool:
    """Return True for a group within a group, and for a table of groups or tables."""
    member = get_args(kind)[1] if get_origin(kind) is dict else kind
    return get_origin(member) is dict or (isinstance(member, type) and issubclass(member, msgspec.Struct))
