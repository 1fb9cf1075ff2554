"""Sends a request, and again in another form where the provider refuses it, so that no session is stuck."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agentcli.agent.events import Notice
from agentcli.agent.turn_log import Turn
from agentcli.llm.errors import BadRequest, ContextOverflow, ProviderError
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Provider, Request
from agentcli.llm.tokens.estimates import estimate

MOST_TRIES = 8  # a conversation that holds everything has that many ways

log = logging.getLogger(__name__)
T = TypeVar("T")


async def with_repairs(
    turn: Turn, request: Request, provider: Provider, info: ModelInfo, send: Callable[[Request], Awaitable[T]]
) -> T:
    """What `send` gives for a request. A request that is refused for what it holds is sent in other forms.

    What the model then takes stays so for the session. Raises `ProviderError` for other refusals, and for one that
    stays in every form, which `turn.is_refused` then says.
    """
    model = f"{provider.name}/{provider.model}"
    # Other words show that a way helped: it is kept. Ways that stand alone are given up where the words stay the same.
    refused = forms = kept = turn.state.refused.get(model, frozenset())
    said, tried = "", set[str]()
    while True:
        try:
            sent = await send(_without(request, refused))
        except ProviderError as failure:
            error = _without_guess(failure, request, info)
            if str(error) != said:
                said, forms, kept = str(error), refused, refused
            found = _blocks().ways(_without(request, kept), error)
            way = next((way for way in found if way.how not in tried and not way.keys <= refused), None)
            if error.shown or way is None or len(tried) == MOST_TRIES:
                turn.is_refused = _blocks().blames_content(error) and not error.shown
                raise error from failure.__cause__
            log.warning("the provider refused a request (%s): it is sent again %s", error, way.how)
            turn.emit(Notice(f"The provider refused the request ({error}): trying again {way.how}."))
            tried.add(way.how)
            refused = (kept if way.stands_alone else forms) | way.keys
            forms = forms if way.stands_alone else refused
        else:
            turn.state.refused[model] = refused
            return sent


def _without(request: Request, refused: frozenset[str]) -> Request:
    left: Request = _blocks().without(request, refused) if refused else request
    return left


def _blocks() -> Any:
    from agentcli.llm import refused_blocks  # 3 ms that only a refusal needs

    return refused_blocks


def _without_guess(error: ProviderError, request: Request, info: ModelInfo) -> ProviderError:
    """The error; a request of at most half the window is not refused for its length, unless the server says so."""
    if not isinstance(error, ContextOverflow) or not error.is_guess or estimate(request, info).tokens * 2 > info.window:
        return error
    plain = BadRequest(str(error), status=error.status)
    plain.sent = error.sent
    return plain
