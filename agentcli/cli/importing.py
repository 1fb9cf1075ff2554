"""Converts settings of other programs. other_settings.toml has a table for each program, with a row for each key."""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from agentcli.agent.permissions.rules import FOREIGN_TOOLS, Verb, check_rule, parse_rule
from agentcli.cli.import_draft import HOLDS_KEY, LOGIN, NO_SETTING, Draft, has_secret, other_settings
from agentcli.errors import UsageError
from agentcli.infra.sandbox.environment import credentials_in
from agentcli.llm.models import bundled_models, provider_names
from agentcli.safety.hosts import read_grant
from agentcli.settings import files
from agentcli.settings.load import Config
from agentcli.settings.trust import PROJECT_FILES
from agentcli.tools.builtin.toolset import builtin_tools

_OTHERS = "*"  # the row for keys that have no row of their own
PROGRAMS = ("claude-code", "codex", "gemini", "opencode", "cursor", "copilot", "goose", "aider")
# Both also match strings, as group 1, so that nothing inside a string is taken for a comment or a trailing comma.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\])*")|,(\s*[}\]])')


def _import_folder(draft: Draft, source_key: str, folder: Any, *, setting: str) -> None:
    """Import a folder if it exists: a setting that names a missing one would keep sessions from starting."""
    if not files.from_home(str(folder)).is_absolute() and not draft.is_project:
        draft.leave_out(f"{source_key}: {folder}", "its meaning depends on the project. Use an absolute path")
    elif not files.from_home(str(folder)).is_dir():
        draft.leave_out(f"{source_key}: {folder}", "there is no such folder")
    else:
        draft.import_value(source_key, [str(folder)], *setting.split("."))


def _import_choice(draft: Draft, source_key: str, value: Any, row: Mapping[str, Any]) -> None:
    """Import a text as its equivalent ("=": the same text), or leave it out with the row's reason if it has none."""
    path, equivalents = row["choice"].split("."), row["values"]
    if not isinstance(value, str):
        draft.import_value(source_key, value, *path)  # which reports that it is not a text
    elif equivalent := equivalents.get(value, equivalents.get(_OTHERS, "")):
        draft.import_value(source_key, value if equivalent == "=" else equivalent, *path)
    else:
        draft.leave_out(f"{source_key} {value!r}", row["why"])


def _import_rule(draft: Draft, source_key: str, text: Any, *, verb: Verb) -> None:
    """Import a permission rule in Claude Code's form, such as `Edit(//src)`, unless it has another meaning here."""
    about = f"{source_key}: {text}"
    try:
        rule = parse_rule(str(text))
        check_rule(rule, builtin_tools(), written=str(text))
    except UsageError as error:
        draft.leave_out(about, str(error).removeprefix(f"{text}: ").rstrip("."))
        return
    # "//src" is an absolute path, but "/src" is relative: to the settings in Claude Code, to the project in agentcli.
    is_relative_to_root = rule.pattern.startswith("/") and not rule.pattern.startswith("//")
    if rule.tool in FOREIGN_TOOLS:  # `check_rule` accepts these rules, although they have no effect
        draft.leave_out(about, f"agentcli has no counterpart to {rule.tool}")
    elif not draft.is_project and rule.tool != "bash" and is_relative_to_root:
        draft.leave_out(about, "its meaning differs here: each project instead of the settings folder. Use // or ~/")
    else:
        draft.import_value(about, [text], "permissions", verb)


def _import_claude_model(draft: Draft, source_key: str, name: Any) -> None:
    """Import a model given by its id, or by a family (`opus`, `sonnet`, `haiku`), which means its newest model."""
    id = str(name).removesuffix("[1m]")  # "[1m]" asks for a window of a million tokens
    ids = [info.id for info in bundled_models() if info.provider == "anthropic"]  # the newest ones first
    newest = next((known_id for known_id in ids if known_id.startswith(f"claude-{id}-")), "")
    if id in ids or newest:
        draft.import_value(source_key, f"anthropic/{newest or id}", "provider", "model")
    else:
        draft.leave_out(f"{source_key} {id}", "unknown model. To list the known ones: agentcli models list")


def _import_host(draft: Draft, source_key: str, host: Any) -> None:
    try:
        read_grant(str(host))
        draft.import_value(source_key, [host], "sandbox", "hosts")
    except ValueError as error:
        draft.leave_out(f"{source_key} {host}", str(error).rstrip("."))


def _leave_out_variable(draft: Draft, source_key: str, value: Any) -> None:
    is_secret = credentials_in({source_key.removeprefix("env."): str(value)})
    draft.leave_out(source_key, LOGIN if is_secret else "export it in your shell, from which commands inherit it")


