"""How things stand: the session, the settings, the installation."""

from __future__ import annotations

from agentcli.agent.commands.command import Command, CommandHost, Outcome
from agentcli.agent.context.sources import context_use
from agentcli.version import __version__


async def _status(host: CommandHost, argument: str) -> Outcome:
    session = host.session
    state, workspace = session.state, session.runtime.calls.workspace
    use = await context_use(session)
    effort = f", effort {state.effort or session.runtime.effort}" if state.effort or session.runtime.effort else ""
    rows = {
        "agentcli": __version__,
        "session": session.id,
        "model": f"{state.model}{effort}",
        "mode": state.mode,
        "folder": ", ".join(map(str, workspace.sandbox.roots)),
        "context": f"about {use.request:,} of {use.window:,} tokens ({use.request / use.window:.0%})",
    }
    return "\n".join(f"  {name:<9} {value}" for name, value in rows.items())


async def _config(host: CommandHost, argument: str) -> Outcome:
    return await host.describe("config")


async def _doctor(host: CommandHost, argument: str) -> Outcome:
    return await host.describe("doctor")


STATUS_COMMANDS = (
    Command("status", "show the model, the mode, the session and its folder", _status),
    Command("config", "show the settings that differ from the defaults", _config, aliases=("settings",)),
    Command("doctor", "check this installation", _doctor, is_aside=True),
)
