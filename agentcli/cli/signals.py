"""Signals end a turn in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


def interrupt_on_signals(interrupt: Callable[[], None]) -> dict[str, int]:
    """Let SIGINT and SIGTERM end the turn in order; the dictionary tells afterwards which one came."""
    received: dict[str, int] = {}
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if received:  # a second one: leave at once, everything said is stored
            os._exit(128 + number)
        received["signal"] = number
        interrupt()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, handle, number)
    return received