def _import_status_line(draft: Draft, source_key: str, command: Any) -> None:
    draft.import_value(source_key, command, "terminal", "status_command")
    draft.import_value(source_key, "claude", "terminal", "status_format")


def _import_model(
    draft: Draft, source_key: str, name: Any, *, setting: str = "provider.model", provider: str = ""
) -> None:
    """Import a model if its provider is known or imported.

    `provider` is that of names that contain none; if it is empty, it is guessed by the model's family.
    """
    if not isinstance(name, str):
        draft.leave_out(source_key, "it is not a name")
        return
    named_provider, slash, model = name.rpartition("/")
    if slash:
        provider = other_settings()["providers"].get(named_provider, named_provider)
    elif not provider:
        provider = "anthropic" if model.startswith("claude") else "gemini" if model.startswith("gemini") else "openai"
    provider_name, _, _ = provider.partition("/")  # `openrouter` in `openrouter/anthropic`
    if provider_name in {*provider_names(), *draft.values.get("providers", {})}:
        draft.import_value(source_key, f"{provider}/{model}", *setting.split("."))
    else:
        draft.leave_out(f"{source_key} {name}", f"agentcli does not know the provider {provider}")


def _import_providers(draft: Draft, source_key: str, providers: Any) -> None:
    """Import the providers of Codex, and those of opencode, which nests their fields in `options`."""
    for name, provider in providers.items() if isinstance(providers, Mapping) else ():
        values = dict(provider) if isinstance(provider, Mapping) else {}
        if isinstance(options := values.pop("options", None), Mapping):
            values |= options
        # In opencode, `apiKey` may refer to an environment variable. Import the variable's name, as Codex stores it.
        if variable := re.fullmatch(r"\{env:([A-Za-z_]\w*)\}", str(values.get("apiKey"))):
            values["env_key"] = variable[1]
            del values["apiKey"]
        if values.pop("wire_api", "") == "responses":  # Codex's name; its "chat" is the default here
            values["api"] = "responses"
        rows: dict[str, Any] = {  # a tuple is the setting to import into; a text is the reason to leave the value out
            "base_url": ("providers", name, "base_url"),
            "baseURL": ("providers", name, "base_url"),
            "env_key": ("providers", name, "api_key_env"),
            "http_headers": ("providers", name, "headers"),
            "api": ("providers", name, "quirks", "api"),
            "apiKey": LOGIN,  # a key must not be in the settings: the person saves it with `agentcli login`
            **dict.fromkeys(("name", "npm", "models"), ""),  # left out without a note
        }
        import_table(draft, rows, values, f"{source_key}.{name}.")


def _import_rule_by_prefix(draft: Draft, source_key: str, text: Any, *, verb: Verb, tool: str = "") -> None:
    """Import `Shell(git)` as `Bash(git *)`: its pattern is a prefix. If `tool` is given, `text` is only the pattern."""
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", f"{tool}({text})" if tool else str(text))
    name, pattern = (found[1], found[2] or "") if found else (str(text), "")
    if name == "Mcp":  # Cursor's `Mcp(server:tool)`, where `*` means all tools
        server, _, server_tool = pattern.partition(":")
        name = f"mcp__{server}" if server_tool in ("", "*") else f"mcp__{server}__{server_tool}"
        pattern = ""
    if other_settings()["tools"].get(name) == "Bash" and pattern and not pattern.endswith("*"):
        pattern += " *"
    _import_rule_for_tool(draft, source_key, name, pattern=pattern, verb=verb)


def _import_rule_for_tool(draft: Draft, source_key: str, tool: str, *, pattern: str, verb: Verb) -> None:
    """Import a rule that is given as the other program's name of a tool, and a pattern (empty or `*`: all calls)."""
    tool_in_rules = other_settings()["tools"].get(tool, tool)
    if not pattern.strip("*"):
        rule = tool_in_rules
    elif tool_in_rules == "WebFetch" and ":" not in pattern:
        rule = f"WebFetch(domain:{pattern})"
    else:
        rule = f"{tool_in_rules}({pattern})"
    _import_rule(draft, source_key, rule, verb=verb)


