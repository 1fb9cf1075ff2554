"""Signals end a turn in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable


def interrupt_on_signals(interrupt: Callable[[], None]) -> dict[str, int]:
    """Let SIGINT, SIGTERM and SIGHUP end the turn in order; the dictionary tells afterwards which one came."""
    received: dict[str, int] = {}
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if number == signal.SIGHUP:
            ignore_hangups()
        if not received:
            received["signal"] = number
            interrupt()
        elif number != signal.SIGHUP:
            os._exit(128 + number)  # leave at once: everything said is stored

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            loop.add_signal_handler(number, handle, number)
    return received


def ignore_hangups() -> None:
    """From the first one on, until the process has ended: a terminal that closes sends several, nobody is impatient."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)  # or the loop resets it when it closes
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
