"""Groups of processes: waiting for their leader, ending all of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

GRACE_AFTER_TERM_S = 2.0


async def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """The exit code, without a thread where the kernel tells (Linux 5.3), else by looking every 10 ms."""
    loop = asyncio.get_running_loop()
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        while process.poll() is None:
            await asyncio.sleep(0.01)
        return process.wait()
    exited = loop.create_future()
    loop.add_reader(descriptor, lambda: None if exited.done() else exited.set_result(None))
    try:
        await exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.wait()


def group_is_alive(group: int) -> bool:
    """Whether a process of the group runs. One that has ended and whose parent never asks (a container) does not."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        processes = [entry for entry in os.scandir("/proc") if entry.name.isdecimal()]
    except FileNotFoundError:  # macOS, where launchd asks
        return True
    return not processes or any(_runs_in(entry.path, group) for entry in processes)


def _runs_in(process: str, group: int) -> bool:
    try:
        state, _, its_group, *_ = Path(process, "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):  # ended meanwhile
        return False
    return int(its_group) == group and state not in "ZX"


async def end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the whole group, SIGKILL after two seconds to what is left."""
    group = process.pid
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_AFTER_TERM_S
    while (process.poll() is None or group_is_alive(group)) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    await asyncio.to_thread(process.wait)