def _import_opencode_permissions(draft: Draft, source_key: str, permissions: Any) -> None:
    """Import opencode's permissions: in version 2 a list of rules, in version 1 a table of effects by action.

    The effect of an action is allow, ask or deny, or a table of these by pattern.
    """
    rules: list[tuple[str, str, Any]] = []  # action, pattern, effect
    if isinstance(permissions, list):
        tables = [rule for rule in permissions if isinstance(rule, Mapping)]
        rules = [(str(rule.get("action")), str(rule.get("resource", "*")), rule.get("effect")) for rule in tables]
    for action, effect in permissions.items() if isinstance(permissions, Mapping) else ():
        effects = effect if isinstance(effect, Mapping) else {"*": effect}
        rules += [(action, str(pattern), one) for pattern, one in effects.items()]
    for action, pattern, effect in rules:
        if effect in get_args(Verb) and (effect, pattern) != ("ask", "*"):  # agentcli asks anyway
            # opencode's `edit` also creates files.
            for tool in ("edit", "write_file") if action == "edit" else (action,):
                _import_rule_for_tool(draft, source_key, tool, pattern=pattern, verb=effect)


_IMPORTERS: dict[str, Callable[..., None]] = {  # by their names in other_settings.toml
    "hooks": Draft.import_hooks,
    "servers": Draft.import_servers,
    "rule": _import_rule,
    "rule_by_prefix": _import_rule_by_prefix,
    "item": lambda draft, source_key, item, setting: draft.import_value(source_key, [item], *setting.split(".")),
    "folder": _import_folder,
    "host": _import_host,
    "status_line": _import_status_line,
    "variable": _leave_out_variable,
    "claude_model": _import_claude_model,
    "model": _import_model,
    "providers": _import_providers,
    "opencode_permissions": _import_opencode_permissions,
}


