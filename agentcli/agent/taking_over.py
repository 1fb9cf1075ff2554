"""Lets a session be taken over by another program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agentcli.agent.events import Emit, Notice, TakenOver
from agentcli.agent.interfaces import SessionLog
from agentcli.agent.ops import Interrupt, Op

_LOOK_EVERY_S = 0.5


async def end_when_wanted(log: SessionLog, submit: Callable[[Op], None], publish: Emit) -> None:
    """Stop, and tell the front end to leave, once another program asks for the session."""
    while not log.is_wanted():
        await asyncio.sleep(_LOOK_EVERY_S)
    submit(Interrupt())
    publish(Notice("Another agentcli goes on with this conversation: this one ends."))
    publish(TakenOver())
