"""Converts settings of Claude Code and Codex; a table for each tool has a row for each of its keys."""

import re
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, get_args

import msgspec

from agentcli.agent.permissions.rules import FOREIGN_TOOLS, Verb, check_rule, parse_rule
from agentcli.errors import UsageError
from agentcli.extensions.hooks.run import TIMEOUT_S, read_hooks
from agentcli.infra.sandbox.environment import credentials_in
from agentcli.llm.models import bundled_models, provider_names
from agentcli.safety.hosts import read_grant
from agentcli.safety.secrets.masking import mask
from agentcli.settings.check import find_error
from agentcli.settings.files import MAX_SMALL_FILE_BYTES, from_home, home_of, is_file, project_root, read_small_file
from agentcli.settings.load import Config, nested, personal_keys
from agentcli.settings.structs import Settings
from agentcli.settings.trust import PROJECT_FILES
from agentcli.tools.builtin.toolset import builtin_tools

TOOLS = ("claude-code", "codex")
OTHERS = "*"  # the row for keys without one of their own
NO_SETTING = "agentcli has no such setting"
HOLDS_KEY = "it contains a key or token, which does not belong in settings"
_SERVER_KEYS = (
    "type", "command", "args", "env", "cwd", "url", "headers", "http_headers", "bearer_token_env_var",
    "startup_timeout_sec", "tool_timeout_sec", "enabled_tools", "disabled_tools", "enabled",
)  # fmt: skip
_HOLD_SECRETS = {"env", "headers", "http_headers"}
LOGIN = f"{HOLDS_KEY}. Save it with agentcli login, or export it"


class Draft:
    """The settings to write into `target`, nested as in config.toml; `left_out` says why others are not imported."""

    source = Path()  # the file that is being read

    def __init__(self, target: Path, *, is_project: bool) -> None:
        self.target = target
        self.is_project = is_project
        self.values: dict[str, Any] = {}
        self.left_out: list[str] = []

    def leave_out(self, source_key: str, why: str) -> None:
        """Note why a key of the source is left out, or the whole source, if the key is empty."""
        place = f"{self.source}: {source_key}" if source_key else str(self.source)
        self.left_out.append(f"{mask(place)}: {mask(why)}.")

    def take(self, source_key: str, value: Any, *path: str) -> None:
        """Set a setting to the value that `source_key` has in the other tool, if it may be set; lists are joined."""
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

    def take_hooks(self, source_key: str, table: Any) -> None:
        """Take hooks, which have the same format in the other tools; those that cannot be used are left out."""
        problems: list[str] = []
        for spec in read_hooks(table, str(self.source), problems.append):
            hook: dict[str, Any] = {"type": "command", "command": spec.command}
            if spec.condition:
                hook["if"] = spec.condition
            if spec.timeout_s != TIMEOUT_S:  # the default need not be written
                hook["timeout"] = spec.timeout_s
            group = {"matcher": spec.matcher} if spec.matcher else {}
            self.take(f"{source_key}.{spec.event}: {spec.command}", [group | {"hooks": [hook]}], "hooks", spec.event)
        self.left_out += map(mask, problems)

    def take_servers(self, source_key: str, servers: Any) -> None:
        """Take MCP servers; a secret in them is replaced by a variable, which is noted."""
        for name, server in servers.items() if isinstance(servers, Mapping) else ():
            if not isinstance(server, Mapping) or not ("command" in server or "url" in server):
                self.leave_out(f"the MCP server {name}", "it has neither a command nor a url")
                continue
            table = {key: server[key] for key in _SERVER_KEYS if server.get(key) or server.get(key) is False}
            for key in _HOLD_SECRETS & table.keys():
                table[key] = self._without_secrets(table[key], name, f"{name}.{key}")
            for key in server.keys() - table.keys() - _HOLD_SECRETS:
                self.leave_out(f"{name}.{key}", NO_SETTING)
            self.take(f"the MCP server {name}", table, "mcp_servers", name)

    def _without_secrets(self, values: Mapping[str, Any], server: str, place: str) -> dict[str, Any]:
        """Replace secrets by variables that are named after the server, so that no other server is sent them.

        `Authorization: Bearer abc123` of the server `github` becomes `Bearer ${GITHUB_AUTHORIZATION}`.
        """
        result, prefix = dict(values), _variable(server)
        for name, value in values.items():
            if has_secret({name: value}) or (name.lower() == "authorization" and not _is_reference(value)):
                variable = f"{prefix}_{_variable(name).removeprefix(f'{prefix}_')}"
                scheme, space, _ = str(value).partition(" ")  # the token behind a scheme may still be missing
                has_scheme = space and scheme.lower() in ("bearer", "basic", "token")
                result[name] = f"{scheme} ${{{variable}}}" if has_scheme else f"${{{variable}}}"
                self.leave_out(
                    f"{place}.{name}", f"{HOLDS_KEY}. Export it as {variable}, which {result[name]} refers to"
                )
        return result


