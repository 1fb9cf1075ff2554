"""Exports spans and metrics of sessions over OTLP: their events go to a thread, which records and sends them.

The other modules of this package import OpenTelemetry, which is slow, and are loaded in that thread.
"""

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

_HEAD_START_S = 0.1  # for the first request, which the imports in the thread would slow down
_GRACE_S = 1.0  # for recording the last events, beyond the time-outs of exports


class Signal(Struct, frozen=True):
    """The export of traces or metrics. Without an `endpoint` the SDK reads OpenTelemetry's variables."""

    exporters: tuple[str, ...]  # "otlp", "console"
    timeout_s: float
    endpoint: str | None


class Export(Struct, frozen=True, kw_only=True):
    """The exported signals and their destination."""

    settings: ObservabilitySettings
    signals: Mapping[str, Signal]  # traces, metrics
    resource: Mapping[str, str]
    parent: Mapping[str, str]  # the trace context in the environment, which a caller's trace may have set
    server: Callable[[str], tuple[str, int]]  # host and port for a `provider/model`; the host is "" if unknown
    mask: MaskText

    @property
    def last_export_s(self) -> float:
        """The longest time that the last export may take; all signals are exported at once."""
        return max(signal.timeout_s for signal in self.signals.values())


class Telemetry:
    """Exports the events of sessions. The event loop only notes the time; a thread imports the SDK, masks and sends."""

    def __init__(self, export: Export) -> None:
        self._export = export
        # Each item is a session id, its mask, the Unix time in nanoseconds, an event and the model; None is the end.
        self._events: SimpleQueue[tuple[str, MaskText, int, events.Event, str] | None] = SimpleQueue()
        self._may_import = threading.Event()  # set shortly after the first turn began or a tool ran, and at the end
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()
        self._followers: set[asyncio.Task[None]] = set()  # one for each session

    def follow(self, session: Session, mask: MaskText) -> None:
        """Record the events of a session from now on; `mask` masks its secrets."""
        self._followers.add(asyncio.create_task(self._queue_events(session, session.subscribe(has_deltas=False), mask)))

    async def _queue_events(
        self, session: Session, incoming: AsyncGenerator[events.Event, None], mask: MaskText
    ) -> None:
        async for event in incoming:
            if self._export.settings.content or not isinstance(event, events.EntryStored):
                self._events.put((session.id, mask, time.time_ns(), event, session.state.model.name))
            if isinstance(event, events.TurnStarted | events.ToolFinished):
                asyncio.get_running_loop().call_later(_HEAD_START_S, self._may_import.set)

    def _run(self) -> None:
        """Record events in the thread. Only the first failure is logged as an error; no failure ends the program."""
        self._may_import.wait()  # until the first request is sent, which the imports below would slow down
        recorder = None
        failure_level = logging.ERROR
        for session_id, mask, at_ns, event, model in iter(self._events.get, None):  # until it gets None
            try:
                from agentcli.infra.telemetry.recorder import SpanRecorder

                recorder = recorder or SpanRecorder(self._export)
                recorder.record(session_id, at_ns, event, model=model, mask=mask)
            except Exception:
                log.log(failure_level, "nothing could be exported", exc_info=True)
                failure_level = logging.DEBUG
        if recorder is not None:
            recorder.end()

    async def aclose(self) -> None:
        """Send the rest, for as long as the time-outs allow."""
        await asyncio.sleep(0)  # so that the newest events arrive
        for task in self._followers:
            task.cancel()
        if self._followers:
            await asyncio.wait(self._followers)
        self._events.put(None)
        self._may_import.set()
        await asyncio.to_thread(self._thread.join, self._export.last_export_s + _GRACE_S)
