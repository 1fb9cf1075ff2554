"""Streams the output of running calls; each update replaces the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentcli.frontends.acp.tool_calls import fenced, text_content, updated

STEP_S = 0.25
MOST_SHOWN = 8_000  # characters of output that is still coming: its end


class LiveOutput:
    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._heard: dict[str, str] = {}
        self._due: dict[str, asyncio.TimerHandle] = {}

    def heard(self, id: str, text: str) -> None:
        self._heard[id] = (self._heard.get(id, "") + text)[-MOST_SHOWN:]
        if id not in self._due:
            self._due[id] = asyncio.get_running_loop().call_later(STEP_S, self._tell, id)

    def ended(self, id: str) -> None:
        """The call's result stands in place of what was heard."""
        self._heard.pop(id, None)
        if timer := self._due.pop(id, None):
            timer.cancel()

    def close(self) -> None:
        for id in list(self._heard):
            self.ended(id)

    def _tell(self, id: str) -> None:
        del self._due[id]
        self._send(updated(id, content=[text_content(fenced(self._heard[id]))]))
