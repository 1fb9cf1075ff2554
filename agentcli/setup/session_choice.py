"""Opens the log of the conversation that a caller wants to go on with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from msgspec import Struct

from agentcli.agent.interfaces import SessionLog, SessionStore
from agentcli.conversation.entries import Entry
from agentcli.errors import UsageError
from agentcli.infra.data_files import DataFolder


class SessionChoice(Struct, frozen=True):
    """Which conversation to open: a new one, the newest of this directory, or one by id; `fork` continues a copy.

    With `take_over` a program that has it open is asked to end. A new one is `user_id`'s, where that is given.
    """

    how: Literal["new", "newest", "id"] = "new"
    id: str = ""
    fork: bool = False
    new_id: str | None = None
    name: str = ""
    take_over: bool = False
    user_id: str = ""


NEW = SessionChoice()


async def open_log(
    choice: SessionChoice, store: SessionStore, data: DataFolder, cwd: Path
) -> tuple[SessionLog, list[Entry]]:
    """The log and its entries; a fork shares the data files of its source. Raises `UserError`."""
    if choice.how == "new":
        return await store.create(cwd=cwd, session_id=choice.new_id, name=choice.name, user_id=choice.user_id), []
    id = choice.id
    if choice.how == "newest":
        newest = await store.list(cwd=cwd, limit=1)
        if not newest:
            raise UsageError(f"There is no session of {cwd} to continue: leave out --continue.")
        id = newest[0].id
    if choice.fork:
        log, entries = await store.fork(id, cwd=cwd, new_id=choice.new_id, name=choice.name)
        source, _ = await store.load(id)
        await asyncio.to_thread(data.share, source.id, log.session_id)
        return log, entries
    log, entries = await store.open(id, take_over=choice.take_over)
    if choice.name:
        await store.rename(log.session_id, choice.name)
    return log, entries
