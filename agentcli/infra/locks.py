"""Locks by name: in this process first, then between processes by files."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import filelock

from agentcli.agent.interfaces import Locks
from agentcli.errors import ToolError
from agentcli.settings.files import make_private_folder

LOCK_FILES = 1_024  # names share these: a folder of locks that grew with every file would never be cleaned
_LOOK_EVERY_S = 0.01


class ProcessLocks:
    """Implements `Locks` within this process."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # those held or waited for

    @asynccontextmanager
    async def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AsyncIterator[None]:
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(timeout_s):
                    for key in keys:
                        await held.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            except TimeoutError as error:
                raise _busy(key, timeout_s) from error
            yield


class FileLocks:
    """Implements `Locks` between all processes that use one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inner = ProcessLocks()

    @asynccontextmanager
    async def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AsyncIterator[None]:
        deadline = time.monotonic() + timeout_s
        # By the file's number, in order: names that share a file wait for each other here, where waiting is fair.
        numbers = sorted({zlib.crc32(key.encode(errors="surrogateescape")) % LOCK_FILES for key in keys})
        async with self._inner.held(tuple(map(str, numbers)), timeout_s=timeout_s):
            with ExitStack() as taken:
                try:
                    for number in numbers:
                        make_private_folder(self._folder)
                        lock = filelock.FileLock(self._folder / f"{number}.lock", thread_local=False)
                        await _acquire(lock, deadline)
                        taken.callback(lock.release)
                except filelock.Timeout as error:
                    raise _busy(keys[0], timeout_s) from error
                except OSError as error:
                    raise ToolError(
                        f"{Path(keys[0]).name} could not be locked, so it was not changed: nothing can be written in "
                        f"{self._folder} ({error.strerror}). Ask the user to make that folder writable, or to set "
                        "AGENTCLI_HOME to one that is.",
                        kind="resource_error",
                    ) from error
                yield


async def _acquire(lock: filelock.BaseFileLock, deadline: float) -> None:
    """Raises `filelock.Timeout`, and `OSError`."""
    while True:
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_EVERY_S)
        else:
            return


def _busy(key: str, timeout_s: float) -> ToolError:
    return ToolError(
        f"{Path(key).name} is being changed by another call for more than {timeout_s:g} s: try again later.",
        kind="resource_error",
    )


if TYPE_CHECKING:
    _: tuple[type[Locks], ...] = (ProcessLocks, FileLocks)
