"""Defines the flags of Claude Code that agentcli accepts, so that scripts written for it work unchanged.

They are other names for flags of agentcli, or have no meaning here. `--help` names them in one paragraph.
"""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.cli.output import warn
from agentcli.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from agentcli.extensions.subagents.definitions import AgentDefinition
    from agentcli.settings.load import Config, SettingsLayer

HELP = """Its scripts work unchanged: --allowedTools and --disallowedTools RULES (as --allow, --deny), --agents JSON,
--agent NAME, --dangerously-skip-permissions (--permission-mode bypassPermissions),
--no-session-persistence (--no-session), --setting-sources user,project,local,
--resume-session-at ID. Its other flags are accepted, with a note that they change nothing."""
NO_BUILTIN_TOOLS = ("none", "mcp__*")  # the value of `tools.only` that leaves only the tools of MCP servers


class AddRules(argparse.Action):
    """Adds rules to the list of another flag; commas and spaces outside of brackets separate them."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        rules = [rule for text in values for rule in split_rules(text)]
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), *rules])


class NoteUnused(argparse.Action):
    """Notes a flag that has no meaning in agentcli."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        namespace.unused = (*namespace.unused, option)


_RULES = {"action": AddRules, "nargs": "+", "default": []}
_SWITCH = {"action": "store_true"}
_UNUSED_SWITCHES = """
    --allow-dangerously-skip-permissions --await-initialize --brief --chrome --debug-to-stderr --disable-slash-commands
    --enable-auto-mode --exclude-dynamic-system-prompt-sections --ide --init --init-only --maintenance --mcp-debug
    --no-chrome --safe-mode --tmux
"""
_UNUSED_WITH_VALUE = """
    --betas --channels --debug-file --initialize-fields --max-thinking-tokens --permission-prompts --plugin-dir
    --plugin-dir-no-mcp --plugin-url --project-config-root --resume-drops-turn --task-budget --teammate-mode --thinking
    --thinking-display
"""
# Keys of Claude Code's settings that agentcli's own do not have, at the top and in the tables of both.
_TOP_KEYS = frozenset(
    "$schema apiKeyHelper enabledPlugins env includeCoAuthoredBy model outputStyle statusLine".split()
)
_INNER_KEYS = (
    ("permissions", frozenset(("defaultMode", "additionalDirectories", "disableBypassPermissionsMode"))),
    ("sandbox", frozenset("enabled autoAllowBashIfSandboxed excludedCommands filesystem network".split())),
)
# The names of each flag, and what argparse needs for it.
FIELD_FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("--allowedTools", "--allowed-tools"), {**_RULES, "dest": "allow"}),
    (("--disallowedTools", "--disallowed-tools"), {**_RULES, "dest": "deny"}),
    (
        ("--dangerously-skip-permissions",),
        {"action": "store_const", "const": "bypassPermissions", "dest": "permission_mode"},
    ),
    (("--no-session-persistence",), {**_SWITCH, "dest": "no_session"}),
    (("--agents",), {}),
    (("--agent",), {}),
    (("--setting-sources",), {}),
    (("--permission-prompt-tool",), {}),
    (("--resume-session-at",), {}),
    *(((flag,), _SWITCH) for flag in ("--include-hook-events", "--replay-user-messages", "--session-mirror")),
    (("-d", "--debug"), {"action": NoteUnused, "nargs": "?"}),
    *(((flag,), {"action": NoteUnused, "nargs": 0}) for flag in _UNUSED_SWITCHES.split()),
    *(((flag,), {"action": NoteUnused}) for flag in _UNUSED_WITH_VALUE.split()),
)
# The values where these flags are missing, also for servers, which do not take them.
DEFAULTS: dict[str, Any] = {
    "unused": (), "agents": None, "agent": None, "setting_sources": None, "resume_session_at": None,
    "permission_prompt_tool": None,
}  # fmt: skip


