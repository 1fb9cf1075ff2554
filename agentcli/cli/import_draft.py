"""The settings that an import from another program would write, and the reasons why others are not imported."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from agentcli.extensions.hooks.spec import read_hooks
from agentcli.infra.sandbox.environment import credentials_in
from agentcli.safety.secrets.masking import mask
from agentcli.settings.check import find_error
from agentcli.settings.load import nested, personal_keys
from agentcli.settings.structs import Settings
from agentcli.tables import read_table

NO_SETTING = "agentcli has no such setting"
HOLDS_KEY = "it contains a key or token, which does not belong in settings"
_SERVER_KEYS = (
    "type", "command", "args", "env", "cwd", "url", "headers", "http_headers", "bearer_token_env_var",
    "startup_timeout_sec", "tool_timeout_sec", "enabled_tools", "disabled_tools", "enabled",
)  # fmt: skip
_MAY_HOLD_SECRETS = ("env", "headers", "http_headers")
LOGIN = f"{HOLDS_KEY}. Save it with agentcli login, or export it"


class Draft:
    """The settings to write into the file `target`, and the reasons why other settings are not imported."""

    source = Path()  # the other program's file that is being read

    def __init__(self, target: Path, *, is_project: bool) -> None:
        self.target = target
        self.is_project = is_project
        self.values: dict[str, Any] = {}  # nested like config.toml
        self.left_out: list[str] = []  # a sentence for each setting that is not imported
        self.commands: dict[Path, str] = {}  # custom commands: each file to write, and its text

    def leave_out(self, source_key: str, why: str) -> None:
        """Note why a key of the source is not imported; an empty key means the whole source."""
        place = f"{self.source}: {source_key}" if source_key else str(self.source)
        self.left_out.append(f"{mask(place)}: {mask(why)}.")

    def import_value(self, source_key: str, value: Any, *path: str) -> None:
        """Set `path` to the value of `source_key`, or note why not. Lists from several files are joined."""
        key, table = ".".join(path), nested(path, value)
        if has_secret(value):
            self.leave_out(source_key, LOGIN)
        elif self.is_project and personal_keys(table):
            self.leave_out(source_key, f"{key} cannot be set by a project. Import it without --project")
        elif error := find_error(table, Settings):
            _, problem = error
            self.leave_out(source_key, problem.rstrip("."))
        else:
            *groups, name = path
            section = self.values
            for group in groups:
                section = section.setdefault(group, {})
            if isinstance(value, list):
                before = section.get(name, [])
                section[name] = [*before, *(item for item in value if item not in before)]
            elif section.setdefault(name, value) != value:
                self.leave_out(source_key, f"{key} is already {section[name]!r} from an earlier file")

    def import_hooks(self, source_key: str, table: Any) -> None:
        """Import hooks, which have the same format in the other programs, and note those that agentcli cannot use."""
        problems: list[str] = []
        for spec in read_hooks(table, str(self.source), problems.append):
            hook = {key: value for key, value in spec.handler.items() if value is not None}  # TOML has no null
            group = ({"matcher": spec.matcher} if spec.matcher else {}) | {"hooks": [hook]}
            self.import_value(f"{source_key}.{spec.event}: {spec.title}", [group], "hooks", spec.event)
        self.left_out += map(mask, problems)

    def import_servers(self, source_key: str, servers: Any) -> None:
        """Import MCP servers. A reference to a variable replaces each secret in them, and a note names the variable."""
        for name, server in servers.items() if isinstance(servers, Mapping) else ():
            server = _with_agentcli_keys(server) if isinstance(server, Mapping) else {}
            if not ("command" in server or "url" in server):
                self.leave_out(f"the MCP server {name}", "it has neither a command nor a url")
                continue
            table = {key: server[key] for key in _SERVER_KEYS if server.get(key) or server.get(key) is False}
            for key in _MAY_HOLD_SECRETS:
                if isinstance(values := table.get(key), Mapping):
                    table[key] = self._without_secrets(values, name, f"{name}.{key}")
            for key in server:  # in the order of the file
                if key not in table and key not in _MAY_HOLD_SECRETS:
                    self.leave_out(f"{name}.{key}", NO_SETTING)
            self.import_value(f"the MCP server {name}", table, "mcp_servers", name)

    def _without_secrets(self, values: Mapping[str, Any], server: str, source_group: str) -> dict[str, Any]:
        """Return a server's headers or variables with `${VARIABLE}` in place of each secret, noting what to export.

        The server's name begins the variable's name, so that no server receives the secret of another.
        """
        result, prefix = dict(values), f"{_variable_name(server)}_"
        for name, value in values.items():
            if has_secret({name: value}) or (name.lower() == "authorization" and not _is_variable_reference(value)):
                variable = prefix + _variable_name(name).removeprefix(prefix)
                result[name] = f"${{{variable}}}"
                self.leave_out(f"{source_group}.{name}", f"{HOLDS_KEY}. Export all of it as {variable}")
        return result


@cache
def other_settings() -> dict[str, Any]:
    return read_table(__file__, "other_settings")


def _with_agentcli_keys(server: Mapping[str, Any]) -> dict[str, Any]:
    """Convert another program's definition of an MCP server to that of `.mcp.json`, whose keys agentcli uses."""
    agentcli_names = other_settings()["servers"]  # an empty name: the key has no counterpart
    result = {name: value for key, value in server.items() if (name := agentcli_names.get(key, key))}
    inherited = server.get("env_keys")  # Goose: variables that the server gets from the environment
    if isinstance(inherited, list) and isinstance(result.get("env") or {}, Mapping):
        result["env"] = {**(result.get("env") or {}), **{str(name): f"${{{name}}}" for name in inherited}}
    if isinstance(command := result.get("command"), list) and command:
        result["command"], result["args"] = command[0], command[1:]
    if result.get("disabled") is not None:
        result["enabled"] = not result.pop("disabled")
    if result.get("type") not in ("stdio", "http", "sse", None):  # such as "local": `command` or `url` shows the type
        del result["type"]
    if result.get("tools") == ["*"]:  # all tools, as without this key
        del result["tools"]
    return {key: value for key, value in result.items() if value not in ({}, [], None)}


def has_secret(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_is_secret_field(str(name), item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return any(map(has_secret, value))
    return isinstance(value, str) and mask(value) != value


def _is_secret_field(name: str, value: Any) -> bool:
    if _is_variable_reference(value) or (name == "bearer_token_env_var" and _is_variable_name(value)):
        return False
    return has_secret(value) or bool(credentials_in({name: str(value)}))


def _is_variable_name(item: Any) -> bool:
    """Return True for the name of a variable, and False for a token that somebody pasted in its place."""
    return isinstance(item, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", item) is not None and mask(item) == item


def _variable_name(name: str) -> str:
    return re.sub(r"\A(?=\d)|[^A-Za-z0-9]", "_", name).upper()  # a variable's name must not begin with a digit


def _is_variable_reference(value: Any) -> bool:
    return isinstance(value, str) and "${" in value
