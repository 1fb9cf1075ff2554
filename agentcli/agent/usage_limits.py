"""Waits for a usage limit to reset, where the settings allow it: once a turn, and also after a restart."""

from __future__ import annotations

import asyncio
import time

from agentcli.agent.events import Retry
from agentcli.agent.turn_log import Turn, add, settled
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, ResetAwaited, Result, User
from agentcli.llm.errors import ProviderError, RateLimit
from agentcli.llm.retry import LONGEST_WAIT_S, clock_time

COUNTDOWN_S = 60.0  # seconds between two events that tell how long it still takes


def has_distant_reset(error: Exception) -> bool:
    """True for a limit that names its end, too far away for a usual retry."""
    return isinstance(error, RateLimit) and (error.retry_after or 0.0) > LONGEST_WAIT_S


async def wait_for_reset(turn: Turn, error: ProviderError) -> bool:
    """Wait until the limit that `error` names resets; False where the turn is to end instead."""
    if not turn.runtime.limits.waits_for_reset or turn.has_waited or not has_distant_reset(error):
        return False
    await wait_until(turn, time.time() + (error.retry_after or 0.0))
    return True


async def wait_until(turn: Turn, resets_at: float) -> None:
    """Count down to a time. A later start of the program finds in the log that this is under way."""
    turn.has_waited, turn.state.awaits_reset = True, True
    try:
        add(turn, ResetAwaited(resets_at))
        await settled(turn)
        while (left := resets_at - time.time()) > 0:  # by the wall clock: the machine may sleep meanwhile
            turn.emit(Retry(1, left, f"The usage limit resets at {clock_time(resets_at)}."))
            await asyncio.sleep(min(left, COUNTDOWN_S))
        add(turn, ResetAwaited(0.0))
        await settled(turn)
    finally:
        turn.state.awaits_reset = False


def awaited_reset(conversation: Conversation) -> float:
    """The time that the end of a conversation waits for; 0 if it waits for none."""
    for entry in reversed(conversation.path):
        match entry.body:
            case ResetAwaited(until):
                return until
            case Assistant() | Result() | User(is_reminder=False):
                return 0.0
            case _:
                pass
    return 0.0
