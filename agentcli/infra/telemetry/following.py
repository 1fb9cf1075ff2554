"""Follows sessions by their events, and hands these to a thread that records and exports them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from agentcli.agent import events
from agentcli.agent.session import Session
from agentcli.infra.telemetry.export import Export, MaskText

if TYPE_CHECKING:
    from agentcli.infra.telemetry.pipes import Pipes

log = logging.getLogger(__name__)

_DELTAS = (events.TextDelta, events.ThinkingDelta, events.InputDelta, events.OutputDelta)
_HEAD_START_S = 0.1  # of the first request, which importing would slow down; then there is a reply to wait for
_GRACE_S = 1.0  # beyond the time-outs of exports, for what is recorded before the last one
_NOT_EXPORTED = ("opentelemetry.", "urllib3.", __name__)  # an export that logs would have itself exported


class Telemetry:
    """Exports what happens in the sessions it follows, and what the program logs.

    The event loop only notes what came when; importing OpenTelemetry, masking and sending are a thread's.
    """

    def __init__(self, export: Export) -> None:
        self._export = export
        self._work: SimpleQueue[Callable[[Pipes], None] | None] = SimpleQueue()
        self._may_begin = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()
        self._following: set[asyncio.Task[None]] = set()
        self._handler = _LogRecords(self._work.put, export.mask)
        if "logs" in export.addresses:
            logging.getLogger().addHandler(self._handler)

    def follow(self, session: Session, mask: MaskText) -> None:
        """Record what happens in a session from now on; `mask` takes its secrets out of texts."""
        self._handler.masks.append(mask)
        if self._export.addresses.keys() & {"traces", "metrics"}:
            self._following.add(asyncio.create_task(self._hear(session, session.subscribe(), mask)))

    async def _hear(self, session: Session, heard: AsyncGenerator[events.Event, None], mask: MaskText) -> None:
        unheard = _DELTAS if self._export.settings.content else (*_DELTAS, events.EntryStored)
        async for event in heard:
            if not isinstance(event, unheard):
                self._work.put(partial(_record, session.id, mask, time.time_ns(), event, session.state.model))
            if isinstance(event, events.TurnStarted | events.ToolFinished):
                asyncio.get_running_loop().call_later(_HEAD_START_S, self._may_begin.set)

    def _run(self) -> None:
        """The thread. The first thing that fails in it is logged, and nothing else ends by it."""
        self._may_begin.wait()
        pipes: Pipes | None = None
        has_failed = False
        for work in iter(self._work.get, None):
            try:
                from agentcli.infra.telemetry.pipes import Pipes

                pipes = pipes or Pipes(self._export)
                work(pipes)
            except Exception:
                log.log(logging.DEBUG if has_failed else logging.ERROR, "nothing could be exported", exc_info=True)
                has_failed = True
        if pipes is not None:
            pipes.end()

    async def aclose(self) -> None:
        """Send what there is, for as long as the time-outs allow."""
        await asyncio.sleep(0)  # what was told last is still heard
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)
        logging.getLogger().removeHandler(self._handler)
        self._work.put(None)
        self._may_begin.set()
        await asyncio.to_thread(self._thread.join, self._export.longest_end + _GRACE_S)


def _record(session_id: str, mask: MaskText, at: int, event: events.Event, model: str, pipes: Pipes) -> None:
    pipes.session(session_id, mask).heed(at, event, model)


class _LogRecords(logging.Handler):
    """Gives log records to the thread, each as its text and traceback; of several such handlers the first one does."""

    def __init__(self, put: Callable[[Callable[[Pipes], None]], None], mask: MaskText) -> None:
        super().__init__()
        self._put = put
        self.masks = [mask]

    def emit(self, record: logging.LogRecord) -> None:
        handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, _LogRecords)]
        if handlers[:1] == [self] and not record.name.startswith(_NOT_EXPORTED):
            masks = [mask for handler in handlers for mask in handler.masks]
            self._put(partial(_log, record, self.format(record), masks))


def _log(record: logging.LogRecord, text: str, masks: list[MaskText], pipes: Pipes) -> None:
    for mask in masks:
        text = mask(text)
    pipes.log(record, text)
