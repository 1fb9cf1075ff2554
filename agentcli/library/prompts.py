"""Keeps the prompts of one agent in order, and records their events for readers elsewhere."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec

from agentcli.agent.events import Done, Event, TurnFailed
from agentcli.agent.interfaces import EventStore, StreamStatus
from agentcli.agent.session import Session
from agentcli.errors import UsageError

UNREAD_TIMEOUT_S = 1.0  # of a stream that nobody reads, while another prompt waits for it

_PROMPTED: ContextVar[frozenset[PromptOrder]] = ContextVar("_PROMPTED", default=frozenset())


class PromptOrder:
    """Lets one prompt at a time be answered. A second one waits for it, but not for a stream that nobody reads."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._unread_since: float | None = None

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for the prompt before. Raises `UsageError` if nobody reads its stream, or if it waits for this one."""
        if self in _PROMPTED.get():
            raise UsageError("A tool of an agent cannot prompt that agent, which waits for it: use another Agent.")
        for _ in range(3):  # lets the event loop close a stream whose `async for` was just left
            await asyncio.sleep(0)
        acquiring = asyncio.ensure_future(self._lock.acquire())
        try:
            while not acquiring.done():
                if self._unread_since and time.monotonic() - self._unread_since > UNREAD_TIMEOUT_S:
                    raise UsageError(
                        "A stream of this agent is open and nobody reads it: read it to its end, or close it "
                        "(contextlib.aclosing), before the next prompt."
                    )
                await asyncio.wait((acquiring,), timeout=UNREAD_TIMEOUT_S / 10)
        except BaseException:
            if not acquiring.cancel():
                self._lock.release()
            raise
        try:
            yield
        finally:
            self._lock.release()

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Mark the tasks that are started meanwhile as parts of this agent's turn."""
        token = _PROMPTED.set(_PROMPTED.get() | {self})
        try:
            yield
        finally:
            _PROMPTED.reset(token)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note that the stream's reader has an event and did not ask for the next one yet."""
        self._unread_since = time.monotonic()
        try:
            yield
        finally:
            self._unread_since = None


# Events

BATCH_S = 0.05  # deltas of this time are stored together


@asynccontextmanager
async def recording(session: Session, store: EventStore, stream_id: str) -> AsyncIterator[None]:
    """Store the events of the turn that the body runs, as the objects of the JSON output.

    Raises `StorageError` at the end.
    """
    begun = session.turns_begun
    await store.append(stream_id, [], status="running")
    task = asyncio.create_task(_record(session, session.subscribe_batches(), store, stream_id))
    try:
        yield
    finally:
        if session.turns_begun == begun:  # no turn began whose end would end the recording
            task.cancel()
            await store.append(stream_id, [], status="failed")
        else:
            await task


async def _record(
    session: Session, batches: AsyncGenerator[list[Event], None], store: EventStore, stream_id: str
) -> None:
    from agentcli.frontends.json_output import JsonOutput  # only for agents with an event store

    objects: list[dict[str, Any]] = []
    output = JsonOutput(session, objects.append, partial=True)
    status: StreamStatus = "running"
    async for events in batches:
        for event in events:
            output.show(event)
            if isinstance(event, Done | TurnFailed) and event.agent_id == "main":
                status = "complete" if isinstance(event, Done) else "failed"
                break
        await store.append(stream_id, [msgspec.json.encode(one) for one in objects], status=status)
        objects.clear()
        if status != "running":
            return
        await asyncio.sleep(BATCH_S)
