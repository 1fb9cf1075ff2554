"""Defines the flags of Claude Code that agentcli accepts, so that scripts written for it work unchanged.

Most are other names for agentcli's flags; the rest have no effect. `--help` names them in one paragraph.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.cli.output import warn
from agentcli.errors import UsageError, did_you_mean
from agentcli.settings.load import Config, SettingsLayer, check_layer, read_unchecked

if TYPE_CHECKING:
    from agentcli.extensions.subagents.definitions import AgentDefinition

HELP = """Its scripts work unchanged: --allowedTools and --disallowedTools RULES (as --allow, --deny), --agents JSON,
--agent NAME, --dangerously-skip-permissions (--permission-mode bypassPermissions),
--no-session-persistence (--no-session), --setting-sources user,project,local,
--resume-session-at ID. Its other flags are accepted, with a note that they change nothing."""
_WITH_VALUE = ("agents", "agent", "setting_sources", "permission_prompt_tool", "resume_session_at")
# The values if these flags are not given. Servers, which do not accept the flags, use them too.
DEFAULTS: dict[str, Any] = {**dict.fromkeys(_WITH_VALUE), "hosted_servers": ()}
NO_BUILTIN_TOOLS = ("none", "mcp__*")  # the value of `tools.only` that leaves only the tools of MCP servers
# A name with or without brackets. An unclosed bracket becomes a rule of its own, which is then reported as invalid.
_RULE = re.compile(r"[^\s,(]+(?:\((?:[^()]|\([^()]*\))*\))?|\(\S*")


class AddRules(argparse.Action):
    """Adds rules to the list of another flag. Commas and spaces outside brackets separate the rules."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *split_rules(" ".join(values))])


def split_rules(text: str) -> list[str]:
    """Return the rules of a text such as `Bash(git *), Edit Read(a, b)`."""
    return _RULE.findall(text)


_RULES, _SWITCH = {"action": AddRules, "nargs": "+", "default": []}, {"action": "store_true"}
_UNUSED: dict[str, Any] = {"default": argparse.SUPPRESS}  # the namespace has such a flag only if it was given
_UNUSED_SWITCHES = """
    --allow-dangerously-skip-permissions --await-initialize --brief --chrome --debug-to-stderr --disable-slash-commands
    --enable-auto-mode --exclude-dynamic-system-prompt-sections --ide --init --init-only --maintenance --mcp-debug
    --no-chrome --safe-mode --tmux
"""
_UNUSED_WITH_VALUE = """
    --betas --channels --debug-file --initialize-fields --max-thinking-tokens --permission-prompts
    --plugin-dir-no-mcp --plugin-url --project-config-root --resume-drops-turn --task-budget --teammate-mode --thinking
    --thinking-display
"""
UNUSED_FLAGS = ("--debug", *_UNUSED_SWITCHES.split(), *_UNUSED_WITH_VALUE.split())
# The names of each flag, and the options of its `add_argument`.
CLAUDE_CODE_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--allowedTools", "--allowed-tools"), {**_RULES, "dest": "allow"}),
    (("--disallowedTools", "--disallowed-tools"), {**_RULES, "dest": "deny"}),
    (
        ("--dangerously-skip-permissions",),
        {"action": "store_const", "const": "bypassPermissions", "dest": "permission_mode"},
    ),
    (("--no-session-persistence",), {**_SWITCH, "dest": "no_session"}),
    *(((f"--{name.replace('_', '-')}",), {}) for name in _WITH_VALUE),
    *(((flag,), _SWITCH) for flag in ("--include-hook-events", "--replay-user-messages", "--session-mirror")),
    (("-d", "--debug"), {**_UNUSED, "nargs": "?"}),
    *(((flag,), {**_UNUSED, **_SWITCH}) for flag in _UNUSED_SWITCHES.split()),
    *(((flag,), _UNUSED) for flag in _UNUSED_WITH_VALUE.split()),
)
# Keys that only Claude Code's settings have: a file with one of them is imported as Claude Code's.
_CLAUDE_CODE_KEYS = frozenset(
    """
    $schema apiKeyHelper enabledPlugins env includeCoAuthoredBy model outputStyle statusLine permissions.defaultMode
    permissions.additionalDirectories permissions.disableBypassPermissionsMode sandbox.enabled sandbox.filesystem
    sandbox.autoAllowBashIfSandboxed sandbox.excludedCommands sandbox.network
    """.split()
)


def unused_flag_notes(options: argparse.Namespace) -> Sequence[str]:
    """Return a note on the flags that were given (so argparse set them) but have no effect."""
    unused = [flag for flag in UNUSED_FLAGS if hasattr(options, flag.removeprefix("--").replace("-", "_"))]
    if options.permission_prompt_tool not in (None, "stdio"):  # an MCP tool, which agentcli does not ask for approval
        unused.append("--permission-prompt-tool")
    return [f"{', '.join(unused)}: accepted for Claude Code's scripts, changes nothing in agentcli."] if unused else []


