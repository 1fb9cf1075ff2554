"""What every session store does, and what a file has to bear: kills, damage, full disks, other programs."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import pytest

from agentcli.agent.events import TurnFailed
from agentcli.agent.interfaces import SessionLog, SessionStore
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallsStarted,
    Compaction,
    ContextNote,
    Pinned,
    Result,
    Retracted,
    Unreadable,
    User,
    reminder,
)
from agentcli.errors import NoSession, StorageError
from agentcli.infra.sessions.database import VERSION
from agentcli.infra.sessions.fsck import check
from agentcli.infra.sessions.ids import new_id
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.infra.sessions.postgres import PostgresSessions
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text, Thinking, ToolResult, ToolUse, Usage
from tests.conformance.disks import tiny_disk
from tests.conformance.postgres_server import running
from tests.unit.agent.stage import call, on_stage

MakeStore = Callable[[Path], SessionStore]
STORES: dict[str, MakeStore] = {
    "memory": lambda folder: MemorySessions(),
    "sqlite": lambda folder: SqliteSessions(folder / "state" / "sessions.db"),
    "postgres": lambda folder: PostgresSessions(running().url_for(folder)),
}
MARKS = {"postgres": pytest.mark.slow}  # it starts a server
every_store = pytest.mark.parametrize(
    "make", [pytest.param(make, id=name, marks=MARKS.get(name, ())) for name, make in STORES.items()]
)
is_root = hasattr(os, "geteuid") and os.geteuid() == 0
HERE, THERE = Path("/here"), Path("/there")


@asynccontextmanager
async def opened(make: MakeStore, folder: Path) -> AsyncIterator[SessionStore]:
    store = make(folder)
    try:
        yield store
    finally:
        await store.close()


def said(text: str) -> User:
    return User((Text(text),))


ROUND: tuple[Body, ...] = (
    said("What is here?\nTell me."),
    Assistant((Text("Let me see."), ToolUse("c1", "think", {"thought": "ü"})), "p", "m", Usage(3, 4), "tool_use", 0.5),
    CallsStarted(("c1",)),
    Result(ToolResult("c1", "Noted.", is_error=True), "think", "thought", 1.5, {"a": [1, None]}, "timeout"),
    Retracted(("x",)),
)


async def kept(log: SessionLog, *bodies: Body, **how: Any) -> None:
    await log.append(*bodies, **how).committed


async def a_session(store: SessionStore, *texts: str, cwd: Path = HERE, **how: Any) -> str:
    """The id of a new session that holds these prompts and is closed again."""
    log = await store.create(cwd=cwd, **how)
    for text in texts:
        await kept(log, said(text))
    await log.close()
    return log.session_id


def texts_of(entries: Any) -> list[str]:
    return [entry.body.text for entry in entries]


# What every store does.


@every_store
async def test_what_was_appended_comes_back_as_it_was(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        first = log.append(*ROUND[:3])
        second = log.append(*ROUND[3:])
        stored = [await first.committed, await second.committed]
        await log.close()
        again, entries = await store.open(log.session_id)
        await again.close()
    assert [entry.body for entry in entries] == list(ROUND)
    assert [*first.entries, *second.entries] == entries == [*stored[0].entries, *stored[1].entries]
    assert [one.first_seq for one in stored] == [1, 4]


@every_store
async def test_each_entry_names_the_one_before_and_a_result_has_its_call_s_id(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        entries = log.append(*ROUND).entries
        await log.close()
        again, _ = await store.open(log.session_id)
        (later,) = again.append(said("more")).entries
        await again.close()
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    assert entries[3].id == "c1"
    assert later.parent_id == entries[-1].id
    own = [entry.id for entry in (*entries, later) if entry.id != "c1"]
    assert own == sorted(own)
    assert all(abs(entry.time - time.time()) < 60 for entry in entries)


@every_store
async def test_entries_are_numbered_on_from_where_a_session_stood(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        id = await a_session(store, "one", "two")
        log, _ = await store.open(id)
        stored = await log.append(said("three"), said("four")).committed
        await log.close()
    assert stored.first_seq == 3


@every_store
async def test_appending_does_not_wait(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        waiting = [log.append(said(f"{n}")) for n in range(50)]
        stored = [await one.committed for one in waiting]
        assert [one.first_seq for one in stored] == list(range(1, 51))
        await log.close()
        assert texts_of((await store.load(log.session_id))[1]) == [f"{n}" for n in range(50)]


@every_store
async def test_closing_waits_for_everything_that_was_appended(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        for n in range(20):
            log.append(said(f"{n}"))
        await log.close()
        assert len((await store.load(log.session_id))[1]) == 20


@every_store
async def test_a_session_without_an_entry_is_not_stored(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        await log.close()
        assert await store.list() == []
        with pytest.raises(StorageError, match="No session"):
            await store.load(log.session_id)


@every_store
async def test_sessions_are_listed_newest_first_and_by_directory(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        first = await a_session(store, "one")
        second = await a_session(store, "two")
        other = await a_session(store, "elsewhere", cwd=THERE)
        await asyncio.sleep(0.002)
        log, _ = await store.open(first)
        await kept(log, said("more"))
        await log.close()
        assert [info.id for info in await store.list(cwd=HERE)] == [first, second]
        assert [info.id for info in await store.list()] == [first, other, second]
        assert [info.id for info in await store.list(limit=1)] == [first]
        assert await store.list(cwd=Path("/nowhere")) == []


@every_store
async def test_a_session_says_what_it_is(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        before = time.time()
        log = await store.create(cwd=HERE, name="my work")
        await kept(log, reminder("where we are"), said("\n  What is here?  \nTell me."), said("And there?"))
        await log.close()
        (listed,) = await store.list()
        info, entries = await store.load(log.session_id)
    assert listed == info
    assert (info.cwd, info.title, info.name, info.entries) == ("/here", "What is here?", "my work", 3)
    assert before <= info.created <= info.updated <= time.time()
    assert len(entries) == 3


@every_store
async def test_a_title_may_come_later_than_the_first_entries_and_then_stays(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, reminder("where we are"))
        await kept(log, said("x" * 200))
        await kept(log, said("other"))
        await log.close()
        again, _ = await store.open(log.session_id)
        await kept(again, said("yet another"))
        await again.close()
        (info,) = await store.list()
    assert info.title == f"{'x' * 79}…"
    assert info.last_prompt == "yet another"


@every_store
@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("Hi!\n\nCan you mend the parser?", "Can you mend the parser?"),
        ("Hi!", "Hi!"),
        ("```python\nprint(1)\n```\nWhat does it print?", "print(1)"),
        ("<stdin>\n---\n## The   plan so far\n", "The plan so far"),
        ("修正\n这个解析器。", "修正"),
        (f"{'word ' * 30}", f"{'word ' * 15}word…"),
        ("\n\n", ""),
    ],
)
async def test_a_title_is_what_the_first_prompt_says(make: MakeStore, tmp_path: Path, prompt: str, title: str) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, said(prompt), said("Go on, please."), reminder("a note"))
        await log.close()
        (info,) = await store.list()
    if title:
        assert (info.title, info.last_prompt) == (title, "Go on, please.")


@every_store
async def test_an_id_may_be_shortened_while_it_is_the_only_one(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        first = await a_session(store, "one", session_id="0197aaaa-0000-7000-8000-000000000001")
        await a_session(store, "two", session_id="0197aaaa-0000-7000-8000-000000000002")
        third = await a_session(store, "three", session_id="0197bbbb-0000-7000-8000-000000000003")
        assert (await store.load("0197b"))[0].id == third
        assert (await store.load(first))[0].id == first
        with pytest.raises(StorageError, match="0197aaaa"):
            await store.load("0197aaaa")


@every_store
async def test_what_looks_like_a_pattern_is_none(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        await a_session(store, "one")
        for nothing in ("%", "_", "*", "zzz", "'", "\\"):
            with pytest.raises(StorageError):
                await store.load(nothing)


@every_store
async def test_a_session_is_renamed_whether_it_is_open_closed_or_not_stored_yet(
    make: MakeStore, tmp_path: Path
) -> None:
    async with opened(make, tmp_path) as store:
        closed = await a_session(store, "one", name="before")
        await store.rename(closed, "after")
        log = await store.create(cwd=HERE)
        await store.rename(log.session_id, "early")
        await kept(log, said("two"))
        await store.rename(log.session_id, "later")
        named = {info.id: info.name for info in await store.list()}
        assert named == {closed: "after", log.session_id: "later"}
        found, _ = await store.load("later")
        assert (found.id, found.title) == (log.session_id, "two")
        another = await store.create(cwd=HERE)
        await store.rename(another.session_id, "named before its first entry")
        await kept(another, said("three"))
        assert (await store.load(another.session_id))[0].name == "named before its first entry"
        with pytest.raises(StorageError):
            await store.rename("no such session", "x")
        for one in (log, another):
            await one.close()


@every_store
async def test_a_session_is_found_by_its_name(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        await a_session(store, "one")
        named = await a_session(store, "two", name="my work")
        log, entries = await store.open("my work")
        await log.close()
        assert (log.session_id, texts_of(entries)) == (named, ["two"])
        await a_session(store, "three", name="my work")
        with pytest.raises(StorageError, match="my work"):
            await store.open("my work")


@every_store
async def test_an_id_of_one_s_own_is_taken_once(make: MakeStore, tmp_path: Path) -> None:
    id = "12345678-1234-4234-8234-123456789abc"
    async with opened(make, tmp_path) as store:
        assert await a_session(store, "one", session_id=id) == id
        with pytest.raises(StorageError, match=f"--resume {id}"):
            await store.create(cwd=HERE, session_id=id)
        log, _ = await store.open(id)  # and the refusal has not kept it
        await log.close()


@every_store
async def test_a_session_has_one_owner_and_may_be_read_meanwhile(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        id = await a_session(store, "one")
        log, _ = await store.open(id)
        with pytest.raises(StorageError, match="--fork-session"):
            await store.open(id)
        assert len((await store.load(id))[1]) == 1
        await kept(log, said("two"))
        await log.close()
        again, entries = await store.open(id)
        await again.close()
        assert len(entries) == 2


@every_store
async def test_a_fork_begins_with_the_other_s_entries_and_leaves_it_as_it_is(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        source = await a_session(store, "one", "two")
        log, inherited = await store.fork(source, cwd=THERE, name="a copy")
        (new,) = log.append(said("three")).entries
        await log.close()
        original, _ = await store.open(source)
        await kept(original, said("other"))
        await original.close()
        assert texts_of(inherited) == ["one", "two"]
        assert new.parent_id == inherited[-1].id
        assert texts_of((await store.load(log.session_id))[1]) == ["one", "two", "three"]
        assert texts_of((await store.load(source))[1]) == ["one", "two", "other"]
        (info,) = await store.list(cwd=THERE)
        assert (info.title, info.name) == ("one", "a copy")
        assert (await store.load("a copy"))[0].id == log.session_id


@every_store
async def test_a_fork_of_a_fork_and_of_an_open_session(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, said("one"))
        second, _ = await store.fork(log.session_id, cwd=HERE)
        await kept(second, said("two"))
        third, inherited = await store.fork(second.session_id, cwd=HERE, new_id="12345678-1234-4234-8234-123456789abc")
        await kept(third, said("three"))
        for one in (log, second, third):
            await one.close()
        assert texts_of(inherited) == ["one", "two"]
        again, entries = await store.open("12345678")
        await again.close()
        assert texts_of(entries) == ["one", "two", "three"]


@every_store
async def test_what_does_not_exist_is_refused(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        for refused in (store.open("nope"), store.load("nope"), store.fork("nope", cwd=HERE)):
            with pytest.raises(StorageError, match="nope"):
                await refused


def test_ids_are_uuids_of_version_7_that_grow() -> None:
    ids = [new_id() for _ in range(2_000)]
    assert ids == sorted(set(ids))
    for id in ids[:10]:
        assert [len(part) for part in id.split("-")] == [8, 4, 4, 4, 12]
        assert id[14] == "7"
        assert id[19] in "89ab"
    assert abs(int(ids[0].replace("-", "")[:12], 16) / 1000 - time.time()) < 60


@every_store
async def test_sessions_are_listed_by_user(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        hers = await a_session(store, "one", user_id="ada")
        await a_session(store, "two", user_id="bob")
        nobodys = await a_session(store, "three", cwd=THERE)
        assert [info.id for info in await store.list(user_id="ada")] == [hers]
        assert [info.id for info in await store.list(user_id="")] == [nobodys]
        assert await store.list(user_id="ada", cwd=THERE) == []
        assert len(await store.list(user_id=None)) == 3


@every_store
async def test_of_one_users_sessions_no_other_ones_are_looked_at(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        hers = await a_session(store, "one", user_id="ada")
        await a_session(store, "two", user_id="ada", name=hers)
        for _ in range(4):  # whatever anybody names theirs, an id is that session's
            await a_session(store, "three", user_id="bob", name=hers)
        for user in ("ada", None):
            assert (await store.load(hers, user_id=user))[0].id == hers
        for start in (hers[:8], hers[:20]):
            with pytest.raises(NoSession):
                await store.load(start, user_id="eve")


# A fork at an entry.


@every_store
async def test_a_fork_at_an_entry_ends_there_also_on_a_branch_that_was_left(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        first, second = log.append(said("a"), said("b")).entries
        left, *_ = log.append(said("left"), said("left too"), parent_id=first.id).entries
        await kept(log, said("c"), parent_id=second.id)
        await log.close()
        fork, inherited = await store.fork(log.session_id, cwd=HERE, at=left.id)
        await kept(fork, said("on from there"))
        await fork.close()
        _, entries = await store.load(fork.session_id)
        assert texts_of(inherited) == ["a", "b", "left"]
        assert texts_of(entries) == ["a", "b", "left", "on from there"]
        assert texts_of(Conversation(entries).path) == ["a", "left", "on from there"]
        deeper, inherited = await store.fork(fork.session_id, cwd=HERE, at=first.id)
        await kept(deeper, said("again"))
        await deeper.close()
        assert texts_of((await store.load(deeper.session_id))[1]) == ["a", "again"]


@every_store
async def test_an_entry_to_fork_at_may_be_shortened_and_of_equal_ids_the_newest_counts(
    make: MakeStore, tmp_path: Path
) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        for text in ("first", "second"):
            await kept(log, Result(ToolResult("call_1", text), "think"))
        await kept(log, Result(ToolResult("call_22", "third"), "think"), said("end"))
        await log.close()
        for at, ends in (("call_1", "second"), ("call_2", "third")):
            fork, inherited = await store.fork(log.session_id, cwd=HERE, at=at)
            await fork.close()
            assert inherited[-1].body.result.text == ends
        for at, says in (("call_", "Several entries begin"), ("nope", "No entry begins")):
            with pytest.raises(StorageError, match=says):
                await store.fork(log.session_id, cwd=HERE, at=at)
        await kept(again := (await store.open(log.session_id))[0], said("and a refusal holds no lock"))
        await again.close()


# Searching.

TALK: tuple[Body, ...] = (
    said("Mend the Parser in src/parse_all.py"),
    Assistant(
        (Thinking("a secret thought"), Text("Über den Zeilen…"), ToolUse("c1", "bash", {"command": "ls -la quux"})),
        "p", "m", Usage(), "tool_use",
    ),
    Result(ToolResult("c1", f"{'x ' * 200}needle\x1b[31m\n{'y ' * 200}"), "bash"),
    reminder("agentcli says grommet"),
    Compaction("what went before: widgets"),
    ContextNote("a note about sprockets"),
    Pinned("never touch the flywheel"),
)  # fmt: skip


async def found_in(store: SessionStore, text: str, **how: Any) -> list[str]:
    return [one.kind for one in await store.search(text, **how)]


@pytest.mark.sampled(2)
@every_store
@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("parser", ["user"]),
        ("PARS mend", ["user"]),
        ("parse_all.py", ["user"]),
        ("parse_al", ["user"]),
        ("all_parse", []),
        ("arser", []),
        ("mend needle", []),
        ("uber zeile", ["assistant"]),
        ("quux", ["assistant"]),
        ("bash", ["assistant"]),
        ("needle", ["tool_result"]),
        ("widget", ["compaction"]),
        ("sprockets", ["context_note"]),
        ("flywheel", ["pinned"]),
        ("secret", []),
        ("grommet", []),
        ('"needle" AND', []),
        ('"needle" -> *', ["tool_result"]),
    ],
)
async def test_a_search_finds_entries_by_the_beginnings_of_words(
    make: MakeStore, tmp_path: Path, text: str, kinds: list[str]
) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, *TALK)
        await log.close()
        assert await found_in(store, text) == kinds


@every_store
async def test_what_was_found_is_shown_in_a_line_with_its_place(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        appended = log.append(*TALK)
        await log.close()
        (found,) = await store.search("needle")
        (prompt,) = await store.search("mend")
    entry = appended.entries[2]
    assert (found.session_id, found.entry_id, found.time) == (log.session_id, entry.id, entry.time)
    assert found.title == prompt.title == "Mend the Parser in src/parse_all.py"
    assert found.excerpt == f"…{'x ' * 30}needle [31m {'y ' * 27}…".replace(" …", "…")
    assert prompt.excerpt == "Mend the Parser in src/parse_all.py"


@every_store
async def test_a_search_gives_the_newest_first_and_heeds_directory_user_and_limit(
    make: MakeStore, tmp_path: Path
) -> None:
    async with opened(make, tmp_path) as store:
        ids = [
            await a_session(store, f"find me {n}", cwd=cwd, user_id=user)
            for n, (cwd, user) in enumerate(((HERE, "ada"), (THERE, "ada"), (HERE, "bob")))
        ]
        log, _ = await store.open(ids[0])
        await kept(log, said("find me again"))
        assert [one.session_id for one in await store.search("find")] == [ids[0], ids[2], ids[1], ids[0]]
        await kept(log, said("find me at once"))
        await log.close()
        assert [one.excerpt for one in await store.search("find", limit=2)] == ["find me at once", "find me again"]
        assert [one.session_id for one in await store.search("find", cwd=THERE)] == [ids[1]]
        assert {one.session_id for one in await store.search("find", user_id="ada")} == {ids[0], ids[1]}


@every_store
async def test_a_fork_is_found_by_what_is_its_own(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        source = await a_session(store, "common ground")
        fork, _ = await store.fork(source, cwd=HERE)
        await kept(fork, said("common again"))
        await fork.close()
        assert [one.session_id for one in await store.search("common")] == [fork.session_id, source]


@every_store
@pytest.mark.parametrize("text", ["", " ", "->", '"*"', "_ - _"])
async def test_a_search_for_no_word_is_refused(make: MakeStore, tmp_path: Path, text: str) -> None:
    async with opened(make, tmp_path) as store:
        with pytest.raises(StorageError, match="letter or a digit"):
            await store.search(text)


# Removing, and bringing back.


@every_store
async def test_a_removed_session_is_gone_until_it_is_restored_as_it_was(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE, name="mine", user_id="ada")
        await kept(log, *ROUND)
        await log.close()
        before = await store.load(log.session_id)
        await store.search("see")
        await store.remove("mine")
        assert await store.list() == []
        assert await store.search("see") == []
        with pytest.raises(StorageError):
            await store.load(log.session_id)
        assert await store.restore(log.session_id[:20]) == log.session_id
        assert await store.load(log.session_id) == before
        assert [one.session_id for one in await store.search("see")] == [log.session_id]
        again, _ = await store.open(log.session_id)
        assert (await again.append(said("more")).committed).first_seq == 6
        await again.close()
        with pytest.raises(StorageError, match="trash"):
            await store.restore(log.session_id)


@every_store
async def test_an_open_session_is_neither_removed_nor_redacted(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        id = await a_session(store, "one")
        log, _ = await store.open(id)
        for refused in (store.remove(id), store.redact(id, ["one"])):
            with pytest.raises(StorageError, match="is open"):
                await refused
        await log.close()
        assert texts_of((await store.load(id))[1]) == ["one"]
        with pytest.raises(StorageError, match="trash"):
            await store.restore(id)


@every_store
async def test_forks_keep_what_they_share_with_a_session_that_is_removed(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        root = await a_session(store, "a", "b", "c", "d")
        _, (_, b, c, _) = await store.load(root)
        ids = {}
        for name, at in (("two", b.id), ("three", c.id)):
            fork, _ = await store.fork(root, cwd=HERE, at=at)
            await kept(fork, said(name))
            ids[name] = fork.session_id
            await (fork.close() if name == "two" else asyncio.sleep(0))
        deep, _ = await store.fork(ids["two"], cwd=HERE)
        await kept(deep, said("deep"))
        await deep.close()
        await store.search("a")
        await store.remove(root)
        await kept(fork, said("still open"))
        await fork.close()
        shown = {
            ids["two"]: ["a", "b", "two"], ids["three"]: ["a", "b", "c", "three", "still open"],
            deep.session_id: ["a", "b", "two", "deep"],
        }  # fmt: skip
        for id, texts in shown.items():
            _, entries = await store.load(id)
            assert texts_of(entries) == texts
            assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
        assert [one.session_id for one in await store.search("b")] == [ids["three"]]
        await store.restore(root)
        assert texts_of((await store.load(root))[1]) == ["a", "b", "c", "d"]
        assert [one.session_id for one in await store.search("b")] == [ids["three"]]  # they share it again
        await store.remove(ids["three"])
        await store.remove(ids["two"])
        assert texts_of((await store.load(deep.session_id))[1]) == shown[deep.session_id]
        await store.restore(ids["three"])
        assert texts_of((await store.load(ids["three"]))[1]) == shown[ids["three"]]


# Striking out.

KEY = 'p4ss"wörd\\1'
STRUCK = "[redacted]"


@every_store
async def test_texts_are_struck_out_of_every_string_and_that_is_noted(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE, name=f"with {KEY}")
        await kept(
            log,
            said(f"use {KEY} and {KEY}"),
            Assistant((Thinking(KEY), ToolUse("c1", "bash", {"env": {KEY: [KEY]}})), "p", "m", Usage(), "tool_use"),
            Result(ToolResult("c1", json.dumps({"k": KEY})), "bash", structured={"a": [1.5, None, f"<{KEY}>"]}),
            said("nothing here"),
        )
        await log.close()
        assert len(await store.search("p4ss")) == 3
        assert await store.redact(log.session_id, [KEY, "1.5", " "]) == 7
        info, entries = await store.load(log.session_id)
        assert not any(form in repr((info, entries)) for form in (KEY, "p4ss", "wörd"))
        assert (info.name, info.title) == (f"with {STRUCK}", f"use {STRUCK} and {STRUCK}")
        assert [type(entry.body) for entry in entries] == [User, Assistant, Result, User, ContextNote]
        assert entries[1].body.content[1].input == {"env": {STRUCK: [STRUCK]}}
        assert entries[2].body.structured == {"a": [1.5, None, f"<{STRUCK}>"]}
        assert "7 places" in entries[4].body.text
        assert entries[4].parent_id == entries[3].id
        assert await store.search("p4ss") == []
        assert len(await store.search("redacted")) == 3
        assert await store.redact(log.session_id, [KEY]) == 0
        assert len((await store.load(log.session_id))[1]) == 5


@every_store
async def test_texts_that_overlap_leave_no_rest(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        id = await a_session(store, "abcde abab ababab")
        assert await store.redact(id, ["abc", "bcde", "abab"]) == 3
        assert texts_of((await store.load(id))[1][:1]) == [f"{STRUCK} {STRUCK} {STRUCK}"]


@every_store
async def test_a_text_that_entries_cannot_be_read_without_is_refused(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        id = await a_session(store, "user")
        for secrets, says in (([""], "no text"), (["use"], "give more of it")):
            with pytest.raises(StorageError, match=says):
                await store.redact(id, secrets)
        assert texts_of((await store.load(id))[1]) == ["user"]


@every_store
async def test_what_is_struck_out_of_a_fork_is_struck_out_of_what_it_shares(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        source = await a_session(store, f"my {KEY}", "after")
        _, entries = await store.load(source)
        fork, _ = await store.fork(source, cwd=HERE, at=entries[0].id)
        await kept(fork, said(f"its {KEY}"))
        await fork.close()
        assert await store.redact(fork.session_id, [KEY]) == 2
        assert texts_of((await store.load(source))[1]) == [f"my {STRUCK}", "after"]
        assert {info.title for info in await store.list()} == {f"my {STRUCK}"}


# The file.


def database(folder: Path) -> Path:
    return folder / "state" / "sessions.db"


def sqlite(folder: Path, told: list[str] | None = None) -> SqliteSessions:
    return SqliteSessions(database(folder), on_notice=told.append if told is not None else print)


@asynccontextmanager
async def on_disk(folder: Path, told: list[str] | None = None) -> AsyncIterator[SqliteSessions]:
    store = sqlite(folder, told)
    try:
        yield store
    finally:
        await store.close()


def damage(folder: Path, *statements: str) -> None:
    """Do to the tables what nobody should."""
    with closing(apsw.Connection(str(database(folder)))) as db:
        db.create_scalar_function("crc32", lambda body: crc32(body.encode() if isinstance(body, str) else body), 1)
        for statement in statements:
            db.execute(statement)


async def test_sessions_outlive_the_program(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, *ROUND)
        await log.close()
    async with on_disk(tmp_path) as store:
        again, entries = await store.open(log.session_id)
        await kept(again, said("more"))
        await again.close()
    async with on_disk(tmp_path) as store:
        assert [e.body for e in (await store.load(log.session_id))[1]] == [*ROUND, said("more")]
    assert [entry.body for entry in entries] == list(ROUND)


async def test_nothing_is_told_before_it_is_on_disk(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        for n in range(10):
            await log.append(said(f"{n}"), said("and")).committed
            with closing(apsw.Connection(str(database(tmp_path)), flags=apsw.SQLITE_OPEN_READONLY)) as other:
                assert other.execute("SELECT count(*) FROM entries").get == 2 * (n + 1)
        await log.close()


async def test_entries_of_one_append_are_stored_together_or_not_at_all(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, said("one"))
        with pytest.raises(StorageError):
            await log.append(said("fine"), said("\ud800")).committed
        assert texts_of((await store.load(log.session_id))[1]) == ["one"]


async def test_a_body_that_cannot_be_stored_does_not_stop_the_store(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        broken = await store.create(cwd=HERE)
        with pytest.raises(StorageError):
            await asyncio.wait_for(broken.append(said("\ud800")).committed, 5)
        assert await a_session(store, "one")


async def test_the_settings_that_keep_what_was_told_are_really_set(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        await a_session(store, "one")
        read = {}
        for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "user_version"):
            read[name] = await store._writer.submit(lambda db, name=name: db.pragma(name))
    assert read == {
        "journal_mode": "wal",
        "synchronous": 2,  # FULL
        "foreign_keys": 1,
        "busy_timeout": 5_000,
        "user_version": VERSION,
    }


async def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        async with on_disk(tmp_path) as store:
            log = await store.create(cwd=HERE)
            await kept(log, said("one"))
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database(tmp_path).parent.iterdir()}
            await log.close()
    finally:
        os.umask(mask)
    assert modes["sessions.db"] == modes["sessions.db-wal"] == modes["sessions.db-shm"] == 0o600
    assert modes["locks"] == 0o700
    assert stat.S_IMODE(database(tmp_path).parent.stat().st_mode) == 0o700


async def test_a_file_that_was_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        await a_session(store, "one")
    database(tmp_path).chmod(0o644)
    async with on_disk(tmp_path) as store:
        await store.list()
    assert stat.S_IMODE(database(tmp_path).stat().st_mode) == 0o600


async def test_nothing_is_made_before_the_first_use(tmp_path: Path) -> None:
    async with on_disk(tmp_path):
        pass
    assert not database(tmp_path).parent.exists()


@pytest.mark.parametrize("damage", [b"This is no database at all. " * 100, b"SQLite format 3\0" + b"\xff" * 4080])
async def test_a_damaged_file_is_kept_aside_and_a_new_one_begun_and_told(tmp_path: Path, damage: bytes) -> None:
    database(tmp_path).parent.mkdir()
    database(tmp_path).write_bytes(damage)
    told: list[str] = []
    async with on_disk(tmp_path, told) as store:
        id = await a_session(store, "one")
        assert len((await store.load(id))[1]) == 1
    (aside,) = database(tmp_path).parent.glob("sessions.db.damaged-*")
    assert aside.read_bytes() == damage
    (notice,) = told
    assert str(aside) in notice
    assert "damaged" in notice


async def test_who_only_reads_a_damaged_file_is_told_and_leaves_it(tmp_path: Path) -> None:
    database(tmp_path).parent.mkdir()
    damage = b"This is no database at all. " * 100
    database(tmp_path).write_bytes(damage)
    async with on_disk(tmp_path) as store:
        for reading in (store.list(), store.load("x"), store.open("x"), store.fork("x", cwd=HERE)):
            with pytest.raises(StorageError, match=r"damaged.*fsck --repair"):
                await reading
    assert [path.name for path in database(tmp_path).parent.iterdir()] == ["sessions.db"]
    assert database(tmp_path).read_bytes() == damage


async def test_a_damaged_file_is_restored_from_its_copy_and_the_time_of_that_is_said(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        await a_session(store, "Remember me")
    file = database(tmp_path)
    file.write_bytes(bytes(16) + file.read_bytes()[16:])  # it says no more that it is a database
    copied = database(tmp_path).with_name("sessions.db.copy").stat().st_mtime
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(copied))
    notices: list[str] = []
    async with on_disk(tmp_path, notices) as store:
        await a_session(store, "Another")
        assert {info.title for info in await store.list()} == {"Remember me", "Another"}
    (aside,) = file.parent.glob("*damaged*")
    assert str(aside) in notices[0]
    assert f"what was stored until {made} is restored from the copy" in notices[0]


async def test_a_second_damaged_file_does_not_take_the_place_of_the_first(tmp_path: Path) -> None:
    database(tmp_path).parent.mkdir()
    for damage in (b"one" * 1000, b"two" * 1000):
        for file in database(tmp_path).parent.glob("sessions.db*"):
            if "damaged" not in file.name:
                file.unlink()
        database(tmp_path).write_bytes(damage)
        async with on_disk(tmp_path) as store:
            await a_session(store, "one")
    kept_aside = database(tmp_path).parent.glob("sessions.db.damaged-*")
    assert sorted(path.read_bytes()[:3] for path in kept_aside if path.suffix[-4:] not in ("-wal", "-shm")) == [
        b"one", b"two"
    ]  # fmt: skip


async def test_damage_in_the_middle_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        id = await a_session(store, *(f"{n} " + "x" * 500 for n in range(100)))
    content = bytearray(database(tmp_path).read_bytes())
    content[4096:-4096] = b"\xa5" * (len(content) - 8192)
    database(tmp_path).write_bytes(content)
    async with on_disk(tmp_path) as store:
        with pytest.raises(StorageError, match=r"sessions\.db.*damaged"):
            await store.load(id)


async def test_a_file_of_a_newer_agentcli_is_refused_untouched(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        await a_session(store, "one")
    with closing(apsw.Connection(str(database(tmp_path)))) as db:
        db.pragma("user_version", VERSION + 1)
        db.pragma("journal_mode", "delete")
    before = database(tmp_path).read_bytes()
    async with on_disk(tmp_path) as store:
        with pytest.raises(StorageError, match=r"newer agentcli .*update agentcli"):
            await store.list()
    assert database(tmp_path).read_bytes() == before


async def test_another_program_s_database_is_refused_untouched(tmp_path: Path) -> None:
    database(tmp_path).parent.mkdir()
    with closing(apsw.Connection(str(database(tmp_path)))) as db:
        db.execute("CREATE TABLE bookmarks (url)")
    database(tmp_path).chmod(0o640)
    before = database(tmp_path).read_bytes()
    async with on_disk(tmp_path) as store:
        with pytest.raises(StorageError, match="another program"):
            await a_session(store, "one")
    assert database(tmp_path).read_bytes() == before
    assert stat.S_IMODE(database(tmp_path).stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("schema_version = 99", "newer agentcli (schema 99"),
        ("checksum = crc32('[]'), schema_version = 1, body = '[]'", "cannot be read"),
        ('checksum = crc32(\'{"kind":"poem"}\'), body = \'{"kind":"poem"}\'', "poem"),
        ("checksum = crc32(''), body = ''", "cannot be read"),
        ("checksum = crc32(X'7BFF'), body = CAST(X'7BFF' AS TEXT)", "cannot be read"),
        ("body = CAST(X'7BFF' AS TEXT)", "checksum"),
        ("body = replace(body, 'two', 'too')", "checksum"),
    ],
)
async def test_an_entry_that_cannot_be_read_is_left_out_and_said(tmp_path: Path, change: str, says: str) -> None:
    told: list[str] = []
    async with on_disk(tmp_path, told) as store:
        id = await a_session(store, "one", "two", "three")
        damage(tmp_path, f"UPDATE entries SET {change} WHERE seq = 2")
        log, entries = await store.open(id)
        await log.close()
        assert says in told[0]
        assert "1 of the 3 entries" in told[0]
        assert isinstance(entries[1].body, Unreadable)
        assert [message.text for message in Conversation(entries).messages] == ["onethree"]
        assert len((await store.load(id))[1]) == 3
        fork, entries = await store.fork(id, cwd=HERE)
        await kept(fork, said("four"))
        await fork.close()
        assert [type(entry.body) for entry in (await store.load(fork.session_id))[1]] == [User, Unreadable, User, User]


TABLES_OF_4 = """
DROP TABLE words; DROP TABLE entries; DROP TABLE sessions; DROP TABLE events; DROP TABLE streams;
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, cwd TEXT NOT NULL, name TEXT NOT NULL, title TEXT NOT NULL, created REAL NOT NULL,
    updated REAL NOT NULL, forked_from TEXT, forked_at INTEGER, used INTEGER NOT NULL DEFAULT 0,
    user_id TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX sessions_by_use ON sessions (used, cwd);
