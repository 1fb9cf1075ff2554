"""Turns an answer into a response of Chat Completions (openai 3.52) or Messages (anthropic 2.11), for proxies."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from agentcli.agent.event_store import EventStore, StreamStatus
from agentcli.agent.events import Done, Event, TurnFailed
from agentcli.agent.result import usage_object
from agentcli.agent.session import Session
from agentcli.frontends.json_output import JsonOutput

_CUT = ("max_tokens", "max_turns", "max_budget")  # ends that leave an answer unfinished


def to_chat_completion(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `chat.completion` object, with the usage of all its requests; "length" if it was cut."""
    used = done.usage
    return {
        "id": id or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": done.text, "refusal": None},
                "finish_reason": "length" if done.reason in _CUT else "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.context_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cache_read_input_tokens},
        },
    }


def to_anthropic_message(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `message` object, with the usage of all its requests; "max_tokens" if a limit cut it."""
    return {
        "id": id or f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": done.text}] if done.text else [],
        "stop_reason": "max_tokens" if done.reason in _CUT else "end_turn",
        "stop_sequence": None,
        "usage": usage_object(done.usage),
    }


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