def split_tools(text: str) -> list[str] | None:
    """Return the tools of `--tools` under agentcli's names; None for all tools. Raises `UsageError`.

    A list that uses Claude Code's names selects only built-in tools, so the tools of MCP servers stay.
    """
    if not text.strip():
        return [*NO_BUILTIN_TOOLS]
    from agentcli.agent.permissions.rules import ALIASES, FOREIGN_TOOLS

    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["default"]:  # Claude Code's word for all tools
        return None
    if not names:
        raise UsageError("--tools names no tools. Leave it out to offer all, or use --tools none.")
    if not any(name in ALIASES or name in FOREIGN_TOOLS for name in names):
        return names
    agentcli_names = dict.fromkeys(ALIASES.get(name, name) for name in names if name not in FOREIGN_TOOLS)
    return [*agentcli_names, "mcp__*"] if agentcli_names else [*NO_BUILTIN_TOOLS]


def setting_sources(text: str | None) -> frozenset[str] | None:
    """Return the sources that `--setting-sources` names; None for all. Raises `UsageError`."""
    if text is None:
        return None
    sources = frozenset(name.strip() for name in text.split(",") if name.strip())
    if unknown := sources - {"user", "project", "local"}:
        raise UsageError(f"--setting-sources takes user, project and local, not {min(unknown)!r}.")
    return sources


def json_argument(flag: str, text: str) -> dict[str, Any] | None:
    """Parse a flag's value as a JSON object; return None if the value is a file name. Raises `UsageError`."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{flag} is not valid JSON ({error}).") from error


def servers_and_files(values: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the files among the values of `--mcp-config`, and the servers in its JSON. Raises `UsageError`."""
    files: list[str] = []
    servers: dict[str, Any] = {}
    for value in values:
        if (table := json_argument("--mcp-config", value)) is None:
            files.append(value)
        elif isinstance(added := table.get("mcpServers", {}), dict):
            servers |= added
        else:
            raise UsageError('"mcpServers" in --mcp-config must be an object of servers by name.')
    return tuple(files), servers


def agent_definitions(text: str | None) -> dict[str, "AgentDefinition"]:
    """Parse `--agents`, which has Claude Code's format; return the subagents by name. Raises `UsageError`."""
    if text is None:
        return {}
    from agentcli.extensions.subagents.definitions import definition_from

    agents = json_argument("--agents", text)
    if agents is None:
        raise UsageError('--agents takes JSON, such as {"tester": {"description": "…", "prompt": "…"}}.')
    definitions = {}
    for name, fields in agents.items():
        try:
            definitions[name] = definition_from(fields | {"name": name}, "flag")
        except (AttributeError, TypeError, msgspec.ValidationError) as error:
            raise UsageError(f"--agents: {name}: {error}.") from error
    return definitions


def apply_agent(options: argparse.Namespace, config: Config) -> Config:
    """Reload the settings with the prompt, tools and model of `--agent`; flags for these win. Raises `UsageError`."""
    if options.agent is None:
        return config
    from agentcli.cli.options import config_for
    from agentcli.extensions.programs import Plugins
    from agentcli.extensions.subagents.definitions import Agents

    plugins = Plugins(config=config, is_bare=options.bare, on_notice=warn, folders=options.plugin_dir)
    agents = Agents(plugins=plugins, added=agent_definitions(options.agents))
    if (definition := agents.find(options.agent)) is None:
        names = agents.definitions
        hint = f"{did_you_mean(options.agent, names)}. Known agents: {', '.join(names)}"
        raise UsageError(f"Unknown agent {options.agent!r}{hint}.")
    if not options.system_prompt and not options.system_prompt_file:
        options.system_prompt = definition.prompt
    if not options.model and definition.model not in ("", "inherit"):  # both mean the configured model
        options.model = definition.model
    if options.tools is None and definition.tools is not None:
        options.tools = ",".join(definition.tools)
    return config_for(options, config.cwd)


def settings_layer(settings: str) -> tuple[SettingsLayer, list[str]]:
    """Return the layer of `--settings`, converted if it is Claude Code's, and notes on settings that agentcli lacks.

    Raises `UserError`.
    """
    table = json_argument("--settings", settings)
    layer = read_unchecked(Path(settings).absolute()) if table is None else SettingsLayer("--settings", table)
    if layer.text or not _has_claude_code_keys(layer.values):  # only TOML has a `text`; Claude Code's settings are JSON
        check_layer(layer)
        return layer, []
    from agentcli.cli.import_draft import Draft, other_settings
    from agentcli.cli.importing import import_table

    draft = Draft(Path(layer.source), is_project=False)
    draft.source = draft.target  # the notes name the file that was read; nothing is written
    import_table(draft, other_settings()["claude-code"]["rows"], layer.values)
    return SettingsLayer(layer.source, draft.values), draft.left_out


def _has_claude_code_keys(values: Any) -> bool:
    if not isinstance(values, dict):
        return False
    dotted_keys = (f"{name}.{key}" for name, group in values.items() if isinstance(group, dict) for key in group)
    return not _CLAUDE_CODE_KEYS.isdisjoint((*values, *dotted_keys))
