"""Follows sessions by their events, and hands these to a thread that records and exports them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from queue import SimpleQueue

from msgspec import Struct

from agentcli.agent import events
from agentcli.agent.session import Session
from agentcli.settings.structs import ObservabilitySettings

log = logging.getLogger(__name__)

MaskText = Callable[[str], str]

_DELTAS = (events.TextDelta, events.ThinkingDelta, events.InputDelta, events.OutputDelta)
_HEAD_START_S = 0.1  # for the first request, which importing would slow down; then there is a reply to wait for
_GRACE_S = 1.0  # beyond the time-outs of exports, for what is recorded before the last one


class Export(Struct, frozen=True):
    """The exported signals and their URLs; `server` returns the host (empty: not known) and port of a provider."""

    settings: ObservabilitySettings
    addresses: Mapping[str, str]
    resource: Mapping[str, str]
    parent: Mapping[str, str]
    server: Callable[[str], tuple[str, int]]
    mask: MaskText

    @property
    def last_export_s(self) -> float:
        """The time that the last export may take; both signals end at the same time."""
        times = {"traces": self.settings.export_timeout, "metrics": self.settings.metrics_timeout}
        return max(times[signal] for signal in self.addresses)


class Telemetry:
    """Exports what happens in sessions; the event loop only notes times, the thread imports, masks and sends."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._events: SimpleQueue[tuple[str, MaskText, int, events.Event, str] | None] = SimpleQueue()
        self._may_begin = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()
        self._following: set[asyncio.Task[None]] = set()

    def follow(self, session: Session, mask: MaskText) -> None:
        """Record what happens in a session from now on; `mask` takes its secrets out of texts."""
        self._following.add(asyncio.create_task(self._queue_events(session, session.subscribe(), mask)))

    async def _queue_events(
        self, session: Session, incoming: AsyncGenerator[events.Event, None], mask: MaskText
    ) -> None:
        ignored = _DELTAS if self._export.settings.content else (*_DELTAS, events.EntryStored)
        async for event in incoming:
            if not isinstance(event, ignored):
                self._events.put((session.id, mask, time.time_ns(), event, session.state.model.name))
            if isinstance(event, events.TurnStarted | events.ToolFinished):
                asyncio.get_running_loop().call_later(_HEAD_START_S, self._may_begin.set)

    def _run(self) -> None:
        """Run the thread. Its first failure is logged as an error, and no failure ends anything else."""
        self._may_begin.wait()
        recorder = None
        has_failed = False
        for session_id, mask, at, event, model in iter(self._events.get, None):
            try:
                from agentcli.infra.telemetry.recorder import SpanRecorder

                recorder = recorder or SpanRecorder(self._export)
                recorder.record(session_id, at, event, model=model, mask=mask)
            except Exception:
                log.log(logging.DEBUG if has_failed else logging.ERROR, "nothing could be exported", exc_info=True)
                has_failed = True
        if recorder is not None:
            recorder.end()

    async def aclose(self) -> None:
        """Send what is left, for as long as the time-outs allow."""
        await asyncio.sleep(0)  # the newest events still arrive
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)
        self._events.put(None)
        self._may_begin.set()
        await asyncio.to_thread(self._thread.join, self._export.last_export_s + _GRACE_S)
