"""Reads an agent's prompts, keeps them in order, and stores the events of their answers for other readers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent.events import Done, Event, TurnFailed
from agentcli.agent.interfaces import EventStore, StreamStatus
from agentcli.agent.ops import ClientResult
from agentcli.agent.session import Session
from agentcli.conversation.mentions import attached_file, with_attachments
from agentcli.errors import UsageError
from agentcli.llm.messages import Block, Content, content_blocks
from agentcli.tools.tool import CALL_DEPS
from agentcli.tools.workspace import Workspace

Results = ClientResult | Sequence[ClientResult]


def read_prompt(
    content: Content | Results, attachments: Sequence[str | Path | Block], workspace: Workspace
) -> tuple[tuple[Block, ...], tuple[ClientResult, ...]]:
    """Return a prompt with its attachments, or the results sent in its place. Raises `UsageError`, `TypeError`."""
    parts = content if isinstance(content, list | tuple) else (content,)
    results = tuple(part for part in parts if isinstance(part, ClientResult))
    blocks: tuple[Block, ...] = ()
    for part in parts:
        if isinstance(part, str):
            blocks += with_attachments(part, workspace, bare_names=False)
        elif not isinstance(part, ClientResult):
            blocks += content_blocks(part)
    for item in attachments:
        attached = attached_file(workspace.cwd / item, workspace) if isinstance(item, str | Path) else (item,)
        blocks += content_blocks(attached)
    if results and blocks:
        raise UsageError("Results of calls cannot be sent together with a prompt.")
    return blocks, results


UNREAD_TIMEOUT_S = 1.0  # a waiting prompt gives up if nobody has read the open stream for this long
# The agents in whose turns the running task takes part.
_PROMPTED: ContextVar[frozenset["PromptOrder"]] = ContextVar("_PROMPTED", default=frozenset())


class PromptOrder:
    """Lets an agent answer one prompt at a time. The next one waits, but not for a stream that nobody reads."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()  # held while a prompt is answered
        # Since when the caller has been busy with an event; None while it waits for the next one.
        self._busy_since: float | None = None

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Wait for the previous prompt. Raises `UsageError` if its stream is not read, or if a tool of it prompts."""
        if self in _PROMPTED.get():
            raise UsageError("A tool cannot prompt its own agent, which is waiting for it. Use another Agent.")
        for _ in range(3):  # give the event loop time to close a stream whose `async for` was just left
            await asyncio.sleep(0)
        acquiring = asyncio.ensure_future(self._lock.acquire())
        try:
            while not acquiring.done():  # check repeatedly if the stream that has the lock is still read
                if self._busy_since and time.monotonic() - self._busy_since > UNREAD_TIMEOUT_S:
                    raise UsageError(
                        "A stream is still open. Read it to its end, or close it (contextlib.aclosing), before the "
                        "next prompt."
                    )
                await asyncio.wait((acquiring,), timeout=UNREAD_TIMEOUT_S / 10)
        except BaseException:
            if not acquiring.cancel():  # too late to cancel: it has the lock
                self._lock.release()
            raise
        try:
            yield
        finally:
            self._lock.release()

    def run_in_turn(self, function: Callable[[], object], deps: Any = None) -> None:
        """Call a function in a context that marks all tasks it starts as part of this turn, with its `deps`."""
        context = copy_context()
        context.run(_PROMPTED.set, _PROMPTED.get() | {self})
        context.run(CALL_DEPS.set, deps)
        context.run(function)

    @contextmanager
    def handling_event(self) -> Iterator[None]:
        """Mark the time in which the caller handles an event, so that an abandoned stream blocks no other prompt."""
        self._busy_since = time.monotonic()
        try:
            yield
        finally:
            self._busy_since = None


BATCH_S = 0.05  # events that come within this time are stored together


@asynccontextmanager
async def recording(session: Session, store: EventStore, stream_id: str) -> AsyncIterator[None]:
    """Store the events of the turn that the body runs, as objects of the JSON output. Raises `StorageError`."""
    turns_before = session.turns_begun
    await store.append(stream_id, [], status="running")
    task = asyncio.create_task(_record(session, session.subscribe_batches(), store, stream_id))
    try:
        yield
    finally:
        if session.turns_begun == turns_before:  # no turn began, so no event would end the recording
            task.cancel()
            await store.append(stream_id, [], status="failed")
        else:
            await task


async def _record(session: Session, batches: AsyncIterator[list[Event]], store: EventStore, stream_id: str) -> None:
    from agentcli.frontends.json_output import JsonOutput  # imported here because few agents have an event store

    objects: list[dict[str, Any]] = []
    output = JsonOutput(session, objects.append, streams=True)  # `show` appends the objects of an event
    status: StreamStatus = "running"
    async for events in batches:
        for event in events:
            output.show(event)
            if isinstance(event, Done | TurnFailed) and event.agent_id == "main":
                status = "complete" if isinstance(event, Done) else "failed"
                break
        await store.append(stream_id, [msgspec.json.encode(value) for value in objects], status=status)
        objects.clear()
        if status != "running":
            return
        await asyncio.sleep(BATCH_S)
