"""Locks by name for all calls of all processes that use one folder."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

import filelock

from agentcli.errors import ToolError
from agentcli.settings.files import make_private_folder

LOCK_FILES = 1_024  # names share these files, because nobody could ever remove a file for each name
_POLL_S = 0.01


class FileLocks:
    """Implements `Locks`: first within this process, where waiting is fair, then between processes by files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._in_process: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()  # locks that are in use

    @asynccontextmanager
    async def held(self, keys: tuple[str, ...], *, timeout_s: float) -> AsyncIterator[None]:
        # All callers lock in the order of the numbers, so that no two wait for each other.
        numbers = sorted({zlib.crc32(key.encode(errors="surrogateescape")) % LOCK_FILES for key in keys})
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(timeout_s):
                    for number in numbers:
                        await held.enter_async_context(self._in_process.setdefault(number, asyncio.Lock()))
                    for number in numbers:
                        held.callback((await self._acquire(number)).release)
            except TimeoutError as error:
                raise ToolError(
                    f"{Path(keys[0]).name} is being changed by another call for more than {timeout_s:g} s: try again "
                    "later.",
                    kind="resource_error",
                ) from error
            except OSError as error:
                raise ToolError(
                    f"{Path(keys[0]).name} could not be locked, so it was not changed: nothing can be written in "
                    f"{self._folder} ({error.strerror}). Ask the user to make that folder writable, or to set "
                    "AGENTCLI_HOME to one that is.",
                    kind="resource_error",
                ) from error
            yield

    async def _acquire(self, number: int) -> filelock.BaseFileLock:
        make_private_folder(self._folder)
        lock = filelock.FileLock(self._folder / f"{number}.lock", thread_local=False)
        while True:
            try:
                lock.acquire(timeout=0)
                return lock
            except filelock.Timeout:
                await asyncio.sleep(_POLL_S)
