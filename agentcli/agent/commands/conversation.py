"""The commands that mean the same in every front end; a new one is a function and a line in a table."""

from __future__ import annotations

from dataclasses import replace

from agentcli.agent.commands.command import Command, CommandHost, Commands, Outcome
from agentcli.agent.commands.compaction import COMPACTION_COMMANDS
from agentcli.agent.commands.jobs import JOB_COMMANDS
from agentcli.agent.commands.memory import MEMORY_COMMANDS
from agentcli.agent.commands.model import MODEL_COMMANDS
from agentcli.agent.commands.permissions import PERMISSION_COMMANDS
from agentcli.agent.commands.project import PROJECT_COMMANDS
from agentcli.agent.commands.sessions import SESSION_COMMANDS
from agentcli.agent.commands.status import STATUS_COMMANDS
from agentcli.agent.commands.undo import UNDO_COMMANDS
from agentcli.agent.commands.usage import USAGE_COMMANDS

PROGRAM = "Program"
LONGEST_NAME = 12  # characters


def conversation_commands() -> Commands:
    groups = {
        "Model": (*MODEL_COMMANDS, *USAGE_COMMANDS),
        "Conversation": (*SESSION_COMMANDS, *UNDO_COMMANDS, *COMPACTION_COMMANDS),
        "Project": (*PROJECT_COMMANDS, *MEMORY_COMMANDS),
        "Permissions": PERMISSION_COMMANDS,
        "Jobs": JOB_COMMANDS,
        PROGRAM: (*STATUS_COMMANDS, Command("quit", "leave; everything is stored", _quit, aliases=("exit", "q"))),
    }
    commands = Commands(replace(command, group=group) for group, table in groups.items() for command in table)

    async def help(host: CommandHost, argument: str) -> Outcome:
        if argument:
            found = commands.parse(f"/{argument.removeprefix('/')}")
            return _explained(found[0]) if found else _listed(commands)
        return _listed(commands)

    commands.add(Command("help", "show the commands, or one of them", help, "[COMMAND]", ("?",), group=PROGRAM))
    return commands


def _listed(commands: Commands) -> str:
    """Columns of names, arguments and help, under headings; somebody's own long name or hint widens no column."""
    names = max(len(c.name) for c in commands if len(c.name) <= LONGEST_NAME) + 1
    arguments = max(len(c.argument) for c in commands if len(c.argument) <= LONGEST_NAME)
    lines = []
    for group in dict.fromkeys(command.group for command in commands):
        lines.append(group)
        lines += [
            f"  {f'/{c.name}':<{names}}  {c.argument:<{arguments}}  {c.help}" for c in commands if c.group == group
        ]
    return "\n".join(lines)


def _explained(command: Command) -> str:
    forms = command.forms or (command.argument,)
    also = f"\nAlso {', '.join(f'/{alias}' for alias in command.aliases)}." if command.aliases else ""
    return "\n".join([*(f"/{command.name} {form}".rstrip() for form in forms), f"{command.help}{also}"])


async def _quit(host: CommandHost, argument: str) -> Outcome:
    host.leave()
    return ""
