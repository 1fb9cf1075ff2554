"""Sends a request, and again in another form where the provider refuses it, so that no session is stuck."""

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
    """What `send` gives for a request. A request that is refused for its form is sent in another one.

    What the provider then takes stays so for the session. Raises `ProviderError` for other refusals.
    """
    refused = turn.state.refused
    while True:
        messages = without(request.messages, refused)
        try:
            sent = await send(replace(request, messages=messages))
        except ProviderError as error:
            how, blocks = blamed(messages, error)
            if error.shown or not blocks:
                raise
            log.warning("the provider refused a request (%s): it is sent again %s", error, how)
            turn.emit(Notice(f"The provider refused the request ({error}): trying again {how}."))
            refused |= blocks
        else:
            turn.state.refused = refused
            return sent
