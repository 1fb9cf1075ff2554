"""The commands that mean the same in every front end; a new one is a function and a line in the table."""

from __future__ import annotations

import time

from agentcli.agent.commands.command import Command, Commands, Desk
from agentcli.agent.events import SetModel
from agentcli.agent.interfaces import SessionInfo
from agentcli.errors import UsageError


def conversation_commands() -> Commands:
    commands = Commands(
        (
            Command("model", "show the model, or use another one from the next request on", _model, "[PROVIDER/MODEL]"),
            Command("clear", "start a new conversation; this one stays stored", _clear, aliases=("new", "reset")),
            Command("resume", "go on with a stored conversation", _resume, "[NUMBER|ID]", ("sessions", "continue")),
            Command("quit", "leave; everything is stored", _quit, aliases=("exit", "q")),
        )
    )

    async def help(desk: Desk, argument: str) -> str:
        rows = [(f"/{c.name} {c.argument}".strip(), c.help) for c in commands]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {text}" for name, text in rows)

    commands.add(Command("help", "show the commands", help, aliases=("?",)))
    return commands


async def _model(desk: Desk, name: str) -> str:
    state = desk.session.state
    if not name:
        return f"{state.model}. Another one: /model PROVIDER/MODEL; `agentcli models list` shows those that are known."
    said = desk.check_model(name)
    desk.session.submit(SetModel(name))
    return said


async def _clear(desk: Desk, argument: str) -> str:
    before = desk.session.id
    await desk.open_session(None)
    return f"A new conversation. The one before: /resume {before[:13]}"


async def _resume(desk: Desk, which: str) -> str:
    sessions = [info for info in await desk.sessions() if info.id != desk.session.id]
    if not which:
        if not sessions:
            return "There is no other conversation in this directory."
        return "\n".join(_row(n, info) for n, info in enumerate(sessions[:20], 1)) + "\nGo on with one: /resume NUMBER"
    if which.isdigit() and len(which) < 4:
        if not 1 <= int(which) <= len(sessions):
            raise UsageError(f"There is no conversation number {which}; /resume lists them.")
        which = sessions[int(which) - 1].id
    session = await desk.open_session(which)
    return f"Going on with {session.id} ({len(session.state.entries)} entries)."


def _row(number: int, info: SessionInfo) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
    return f"  {number:>2}  {when}  {info.name or info.title or '(no prompt)'}"


async def _quit(desk: Desk, argument: str) -> str:
    desk.leave()
    return ""
