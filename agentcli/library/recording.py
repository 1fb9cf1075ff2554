"""Records the events of a prompt in an event store, for those who follow it elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from agentcli.agent.events import Done, Event, TurnFailed
from agentcli.agent.interfaces import EventStore, StreamStatus
from agentcli.agent.session import Session
from agentcli.frontends.json_forms.output import JsonOutput

BATCH_S = 0.05  # deltas of this time are stored together


@asynccontextmanager
async def recording(session: Session, store: EventStore, stream_id: str) -> AsyncIterator[None]:
    """Store the objects of the turn that the body runs. Raises `StorageError` at the end."""
    begun = session.turns_begun
    await store.append(stream_id, [], status="running")
    task = asyncio.create_task(_record(session, session.subscribe_batches(), store, stream_id))
    try:
        yield
    finally:
        if session.turns_begun == begun:  # nothing comes that would end it
            task.cancel()
            await store.append(stream_id, [], status="failed")
        else:
            await task


async def _record(
    session: Session, batches: AsyncGenerator[list[Event], None], store: EventStore, stream_id: str
) -> None:
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
