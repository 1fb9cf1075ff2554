"""Ends a run at a signal or when nothing happens any more, and names the jobs that end with it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentcli.agent.session import Session
    from agentcli.tools.command import BackgroundJob

_INTERRUPT_TIMEOUT_S = 10.0  # for an idle turn to react to its interruption
_MAX_COMMAND_CHARS = 60  # of a job's command, in the line about running jobs


@contextmanager
def interrupt_on_signals(
    interrupt: Callable[[], object], *, at_once: Callable[[int], None] = lambda number: os._exit(128 + number)
) -> Iterator[dict[str, int]]:
    """Call `interrupt` at the first signal, and `at_once` with the signal's number at the second."""
    received: dict[str, int] = {}  # `signal`: the number of the first signal, once there was one
    loop = asyncio.get_running_loop()
    numbers: list[int] = []

    def handle_first(number: int) -> None:  # called by the event loop
        if not received:
            received["signal"] = number
            interrupt()

    def leave_at_second(number: int, frame: object) -> None:  # called even while code holds up the event loop
        numbers.append(number)
        if len(numbers) > 1 and number != signal.SIGHUP:  # a closing terminal sends SIGHUP several times
            at_once(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] == signal.SIG_IGN:  # started by nohup: the program must outlive its terminal
        del before[signal.SIGHUP]
    for number in before:
        loop.add_signal_handler(number, handle_first, number)
        # The replaced handler is the event loop's, which does nothing: the loop receives signals through a pipe.
        signal.signal(number, leave_at_second)
    try:
        yield received
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)  # otherwise the loop would reset the handler when it closes
            signal.signal(number, handler)


def leave_on_signals(leave: Callable[[int], None]) -> None:
    """Call `leave` with the exit code at SIGTERM, and at SIGHUP, which a closing terminal sends."""
    loop = asyncio.get_running_loop()

    def handle(number: int) -> None:
        if number == signal.SIGHUP:  # a closing terminal sends it several times: ignore all but the first
            loop.remove_signal_handler(number)  # otherwise the loop would reset the handler when it closes
            signal.signal(number, signal.SIG_IGN)
        leave(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, handle, number)


async def end_when_idle(session: Callable[[], Session], limit_s: float, leave: Callable[[str], None]) -> None:
    """Interrupt a turn that has had no events for `limit_s` seconds, unless it is waiting for somebody.

    If the turn does not react, `leave` is called with the reason. `session` returns the open session, which may change.
    """
    from agentcli.agent.ops import Interrupt

    loop = asyncio.get_running_loop()
    checked_at = loop.time()  # of the last check, or of the start
    while True:
        watched = session()
        # Comparing times now and then costs less than waking up for every event.
        left_s = max(checked_at, watched.last_event_at) + limit_s - loop.time()
        if left_s > 0:
            await asyncio.sleep(left_s)
            continue
        checked_at = loop.time()
        awaits_somebody = watched.state.awaits_reset or watched.open_questions or watched.waiting_for_client
        if awaits_somebody or not watched.is_busy:
            continue
        why = f"The run was stopped because nothing happened for {limit_s:g} s (limits.idle_s)."
        watched.submit(Interrupt(why))
        try:
            async with asyncio.timeout(_INTERRUPT_TIMEOUT_S):
                await watched.idle()
        except TimeoutError:
            leave(why)


def ended_jobs_notice(session: Session) -> str:
    """Return a line for the person about the jobs that end with a session; empty if none is running."""
    jobs = session.snapshot().workspace.running_jobs()
    if not jobs:
        return ""
    subject = "A job was" if len(jobs) == 1 else f"{len(jobs)} jobs were"
    return f"{subject} still running and stopped with the session: {describe_jobs(jobs)}."


def describe_jobs(jobs: Sequence[BackgroundJob]) -> str:
    shown = ((job.id, " ".join(job.command.split())) for job in jobs)
    return ", ".join(
        f"{id} ({text if len(text) <= _MAX_COMMAND_CHARS else f'{text[:_MAX_COMMAND_CHARS]}…'})" for id, text in shown
    )
