"""Calls that came before: one that is made again by mistake is answered, not run twice."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import msgspec
from cachetools import TTLCache

from agentcli.llm.messages import ToolUse
from agentcli.tools.tool import ToolOutput

KEPT_S = 3_600
MOST_KEPT = 10_000


class Replays:
    """The results of idempotent calls, by the reply they stand in, their id and their arguments.

    The reply belongs to the key: some servers number the calls of every reply from the beginning.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._results: TTLCache[bytes, ToolOutput] = TTLCache(MOST_KEPT, KEPT_S, timer=clock)

    def get(self, reply_id: str, call: ToolUse) -> ToolOutput | None:
        return self._results.get(_key(reply_id, call))

    def store(self, reply_id: str, call: ToolUse, output: ToolOutput) -> None:
        self._results[_key(reply_id, call)] = output


def _key(reply_id: str, call: ToolUse) -> bytes:
    text = msgspec.json.encode((reply_id, call.id, call.name, call.input), order="deterministic")
    return hashlib.sha256(text).digest()
