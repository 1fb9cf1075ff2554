"""Records what a call does to files, also one that goes on in the background or is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from agentcli.agent.calls.model import Call, Recording, SessionCalls
from agentcli.agent.events import Notice, OutputDelta
from agentcli.agent.interfaces import Checkpoints
from agentcli.conversation.entries import Entry
from agentcli.conversation.file_changes import FilesChanged
from agentcli.errors import StorageError, ToolError

_LOOK_EVERY_S = 0.5
_PROGRESS_EVERY_S = 1.0


@asynccontextmanager
async def record_changes(call: Call, paths: Sequence[Path] | None) -> AsyncIterator[Path | None]:
    """Record what is done to these files, or with None to any, while the body runs and its jobs do.

    Yield the file that notes so until it is in the log; None where nothing is recorded, perhaps with a notice.
    """
    call = call.turn.session.made_by or call
    session = call.turn.session
    checkpoints, recording = session.recording.checkpoints, session.recording
    mark = None
    if checkpoints is not None and (paths is None or paths):
        try:
            mark = await _with_progress(call, checkpoints, checkpoints.begin(call.use.id, paths))
        except ToolError as error:
            call.turn.emit(Notice(f"{error} This call cannot be taken back with /undo."))
    if checkpoints is None or mark is None:
        yield None
        return
    before = _running_jobs(session)
    try:
        yield mark.note
    finally:
        end = _store_changes(call, checkpoints, mark)
        if paths is None and (jobs := _running_jobs(session) - before):
            _keep(recording, _after_jobs(session, jobs, end))
        else:  # before anything else happens: that would count as the call's; the output may end within a line
            await _with_progress(call, checkpoints, end, before="\n")


async def _with_progress(call: Call, checkpoints: Checkpoints, work: Awaitable[Any], before: str = "") -> Any:
    """Show how far a long look at the workspace has come, as output of the call."""

    async def show() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY_S)
            text = f"[Recording the workspace so that /undo works: {checkpoints.files_scanned():,} files so far]"
            call.turn.emit(OutputDelta(call.use.id, f"{before}{text}\n"))

    showing = asyncio.create_task(show())
    try:
        return await work
    finally:
        showing.cancel()


def _running_jobs(session: SessionCalls) -> set[str]:
    return {job.id for job in session.workspace.running_jobs()}


def _keep(recording: Recording, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    recording.tasks.add(task)
    task.add_done_callback(recording.tasks.discard)


async def _after_jobs(session: SessionCalls, jobs: set[str], end: Awaitable[None]) -> None:
    is_closing = session.recording.is_closing
    while jobs & _running_jobs(session) and not is_closing.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(is_closing.wait(), _LOOK_EVERY_S)
    await end


async def _store_changes(call: Call, checkpoints: Checkpoints, mark: Any) -> None:
    """Store what a call has changed; its note goes once that is on disk."""
    turn = call.turn
    try:
        changed = await checkpoints.end(mark)
    except ToolError as error:
        turn.emit(Notice(f"{error} This call cannot be taken back with /undo."))
        with suppress(ToolError):  # nothing of it is to be looked for later, when it would be others' doing
            await checkpoints.forget(mark)
        return
    if changed is not None and not changed.changes and not turn.session.recording.has_reported_gap:
        turn.session.recording.has_reported_gap = True
        why = "; ".join(name.removeprefix("everything: ") for name in changed.left_out)
        turn.emit(Notice(f"What commands change here is not recorded, and /undo cannot take it back: {why}."))
    stored = turn.store(changed) if changed is not None else None

    async def forget() -> None:
        with suppress(StorageError, ToolError):  # whoever waits for the turn's entries reports it
            if stored is not None:
                await asyncio.shield(asyncio.ensure_future(stored))
            await checkpoints.forget(mark)

    _keep(turn.session.recording, forget())


async def end_recording(recording: Recording) -> None:
    """Wait until what calls did is in the log; jobs are taken to have ended."""
    recording.is_closing.set()
    while recording.tasks:
        await asyncio.wait(recording.tasks)
    if recording.checkpoints is not None:
        await recording.checkpoints.aclose()


async def account_for_interrupted(
    checkpoints: Checkpoints, entries: Iterable[Entry], append: Callable[..., Awaitable[object]]
) -> None:
    """Store what calls had done to files when their process was killed. Raises `ToolError` and `StorageError`."""
    stored = {entry.body.id: entry.time for entry in entries if isinstance(entry.body, FilesChanged)}
    if changed := await checkpoints.interrupted(stored):
        await append(*changed)
    await checkpoints.forget(None)
