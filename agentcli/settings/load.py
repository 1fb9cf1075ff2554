"""Loads the settings: each source is read and checked, then they are merged into one frozen `Config`.

A later source wins: defaults, user, project (if trusted), local, `--settings`, environment, flags.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from agentcli.errors import ConfigError, nearest
from agentcli.settings.check import explain_error, find_error, is_table
from agentcli.settings.files import Paths, find_paths, home_of, project_root
from agentcli.settings.keys import StoredKeys, sendable_key
from agentcli.settings.structs import ModelName, Settings
from agentcli.settings.terminal import terminal_problems
from agentcli.settings.trust import PROJECT_FILES, is_trusted, project_command_folders, project_files

# A checked-out repository may not choose where prompts and keys go, nor what is observed.
NOT_FROM_PROJECTS = (*"provider providers observability serve terminal web evidence".split(), "tokens.encoders")
# Variables AGENTCLI_… that are not settings.
_OTHER_VARIABLES = ("HOME", "MODEL", "PREFIX", "BIN", "SESSION_ID", "NO_TELEMETRY", "ENABLE_TELEMETRY")
_UNUSED = {  # settings that no longer do anything, and why
    "compaction.summary_share": "summaries use the space that a compaction has",
    "budgets.fallback_model": "budgets do not switch models",
    "budgets.fallback_at": "budgets do not switch models",
}
_JOINED_LISTS = frozenset(("allow", "ask", "deny", "additional_directories", "masked"))  # joined when merged


class SettingsLayer(msgspec.Struct, frozen=True):
    """The settings of one source: a file, the environment, or a caller such as the command line.

    `text` is the content of a TOML file, by which errors find their line. `names` maps dotted keys to their names in
    the source, such as flags or variables.
    """

    source: str
    values: dict[str, Any]
    text: str = ""
    names: Mapping[str, str] = {}

    def error(self, message: str, key: str, *, item: str = "") -> ConfigError:
        """Build the error about a key of this source, or about one item of the list at that key."""
        line = _line_of(self.text, key, item=item) if self.text else None
        return ConfigError(message, file=self.source, line=line, key=self.names.get(key, key))

    def holds(self, key: str, item: Any = None) -> bool:
        """Return True if the source sets a dotted key; with `item`, only if the list at the key contains it."""
        values = _values_at(self.values, key)
        return any(item is None or (isinstance(value, list | tuple) and item in value) for value in values)


def _values_at(values: Any, key: str) -> Iterator[Any]:
    """Yield the value of a dotted key if it is set. Each name is matched whole: names of models contain dots, too."""
    if not key:
        yield values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            if key == name or key.startswith(f"{name}."):
                yield from _values_at(value, key[len(name) + 1 :])


class ProjectUse(msgspec.Struct, frozen=True):
    """The decision to use the project's own files: settings, hooks, servers, commands, skills and agents."""

    is_allowed: bool = False
    is_trusted_now: bool = False  # the caller trusts the files as they are now, whatever was trusted before


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The merged settings and their sources. Later `layers` win; `notices` are for the person."""

    settings: Settings
    paths: Paths
    cwd: Path
    environment: dict[str, str]
    notices: tuple[str, ...] = ()
    layers: tuple[SettingsLayer, ...] = ()
    stored_keys: StoredKeys = msgspec.field(default_factory=StoredKeys)
    project: ProjectUse = ProjectUse()

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(Path(layer.source) for layer in self.layers[:-2])  # all but the environment and the caller

    @property
    def command_folders(self) -> tuple[Path, ...]:
        """The folders of slash commands; a later folder wins."""
        of_claude_code = home_of(self.environment) / ".claude/commands"
        own = [*([of_claude_code] if of_claude_code.is_dir() else ()), self.paths.config / "commands"]
        return *own, *(project_command_folders(self.cwd) if self.project.is_allowed else ())

    def key(self, variable: str) -> str:
        """Return a provider's key: one typed for this session, else the environment's, else a stored one.

        Raises `ConfigError` if the key cannot be read, or contains characters that no HTTP header can carry.
        """
        keys = self.stored_keys
        key = keys.typed.get(variable) or self.key_in_environment(variable) or keys.get(variable).strip()
        return sendable_key(key, lambda message: ConfigError(message, key=variable))

    def key_in_environment(self, variable: str) -> str:
        return self.environment.get(variable, "").strip()  # pasted and mounted keys may end with a newline

    def key_source(self, variable: str) -> str:
        """Describe where a key comes from; empty if there is none. Raises `ConfigError`."""
        in_environment = self.key_in_environment(variable) and variable not in self.stored_keys.typed
        return "in the environment" if in_environment else self.stored_keys.place(variable)

    def error(self, message: str, key: str, *, item: str = "") -> ConfigError:
        """Build an error about a setting, or about one item of its list. It names the source of the value."""
        layer = self.layer_of(key, item or None)
        return layer.error(message, key, item=item) if layer else ConfigError(message, key=key)

    def layer_of(self, key: str, item: Any = None) -> SettingsLayer | None:
        """Return the source whose value of a setting wins; None where the default applies."""
        return next((layer for layer in reversed(self.layers) if layer.holds(key, item)), None)


def load_config(
    cwd: Path,
    environment: Mapping[str, str] = os.environ,
    *,
    paths: Paths | None = None,
    flags: Mapping[str, Any] | None = None,
    flag_names: Mapping[str, str] = {},
    caller: str = "command line",
    extra: SettingsLayer | None = None,
    trust: bool = False,
    sources: frozenset[str] | None = None,
    ignored_file: Path | None = None,
) -> Config:
    """Read, check and merge every source of settings. Raises `ConfigError` if one is unreadable or wrong.

    Args:
        flags: Settings of the caller, as tables.
        flag_names: The flags' names by dotted key, for errors.
        caller: What errors call the source of `flags`.
        extra: A further source, above all files.
        trust: Use the project's files as they are now.
        sources: `user`, `project` and `local`: the only files whose rules, hooks and servers apply; None for all.
        ignored_file: A file that is not read.
    """
    paths = paths or find_paths(environment.get("AGENTCLI_HOME"))
    notices = [*_unknown_variables(environment)]
    layers: list[SettingsLayer] = []
    used_sources = frozenset(("user", "project", "local")) if sources is None else sources
    if paths.user_config != ignored_file and _may_exist(paths.user_config):
        layers.append(_limit_to_sources(read_layer(paths.user_config), "user", used_sources))
    trusted_files = _trusted_files(paths, cwd, notices, trust=trust) if used_sources & {"project", "local"} else []
    for scope, name in PROJECT_FILES.items():
        if (file := project_root(cwd) / name) in trusted_files and file != ignored_file:
            layers.append(_limit_to_sources(_project_layer(file, paths, notices), scope, used_sources))
    layers += [extra] if extra is not None else []  # `--settings`
    caller_layer = SettingsLayer(caller, dict(flags or {}), names=flag_names)
    check_layer(caller_layer)
    layers += [_environment_layer(environment), caller_layer]
    unused = ((key, reason) for key, reason in _UNUSED.items() if any(layer.holds(key) for layer in layers))
    notices += [f"{key} is no longer used: {reason}." for key, reason in unused]
    config = Config(
        settings=msgspec.convert(reduce(merge_values, (layer.values for layer in layers)), Settings),
        paths=paths,
        cwd=cwd,
        environment=dict(environment),
        notices=tuple(notices),
        layers=tuple(layers),
        stored_keys=StoredKeys(paths.credentials),
        project=ProjectUse(is_allowed=bool(trusted_files) and "project" in used_sources, is_trusted_now=trust),
    )
    terminal = config.settings.terminal
    for key, message in terminal_problems(terminal.keys, terminal.theme, terminal.themes):
        raise config.error(message, key)  # for the first problem
    return config


def _limit_to_sources(layer: SettingsLayer, source: str, sources: frozenset[str]) -> SettingsLayer:
    """Remove the rules, hooks and servers of a file whose source is not among `sources`; its other settings stay."""
    if source not in sources:
        for section in ("permissions", "hooks", "mcp_servers"):
            layer.values.pop(section, None)
    return layer


def _trusted_files(paths: Paths, cwd: Path, notices: list[str], *, trust: bool) -> list[Path]:
    """Return the project's files if they are trusted; if not, add a notice that names them."""
    files = project_files(cwd)
    if not files or trust or is_trusted(paths, cwd):
        return files
    names = ", ".join(map(str, files[:4])) + (f" and {len(files) - 4} more" if len(files) > 4 else "")
    notices.append(
        f"{names} {'is' if len(files) == 1 else 'are'} not trusted and not used. To review and trust: /trust in a "
        "session, or `agentcli config trust` here. To use without a review: --trust."
    )
    return []