def import_table(draft: Draft, rows: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> None:
    """Import each value by its key's row (see the top of other_settings.toml); `prefix` (`a.b.`) precedes the keys."""
    for key, value in values.items():
        if value or not prefix:  # false and empty values in a group only repeat its defaults
            _import_with_row(draft, rows.get(key, rows.get(_OTHERS, NO_SETTING)), f"{prefix}{key}", value)


def _import_with_row(draft: Draft, row: Any, source_key: str, value: Any) -> None:
    """Import a value into the setting that `row` names, or note why not. Forms of rows: see other_settings.toml."""
    match row:
        case {"choice": str(), "values": dict(), "why": str()}:
            _import_choice(draft, source_key, value, row)
        case dict() if isinstance(value, Mapping):
            import_table(draft, row, value, f"{source_key}.")
        case [item_row] if isinstance(value, list):
            for item in value:
                _import_with_row(draft, item_row, source_key, item)
        case dict() | list():  # the value has another type than the row expects
            draft.leave_out(source_key, NO_SETTING)
        case tuple():  # the path of a setting, whose parts may contain dots
            draft.import_value(source_key, value, *row)
        case str() if row.startswith("="):  # the dotted key of a setting
            draft.import_value(source_key, value, *row[1:].split("."))
        case str() if row.startswith("@"):  # an importer and its options: "@rule verb=allow"
            name, *options = row[1:].split()
            _IMPORTERS[name](draft, source_key, value, **dict(option.split("=") for option in options))
        case str() if row:  # the reason why the value is left out; empty to leave it out without a note
            draft.leave_out(source_key, row)


def draft_personal_imports(config: Config, programs: tuple[str, ...]) -> Draft:
    """Return the person's settings to import, with a note on each instruction file, which is not imported."""
    draft, home = Draft(config.paths.user_config, is_project=False), files.home_of(config.environment)
    for name in programs:
        program = other_settings()[name]
        default_folder = home / str(program["home"]).removeprefix("~").lstrip("/")
        folder = Path(config.environment.get(program.get("variable", "")) or default_folder)
        for file in program["user"]:
            _import_file(draft, folder / file, name, program["rows"])
        for commands in program.get("commands", ()):
            _import_commands(draft, folder / commands, config.paths.config / "commands")
        instructions = folder / program.get("instructions", "")
        if name == "claude-code":  # sessions read its instruction file without an import
            _import_claude_state(draft, home / ".claude.json", root=None)
        elif files.is_file(instructions):
            draft.source = instructions
            draft.leave_out("", f"to use the same instructions, copy it to {config.paths.config / 'AGENTS.md'}")
    return draft


def draft_project_imports(config: Config, programs: tuple[str, ...]) -> list[Draft]:
    """Return the settings to import into the project's shared settings file, and those for its local one."""
    root = files.project_root(config.cwd)
    shared = Draft(root / PROJECT_FILES["project"], is_project=True)
    local = Draft(root / PROJECT_FILES["local"], is_project=True)
    for name in programs:
        program = other_settings()[name]
        for file in program.get("project", ()):
            _import_file(shared, root / file, name, program["rows"])
        for folder in program.get("project_commands", ()):
            _import_commands(shared, root / folder, root / ".agentcli/commands")
        if name == "claude-code":
            _import_file(local, root / ".claude/settings.local.json", name, program["rows"])
            _import_claude_state(local, files.home_of(config.environment) / ".claude.json", root=root)
    return [shared, local]


def _import_claude_state(draft: Draft, file: Path, *, root: Path | None) -> None:
    """Import from Claude Code's state file: the person's servers, or the servers and allowed tools of a project."""
    rows: dict[str, Any] = {"mcpServers": "@servers", _OTHERS: ""}
    if root is not None:
        project_rows = {**rows, "allowedTools": ["@rule verb=allow"]}
        rows = {"projects": {str(root): project_rows, _OTHERS: ""}, _OTHERS: ""}
    _import_file(draft, file, "claude-code", rows)


def _import_file(draft: Draft, file: Path, program: str, rows: Mapping[str, Any]) -> None:
    if files.is_file(file):
        draft.source = file
        import_table(draft, rows, _with_joined_keys(program, dict(_read_source(draft))))


def _with_joined_keys(program: str, values: dict[str, Any]) -> dict[str, Any]:
    """Join settings that a program spreads over several keys: above all the model, as `provider/model`."""
    match program, values:
        case "codex", _:
            profiles, active = values.get("profiles"), str(values.pop("profile", ""))
            if isinstance(profiles, dict) and isinstance(profiles.get(active), dict):
                values |= profiles[active]
            provider = values.pop("model_provider", "openai")
            if isinstance(model := values.get("model"), str):
                values["model"] = f"{provider}/{model}"
        case "goose", {"GOOSE_PROVIDER": provider, "GOOSE_MODEL": model}:
            values["model"] = f"{provider}/{model}"
            del values["GOOSE_PROVIDER"], values["GOOSE_MODEL"]
        case "opencode", {"mcp": {"servers": dict(servers)}}:
            values["mcp"] = servers
        case "gemini", {"model": str(model)}:
            values["model"] = {"name": model}
    # Keys that name models come after those that define the models' providers.
    return dict(sorted(values.items(), key=lambda item: "model" in item[0] and "provider" not in item[0]))


def _import_commands(draft: Draft, folder: Path, target: Path) -> None:
    """Import a folder of custom slash commands into `target`: Markdown as it is, and Gemini's TOML as Markdown."""
    for file in files.text_files(folder, (".md", ".toml")):
        draft.source, new_file = file, target / file.relative_to(folder).with_suffix(".md")
        try:
            text = files.read_small_file(file).decode("utf-8-sig")
            if file.suffix == ".toml":
                table = tomllib.loads(text)
                # Gemini's `@{file}` becomes `@file`, and its `!{command}` becomes !`command`.
                body = str(table["prompt"]).replace("{{args}}", "$ARGUMENTS")
                body = re.sub(r"!\{([^{}`\n]+)\}", r"!`\1`", re.sub(r"@\{([^{}\n]+)\}", r"@\1", body))
                quoted_description = msgspec.json.encode(str(table.get("description", ""))).decode()
                text = f"---\ndescription: {quoted_description}\n---\n{body}"
        except (OSError, ValueError, KeyError) as error:
            draft.leave_out("", f"could not read it ({error})")  # "": all of the file
            continue
        if has_secret(text):
            draft.leave_out("", HOLDS_KEY)
        elif new_file.exists():
            draft.leave_out("", f"{new_file} is there already")
        elif draft.commands.setdefault(new_file, text) != text:
            draft.leave_out("", f"an earlier file already becomes {new_file}")


def _read_source(draft: Draft) -> Mapping[str, Any]:
    """Return the settings in a draft's source file; empty, with a note, if the file cannot be read."""
    import yaml  # 10 ms

    try:
        text = files.read_small_file(draft.source, max_bytes=64 * files.MAX_SMALL_FILE_BYTES).decode("utf-8-sig")
        if draft.source.suffix == ".toml":
            return tomllib.loads(text)
        if draft.source.suffix in (".yml", ".yaml"):
            return msgspec.convert(yaml.safe_load(text) or {}, dict[str, Any])
        # Some programs allow comments and trailing commas in JSON.
        plain = _COMMENT.sub(lambda found: found[1] or "", text)
        return msgspec.json.decode(_LAST_COMMA.sub(lambda found: found[1] or found[2], plain), type=dict[str, Any])
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        draft.leave_out("", f"could not read it ({error})")  # "": all of the file
        return {}
