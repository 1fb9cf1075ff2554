"""Sessions for tests of their stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentcli.agent.interfaces import SessionLog, SessionStore
from agentcli.conversation.entries import Body, Entry, User
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text

HERE, THERE = Path("/here"), Path("/there")


def said(text: str) -> User:
    return User((Text(text),))


async def kept(log: SessionLog, *bodies: Body | str, **how: Any) -> None:
    await log.append(*bodies_of(bodies), **how).committed


def bodies_of(bodies: Iterable[Body | str]) -> list[Body]:
    return [said(body) if isinstance(body, str) else body for body in bodies]


async def a_session(store: SessionStore, *bodies: Body | str, cwd: Path = HERE, **how: Any) -> str:
    """The id of a new session that holds these, each appended by itself, and is closed again."""
    log = await store.create(cwd=cwd, **how)
    for body in bodies:
        await kept(log, body)
    await log.close()
    return log.session_id


async def a_fork(store: SessionStore, source: str, *bodies: Body | str, **how: Any) -> str:
    """The id of a fork, which goes on with these and is closed again."""
    log, _ = await store.fork(source, **{"cwd": HERE, **how})
    await kept(log, *bodies)
    await log.close()
    return log.session_id


async def goes_on(store: SessionStore, session_id: str, *bodies: Body | str) -> None:
    log, _ = await store.open(session_id)
    await kept(log, *bodies)
    await log.close()


async def entries_in(store: SessionStore, session_id: str) -> list[Entry]:
    return (await store.load(session_id))[1]


def texts_of(entries: Iterable[Any]) -> list[str]:
    return [entry.body.text for entry in entries]


async def texts_in(store: SessionStore, session_id: str) -> list[str]:
    return texts_of(await entries_in(store, session_id))


def database(folder: Path) -> Path:
    return folder / "state" / "sessions.db"


@asynccontextmanager
async def on_disk(folder: Path, told: list[str] | None = None) -> AsyncIterator[SqliteSessions]:
    """The store of a folder; what it tells is printed unless it is wanted."""
    store = SqliteSessions(database(folder), on_notice=told.append if told is not None else print)
    try:
        yield store
    finally:
        await store.close()
