"""The commands that mean the same in every front end; a new one is a function and a line in a table."""

from __future__ import annotations

from agentcli.agent.commands.command import Command, Commands, Desk, Outcome
from agentcli.agent.commands.jobs import JOB_COMMANDS
from agentcli.agent.commands.model import MODEL_COMMANDS
from agentcli.agent.commands.permissions import PERMISSION_COMMANDS
from agentcli.agent.commands.project import PROJECT_COMMANDS
from agentcli.agent.commands.sessions import SESSION_COMMANDS
from agentcli.agent.commands.status import STATUS_COMMANDS


def conversation_commands() -> Commands:
    commands = Commands(
        (
            *MODEL_COMMANDS,
            *SESSION_COMMANDS,
            *PROJECT_COMMANDS,
            *PERMISSION_COMMANDS,
            *JOB_COMMANDS,
            *STATUS_COMMANDS,
            Command("quit", "leave; everything is stored", _quit, aliases=("exit", "q")),
        )
    )

    async def help(desk: Desk, argument: str) -> Outcome:
        if argument:
            found = commands.parse(f"/{argument.removeprefix('/')}")
            return _explained(found[0]) if found else _listed(commands)
        return _listed(commands)

    commands.add(Command("help", "show the commands", help, "[COMMAND]", ("?",)))
    return commands


def _listed(commands: Commands) -> str:
    rows = [(f"/{c.name} {c.argument}".strip(), c.help) for c in commands]
    width = max(len(name) for name, _ in rows if len(name) < 34)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows)


def _explained(command: Command) -> str:
    also = f"\nAlso {', '.join(f'/{alias}' for alias in command.aliases)}." if command.aliases else ""
    return f"/{command.name} {command.argument}".rstrip() + f"\n{command.help}{also}"


async def _quit(desk: Desk, argument: str) -> Outcome:
    desk.leave()
    return ""
