"""Collects what an import would set in one file, and why the rest is left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentcli.extensions.hooks.specs import TIMEOUT_S, read_hooks
from agentcli.infra.sandbox.environment import credentials_in
from agentcli.safety.secrets.masking import mask
from agentcli.settings.check import find_error
from agentcli.settings.load import nested, personal_keys
from agentcli.settings.structs import Settings

NO_SETTING = "agentcli has no such setting"
HOLDS_KEY = "it holds a key or a token, which belongs in no settings"
_SERVER_KEYS = (
    "type", "command", "args", "env", "cwd", "url", "headers", "startup_timeout_sec", "tool_timeout_sec",
    "enabled_tools", "disabled_tools", "enabled",
)  # fmt: skip
_SCHEMES = ("bearer", "basic", "token")
LOGIN = f"{HOLDS_KEY}: keep it with agentcli login, or export it"


class Draft:
    """The settings to put into `target`, nested as in config.toml; `left_out` has a sentence on each other thing.

    `source` is the file that is being read. `copies` are whole files, by where they go.
    """

    source = Path()

    def __init__(self, target: Path, *, is_project: bool) -> None:
        self.target = target
        self.is_project = is_project
        self.values: dict[str, Any] = {}
        self.left_out: list[str] = []
        self.copies: dict[Path, str] = {}

    def leave(self, what: str, why: str) -> None:
        """Note why a key of the source, or all of it, is left out."""
        named = f"{self.source}: {what}" if what else str(self.source)
        self.left_out.append(f"{mask(named)}: {mask(why)}.")

    def take(self, what: str, value: Any, *path: str) -> None:
        """Set a setting as `what` says in the other tool, unless something forbids it. A list adds to the one there."""
        key, table = ".".join(path), nested(path, value)
        if has_secret(value):
            self.leave(what, LOGIN)
        elif self.is_project and personal_keys(table):
            self.leave(what, f"{key} is not taken from a project: import it without --project")
        elif found := find_error(table, Settings):
            self.leave(what, found[1].rstrip("."))
        else:
            *groups, name = path
            table = self.values
            for group in groups:
                table = table.setdefault(group, {})
            if isinstance(value, list):
                table[name] = [*(there := table.get(name, [])), *(item for item in value if item not in there)]
            elif table.setdefault(name, value) != value:
                self.leave(what, f"{key} is {table[name]!r} already by what was read before")

    def take_hooks(self, what: str, table: Any) -> None:
        """Take hooks, which are in the same format there; those that cannot be used are left out."""
        problems: list[str] = []
        for spec in read_hooks(table, str(self.source), problems):
            hook: dict[str, Any] = {"type": "command", "command": spec.command}
            hook |= {"if": spec.condition} if spec.condition else {}
            hook |= {"timeout": spec.timeout_s} if spec.timeout_s != TIMEOUT_S else {}
            group = {"matcher": spec.matcher} if spec.matcher else {}
            self.take(f"{what}.{spec.event}: {spec.command}", [group | {"hooks": [hook]}], "hooks", spec.event)
        self.left_out += map(mask, problems)

    def take_servers(self, what: str, servers: Any) -> None:
        """Take MCP servers, as tables with the keys of `.mcp.json`."""
        for name, table in server_tables(servers, self).items():
            self.take(f"the MCP server {name}", table, "mcp_servers", name)


def has_secret(value: Any) -> bool:
    """True if some text in it is, or holds, a key or token."""
    if isinstance(value, Mapping):
        return any(
            has_secret(item) or credentials_in({str(name): str(item)})
            for name, item in value.items()
            if not _is_reference(item)
        )
    if isinstance(value, list | tuple):
        return any(map(has_secret, value))
    return isinstance(value, str) and mask(value) != value


def server_tables(servers: Any, draft: Draft) -> dict[str, dict[str, Any]]:
    """Return MCP servers with the keys of .mcp.json; a secret in them gives way to a variable, which is noted."""
    tables: dict[str, dict[str, Any]] = {}
    for name, given in servers.items() if isinstance(servers, Mapping) else ():
        if not isinstance(given, Mapping) or not ("command" in given or "url" in given):
            draft.leave(f"the MCP server {name}", "it has neither a command nor a url")
            continue
        table = {key: given[key] for key in _SERVER_KEYS if given.get(key) or given.get(key) is False}
        for key in ("env", "headers"):
            table |= {key: _without_secrets(table[key], name, f"{name}.{key}", draft)} if key in table else {}
        tables[name] = table
        for key in given.keys() - table.keys() - {"env", "headers"}:
            draft.leave(f"{name}.{key}", NO_SETTING)
    return tables


def _without_secrets(given: Mapping[str, Any], server: str, place: str, draft: Draft) -> dict[str, Any]:
    """The variables have the server's name in theirs: what one service may know is not sent to another."""
    kept = dict(given)
    for name, value in given.items():
        if has_secret({name: value}) or (name.lower() == "authorization" and not _is_reference(value)):
            variable, owner = _variable(name), _variable(server)
            if not variable.startswith(f"{owner}_"):
                variable = f"{owner}_{variable}"
            scheme, found, _ = str(value).partition(" ")
            kept[name] = f"{scheme} ${{{variable}}}" if found and scheme.lower() in _SCHEMES else f"${{{variable}}}"
            draft.leave(f"{place}.{name}", f"{HOLDS_KEY}: export it as {variable}, which stands in {kept[name]}")
    return kept


def _variable(name: str) -> str:
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name).upper()
    return f"_{letters}" if letters[:1].isdigit() else letters


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and "${" in value
