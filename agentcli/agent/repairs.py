"""Sends a request, and sends it again without what the provider refuses of it, so that no session is stuck."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from agentcli.agent.events import Notice
from agentcli.agent.turn_log import Turn
from agentcli.llm.errors import ProviderError
from agentcli.llm.provider import Request
from agentcli.llm.refused_blocks import blamed, without

log = logging.getLogger(__name__)
T = TypeVar("T")


async def with_repairs(turn: Turn, request: Request, send: Callable[[Request], Awaitable[T]]) -> T:
    """What `send` gives for a request. What it is refused for stays out of the session's later requests, too.

    That is the reasoning of earlier replies, then images and documents. Raises `ProviderError` for other refusals.
    """
    while True:
        messages = without(request.messages, turn.state.refused)
        try:
            return await send(replace(request, messages=messages))
        except ProviderError as error:
            name, blocks = blamed(messages, error)
            if error.shown or not blocks:
                raise
            log.warning("the provider refused a request (%s): it is sent again without %s", error, name)
            turn.emit(Notice(f"The provider refused the request ({error}): trying again without {name}."))
            turn.state.refused |= blocks
