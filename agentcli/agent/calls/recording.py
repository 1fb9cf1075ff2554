"""Records what a call does to files, also one that goes on in the background or is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from agentcli.agent.calls.model import Call, SessionCalls
from agentcli.agent.events import Notice, OutputDelta
from agentcli.agent.interfaces import Checkpoints
from agentcli.conversation.entries import Entry
from agentcli.conversation.file_changes import FilesChanged
from agentcli.errors import StorageError, ToolError

_LOOK_EVERY_S = 0.5
_PROGRESS_EVERY_S = 1.0


@asynccontextmanager
async def recorded(call: Call, paths: Sequence[Path] | None) -> AsyncIterator[Path | None]:
    """Record what is done to these files, or with None to any, while the body runs and its jobs do.

    Gives the file that notes so until it is in the log; None where nothing is recorded. A call whose changes cannot be
    recorded runs all the same: that it cannot be taken back is told.
    """
    call = call.turn.session.made_by or call
    session = call.turn.session
    checkpoints = session.services.checkpoints
    if checkpoints is None or (paths is not None and not paths):
        yield None
        return
    try:
        with _progress_shown(call, checkpoints):
            mark = await checkpoints.begin(call.use.id, paths)
    except ToolError as error:
        call.turn.emit(Notice(f"{error} This call cannot be taken back with /undo."))
        yield None
        return
    before = _running_jobs(session)
    try:
        yield mark.note
    finally:
        if paths is None and (jobs := _running_jobs(session) - before):
            _keep(session, _end_after_jobs(call, checkpoints, mark, jobs))
        else:
            with _progress_shown(call, checkpoints, before="\n"):  # the output may end within a line
                await _end(call, checkpoints, mark)  # before anything else happens: that would count as the call's


@contextmanager
def _progress_shown(call: Call, checkpoints: Checkpoints, before: str = "") -> Iterator[None]:
    """Show how far a long look at the workspace has come, as output of the call."""

    async def show() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_EVERY_S)
            text = f"[Recording the workspace so that /undo works: {checkpoints.files_scanned():,} files so far]"
            call.turn.emit(OutputDelta(call.use.id, f"{before}{text}\n"))

    task = asyncio.create_task(show())
    try:
        yield
    finally:
        task.cancel()


async def end_recording(session: SessionCalls) -> None:
    """Wait until what calls did is in the log; jobs are taken to have ended."""
    session.is_closing.set()
    while session.recording:
        await asyncio.wait(session.recording)
    if session.services.checkpoints is not None:
        await session.services.checkpoints.aclose()


def _running_jobs(session: SessionCalls) -> set[str]:
    return {job.id for job in session.workspace.running_jobs()}


def _keep(session: SessionCalls, work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    session.recording.add(task)
    task.add_done_callback(session.recording.discard)


async def _end_after_jobs(call: Call, checkpoints: Checkpoints, mark: Any, jobs: set[str]) -> None:
    is_closing = call.turn.session.is_closing
    while jobs & _running_jobs(call.turn.session) and not is_closing.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(is_closing.wait(), _LOOK_EVERY_S)
    await _end(call, checkpoints, mark)


async def _end(call: Call, checkpoints: Checkpoints, mark: Any) -> None:
    """Store what a call has changed; its note goes once that is on disk."""
    try:
        changed = await checkpoints.end(mark)
    except ToolError as error:
        call.turn.emit(Notice(f"{error} This call cannot be taken back with /undo."))
        with suppress(ToolError):  # nothing of it is to be looked for later, when it would be others' doing
            await checkpoints.forget(mark)
        return
    if changed is not None and not changed.changes:
        _report_unrecorded(call, changed)
    stored = call.turn.store(changed) if changed is not None else None

    async def forget() -> None:
        with suppress(StorageError, ToolError):  # whoever waits for the turn's entries tells it
            if stored is not None:
                await asyncio.shield(asyncio.ensure_future(stored))
            await checkpoints.forget(mark)

    _keep(call.turn.session, forget())


def _report_unrecorded(call: Call, changed: FilesChanged) -> None:
    """Report once a session that what commands change is not recorded."""
    if "unrecorded" not in call.turn.state.told:
        call.turn.state.told.add("unrecorded")
        why = "; ".join(name.removeprefix("everything: ") for name in changed.left_out)
        call.turn.emit(Notice(f"What commands change here is not recorded, and /undo cannot take it back: {why}."))


async def account_for_interrupted(
    checkpoints: Checkpoints, entries: Iterable[Entry], append: Callable[..., Awaitable[object]]
) -> None:
    """Store what calls had done to files when their process was killed. Raises `ToolError` and `StorageError`."""
    told = {entry.body.id: entry.time for entry in entries if isinstance(entry.body, FilesChanged)}
    if changed := await checkpoints.interrupted(told):
        await append(*changed)
    await checkpoints.forget(None)
