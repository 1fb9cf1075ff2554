"""Runs the person's own shell commands (`!command`) with the terminal lent to them."""

from __future__ import annotations

from functools import partial

from agentcli.agent.events import CommandRan
from agentcli.agent.session import Session
from agentcli.errors import ToolError
from agentcli.frontends.terminal.console import Console
from agentcli.frontends.terminal.output.tool_views import Folded
from agentcli.frontends.terminal.output.turn_view import TurnView
from agentcli.frontends.terminal.programs.own_terminal import lend_terminal
from agentcli.frontends.terminal.unfolding import UNFOLD_LINES


async def run_own(command: str, session: Session, console: Console, view: TurnView, *, to_model: bool) -> None:
    """Run a command to its end, then tell the session what it said."""
    said = ""
    try:
        async with console.hand_over():
            said, ended = await lend_terminal(partial(session.run_in_terminal, command))
    except ToolError as error:
        ended = f"[{error}]"
    if ended is None:
        ended = "[ended by the user; it may have had effects]"
    if ended:
        view.line(ended, "warning")
    if said.count("\n") > UNFOLD_LINES:
        view.folded.append(Folded(f"!{command}", said))
    view.gap()
    whole = "\n".join(part for part in (said.rstrip(), ended) if part)
    session.submit(CommandRan(command, whole, to_model))
