"""Holds the short hint in the status line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prompt_toolkit.buffer import Buffer

from agentcli.frontends.printable import printable


class Hint:
    """One hint at a time. Without a condition it lasts until the input changes."""

    def __init__(self, buffer: Buffer, changed: Callable[[], None]) -> None:
        self._buffer = buffer
        self._changed = changed
        buffer.on_text_changed += self._drop_when_over
        self._text = ""
        self._until = 0.0
        self._holds: Callable[[], bool] = lambda: True

    @property
    def text(self) -> str:
        return self._text if time.monotonic() < self._until and self._holds() else ""

    def show(self, text: str, seconds: float = 4.0, *, holds: Callable[[], bool] | None = None) -> None:
        """Show a text for so many seconds at most, and only while it `holds`."""
        before = self._buffer.text
        self._text, self._until = printable(text), time.monotonic() + seconds
        self._holds = holds or (lambda: self._buffer.text == before)
        self._changed()
        asyncio.get_running_loop().call_later(seconds + 0.05, self._changed)

    def _drop_when_over(self, _: Buffer) -> None:
        """Forget a hint that no longer holds, so that the same input does not bring it back."""
        if not self._holds():
            self._text = ""
