"""Ends a run in which nothing happens any more, so that a script never waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from agentcli.agent.ops import Interrupt
from agentcli.agent.session import Session

LAST_PATIENCE_S = 10.0  # with a turn that does not even heed its interruption


async def end_when_idle(session: Callable[[], Session], limit_s: float, leave: Callable[[str], None]) -> None:
    """Fail the turn of a session that tells of no event for so long; where even that ends nothing, `leave`.

    The time in which a person or a client is waited for does not count.
    """
    while True:
        watched = session()
        if not await _is_silent(watched, limit_s) or watched is not session() or not _is_stuck(watched):
            continue
        why = f"Nothing has happened for {limit_s:g} s: the run was ended (limits.idle_s)."
        watched.submit(Interrupt(why))
        try:
            async with asyncio.timeout(LAST_PATIENCE_S):
                await watched.idle()
        except TimeoutError:
            leave(why)


async def _is_silent(session: Session, limit_s: float) -> bool:
    """True once there was no event for so long; False at the first one."""
    async with aclosing(session.subscribe()) as events:
        try:
            async with asyncio.timeout(limit_s):
                await anext(events)
        except TimeoutError:
            return True
    return False


def _is_stuck(session: Session) -> bool:
    return session.is_busy and not session.state.awaits_reset and not session.asked and not session.waiting_for_client
