"""Lets readers of event streams wait for what this process stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agentcli.agent.event_store import StreamEvent


class Arrivals:
    """Wakes those who wait for events of a stream."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._gone: set[str] = set()  # streams that were removed while somebody waited

    @property
    def streams(self) -> Sequence[str]:
        """The streams that somebody waits for."""
        return list(self._waiting)

    def end(self, stream_id: str) -> None:
        """Let nobody wait for a stream that is removed."""
        if stream_id in self._waiting:
            self._gone.add(stream_id)
            self.tell(stream_id)

    def tell(self, stream_id: str) -> None:
        for waiting in self._waiting.get(stream_id, ()):
            waiting.set()

    async def wait(
        self, stream_id: str, look: Callable[[], Awaitable[Sequence[StreamEvent]]], wait_s: float
    ) -> Sequence[StreamEvent]:
        """What `look` finds, now or once something arrives within `wait_s` seconds."""
        if wait_s <= 0:
            return await look()
        arrived = asyncio.Event()
        self._waiting.setdefault(stream_id, set()).add(arrived)  # before the first look: nothing is missed
        try:
            async with asyncio.timeout(wait_s):
                while not (found := await look()) and stream_id not in self._gone:
                    await arrived.wait()
                    arrived.clear()
                return found
        except TimeoutError:
            return ()
        finally:
            waiting = self._waiting[stream_id]
            waiting.discard(arrived)
            if not waiting:
                del self._waiting[stream_id]
                self._gone.discard(stream_id)
