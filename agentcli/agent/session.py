"""What a front end holds: operations go in, events come out."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from agentcli.agent.events import (
    ApprovalRequested,
    Approve,
    Done,
    Event,
    Interrupt,
    Op,
    Prompt,
    SetMode,
    SetModel,
    Steer,
    TextDelta,
    ThinkingDelta,
    ToolOutput,
    TurnFailed,
)
from agentcli.agent.loop import Runtime, run_turn
from agentcli.agent.permissions import parse_mode
from agentcli.agent.state import AgentState
from agentcli.conversation.entries import User, reminder
from agentcli.llm.messages import Block

log = logging.getLogger(__name__)


class EventQueue:
    """One subscriber's events: unbounded; deltas nobody has read yet are joined, nothing else is dropped."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()

    def put(self, event: Event) -> None:
        last = self._events[-1] if self._events else None
        match event:
            case TextDelta(text) if isinstance(last, TextDelta):
                self._events[-1] = TextDelta(last.text + text)
            case ThinkingDelta(text) if isinstance(last, ThinkingDelta):
                self._events[-1] = ThinkingDelta(last.text + text)
            case ToolOutput(id, text) if isinstance(last, ToolOutput) and last.id == id:
                self._events[-1] = ToolOutput(id, last.text + text)
            case _:
                self._events.append(event)
        self._arrived.set()

    async def get(self) -> Event:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()


class Session:
    """One conversation, driven by any number of front ends; at most one turn runs at a time.

    `can_ask` says that somebody answers `ApprovalRequested`; otherwise what would ask is denied.
    """

    def __init__(
        self,
        state: AgentState,
        runtime: Runtime,
        *,
        can_ask: bool = False,
        on_close: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.state = state
        self.runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._subscribers: list[EventQueue] = []
        self._turn: asyncio.Task[None] | None = None
        self._approvals: dict[str, asyncio.Future[Approve]] = {}
        self._on_close = on_close
        if can_ask:
            runtime.calls.ask = self._ask

    @property
    def id(self) -> str:
        return self.runtime.log.session_id

    @property
    def is_busy(self) -> bool:
        return self._turn is not None and not self._turn.done()

    def submit(self, op: Op) -> None:
        """Ask for something, from any thread; what comes of it arrives as events."""
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is self._loop:
            self._take(op)
        else:
            self._loop.call_soon_threadsafe(self._take, op)

    def _take(self, op: Op) -> None:
        match op:
            case Prompt(content) if self.is_busy:
                self.state.follow_ups.append(content)
            case Steer(content) if self.is_busy:
                self.state.steering.append(content)
            case Prompt(content) | Steer(content):
                self._turn = asyncio.create_task(self._run(content))
            case Interrupt():
                if self._turn is not None:
                    self._loop.call_soon(self._turn.cancel)  # not before it has begun: its end would not be told
            case Approve(id):
                waiting = self._approvals.pop(id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(op)
            case SetModel(name):
                self.state.model = name
            case SetMode(mode):
                self._set_mode(mode)

    def _set_mode(self, mode: str) -> None:
        """The system text never changes, so the model is told of plan mode by a note."""
        before, self.state.mode = self.state.mode, parse_mode(mode)
        if before == self.state.mode:
            return
        self.state.notes.extend(mode_notes(before, mode))

    def subscribe(self) -> AsyncGenerator[Event, None]:
        """Events from now on; starts listening before the first `await`."""
        queue = EventQueue()
        self._subscribers.append(queue)
        return self._drain(queue)

    async def _drain(self, queue: EventQueue) -> AsyncGenerator[Event, None]:
        try:
            while True:
                yield await queue.get()
        finally:
            self._subscribers.remove(queue)

    def _publish(self, event: Event) -> None:
        for queue in self._subscribers:
            queue.put(event)

    async def _run(self, content: Sequence[Block]) -> None:
        """One turn, then the next of those queued meanwhile. The one place that catches everything."""
        try:
            await run_turn(self.state, self.runtime, content, self._publish)
        except asyncio.CancelledError:
            pass  # run_turn has said so: its last event is Done(interrupted)
        except Exception as bug:  # a front end waits for the turn's end; a bug must not leave it waiting
            log.exception("the turn failed")
            self._publish(
                TurnFailed(f"Internal error: {bug!r}. The conversation is stored; the log has details.", False)
            )
        if self.state.follow_ups:
            self._turn = asyncio.create_task(self._run(self.state.follow_ups.popleft()))

    async def _ask(self, request: ApprovalRequested) -> Approve:
        answer: asyncio.Future[Approve] = asyncio.get_running_loop().create_future()
        self._approvals[request.id] = answer
        self._publish(request)
        try:
            return await answer
        finally:
            self._approvals.pop(request.id, None)

    async def answer(self, content: Sequence[Block]) -> Done | TurnFailed:
        """Submit a prompt and wait for the end of its turn."""
        events = self.subscribe()
        self.submit(Prompt(tuple(content)))
        async for event in events:
            if isinstance(event, Done | TurnFailed):
                return event
        raise AssertionError("a subscription does not end by itself")

    async def idle(self) -> None:
        """Wait until no turn runs."""
        while self._turn is not None and not self._turn.done():
            await asyncio.wait([self._turn])

    async def close(self) -> None:
        """End the turn, wait until all is stored, and give everything back."""
        self.state.follow_ups.clear()
        if self._turn is not None:
            self._turn.cancel()
        await self.idle()
        await self.runtime.calls.workspace.sandbox.aclose()
        await self.runtime.log.close()
        for give_back in self._on_close:
            waiting = give_back()
            if asyncio.iscoroutine(waiting):
                await waiting


def mode_notes(before: str, after: str) -> list[User]:
    """What the model is told of a change of mode: only plan mode asks something of it."""
    if after == "plan":
        return [reminder("Plan mode is on: only look, change nothing, and end with a plan.")]
    return [reminder("Plan mode is off: you may make changes now.")] if before == "plan" else []
