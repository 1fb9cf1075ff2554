"""Signals end a turn in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def leave_at_once(number: int) -> None:
    """Everything said is stored."""
    os._exit(128 + number)


@contextmanager
def interrupt_on_signals(
    interrupt: Callable[[], None], *, at_once: Callable[[int], None] = leave_at_once
) -> Iterator[dict[str, int]]:
    """Let SIGINT, SIGTERM and SIGHUP end the turn in order; the dictionary tells afterwards which one came.

    A second one is for somebody impatient: `at_once` is called, also where the loop is held up by a write that
    nobody reads. At the end signals mean again what they did before.
    """
    received: dict[str, int] = {}
    loop = asyncio.get_running_loop()

    def first(number: int) -> None:
        if not received:
            received["signal"] = number
            interrupt()

    came: list[int] = []

    def count(number: int, frame: object) -> None:
        came.append(number)
        if len(came) > 1 and number != signal.SIGHUP:  # a terminal that closes sends several of those
            at_once(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # as nohup leaves it
        del before[signal.SIGHUP]
    for number in before:
        loop.add_signal_handler(number, first, number)
        signal.signal(number, count)  # in place of the loop's own, which does nothing: its pipe brings the signal
    try:
        yield received
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)  # or the loop resets it when it closes
            signal.signal(number, handler)


def ignore_hangups() -> None:
    """From the first one on, until the process has ended: a terminal that closes sends several, nobody is impatient."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)  # or the loop resets it when it closes
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