CREATE TABLE entries (
    session_id TEXT NOT NULL REFERENCES sessions (id), seq INTEGER NOT NULL, id TEXT NOT NULL, parent_id TEXT,
    time REAL NOT NULL, kind TEXT NOT NULL, schema_version INTEGER NOT NULL, body TEXT NOT NULL, checksum INTEGER,
    PRIMARY KEY (session_id, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX changes_of_files ON entries (time) WHERE kind IN ('files_changed', 'files_restored');
CREATE TABLE indexed (number INTEGER PRIMARY KEY, session_id TEXT NOT NULL UNIQUE, seq INTEGER NOT NULL) STRICT;
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0'
);
"""


def as_version_4(db: apsw.Connection) -> None:
    """As the last release wrote it: a fork shares entries by their number, which may be below its own first one."""
    sessions = db.execute("SELECT id, cwd, name, title, created, updated, used, user_id FROM sessions").fetchall()
    entries = db.execute("SELECT * FROM (SELECT n, origin, own, session_id, seq, id, parent_id, time, kind, "
                         "schema_version, body, checksum FROM entries) ORDER BY n").fetchall()  # fmt: skip
    owners = {n: (session_id, seq) for n, _, _, session_id, seq, *_ in entries}
    db.execute(TABLES_OF_4)
    for id, *rest in sessions:
        shared = [origin for _, origin, own, session_id, *_ in entries if session_id == id and not own]
        source, at = owners[shared[-1]] if shared else (None, None)
        values = (id, *rest[:5], source, at and at - 10, *rest[5:])
        db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    for _, _, own, session_id, seq, *rest in entries:
        if own:
            rest[-1] = rest[-1] if seq % 2 else None  # rows of older versions have no checksum
            db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (session_id, seq - 10, *rest))
    db.pragma("user_version", 4)


async def test_a_file_of_the_last_release_is_copied_and_brought_up_with_what_its_log_holds(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        source = await a_session(store, "one", "two", "three", name="mine", user_id="ada")
        _, entries = await store.load(source)
        fork, _ = await store.fork(source, cwd=THERE, at=entries[1].id)
        await kept(fork, said("four"))
        deep, _ = await store.fork(fork.session_id, cwd=HERE)
        await kept(deep, reminder("a note"))
        for log in (fork, deep):
            await log.close()
        ids = (source, fork.session_id, deep.session_id)
        before = {id: await store.load(id) for id in ids}
    old = apsw.Connection(str(database(tmp_path)))  # held open, so that the log is not written into the file
    as_version_4(old)
    assert database(tmp_path).with_name("sessions.db-wal").stat().st_size
    told: list[str] = []
    async with on_disk(tmp_path, told) as store:
        assert {id: await store.load(id) for id in ids} == before
        assert [one.session_id for one in await store.search("two")] == [source]
        assert {one.session_id for one in await store.search("four")} == {fork.session_id}
        log, _ = await store.open(source)
        assert (await log.append(said("five")).committed).first_seq == 4
        await log.close()
        await store.remove(source)
        assert [one.session_id for one in await store.search("two")] == [fork.session_id]
    old.close()
    copy = database(tmp_path).with_name("sessions.db.v4")
    assert [str(copy) in notice for notice in told] == [True]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    with closing(apsw.Connection(str(copy))) as db:
        assert db.pragma("user_version") == 4
        assert db.execute("SELECT count(*) FROM entries").get == 5
    assert check(database(tmp_path)).found == []
    assert not list(database(tmp_path).parent.glob("*.part"))


@every_store
async def test_the_newest_is_the_one_used_last_whatever_the_clock_says(
    make: MakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    years = 10 * 365 * 86_400
    real = time.time
    async with opened(make, tmp_path) as store:
        used = []
        for wrong_by in (years, 0, -years, 0):
            monkeypatch.setattr(time, "time", lambda wrong_by=wrong_by: real() + wrong_by)
            used.append(await a_session(store, "x"))
        assert [info.id for info in await store.list()] == used[::-1]
        log, _ = await store.open(used[0])
        await kept(log, said("again"))
        await log.close()
        assert [info.id for info in await store.list(cwd=HERE, limit=2)] == [used[0], used[3]]


async def test_what_is_redacted_is_in_no_file_of_the_database(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        ids = [await a_session(store, *(f"{n} sesame{n} {'x' * 1_000 * (n % 7)}" for n in range(60))) for _ in range(2)]
        log, _ = await store.open(ids[0])
        for n in range(60):
            await kept(log, said(f"again sesame{n} {'y' * 3_000 * (n % 3)}"))
        await log.close()
        await a_session(store, *(f"harmless{n}" for n in range(60)))
        assert len(await store.search("sesame7")) == 3
        await store.remove(ids[1])
    copies = [database(tmp_path).with_name(f"sessions.db.{end}") for end in ("copy", "v4")]
    copies[1].write_bytes(copies[0].read_bytes())
    async with on_disk(tmp_path) as store:
        texts = [f"sesame{n}" for n in range(60)]
        assert await store.redact(ids[0], texts) == 120
        files = {path.name: path.read_bytes() for path in database(tmp_path).parent.glob("sessions.db*")}
        assert {"sessions.db", "sessions.db.copy"} <= files.keys()
        assert [name for name, content in files.items() if b"esame" in content] == []
        assert await store.search("sesame7") == []
        assert len(await store.search("redacted")) == 20
        await store.restore(ids[1])
        assert texts_of((await store.load(ids[1]))[1])[7] == f"7 {STRUCK} "


async def test_texts_are_struck_out_of_entries_that_cannot_be_read(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        id = await a_session(store, "one", f"half {KEY}", "three sesame")
        cut = "UPDATE entries SET body = substr(body, 1, length(body) - 2) WHERE seq = 2"
        flipped = "UPDATE entries SET body = replace(body, 'three', 'thrxx') WHERE seq = 3"
        damage(tmp_path, cut, flipped)
        assert await store.redact(id, [KEY, "sesame"]) == 2
        _, entries = await store.load(id)
    assert [type(entry.body) for entry in entries] == [User, Unreadable, Unreadable, ContextNote]
    assert f"half {STRUCK}" in entries[1].body.stored
    assert f"thrxx {STRUCK}" in entries[2].body.stored


async def test_a_fork_whose_source_is_removed_before_its_first_entry_says_so_and_goes_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path) as store:
        source = await a_session(store, "one")
        fork, _ = await store.fork(source, cwd=HERE)
        await store.remove(source)
        with pytest.raises(StorageError, match=f"sessions restore {source}"):
            await kept(fork, said("two"))
        await store.restore(source)
        await kept(fork, said("three"))
        await fork.close()
        assert texts_of((await store.load(fork.session_id))[1]) == ["one", "two", "three"]


async def test_a_search_also_works_where_nothing_can_be_written(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "2m") as disk:
        async with on_disk(disk) as store:
            id = await a_session(store, "needle")
        if subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, check=False).returncode:
            pytest.skip("this disk cannot be made read-only")
        async with on_disk(disk) as store:
            assert [one.session_id for one in await store.search("needle")] == [id]
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@pytest.mark.skipif(is_root, reason="root writes to read-only files")
async def test_a_file_of_the_last_release_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        id = await a_session(store, "one")
    with closing(apsw.Connection(str(database(tmp_path)))) as old:
        as_version_4(old)
    database(tmp_path).chmod(0o400)
    database(tmp_path).parent.chmod(0o500)
    try:
        async with on_disk(tmp_path) as store:
            assert [info.id for info in await store.list()] == [id]
    finally:
        database(tmp_path).parent.chmod(0o700)


async def test_the_program_goes_on_while_an_entry_waits_for_another_writer(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, said("one"))
        with closing(apsw.Connection(str(database(tmp_path)))) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = log.append(said("two")).committed
            began = time.monotonic()
            await asyncio.sleep(0.2)
            assert time.monotonic() - began < 2
            other.execute("ROLLBACK")
        await waiting
        await log.close()


async def test_a_file_that_is_replaced_while_an_entry_waits_for_others_gets_it_later(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, said("one"))
        with closing(apsw.Connection(str(database(tmp_path)))) as db:
            db.pragma("wal_checkpoint", "truncate")
            db.execute("BEGIN IMMEDIATE")
            waiting = log.append(said("two")).committed
            await asyncio.sleep(0.3)
            (tmp_path / "new").write_bytes(database(tmp_path).read_bytes())
            (tmp_path / "new").replace(database(tmp_path))
            for suffix in ("-wal", "-shm"):
                database(tmp_path).with_name(f"sessions.db{suffix}").unlink()
            db.execute("ROLLBACK")
            with pytest.raises(StorageError, match="replaced by another file"):
                await waiting
        await kept(log, said("three"))
        await log.close()
    async with on_disk(tmp_path) as store:
        assert texts_of((await store.load(log.session_id))[1]) == ["one", "two", "three"]


async def test_entries_are_not_written_to_a_file_that_was_put_away(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        log = await store.create(cwd=HERE)
        await kept(log, said("one"))
        with (
            closing(apsw.Connection(str(database(tmp_path)))) as db,
            closing(apsw.Connection(str(tmp_path / "new"))) as new,
            new.backup("main", db, "main") as backup,
        ):
            backup.step()
        (tmp_path / "new").replace(database(tmp_path))
        for suffix in ("-wal", "-shm"):
            database(tmp_path).with_name(f"sessions.db{suffix}").unlink()
        await kept(log, said("two"))
        await log.close()
    async with on_disk(tmp_path) as store:
        assert texts_of((await store.load(log.session_id))[1]) == ["one", "two"]


@every_store
async def test_a_session_notes_whose_it_is_and_so_does_its_fork(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        id = await a_session(store, "a", user_id="ada")
        fork, _ = await store.fork(id, cwd=HERE)
        await kept(fork, said("b"))
        await fork.close()
        assert {info.user_id for info in await store.list()} == {"ada"}


@every_store
async def test_an_entry_may_follow_an_earlier_one_and_the_next_follows_it(make: MakeStore, tmp_path: Path) -> None:
    async with opened(make, tmp_path) as store:
        log = await store.create(cwd=HERE)
        first, _, third = log.append(said("a"), said("b"), said("c")).entries
        branch, after = log.append(said("d"), said("e"), parent_id=first.id).entries
        await kept(log, said("f"))
        await log.close()
        again, entries = await store.open(log.session_id)
        await kept(again, said("g"), said("h"))
        await again.close()
        _, entries = await store.load(log.session_id)
    assert branch.parent_id == first.id
    assert after.parent_id == branch.id
    assert [entry.parent_id for entry in entries[5:]] == [entry.id for entry in entries[4:-1]]
    assert texts_of(Conversation(entries).path) == ["a", "d", "e", "f", "g", "h"]
    assert third.id not in [entry.id for entry in Conversation(entries).path]


@pytest.mark.slow
async def test_several_programs_may_begin_the_file_at_once(tmp_path: Path) -> None:
    begin = textwrap.dedent(
        """
        import asyncio, sys
        from pathlib import Path
        from agentcli.conversation.entries import User
        from agentcli.infra.sessions.sqlite import SqliteSessions
        from agentcli.llm.messages import Text

        async def main():
            store = SqliteSessions(Path(sys.argv[1]))
            print("ready", flush=True)
            sys.stdin.readline()
            log = await store.create(cwd=Path("/here"))
            for n in range(5):
                await log.append(User((Text(str(n)),))).committed
            await log.close()
            await store.close()

        asyncio.run(main())
        """
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", begin, str(database(tmp_path))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for one in running:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in running:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in running:
        _, complaints = one.communicate(timeout=20)
        assert (one.returncode, complaints) == (0, "")
    async with on_disk(tmp_path) as store:
        assert [info.entries for info in await store.list()] == [5, 5, 5, 5]


# Kills. A process appends, and writes down what it was told is stored; it is killed at a random moment.

APPEND = """
import asyncio, os, sys
from pathlib import Path
from agentcli.conversation.entries import Assistant, CallsStarted, Result, User
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Text, ToolResult, ToolUse

async def main():
    store = SqliteSessions(Path(sys.argv[1]))
    log, entries = await store.open(sys.argv[2]) if len(sys.argv) > 2 else (await store.create(cwd=Path("/here")), [])
    os.write(1, f"session {log.session_id}\\n".encode())
    for n in range(len(entries), 100_000):
        bodies = [Assistant((Text(f"{n}"), ToolUse(f"c{n}", "think", {})), "p", "m"), CallsStarted((f"c{n}",))]
        appended = log.append(User((Text("x" * 2_000),)), *bodies)
        following = log.append(Result(ToolResult(f"c{n}", "done"), "think"))
        for one in (appended, following):
            for entry in (await one.committed).entries:
                os.write(1, f"{entry.id}\\n".encode())

asyncio.run(main())
"""


def killed_at_random(
    path: Path, session_id: str, chance: random.Random, *, acknowledged: bool
) -> tuple[str, list[str]]:
    """The session, and the ids that were acknowledged before the kill: one or more where `acknowledged` asks for it."""
    arguments = [str(path), *([session_id] if session_id else [])]
    with subprocess.Popen([sys.executable, "-c", APPEND, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline().decode().split()
        told = process.stdout.readline() if acknowledged else b""
        time.sleep(chance.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        told += process.stdout.read()
    return first[1], told[: told.rfind(b"\n") + 1].decode().split()


async def killed_and_reopened(folder: Path, times: int) -> int:
    chance = random.Random(7)
    session_id, acknowledged = "", []
    for n in range(times):
        # On a busy machine nothing may be stored within the moment that is left: every second program is given time.
        session_id, told = killed_at_random(database(folder), session_id, chance, acknowledged=n % 2 == 0)
        acknowledged += told
        if not acknowledged:  # killed before the session was stored
            session_id = ""
            continue
        complaints: list[str] = []
        async with on_disk(folder, complaints) as store:
            log, entries = await store.open(session_id)
            await log.close()
        there = [entry.id for entry in entries]
        assert complaints == []
        assert set(acknowledged) <= set(there)
        assert len(there) == len(set(there))
        assert [entry.parent_id for entry in entries] == [None, *there[:-1]]
        for entry, after in pairwise(entries):
            assert not isinstance(entry.body, Assistant) or isinstance(after.body, CallsStarted)  # one transaction
    return len(acknowledged)


async def test_a_killed_program_has_lost_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert await killed_and_reopened(tmp_path, 5) >= 3


@pytest.mark.full
@pytest.mark.slow
async def test_a_program_killed_again_and_again_has_lost_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    assert await killed_and_reopened(tmp_path, 40) >= 20


async def test_a_kill_frees_the_session(tmp_path: Path) -> None:
    session_id, _ = killed_at_random(database(tmp_path), "", random.Random(1), acknowledged=True)
    async with on_disk(tmp_path) as store:
        log, _ = await store.open(session_id)
        await kept(log, said("mine now"))
        await log.close()


# Disks that are full or read-only.


async def test_a_full_disk_is_told_and_takes_nothing_away(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "1m") as disk:
        filler = disk / "filler"
        async with on_disk(disk) as store:
            log = await store.create(cwd=HERE)
            await kept(log, said("first"))
            filler.write_bytes(b"x" * 300_000)
            stored = 1
            with pytest.raises(StorageError, match="disk is full"):
                for n in range(200):
                    await kept(log, said(f"{n} " + "x" * 20_000))
                    stored += 1
            assert len((await store.load(log.session_id))[1]) == stored
            filler.unlink()
            await kept(log, said("room again"))  # and what had found no room comes with it
            assert len((await store.load(log.session_id))[1]) == stored + 2
            await log.close()
        async with on_disk(disk) as store:
            entries = (await store.load(log.session_id))[1]
    assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    assert texts_of(entries)[-1] == "room again"


async def test_a_damaged_file_waits_for_room_to_be_restored_from_its_copy(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "1m") as disk:
        async with on_disk(disk) as store:
            id = await a_session(store, "Remember me " + "x" * 100_000)
        file, filler = database(disk), disk / "filler"
        file.write_bytes(damage := bytes(16) + file.read_bytes()[16:])
        copy = file.with_name("sessions.db.copy").read_bytes()
        with pytest.raises(OSError):
            filler.write_bytes(b"x" * 1_000_000)
        async with on_disk(disk) as store:
            with pytest.raises(StorageError, match=r"make room.*Nothing was changed"):
                await a_session(store, "Another")
            assert (file.read_bytes(), file.with_name("sessions.db.copy").read_bytes()) == (damage, copy)
            filler.unlink()
            await a_session(store, "Another")
            assert len((await store.load(id))[1]) == 1


@pytest.mark.slow
async def test_a_full_disk_ends_turns_with_a_sentence_and_prints_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thinks = {"text": "x" * 20_000, "tool_calls": [call("think", thought=one) for one in "ab"]}
    with tiny_disk(tmp_path, "200k") as disk:
        async with on_disk(disk) as store, on_stage(tmp_path, [thinks] * 12, log=await store.create(cwd=HERE)) as stage:
            for _ in range(2):
                ended = await stage.ask("y" * 30_000)
                assert isinstance(ended, TurnFailed)
                assert "disk is full" in ended.error
    gc.collect()
    assert [record.getMessage()[:7] for record in caplog.records] == ["No copy"]


async def test_a_session_that_found_no_room_at_its_beginning_is_stored_when_there_is_some(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "400k") as disk:
        async with on_disk(disk) as store:
            await a_session(store, "other")
            filler = disk / "filler"
            with pytest.raises(OSError):
                filler.write_bytes(b"x" * 1_000_000)
            log = await store.create(cwd=HERE)
            with pytest.raises(StorageError):
                await kept(log, said("first " + "x" * 50_000))
            filler.unlink()
            await kept(log, said("second"))
            await log.close()
            info, entries = await store.load(log.session_id)
    assert [text[:6] for text in texts_of(entries)] == ["first ", "second"]
    assert info.title.startswith("first")


@pytest.mark.skipif(is_root, reason="root writes to read-only folders")
async def test_a_read_only_folder_is_a_clear_error(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as store:
        await a_session(store, "one")
    database(tmp_path).parent.chmod(0o500)
    try:
        async with on_disk(tmp_path) as store:
            with pytest.raises(StorageError, match=r"sessions\.db could not be opened or written.*--no-session"):
                await a_session(store, "two")
    finally:
        database(tmp_path).parent.chmod(0o700)


async def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the way")
    async with on_disk(tmp_path) as store:
        with pytest.raises(StorageError, match="state"):
            await store.list()
        with pytest.raises(StorageError, match="state"):
            await store.create(cwd=HERE)


@pytest.mark.skipif(not is_root, reason="only root can mount a read-only disk")
async def test_a_read_only_disk_is_a_clear_error_and_takes_nothing_away(tmp_path: Path) -> None:
    with tiny_disk(tmp_path, "1m") as disk:
        async with on_disk(disk) as store:
            id = await a_session(store, "one")
        remounted = subprocess.run(["mount", "-o", "remount,ro", disk], capture_output=True, check=False)
        if remounted.returncode:
            pytest.skip("this disk cannot be made read-only")
        async with on_disk(disk) as store:
            assert [info.id for info in await store.list(cwd=HERE)] == [id]
            assert texts_of((await store.load(id))[1]) == ["one"]
        async with on_disk(disk) as store:
            with pytest.raises(StorageError, match=r"Could not write to .*/locks: Read-only file system.*--no-session"):
                await a_session(store, "two")
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        async with on_disk(disk) as store:
            assert len((await store.load(id))[1]) == 1


async def test_a_database_that_another_program_holds_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcli.infra.sessions.database.BUSY_TIMEOUT_MS", 50)
    async with on_disk(tmp_path) as store:
        await a_session(store, "one")
    with closing(apsw.Connection(str(database(tmp_path)))) as other:
        other.execute("BEGIN EXCLUSIVE")
        async with on_disk(tmp_path) as store:
            with pytest.raises(StorageError, match="locked by another program"):
                await a_session(store, "two")
        other.execute("ROLLBACK")
