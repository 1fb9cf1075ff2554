"""Stores of event streams: in memory, in SQLite, in Redis. This is what they have in common: readers that wait."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentcli.agent.interfaces import StreamEvent

KEEP_S = 30 * 86_400.0  # a lasting stream that is not running goes so long after it was last written to


class WaitingReaders(ABC):
    """Implements `read` and `has` of `EventStore`."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}  # by stream
        self._removed: set[str] = set()  # streams that were removed while somebody waited

    @abstractmethod
    async def _find(self, stream_id: str, after: int, count: int) -> Sequence[StreamEvent]: ...

    @abstractmethod
    def _follow_others(self) -> None:
        """See to it that readers are woken for what other processes write."""

    def _wake(self, stream_id: str, *, is_removed: bool = False) -> None:
        waiting = self._waiting.get(stream_id, ())
        if waiting and is_removed:
            self._removed.add(stream_id)
        for arrived in waiting:
            arrived.set()

    async def read(
        self, stream_id: str, after: int = 0, count: int = 100, *, wait_s: float = 0.0
    ) -> Sequence[StreamEvent]:
        if wait_s <= 0:
            return await self._find(stream_id, after, count)
        self._follow_others()
        arrived = asyncio.Event()
        waiting = self._waiting.setdefault(stream_id, set())
        waiting.add(arrived)  # before the first look: nothing is missed
        try:
            async with asyncio.timeout(wait_s):
                while not (found := await self._find(stream_id, after, count)) and stream_id not in self._removed:
                    await arrived.wait()
                    arrived.clear()
                return found
        except TimeoutError:
            return ()
        finally:
            waiting.discard(arrived)
            if not waiting:
                del self._waiting[stream_id]
                self._removed.discard(stream_id)

    async def has(self, stream_id: str, id: int) -> bool:
        return id > 0 and any(event.id == id for event in await self.read(stream_id, id - 1, 1))
