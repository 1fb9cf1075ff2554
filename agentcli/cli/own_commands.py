"""Adds the slash commands that people bring: Markdown files, skills and kinds of subagents."""

from __future__ import annotations

from collections.abc import Callable

from agentcli.agent.commands.command import Commands
from agentcli.app import Builder
from agentcli.extensions.commands.user_commands import add_user_commands
from agentcli.extensions.mcp.slash_commands import add_mcp_commands
from agentcli.extensions.skills.slash_commands import add_skill_commands
from agentcli.extensions.subagents.slash_commands import add_agent_commands
from agentcli.settings.load import Config


def add_own_commands(commands: Commands, config: Config, builder: Builder, tell: Callable[[str], None]) -> None:
    """Agentcli's own commands keep their names; `tell` hears of what cannot be used."""
    add_user_commands(commands, config.command_folders, tell)
    add_skill_commands(commands, builder.skills.catalog)
    add_mcp_commands(commands, builder.servers)
    if config.settings.agents.enabled:
        add_agent_commands(commands, builder.agents.definitions)