def _project_layer(file: Path, paths: Paths, notices: list[str]) -> SettingsLayer:
    """Read a project's settings without those that only a person may set. Raises `ConfigError`."""
    layer = read_layer(file)
    for name in personal_keys(layer.values):
        section, _, key = name.partition(".")
        table = layer.values[section] if key else layer.values
        del table[key or section]
        notices.append(f"{file}: {project_refusal(name, paths)}")
    return layer


def nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a table of settings that has only a value at a path."""
    return {path[0]: nested(path[1:], value) if path[1:] else value}


def personal_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the settings in a table that only a person may set, not a project."""
    return [name for name in NOT_FROM_PROJECTS if any(value is not None for value in _values_at(values, name))]


def project_refusal(name: str, paths: Paths) -> str:
    return f"{name if '.' in name else f'[{name}]'} cannot be set by a project: set it in {paths.user_config}."


def _may_exist(file: Path) -> bool:
    """Return True if a file exists, or its folder may not be searched, so that settings are never silently ignored."""
    try:
        return file.exists()
    except OSError:
        return True


def read_layer(file: Path) -> SettingsLayer:
    """Read and check a file. Raises `ConfigError`, which has the file, the key and, in TOML, the line."""
    layer = read_unchecked(file)
    check_layer(layer)
    return layer


