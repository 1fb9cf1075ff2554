"""Asks the person whether a call may run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from agentcli.agent.events import ApprovalRequested, Approve
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.render import Renderer

QUESTION = "Allow? [y]es, [s]ession, [n]o, or say what to do instead: "


async def ask(request: ApprovalRequested, renderer: Renderer, read: Callable[[str], Awaitable[str]]) -> Approve:
    """Show what would be done and why it asks; anything but a clear yes is a no."""
    renderer.line(f"? {request.title} — {request.reason}", "yellow")
    if request.call.name in ("file_edit", "file_write"):
        renderer.diff(request.id, request.preview)
    else:
        renderer.block("\n".join(f"  $ {line}" for line in printable(request.preview).split("\n")))
    try:
        answer = (await read(QUESTION)).strip()
    except (EOFError, KeyboardInterrupt):
        answer = "n"
    match answer.lower():
        case "y" | "yes":
            return Approve(request.id, True)
        case "s" | "session":
            return Approve(request.id, True, "session")
        case "" | "n" | "no":
            return Approve(request.id, False)
        case _:
            return Approve(request.id, False, comment=answer)
