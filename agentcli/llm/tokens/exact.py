"""Asks a server of the person's own how many tokens a text has; where it fails, the caller estimates."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from agentcli.errors import AgentcliError
from agentcli.llm.http import HttpClient

TIMEOUT_S = 3.0
REST_S = 30.0  # how long a server that failed is left alone: a conversation has hundreds of texts

log = logging.getLogger("agentcli")
_rests_until: dict[str, float] = {}


def exact_count(address: str, model: str, text: str) -> int | None:
    """What the server at `address` counts, asked with a POST of `{"model", "text"}`; None where it fails.

    Waits up to `TIMEOUT_S`, in a thread of its own, so that callers inside and outside of an event loop may call it.
    """
    if time.monotonic() < _rests_until.get(address, 0):
        return None
    body = {"model": model, "text": text.encode(errors="replace").decode()}
    answer: Future[int] = Future()

    def ask() -> None:
        try:
            answer.set_result(asyncio.run(_ask(address, body)))
        except (AgentcliError, OSError, ValueError, RuntimeError) as error:
            answer.set_exception(error)

    Thread(target=ask, daemon=True).start()
    try:
        return answer.result(TIMEOUT_S + 1)  # looking up a name can take longer, and cannot be ended
    except (AgentcliError, OSError, ValueError, RuntimeError) as error:  # a time-out is an OSError
        why = str(error) or f"no answer within {TIMEOUT_S:g} s"
        log.warning("The token counter at %s failed: counts are estimates. %s", urlsplit(address).hostname, why)
        _rests_until[address] = time.monotonic() + REST_S
        return None


async def _ask(address: str, body: dict[str, Any]) -> int:
    parts = urlsplit(address)
    client = HttpClient(f"{parts.scheme}://{parts.netloc}", {}, read_timeout=TIMEOUT_S)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await client.post_json(parts._replace(scheme="", netloc="", fragment="").geturl(), body)
    finally:
        await client.aclose()
    tokens = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 0:
        raise ValueError('Its answer is not {"tokens": NUMBER}.')
    return tokens
