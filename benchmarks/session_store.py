"""The session store: appending at 10 and at 100,000 stored entries, opening a session, searching 5,000 new sessions."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loopback import median

from agentcli.conversation.entries import Assistant, Body, Result, User
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text, ToolResult, ToolUse

ENTRIES = 100_000
OPENED = 10_000
APPENDS = 100
NEW_SESSIONS, ENTRIES_OF_EACH = 5_000, 9
APPEND_MS, OPEN_MS, SEARCH_MS = 2.0, 150.0, 3_000.0
_chance = random.Random(1)
_words = [f"{letter}{n}" for n in range(1_000) for letter in "abcdefghij"]


def sync_ms(folder: Path, times: int = APPENDS) -> float:
    """Milliseconds of one append of 4 KB with fdatasync on the disk of the store, median."""
    took = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(times):
            started = time.perf_counter()
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - started) * 1000)
    return median(took)


def talk(n: int) -> Body:
    """A prompt, a reply with a call, or a result."""
    text = " ".join(_chance.choices(_words, k=60))
    match n % 3:
        case 0:
            return User((Text(text),))
        case 1:
            return Assistant(
                content=(Text(text), ToolUse(f"c{n}", "bash", {"command": "ls -la"})), provider="p", model="m"
            )
        case _:
            return Result(result=ToolResult(f"c{n - 1}", text), name="bash")


async def fill(store: SqliteSessions, entries: int, name: str = "") -> None:
    log = await store.create(cwd=Path("/here"), name=name)
    for n in range(0, entries, 1_000):
        await log.append(*(talk(n + m) for m in range(min(1_000, entries - n)))).committed
    await log.close()


async def append_ms(store: SqliteSessions) -> float:
    """One small entry after another, each on disk before the next; median."""
    log = await store.create(cwd=Path("/here"))
    await log.append(*(talk(n) for n in range(10))).committed
    took = []
    for _ in range(APPENDS):
        started = time.perf_counter()
        await log.append(User((Text("What is here?"),))).committed
        took.append((time.perf_counter() - started) * 1000)
    await log.close()
    return median(took)


async def ms_of(store_path: Path, session: str) -> float:
    """To open a session with a new store, as a start of the program does."""
    store = SqliteSessions(store_path)
    started = time.perf_counter()
    log, _ = await store.open(session)
    took = (time.perf_counter() - started) * 1000
    await log.close()
    await store.close()
    return took


async def searches_ms(home: Path) -> list[float]:
    """The first and the second `agentcli sessions search` over many new sessions."""
    (home / "state").mkdir(parents=True)
    store = SqliteSessions(home / "state" / "sessions.db")
    for _ in range(NEW_SESSIONS):
        await fill(store, ENTRIES_OF_EACH)
    await store.close()
    took = []
    for _ in range(2):
        started = time.perf_counter()
        command = [sys.executable, "-m", "agentcli", "sessions", "search", "a1"]
        subprocess.run(command, env=os.environ | {"AGENTCLI_HOME": str(home)}, check=True, capture_output=True)
        took.append((time.perf_counter() - started) * 1000)
    return took


async def measure(folder: Path) -> int:
    path = folder / "sessions.db"
    store = SqliteSessions(path)
    few, sync_few = await append_ms(store), sync_ms(folder)
    await fill(store, OPENED, "long")
    await fill(store, 1, "short")
    for _ in range(0, ENTRIES - OPENED, 1_000):
        await fill(store, 1_000)
    many, sync_many = await append_ms(store), sync_ms(folder)
    await store.close()
    opening = median([await ms_of(path, "long") for _ in range(5)])
    opening -= median([await ms_of(path, "short") for _ in range(5)])
    store = SqliteSessions(path)
    searches = []
    for _ in range(2):
        started = time.perf_counter()
        await store.search("a1 b2")
        searches.append(time.perf_counter() - started)
    after_search = await append_ms(store)
    await store.close()
    first, second = await searches_ms(folder / "home")
    rows = [
        ("append at 10 entries", few, APPEND_MS + 1.5 * sync_few),
        (f"append at {ENTRIES:,} entries", many, APPEND_MS + 1.5 * sync_many),
        ("append after a search", after_search, APPEND_MS + 1.5 * sync_many),
        (f"opening {OPENED:,} entries, beyond an empty one", opening, OPEN_MS),
        (f"first search over {NEW_SESSIONS:,} new sessions", first, SEARCH_MS),
        ("second one, of a process of its own", second, SEARCH_MS / 3),
    ]
    print(f"fdatasync {sync_few:.2f} ms, then {sync_many:.2f} ms")
    for name, took, bound in rows:
        print(f"{name:48} {took:8.2f} ms   bound {bound:.2f}{'' if took <= bound else '   MISSED'}")
    print(f"search, first (indexes {ENTRIES:,} entries)             {searches[0]:8.2f} s")
    print(f"search, second                                   {searches[1] * 1000:8.2f} ms")
    print(f"size of the file                                 {path.stat().st_size / 1e6:8.1f} MB")
    return int(any(took > bound for _, took, bound in rows))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        sys.exit(asyncio.run(measure(Path(place))))
