"""Keeps the prompts of one agent in order: each waits for the one before it, but not for a stream nobody reads on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from agentcli.errors import UsageError

PATIENCE_S = 1.0  # with a stream that nobody reads, while another prompt waits for it

_PROMPTED: ContextVar[frozenset[PromptOrder]] = ContextVar("_PROMPTED", default=frozenset())


class PromptOrder:
    """One prompt at a time; a second waits, but not for a stream nobody reads. `beginning`: one session is built."""

    def __init__(self) -> None:
        self.beginning = asyncio.Lock()
        self._lock = asyncio.Lock()
        self._reader: asyncio.Task[Any] | None = None
        self._unread_since: float | None = None

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Raises `UsageError` where the prompt before does not end: nobody reads it, or it waits for this one."""
        if self in _PROMPTED.get():
            raise UsageError("A tool of an agent cannot prompt that agent, which waits for it: use another Agent.")
        for _ in range(3):  # a loop over a stream that was just left closes it behind our back
            await asyncio.sleep(0)
        acquiring = asyncio.ensure_future(self._lock.acquire())
        try:
            while not acquiring.done():
                if self._is_abandoned():
                    raise UsageError(
                        "A stream of this agent is open and nobody reads it: read it to its end, or close it "
                        "(contextlib.aclosing), before the next prompt."
                    )
                await asyncio.wait((acquiring,), timeout=PATIENCE_S / 10)
        except BaseException:
            if not acquiring.cancel():
                self._lock.release()
            raise
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Let whatever is started meanwhile know that it belongs to a turn of this agent."""
        token = _PROMPTED.set(_PROMPTED.get() | {self})
        try:
            yield
        finally:
            _PROMPTED.reset(token)

    @contextmanager
    def unread(self) -> Iterator[None]:
        """While the reader of the open stream does something with an event."""
        self._reader, self._unread_since = asyncio.current_task(), time.monotonic()
        try:
            yield
        finally:
            self._unread_since = None

    def _is_abandoned(self) -> bool:
        """A task that prompts beside its own stream, or has ended, will not read on; another one gets some time."""
        if self._unread_since is None or self._reader is None:
            return False
        is_gone = self._reader is asyncio.current_task() or self._reader.done()
        return is_gone or time.monotonic() - self._unread_since > PATIENCE_S