def add_field_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a parser, whose help shows them only as one paragraph."""
    group = parser.add_argument_group("flags of Claude Code", HELP)
    for names, options in FIELD_FLAGS:
        group.add_argument(*names, help=argparse.SUPPRESS, **options)


def split_rules(text: str) -> list[str]:
    """Return the rules of a text such as `Bash(git *), Edit Read(a, b)`."""
    rules, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")" and depth > 0)
        if depth == 0 and (character.isspace() or character == ","):
            rules.append("")
        else:
            rules[-1] += character
    return [rule for rule in rules if rule]


def split_tools(text: str) -> list[str] | None:
    """Return the names of `--tools` as agentcli has them; None for all tools. Raises `UsageError`.

    A list in Claude Code's words is about built-in tools alone, so those of MCP servers stay.
    """
    if not text.strip():
        return [*NO_BUILTIN_TOOLS]
    from agentcli.agent.permissions.rules import ALIASES, FOREIGN_TOOLS

    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["default"]:
        return None
    if not names:
        raise UsageError("--tools names no tools. Leave it out to offer all, or use --tools none.")
    if not any(name in ALIASES or name in FOREIGN_TOOLS for name in names):
        return names
    known = dict.fromkeys(ALIASES.get(name, name) for name in names if name not in FOREIGN_TOOLS)
    return [*known, "mcp__*"] if known else [*NO_BUILTIN_TOOLS]


def setting_sources(text: str | None) -> frozenset[str] | None:
    """Return the sources that `--setting-sources` names; None for all. Raises `UsageError`."""
    if text is None:
        return None
    sources = frozenset(name.strip() for name in text.split(",") if name.strip())
    if unknown := sources - {"user", "project", "local"}:
        raise UsageError(f"--setting-sources takes user, project and local, not {min(unknown)!r}.")
    return sources


def json_argument(flag: str, text: str) -> dict[str, Any] | None:
    """Return the object that is the value of a flag; None if the value is the name of a file. Raises `UsageError`."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UsageError(f"{flag} is not valid JSON ({error}).") from error


def servers_and_files(values: Sequence[str]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the files that `--mcp-config` names, and the servers of its JSON. Raises `UsageError`."""
    read = [(value, json_argument("--mcp-config", value)) for value in values]
    tables = [table.get("mcpServers", {}) for _, table in read if table is not None]
    if any(not isinstance(table, dict) for table in tables):
        raise UsageError('"mcpServers" in --mcp-config must be an object of servers by name.')
    return tuple(value for value, table in read if table is None), {key: one[key] for one in tables for key in one}


def agent_definitions(text: str | None) -> dict[str, "AgentDefinition"]:
    """Return the subagents of `--agents`, in the form of Claude Code, by name. Raises `UsageError`."""
    if text is None:
        return {}
    from agentcli.extensions.subagents.definitions import AgentDefinition, tool_names

    agents = json_argument("--agents", text)
    if agents is None:
        raise UsageError('--agents takes JSON, such as {"tester": {"description": "…", "prompt": "…"}}.')
    definitions = {}
    for name, fields in agents.items():
        match fields:
            case {"description": str(description), "prompt": str(prompt)} if prompt.strip():
                definitions[name] = AgentDefinition(
                    name=name,
                    description=description,
                    prompt=prompt,
                    file="--agents",
                    source="flag",
                    tools=tool_names(fields.get("tools")),
                    model=str(fields.get("model") or ""),
                )
            case _:
                raise UsageError(f'--agents: {name} needs a "description" and a "prompt".')
    return definitions


def use_agent(options: argparse.Namespace, config: "Config") -> None:
    """Set the prompt, the tools and the model of `--agent` where no other flag does. Raises `UsageError`."""
    from agentcli.extensions.subagents.definitions import Agents

    added = agent_definitions(options.agents)
    agents = Agents(config=config, is_bare=options.bare, on_notice=warn, added=added).definitions
    if (definition := agents.get(options.agent)) is None:
        known = ", ".join(agents)
        raise UsageError(
            f"Unknown agent {options.agent!r}{did_you_mean(options.agent, agents)}. Known agents: {known}."
        )
    if not options.system_prompt and not options.system_prompt_file:
        options.system_prompt = definition.prompt
    options.model = options.model or (None if definition.model == "inherit" else definition.model or None)
    if options.tools is None and definition.tools is not None:
        options.tools = ",".join(definition.tools)
    options.agent = None


def settings_layer(values: dict[str, Any], source: str) -> tuple["SettingsLayer", list[str]]:
    """Return settings in agentcli's form or in that of Claude Code as a layer, and a note on each that is left out.

    Raises `ConfigError` for wrong values in agentcli's own form.
    """
    from agentcli.settings.load import SettingsLayer, check_layer

    if not _is_of_claude_code(values):
        layer = SettingsLayer(source, values)
        check_layer(layer)
        return layer, []
    from pathlib import Path

    from agentcli.cli.importing import CLAUDE_CODE, Draft, take_table

    draft = Draft(Path(source), is_project=False)
    draft.source = Path(source)
    take_table(draft, CLAUDE_CODE, values)
    return SettingsLayer(source, draft.values), draft.left_out


def _is_of_claude_code(values: Mapping[str, Any]) -> bool:
    """Return True if one of the keys is Claude Code's and none of agentcli's."""
    return any(isinstance(values.get(name), Mapping) and keys & values[name].keys() for name, keys in _INNER_KEYS) or (
        not _TOP_KEYS.isdisjoint(values)
    )


def notes(options: argparse.Namespace) -> Sequence[str]:
    """Return a note on the flags that were given and change nothing."""
    unused = list(dict.fromkeys(options.unused))
    return [f"{', '.join(unused)}: accepted for Claude Code's scripts, changes nothing in agentcli."] if unused else []