def read_unchecked(file: Path) -> SettingsLayer:
    """Read a file as JSON if its name ends with `.json`, else as TOML. Raises `ConfigError` for wrong syntax."""
    import json
    import tomllib  # imported late: it takes 1 ms, and there may be no file

    is_json = file.suffix == ".json"
    try:
        data = file.read_bytes()
        text = data.decode("utf-8-sig")
        values: dict[str, Any] = (
            json.loads(text, object_pairs_hook=_object_of_unique_keys) if is_json else tomllib.loads(text)
        )
    except OSError as error:
        raise ConfigError(f"could not be read ({error.strerror}).", file=str(file)) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"could not be read ({error}).", file=str(file), line=line) from error
    except RecursionError as error:
        raise ConfigError("its brackets are nested too deeply.", file=str(file)) from error
    except ValueError as error:
        in_message = re.search(r"\bline (\d+)", str(error))
        last_line = text.count("\n") + 1 if "end of document" in str(error) else 0  # tomllib names no line there
        raise ConfigError(f"{error}.", file=str(file), line=int(in_message[1]) if in_message else last_line) from error
    return SettingsLayer(str(file), values, text="" if is_json else text)  # errors find lines only in TOML


def _object_of_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object. Raises `ValueError` for a duplicate key, because one of its values would be lost."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in values if names.count(name) > 1)}: duplicate key; keep one")
    return values