def has_secret(value: Any) -> bool:
    """Return True if a text in a value is, or contains, a key or token."""
    if isinstance(value, Mapping):
        return any(
            has_secret(item) or credentials_in({str(name): str(item)})
            for name, item in value.items()
            if not (_is_reference(item) or (name == "bearer_token_env_var" and _names_variable(item)))
        )
    if isinstance(value, list | tuple):
        return any(map(has_secret, value))
    return isinstance(value, str) and mask(value) != value


def _names_variable(item: Any) -> bool:
    """Return False for a token that somebody pasted in place of the variable's name."""
    return isinstance(item, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", item) is not None and mask(item) == item


def _variable(name: str) -> str:
    return re.sub(r"\A(?=\d)|[^A-Za-z0-9]", "_", name).upper()  # a name of a variable begins with no digit


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


# Tables

Take = Callable[[Draft, str, Any], None]  # takes a value, given the name of its key
# What happens to a key. A tuple is the path of the setting that it becomes. A function takes its value, and that in a
# list of one each of its items. A mapping has the rows for the keys below it. A text says why it is left out; an empty
# one leaves it out without a word.
Row = tuple[str, ...] | list[Take] | Take | Mapping[str, Any] | str
Table = Mapping[str, Row]


def take_table(draft: Draft, table: Table, values: Mapping[str, Any], above: str = "") -> None:
    """Take values as the rows of a table say. Below the top level, a value that is false or empty is skipped."""
    for key, value in values.items():
        if above and not value:
            continue
        source_key = f"{above}{key}"
        match table.get(key, table.get(OTHERS, NO_SETTING)):
            case list() as takes if isinstance(value, list):
                for item in value:
                    takes[0](draft, source_key, item)
            case Mapping() as rows if isinstance(value, Mapping):
                take_table(draft, rows, value, f"{source_key}.")
            case list() | Mapping():  # the value has another form
                draft.leave_out(source_key, NO_SETTING)
            case str() as why:
                draft.leave_out(source_key, why) if why else None
            case tuple() as path:
                draft.take(source_key, value, *path)
            case take:
                take(draft, source_key, value)


def _take_folder(path: tuple[str, str], draft: Draft, source_key: str, folder: Any) -> None:
    """Take a folder if it exists: with one that does not, no session would start."""
    if not from_home(str(folder)).is_absolute() and not draft.is_project:
        draft.leave_out(f"{source_key}: {folder}", "its meaning depends on the project. Use an absolute path")
    elif not from_home(str(folder)).is_dir():
        draft.leave_out(f"{source_key}: {folder}", "there is no such folder")
    else:
        draft.take(source_key, [str(folder)], *path)


def _take_choice(
    draft: Draft, source_key: str, value: Any, *, path: tuple[str, str], values: dict[str, str], why: str
) -> None:
    """Take a value under the name that `values` has for it (`=`: the same); leave out one without a name."""
    name = "="  # a value that is no text is taken as it is, which reports the mistake
    if isinstance(value, str):
        name = values.get(value, values.get(OTHERS, ""))
    if name:
        draft.take(source_key, value if name == "=" else name, *path)
    else:
        draft.leave_out(f"{source_key} {value!r}", why)


# Claude Code


def _take_rule(verb: Verb, draft: Draft, source_key: str, text: Any) -> None:
    about = f"{source_key}: {text}"
    try:
        rule = parse_rule(str(text))
        check_rule(rule, builtin_tools(), written=str(text))
    except UsageError as error:
        draft.leave_out(about, str(error).removeprefix(f"{text}: ").rstrip("."))
        return
    # Claude Code reads "/src" as a path below the settings' folder, agentcli as one below each project.
    is_rooted = rule.pattern.startswith("/") and rule.pattern[1:2] != "/"
    if rule.tool in FOREIGN_TOOLS:  # such a rule is valid, so `check_rule` lets it pass
        draft.leave_out(about, f"agentcli has no counterpart to {rule.tool}")
    elif not draft.is_project and rule.tool != "bash" and is_rooted:
        draft.leave_out(about, "its meaning differs here: each project instead of the settings folder. Use // or ~/")
    else:
        draft.take(about, [text], "permissions", verb)


def _take_claude_model(draft: Draft, source_key: str, name: Any) -> None:
    """Take a model by its id, or by the alias of the newest one of its kind (`opus`, `sonnet`, `haiku`)."""
    id = str(name).removesuffix("[1m]")  # the mark of a window of a million tokens
    ids = [info.id for info in bundled_models() if info.provider == "anthropic"]  # the newest ones first
    newest = next((known_id for known_id in ids if known_id.startswith(f"claude-{id}-")), "")
    if id in ids or newest:
        draft.take(source_key, f"anthropic/{newest or id}", "provider", "model")
    else:
        draft.leave_out(f"{source_key} {id}", "unknown model. To list the known ones: agentcli models list")


def _take_host(draft: Draft, source_key: str, host: Any) -> None:
    try:
        read_grant(str(host))
        draft.take(source_key, [host], "sandbox", "hosts")
    except ValueError as error:
        draft.leave_out(f"{source_key} {host}", str(error).rstrip("."))


def _leave_out_variable(draft: Draft, source_key: str, value: Any) -> None:
    is_secret = credentials_in({source_key.removeprefix("env."): str(value)})
    draft.leave_out(source_key, LOGIN if is_secret else "export it in your shell, which commands inherit it from")


_RULES: Table = {verb: [partial(_take_rule, verb)] for verb in get_args(Verb)}
_MODE = ("permissions", "mode")
CLAUDE_CODE: Table = {
    "permissions": {
        **_RULES,
        "additionalDirectories": [partial(_take_folder, ("permissions", "additional_directories"))],
        "defaultMode": partial(
            _take_choice,
            path=_MODE,
            values={"bypassPermissions": "", OTHERS: "="},
            why="it allows everything. Set it yourself, for one run (--permission-mode)",
        ),
    },
    "hooks": Draft.take_hooks,
    "sandbox": {
        "enabled": "",  # commands always run in a sandbox
        "network": {"allowedDomains": [_take_host], OTHERS: NO_SETTING},
        "filesystem": {"allowWrite": [partial(_take_folder, ("sandbox", "writable"))], OTHERS: NO_SETTING},
        OTHERS: NO_SETTING,
    },
    "env": {
        "ANTHROPIC_MODEL": _take_claude_model,
        "ANTHROPIC_BASE_URL": ("providers", "anthropic", "base_url"),
        OTHERS: _leave_out_variable,
    },
    "model": _take_claude_model,
    "mcpServers": Draft.take_servers,
    "apiKeyHelper": "save a key with agentcli login anthropic",
    "$schema": "",
}
_REMEMBERED: Table = {"mcpServers": Draft.take_servers, "allowedTools": _RULES["allow"], OTHERS: ""}


# Codex


def _take_providers(draft: Draft, source_key: str, providers: Any) -> None:
    keys = {"base_url": "base_url", "env_key": "api_key_env", "http_headers": "headers"}
    for name, provider in providers.items() if isinstance(providers, Mapping) else ():
        rows: Table = {key: ("providers", name, ours) for key, ours in keys.items()}
        if isinstance(provider, Mapping) and provider.get("wire_api") != "responses":
            take_table(draft, {**rows, "name": "", "wire_api": ""}, provider, f"{source_key}.{name}.")
        else:
            why = "agentcli speaks Chat Completions: if the server does, set base_url in [providers.NAME]"
            draft.leave_out(f"{source_key}.{name}", why)


def _with_provider(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return Codex's settings with the model last, after the providers, and named as here: `provider/model`."""
    others = {key: value for key, value in values.items() if key not in ("model", "model_provider")}
    if "model" in values:
        provider, model = values.get("model_provider", "openai"), values["model"]
        others["model"] = f"{provider}/{model}" if isinstance(model, str) else model
    return others


def _take_codex_model(draft: Draft, source_key: str, name: Any) -> None:
    """Take a model of a provider that is known here, or that the import brings."""
    provider = str(name).partition("/")[0]
    if not isinstance(name, str):
        draft.leave_out(source_key, "it is not a name")
    elif provider in provider_names() or provider in draft.values.get("providers", {}):
        draft.take(source_key, name, "provider", "model")
    else:
        draft.leave_out(f"{source_key} {name}", f"agentcli does not know the provider {provider}")


CODEX: Table = {
    "model": _take_codex_model,
    "model_reasoning_effort": ("tokens", "effort"),
    "approval_policy": partial(
        _take_choice,
        path=_MODE,
        values={"untrusted": "default", "on-request": "auto", "on-failure": "auto"},
        why="agentcli has no such mode; docs/permissions.md lists its modes",
    ),
    "sandbox_mode": partial(
        _take_choice,
        path=("sandbox", "profile"),
        values={"danger-full-access": "", OTHERS: "="},
        why="set it yourself, for one run (--sandbox)",
    ),
    "sandbox_workspace_write": {
        "writable_roots": [partial(_take_folder, ("sandbox", "writable"))],
        "network_access": "agentcli allows hosts by name; see sandbox.hosts",
    },
    "model_providers": _take_providers,
    "mcp_servers": Draft.take_servers,
    "hooks": Draft.take_hooks,
    "projects": "trust each project with agentcli config trust",
}


def drafts(config: Config, tools: tuple[str, ...], *, is_project: bool) -> list[Draft]:
    """Return a draft for each file to change: the person's settings, or the project's shared and local ones."""
    environment, home, root = config.environment, home_of(config.environment), project_root(config.cwd)
    claude = Path(environment.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    codex = Path(environment.get("CODEX_HOME") or home / ".codex")
    shared = Draft(root / PROJECT_FILES["project"] if is_project else config.paths.user_config, is_project=is_project)
    local = Draft(root / PROJECT_FILES["local"], is_project=True)
    # ~/.claude.json holds the person's servers, and below "projects" what Claude Code remembers of each project.
    of_project: Table = {"projects": {str(root): _REMEMBERED, OTHERS: ""}, OTHERS: ""}
    remembered = of_project if is_project else {**_REMEMBERED, "allowedTools": ""}
    sources: list[tuple[str, Path, Table, Draft]] = [
        ("claude-code", (root / ".claude" if is_project else claude) / "settings.json", CLAUDE_CODE, shared),
        ("claude-code", home / ".claude.json", remembered, local if is_project else shared),
        ("codex", (root / ".codex" if is_project else codex) / "config.toml", CODEX, shared),
    ]
    if is_project:
        sources.insert(1, ("claude-code", root / ".claude/settings.local.json", CLAUDE_CODE, local))
    for tool, file, table, draft in sources:
        if tool in tools and is_file(file):
            draft.source = file
            values = _read(draft)
            take_table(draft, table, _with_provider(values) if table is CODEX else values)
    if not is_project and "codex" in tools and is_file(codex / "AGENTS.md"):
        shared.source = codex / "AGENTS.md"
        shared.leave_out("", f"to use the same instructions, copy it to {config.paths.config / 'AGENTS.md'}")
    return [shared, local] if is_project else [shared]


def _read(draft: Draft) -> Mapping[str, Any]:
    """Return the settings in a draft's source; none if it cannot be read, which is noted."""
    try:
        text = read_small_file(draft.source, max_bytes=64 * MAX_SMALL_FILE_BYTES).decode("utf-8-sig")
        return tomllib.loads(text) if draft.source.suffix == ".toml" else msgspec.json.decode(text, type=dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        draft.leave_out("", f"could not read it ({error})")
        return {}
