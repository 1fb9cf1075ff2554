"""Cuts the power of a store at random moments, and looks what is left."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from agentcli.conversation.entries import User
from agentcli.errors import StorageError
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text
from tests.conformance.disks import disk

Acknowledged = dict[str, list[str]]  # ids of entries, by session
_CUTS_IN_A_STORY = 20


@dataclass
class Outcome:
    """What became of so many cuts."""

    cuts: int = 0
    acknowledged: int = 0
    lost: int = 0
    unreadable: list[str] = field(default_factory=list)


@dataclass
class _Cut:
    files: dict[str, bytes]
    acknowledged: Acknowledged


def cut_power(folder: Path, *, cuts: int, seed: int) -> Outcome:
    chance = random.Random(seed)
    outcome = Outcome()
    while outcome.cuts < cuts:
        story = folder / f"story-{outcome.cuts}"
        for cut in asyncio.run(_story(story, chance))[: cuts - outcome.cuts]:
            outcome.cuts += 1
            asyncio.run(_look(folder / f"cut-{outcome.cuts}", cut, outcome))
    return outcome


async def _story(folder: Path, chance: random.Random) -> list[_Cut]:
    """Sessions are begun, forked, gone on with, searched, emptied; at random writes and syncs the power is cut."""
    acknowledged: Acknowledged = {}
    cuts: list[_Cut] = []
    with disk() as disk_in_use:

        def perhaps_cut(step: str, name: str) -> None:
            if chance.random() < 0.01 and len(cuts) < _CUTS_IN_A_STORY:
                known = {id: list(entries) for id, entries in acknowledged.items()}
                cuts.append(_Cut(disk_in_use.after_a_cut(chance), known))

        disk_in_use.before_each = perhaps_cut
        store = SqliteSessions(folder / "sessions.db")
        log = await store.create(cwd=Path("/here"))
        while len(cuts) < _CUTS_IN_A_STORY:
            for _ in range(chance.randint(1, 6)):
                stored = await log.append(
                    *(User((Text(f"word{chance.randint(0, 99)} " * chance.choice((1, 50, 3_000))),)) for _ in range(2))
                ).committed
                acknowledged.setdefault(log.session_id, []).extend(entry.id for entry in stored.entries)
            await log.close()
            match chance.choice(("fork", "search", "new", "again")):
                case "fork":
                    log, entries = await store.fork(log.session_id, cwd=Path("/here"))
                    stored = await log.append(User((Text("fork"),))).committed
                    acknowledged[log.session_id] = [entry.id for entry in (*entries, *stored.entries)]
                case "search":
                    await store.search(f"word{chance.randint(0, 99)}")
                    log, _ = await store.open(log.session_id)
                case "new":
                    log = await store.create(cwd=Path("/here"))
                case _:
                    log, _ = await store.open(log.session_id)
        await log.close()
        await store.close()
    return cuts


async def _look(folder: Path, cut: _Cut, outcome: Outcome) -> None:
    """Open what a cut has left, as the program would, and go on with it."""
    folder.mkdir()
    for name, content in cut.files.items():
        (folder / name).write_bytes(content)
    outcome.acknowledged += sum(map(len, cut.acknowledged.values()))
    told: list[str] = []
    store = SqliteSessions(folder / "sessions.db", on_notice=told.append)
    try:
        for id, acknowledged in cut.acknowledged.items():
            log, entries = await store.open(id)
            outcome.lost += len(set(acknowledged) - {entry.id for entry in entries})
            await log.append(User((Text("after the cut"),))).committed
            await log.close()
        if cut.acknowledged:
            await store.search("word1")
    except StorageError as error:
        told.append(str(error))
        outcome.lost += sum(map(len, cut.acknowledged.values()))
    await store.close()
    try:
        with closing(apsw.Connection(str(folder / "sessions.db"))) as db:
            told += [str(row[0]) for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    except apsw.Error as error:
        told.append(str(error))
    outcome.unreadable += told[:1]
