"""Sessions for tests of their stores."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentcli.agent.interfaces import SessionLog, SessionStore
from agentcli.conversation.entries import Assistant, Body, CallsStarted, Entry, User
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

    def tell(notice: str) -> None:
        asyncio.get_running_loop()  # a terminal shows it only from there
        told.append(notice) if told is not None else print(notice)

    store = SqliteSessions(database(folder), on_notice=tell)
    try:
        yield store
    finally:
        await store.close()


# A process appends, and writes down what it was told is stored or refused.
APPEND = """
import asyncio, os, sys
from pathlib import Path
from agentcli import Text
from agentcli.stores import PostgresSessions, SqliteSessions
from agentcli.conversation.entries import Assistant, CallsStarted, Result, User
from agentcli.errors import StorageError
from agentcli.llm.messages import ToolResult, ToolUse

async def main():
    place = sys.argv[1]
    store = PostgresSessions(place) if "://" in place else SqliteSessions(Path(place))
    if len(sys.argv) > 2:
        log, entries = await store.open(sys.argv[2], take_over=True)
    else:
        log, entries = await store.create(cwd=Path("/here")), []
    os.write(1, f"session {log.session_id}\\n".encode())
    for n in range(len(entries), 100_000):
        content = (Text(f"{n}"), ToolUse(f"c{n}", "think", {}))
        bodies = [Assistant(content=content, provider="p", model="m"), CallsStarted((f"c{n}",))]
        appended = log.append(User((Text("x" * 2_000),)), *bodies)
        following = log.append(Result(result=ToolResult(f"c{n}", "done"), name="think"))
        for one in (appended, following):
            try:
                for entry in (await one.committed).entries:
                    os.write(1, f"{entry.id}\\n".encode())
            except StorageError as error:
                os.write(1, f"refused {log.is_wanted()} {error}\\n".encode())
                if one is following:
                    return await log.close()

asyncio.run(main())
"""


@contextmanager
def appending(place: Path | str, session_id: str = "") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The process, which is killed in the end or when it takes long, and its session."""
    command = [sys.executable, "-c", APPEND, str(place), *([session_id] if session_id else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().decode().split()[-1]
        finally:
            watchdog.cancel()
            process.kill()


def told_by(process: subprocess.Popen[bytes]) -> list[str]:
    """The whole lines that it has written and nobody has read."""
    assert process.stdout is not None
    told = process.stdout.read()
    return told[: told.rfind(b"\n") + 1].decode().splitlines()


def assert_nothing_is_lost(entries: list[Entry], acknowledged: list[str]) -> None:
    there = [entry.id for entry in entries]
    assert set(acknowledged) <= set(there)
    assert len(there) == len(set(there))
    assert [entry.parent_id for entry in entries] == [None, *there[:-1]]
    for entry, after in pairwise(entries):
        assert not isinstance(entry.body, Assistant) or isinstance(after.body, CallsStarted)  # one transaction