def _line_of(text: str, key: str, *, item: str = "") -> int | None:
    """Return the line of a dotted key in TOML, or of the table around it; with `item`, of that item in its list."""
    import tomllib

    lines = text.splitlines()
    first = 1  # of the lines of the current assignment, which may be several
    for last in range(1, len(lines) + 1):  # parse ever more lines, until they contain the key
        if lines[last - 1].endswith(",") and "#" not in lines[last - 1]:  # a list goes on: parsing each line is slow
            continue
        try:
            values = tomllib.loads("\n".join(lines[:last]))
        except tomllib.TOMLDecodeError:  # the assignment goes on
            continue
        if [*_values_at(values, key)]:
            return next((line for line in range(first, last + 1) if item in lines[line - 1]), first)
        first = last + 1
    return _line_of(text, key.rpartition(".")[0]) if "." in key else None


@cache
def _variables() -> tuple[tuple[str, str, Any], ...]:
    """Return the variable of every setting, its dotted key and its type; tables of tables have none."""
    return tuple(
        (f"AGENTCLI_{group.name}_{field.encode_name}".upper(), f"{group.name}.{field.encode_name}", field.type)
        for group in msgspec.structs.fields(Settings)
        if isinstance(group.type, type) and issubclass(group.type, msgspec.Struct)
        for field in msgspec.structs.fields(group.type)
        if not is_table(field.type)
    )


def _may_be_setting(variable: str) -> bool:
    program, _, name = variable.partition("_")
    return program == "AGENTCLI" and name not in _OTHER_VARIABLES and not name.startswith("TEST_")


def _unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    names = {
        name.removeprefix("AGENTCLI_") for name, value in environment.items() if _may_be_setting(name) and value.strip()
    }
    if names:  # else the table of all variables, which takes 4 ms, is not needed
        known = [*_OTHER_VARIABLES, *(name.removeprefix("AGENTCLI_") for name, _, _ in _variables())]
        for name in sorted(names.difference(known)):
            hint = f" (did you mean AGENTCLI_{near}?)" if (near := nearest(name, known)) else ""
            yield f"AGENTCLI_{name} is not a setting{hint} and is ignored: see docs/settings.md for all settings."


def _environment_layer(environment: Mapping[str, str]) -> SettingsLayer:
    """Read `AGENTCLI_<SECTION>_<KEY>`. Commas separate list items, and pairs `a=b` of tables. Raises `ConfigError`."""
    values: dict[str, Any] = {}
    names: dict[str, str] = {}
    settings = _variables() if any(map(_may_be_setting, environment)) else ()  # 4 ms, and most people set none
    for name, key, kind in (("AGENTCLI_MODEL", "provider.model", ModelName), *settings):
        if environment.get(name, "").strip():
            group, _, field = key.partition(".")
            values.setdefault(group, {})[field] = _from_text(environment[name], kind, name)
            names[key] = name
    return SettingsLayer("environment", values, names=names)


def _from_text(text: str, kind: Any, name: str) -> Any:
    """Convert a variable's text to a value of its setting's type. Raises `ConfigError`."""
    value: Any = text
    if get_origin(kind) is tuple:
        value = [part.strip() for part in text.split(",") if part.strip()]
    elif get_origin(kind) is dict:
        value = {key.strip(): item.strip() for key, _, item in (pair.partition("=") for pair in text.split(","))}
    try:
        return msgspec.to_builtins(msgspec.convert(value, kind, strict=False))
    except msgspec.ValidationError as error:
        message = explain_error(str(error), get_args(kind)[1] if get_origin(kind) is dict else kind)
        raise ConfigError(f"{message}.", file="environment", key=name) from error


def merge_values(below: dict[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `above` over `below`, table by table. Lists of rules are joined, so that no deny rule is ever lost."""
    result = dict(below)
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merge_values(dict(result[key]), value)
        elif key in _JOINED_LISTS and isinstance(result.get(key), list | tuple):
            result[key] = [*result[key], *value]
        elif value is not None:
            result[key] = value
    return result


def check_layer(layer: SettingsLayer) -> None:
    """Raise `ConfigError` for the first wrong value, with its key, its line, and what is allowed."""
    if found := find_error(layer.values, Settings):
        key, message = found
        raise layer.error(message, key)
