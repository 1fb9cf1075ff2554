"""What every session store does. tests/conformance/test_session_files.py has what a file has to bear."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from agentcli.agent.interfaces import SessionStore, subagents_owner
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallsStarted,
    Compaction,
    ContextNote,
    FilesChanged,
    Pinned,
    Result,
    Retracted,
    reminder,
)
from agentcli.errors import NoSession, StorageError
from agentcli.infra.sessions.postgres import PostgresSessions
from agentcli.infra.sessions.sqlite import MemorySessions, SqliteSessions
from agentcli.infra.sessions.tables import new_id
from agentcli.llm.messages import Text, Thinking, ToolResult, ToolUse, Usage
from tests.conformance.postgres_server import running
from tests.conformance.sessions import (
    HERE,
    THERE,
    a_fork,
    a_session,
    database,
    entries_in,
    goes_on,
    kept,
    said,
    texts_in,
    texts_of,
)

ID = "12345678-1234-4234-8234-123456789abc"
STORES: dict[str, Callable[[Path], Any]] = {
    "memory": lambda folder: MemorySessions(),
    "sqlite": lambda folder: SqliteSessions(database(folder)),
    "postgres": lambda folder: PostgresSessions(running().url_for(folder)),
}
MARKS = {"postgres": pytest.mark.slow}  # it starts a server


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in STORES])
def store(request: pytest.FixtureRequest, tmp_path: Path, at_end: AsyncExitStack) -> Any:
    store = STORES[request.param](tmp_path)
    at_end.push_async_callback(store.close)
    return store


ROUND: tuple[Body, ...] = (
    said("What is here?\nTell me."),
    Assistant(
        content=(Text("Let me see."), ToolUse("c1", "think", {"thought": "ü"})),
        provider="p",
        model="m",
        usage=Usage(3, 4),
        stop_reason="tool_use",
        cost_usd=0.5,
    ),
    CallsStarted(("c1",)),
    Result(
        result=ToolResult("c1", "Noted.", is_error=True),
        name="think",
        summary="thought",
        duration_ms=1.5,
        structured={"a": [1, None]},
        error_kind="timeout",
    ),
    Retracted(("x",)),
)


# Entries.


async def test_entries_come_back_as_they_were_each_after_the_one_before(store: SessionStore) -> None:
    log = await store.create(cwd=HERE)
    first, second = log.append(*ROUND[:3]), log.append(*ROUND[3:])
    stored = [await first.committed, await second.committed]
    await log.close()
    again, entries = await store.open(log.session_id)
    later = again.append(said("more"))
    assert [one.first_seq for one in (*stored, await later.committed)] == [1, 4, 6]
    await again.close()
    assert [entry.body for entry in entries] == list(ROUND)
    assert [*first.entries, *second.entries] == entries == [*stored[0].entries, *stored[1].entries]
    ids = [entry.id for entry in (*entries, *later.entries)]
    assert [entry.parent_id for entry in (*entries, *later.entries)] == [None, *ids[:-1]]
    assert ids.pop(3) == "c1", "a result has its call's id"
    assert ids == sorted(ids)
    assert all(abs(entry.time - time.time()) < 60 for entry in entries)


async def test_appending_does_not_wait_and_closing_waits_foreverything(store: SessionStore) -> None:
    log = await store.create(cwd=HERE)
    waiting = [log.append(said(f"{n}")) for n in range(50)]
    assert [(await one.committed).first_seq for one in waiting] == list(range(1, 51))
    for n in range(50, 70):
        log.append(said(f"{n}"))
    await log.close()
    assert await texts_in(store, log.session_id) == [f"{n}" for n in range(70)]
    loaded = [await store.load(log.session_id, after=after) for after in (0, 68, 70)]
    assert [len(entries) for _, entries in loaded] == [70, 2, 0]
    assert [info.entries for info, _ in loaded] == [70] * 3


async def test_an_entry_may_follow_an_earlier_one_and_the_next_follows_it(store: SessionStore) -> None:
    log = await store.create(cwd=HERE)
    first, _, third = log.append(said("a"), said("b"), said("c")).entries
    branch, after = log.append(said("d"), said("e"), parent_id=first.id).entries
    await kept(log, "f")
    await log.close()
    await goes_on(store, log.session_id, "g", "h")
    entries = await entries_in(store, log.session_id)
    assert branch.parent_id == first.id
    assert after.parent_id == branch.id
    assert [entry.parent_id for entry in entries[5:]] == [entry.id for entry in entries[4:-1]]
    assert texts_of(Conversation(entries).path) == ["a", "d", "e", "f", "g", "h"]
    assert third.id not in [entry.id for entry in Conversation(entries).path]


async def test_what_cannot_be_stored_is_refused_as_a_whole_and_stops_nothing_else(store: SessionStore) -> None:
    log = await store.create(cwd=HERE)
    await kept(log, "fine")
    with pytest.raises(StorageError):
        await asyncio.wait_for(log.append(said("too"), said("\ud800")).committed, 5)
    await log.close()
    assert await texts_in(store, log.session_id) == ["fine"]
    assert await a_session(store, "one")


# Sessions.


async def test_a_session_without_an_entry_is_not_stored(store: SessionStore) -> None:
    log = await store.create(cwd=HERE)
    await log.close()
    assert await store.list() == []
    with pytest.raises(StorageError, match="There is no session"):
        await store.load(log.session_id)


async def test_sessions_are_listed_newest_first_by_directory_and_user(store: SessionStore) -> None:
    first, second = await a_session(store, "one"), await a_session(store, "two", user_id="ada")
    other = await a_session(store, "elsewhere", cwd=THERE, user_id="bob")
    await asyncio.sleep(0.002)
    await goes_on(store, first, "more")

    async def listed(**which: Any) -> list[str]:
        return [info.id for info in await store.list(**which)]

    assert await listed(cwd=HERE) == [first, second]
    assert await listed() == await listed(user_id=None) == [first, other, second]
    assert await listed(limit=1) == await listed(user_id="") == [first]
    assert await listed(user_id="ada") == [second]
    assert await listed(cwd=Path("/nowhere")) == await listed(user_id="ada", cwd=THERE) == []
    fork = await a_fork(store, second, "three")
    assert await listed(user_id="ada") == [fork, second], "a fork is whose its source is"


async def test_a_session_says_what_it_is(store: SessionStore) -> None:
    before = time.time()
    log = await store.create(cwd=HERE, name="my work")
    await kept(log, reminder("where we are"))
    await kept(log, "\n  What is here?  \nTell me.", "And there?")
    await log.close()
    (listed,) = await store.list()
    info, entries = await store.load(log.session_id)
    assert listed == info
    assert (info.cwd, info.title, info.name) == ("/here", "What is here?", "my work")
    assert info.entries == len(entries) == 3
    assert before <= info.created <= info.updated <= time.time()
    await goes_on(store, log.session_id, "yet another")
    (info,) = await store.list()
    assert (info.title, info.last_prompt) == ("What is here?", "yet another")


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("Hi!\n\nCan you mend the parser?", "Can you mend the parser?"),
        ("Hi!", "Hi!"),
        ("```python\nprint(1)\n```\nWhat does it print?", "print(1)"),
        ("<stdin>\n---\n## The   plan so far\n", "The plan so far"),
        ("修正\n这个解析器。", "修正"),
        ("x" * 200, f"{'x' * 79}…"),
        (f"{'word ' * 30}", f"{'word ' * 15}word…"),
        ("\n\n", ""),
    ],
)
async def test_a_title_is_what_the_first_prompt_says(prompt: str, title: str) -> None:
    store = MemorySessions()
    log = await store.create(cwd=HERE)
    await kept(log, prompt, "Go on, please.", reminder("a note"))
    (info,) = await store.list()
    assert (info.title, info.last_prompt) == (title, "Go on, please.")


async def test_a_session_is_found_by_its_name_and_by_the_beginning_of_its_id(store: SessionStore) -> None:
    for n, start in enumerate(("0197aaaa", "0197aaaa", "0197bbbb")):
        await a_session(store, f"{n}", session_id=f"{start}-0000-7000-8000-00000000000{n}", name=f"my work{n}")
    for given, text in (("0197b", "2"), ("0197aaaa-0000-7000-8000-000000000001", "1"), ("my work0", "0")):
        log, entries = await store.open(given)
        await log.close()
        assert texts_of(entries) == [text]
    for nothing in ("%", "_", "*", "zzz", "'", "\\", "nope"):
        for refused in (store.open(nothing), store.load(nothing), store.fork(nothing, cwd=HERE)):
            with pytest.raises(StorageError) as told:
                await refused
            assert repr(nothing)[1:-1] in str(told.value)
    await a_session(store, "three", name="my work0")
    for several in ("0197aaaa", "my work0"):
        with pytest.raises(StorageError, match=several):
            await store.open(several)


async def test_of_one_users_sessions_no_other_ones_are_looked_at(store: SessionStore) -> None:
    hers = await a_session(store, "one", user_id="ada")
    await a_session(store, "two", user_id="ada", name=hers)
    for _ in range(4):  # whatever anybody names theirs, an id is that session's
        await a_session(store, "three", user_id="bob", name=hers)
    for user in ("ada", None):
        assert (await store.load(hers, user_id=user))[0].id == hers
    for start in (hers[:8], hers[:20]):
        with pytest.raises(NoSession):
            await store.load(start, user_id="eve")


async def test_a_session_is_renamed_whether_it_is_open_closed_or_not_stored_yet(store: SessionStore) -> None:
    closed = await a_session(store, "one", name="before")
    await store.rename(closed, "after")
    log = await store.create(cwd=HERE)
    await store.rename(log.session_id, "early")
    await kept(log, "two")
    assert (await store.load("early"))[0].id == log.session_id
    await store.rename(log.session_id, "later")
    assert {info.id: info.name for info in await store.list()} == {closed: "after", log.session_id: "later"}
    assert (await store.load("later"))[0].title == "two"
    await log.close()
    with pytest.raises(StorageError):
        await store.rename("no such session", "x")


async def test_a_session_has_one_owner_and_may_be_read_meanwhile(store: SessionStore) -> None:
    assert await a_session(store, "one", session_id=ID) == ID
    with pytest.raises(StorageError, match=f"--resume {ID}"):
        await store.create(cwd=HERE, session_id=ID)
    log, _ = await store.open(ID)  # and the refusal has not kept it
    for refused in (store.open(ID), store.remove(ID), store.redact(ID, ["one"])):
        with pytest.raises(StorageError, match="is open"):
            await refused
    assert await texts_in(store, ID) == ["one"]
    await kept(log, "two")
    await log.close()
    await goes_on(store, ID, "three")
    assert await texts_in(store, ID) == ["one", "two", "three"]


async def test_the_newest_is_the_one_used_last_whatever_the_clock_says(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    years = 10 * 365 * 86_400
    real = time.time
    used = []
    for wrong_by in (years, 0, -years, 0):
        monkeypatch.setattr(time, "time", lambda wrong_by=wrong_by: real() + wrong_by)
        used.append(await a_session(store, "x"))
    assert [info.id for info in await store.list()] == used[::-1]
    await goes_on(store, used[0], "again")
    assert [info.id for info in await store.list(cwd=HERE, limit=2)] == [used[0], used[3]]


def test_ids_are_uuids_of_version_7_that_grow() -> None:
    ids = [new_id() for _ in range(2_000)]
    assert ids == sorted(set(ids))
    for id in ids[:10]:
        assert [len(part) for part in id.split("-")] == [8, 4, 4, 4, 12]
        assert id[14] == "7"
        assert id[19] in "89ab"
    assert abs(int(ids[0].replace("-", "")[:12], 16) / 1000 - time.time()) < 60


# Forks.


async def test_a_fork_begins_with_the_other_s_entries_and_leaves_it_as_it_is(store: SessionStore) -> None:
    source = await store.create(cwd=HERE)
    await kept(source, "one", "two")
    log, inherited = await store.fork(source.session_id, cwd=THERE, name="a copy")  # of one that is open
    (new,) = log.append(said("three")).entries
    await log.close()
    await kept(source, "other")
    await source.close()
    assert texts_of(inherited) == ["one", "two"]
    assert new.parent_id == inherited[-1].id
    assert await texts_in(store, log.session_id) == ["one", "two", "three"]
    assert await texts_in(store, source.session_id) == ["one", "two", "other"]
    (info,) = await store.list(cwd=THERE)
    assert (info.title, info.name) == ("one", "a copy")
    assert await a_fork(store, "a copy", "four", new_id=ID) == ID
    assert await texts_in(store, ID[:8]) == ["one", "two", "three", "four"]


async def test_a_fork_at_an_entry_ends_there_also_on_a_branch_that_was_left(store: SessionStore) -> None:
    log = await store.create(cwd=HERE)
    first, second = log.append(said("a"), said("b")).entries
    left, *_ = log.append(said("left"), said("left too"), parent_id=first.id).entries
    await kept(log, "c", parent_id=second.id)
    await log.close()
    fork = await a_fork(store, log.session_id, "on from there", at=left.id)
    entries = await entries_in(store, fork)
    assert texts_of(entries) == ["a", "b", "left", "on from there"]
    assert texts_of(Conversation(entries).path) == ["a", "left", "on from there"]
    assert await texts_in(store, await a_fork(store, fork, "again", at=first.id)) == ["a", "again"]


async def test_an_entry_to_fork_at_may_be_shortened_and_of_equal_ids_the_newest_counts(store: SessionStore) -> None:
    results = [
        Result(result=ToolResult(id, text), name="think")
        for id, text in (("call_1", "first"), ("call_1", "second"), ("call_22", "third"))
    ]
    id = await a_session(store, *results, "end")
    for at, ends in (("call_1", "second"), ("call_2", "third")):
        fork, inherited = await store.fork(id, cwd=HERE, at=at)
        await fork.close()
        assert inherited[-1].body.result.text == ends  # type: ignore[union-attr]
    for at, says in (("call_", "Several entries begin"), ("nope", "No entry begins")):
        with pytest.raises(StorageError, match=says):
            await store.fork(id, cwd=HERE, at=at)
    await goes_on(store, id, "and a refusal holds no lock")


async def test_a_fork_whose_source_is_removed_before_its_first_entry_says_so_and_continues_when_it_is_back(
    store: SessionStore,
) -> None:
    source = await a_session(store, "one")
    fork, _ = await store.fork(source, cwd=HERE)
    await store.remove(source)
    with pytest.raises(StorageError, match=f"sessions restore {source}"):
        await kept(fork, "two")
    await store.restore(source)
    await kept(fork, "three")
    await fork.close()
    assert await texts_in(store, fork.session_id) == ["one", "two", "three"]


async def test_of_a_fork_what_is_its_own_counts_until_its_source_is_removed(store: Any) -> None:
    paid = Assistant(content=(Text("Hi."),), provider="p", model="m", usage=Usage(3, 4))
    source = await a_session(store, "one", paid, FilesChanged("c1", ()), user_id="ada")
    fork = await a_fork(store, source, paid, FilesChanged("c2", ()))

    async def requests(*sessions: str, **how: Any) -> list[int]:
        return [(await store.usage(session=one, **how)).total.requests for one in ("", *sessions)]

    async def changed() -> list[str]:
        return [id for id, _ in await store.file_changes()]

    assert await requests(source, fork) == [2, 1, 1]
    assert await requests(since=time.time() + 60) == [0]
    assert await changed() == [source, fork]
    await store.remove(source)
    assert await requests(fork) == [2, 2]
    assert await changed() == [fork, fork]
    await store.restore(source)
    assert await requests(source, fork) == [2, 0, 2]


async def test_sessions_of_subagents_go_with_their_session_and_only_who_names_it_is_reported_of_them(
    store: Any,
) -> None:
    paid = Assistant(content=(Text("Hi."),), provider="p", model="m", usage=Usage(3, 4))
    parent = await a_session(store, f"use {KEY}", user_id="ada")
    owner = subagents_owner(parent)
    agent = await a_session(store, f"look at {KEY}", paid, FilesChanged("c1", ()), user_id=owner, name="explore-1")
    assert [info.id for info in await store.list()] == [info.id for info in await store.list(user_id="ada")] == [parent]
    assert [one.session_id for one in await store.search("p4ss")] == [parent]
    assert ((await store.usage()).total.requests, await store.file_changes()) == (0, [])
    for given in (agent[:20], "explore-1"):
        with pytest.raises(NoSession):
            await store.load(given)
        assert (await store.load(given, user_id=owner))[0].id == agent
    await store.remove(parent)
    assert await store.list(user_id=owner) == []
    await store.restore(parent)
    assert [info.id for info in await store.list(user_id=owner)] == [agent]
    assert await store.redact(parent, [KEY]) == 2
    assert (await entries_in(store, agent))[0].body == said(f"look at {STRUCK}")
    await goes_on(store, agent, "it is resumed by its whole id")
    fork = await a_fork(store, agent, "a person goes on with it")
    assert [info.id for info in await store.list()] == [fork, parent]


# Searching.

TALK: tuple[Body, ...] = (
    said("Mend the Parser in src/parse_all.py"),
    Assistant(
        content=(
            Thinking("a secret thought"), Text("Über den Zeilen…"), ToolUse("c1", "bash", {"command": "ls -la quux"})
        ),
        provider="p", model="m", usage=Usage(), stop_reason="tool_use",
    ),
    Result(result=ToolResult("c1", f"{'x ' * 200}needle\x1b[31m\n{'y ' * 200}"), name="bash"),
    reminder("agentcli says grommet"),
    Compaction(carried="what went before: widgets"),
    ContextNote("a note about sprockets"),
    Pinned("never touch the flywheel"),
)  # fmt: skip
FOUND = {
    "parser": "user",
    "PARS mend": "user",
    "parse_all.py": "user",
    "parse_al": "user",
    "all_parse": "",
    "arser": "",
    "mend needle": "",
    "uber zeile": "assistant",
    "quux": "assistant",
    "bash": "assistant",
    "needle": "tool_result",
    "widget": "compaction",
    "sprockets": "context_note",
    "flywheel": "pinned",
    "secret": "",
    "grommet": "",
    '"needle" AND': "",
    '"needle" -> *': "tool_result",
}


async def test_a_search_finds_entries_by_the_beginnings_of_words(store: SessionStore) -> None:
    log = await store.create(cwd=HERE)
    entry = log.append(*TALK).entries[2]
    await log.close()
    assert {text: "".join([one.kind for one in await store.search(text)]) for text in FOUND} == FOUND
    for nothing in ("", " ", "->", '"*"', "_ - _"):
        with pytest.raises(StorageError, match="letter or a digit"):
            await store.search(nothing)
    (found,) = await store.search("needle")
    (prompt,) = await store.search("mend")
    assert (found.session_id, found.entry_id, found.time) == (log.session_id, entry.id, entry.time)
    assert found.title == prompt.title == prompt.excerpt == "Mend the Parser in src/parse_all.py"
    assert found.excerpt == f"…{'x ' * 30}needle [31m {'y ' * 27}…".replace(" …", "…")


async def test_a_search_gives_the_newest_first_and_respects_directory_user_and_limit(store: SessionStore) -> None:
    places = ((HERE, "ada"), (THERE, "ada"), (HERE, "bob"))
    ids = [await a_session(store, f"find me {n}", cwd=cwd, user_id=user) for n, (cwd, user) in enumerate(places)]
    log, _ = await store.open(ids[0])
    await kept(log, "find me again")
    assert [one.session_id for one in await store.search("find")] == [ids[0], ids[2], ids[1], ids[0]]
    await kept(log, "find me at once")
    await log.close()
    assert [one.excerpt for one in await store.search("find", limit=2)] == ["find me at once", "find me again"]
    assert [one.session_id for one in await store.search("find", cwd=THERE)] == [ids[1]]
    assert {one.session_id for one in await store.search("find", user_id="ada")} == {ids[0], ids[1]}
    fork = await a_fork(store, ids[1], "find what is new")
    assert [one.session_id for one in await store.search("find what")] == [fork]
    assert [one.session_id for one in await store.search("find", limit=1)] == [fork], "and not what it shares"
    assert len(await store.search("find")) == 6


# Removing, and bringing back.


async def test_a_removed_session_is_gone_until_it_is_restored_as_it_was(store: SessionStore) -> None:
    log = await store.create(cwd=HERE, name="mine", user_id="ada")
    await kept(log, *ROUND)
    await log.close()
    before = await store.load(log.session_id)
    await store.search("see")
    await store.remove("mine")
    assert await store.list() == await store.search("see") == []
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


async def test_the_trash_keeps_each_session_of_one_id(store: SessionStore) -> None:
    await a_session(store, "first", session_id=ID)
    await store.remove(ID)
    await a_session(store, "second", session_id=ID)
    with pytest.raises(StorageError, match=f"sessions rm {ID}"):
        await store.restore(ID)
    for start in (ID[:8], ID):
        await store.remove(ID)
        assert [await store.restore(start), await texts_in(store, ID)] == [ID, ["second"]]


async def test_forks_keep_what_they_share_with_a_session_that_is_removed(store: SessionStore) -> None:
    root = await a_session(store, "a", "b", "c", "d")
    _, b, c, _ = await entries_in(store, root)
    two = await a_fork(store, root, "two", at=b.id)
    still_open, _ = await store.fork(root, cwd=HERE, at=c.id)
    await kept(still_open, "three")
    three, deep = still_open.session_id, await a_fork(store, two, "deep")
    await store.search("a")
    await store.remove(root)
    await kept(still_open, "still open")
    await still_open.close()
    shown = {two: ["a", "b", "two"], three: ["a", "b", "c", "three", "still open"], deep: ["a", "b", "two", "deep"]}
    for id, texts in shown.items():
        entries = await entries_in(store, id)
        assert texts_of(entries) == texts
        assert [entry.parent_id for entry in entries] == [None, *(entry.id for entry in entries[:-1])]
    assert [one.session_id for one in await store.search("b")] == [three]
    await store.restore(root)
    assert await texts_in(store, root) == ["a", "b", "c", "d"]
    assert [one.session_id for one in await store.search("b")] == [three]  # they share it again
    await store.remove(three)
    await store.remove(two)
    assert await texts_in(store, deep) == shown[deep]
    await store.restore(three)
    assert await texts_in(store, three) == shown[three]


# Striking out.

KEY = 'p4ss"wörd\\1'
STRUCK = "[redacted]"


async def test_texts_are_struck_out_of_every_string_and_that_is_noted(store: SessionStore) -> None:
    id = await a_session(
        store,
        f"use {KEY} and {KEY}",
        Assistant(
            content=(Thinking(KEY), ToolUse("c1", "bash", {"env": {KEY: [KEY]}})),
            provider="p",
            model="m",
            usage=Usage(),
            stop_reason="tool_use",
        ),
        Result(result=ToolResult("c1", json.dumps({"k": KEY})), name="bash", structured={"a": [1.5, None, f"<{KEY}>"]}),
        "nothing here",
        name=f"with {KEY}",
    )
    assert len(await store.search("p4ss")) == 3
    assert await store.redact(id, [KEY, "1.5", " "]) == 7
    info, entries = await store.load(id)
    assert not any(form in repr((info, entries)) for form in (KEY, "p4ss", "wörd"))
    assert (info.name, info.title) == (f"with {STRUCK}", f"use {STRUCK} and {STRUCK}")
    _, reply, result, _, note = (entry.body for entry in entries)
    assert reply.content[1].input == {"env": {STRUCK: [STRUCK]}}  # type: ignore[union-attr]
    assert result.structured == {"a": [1.5, None, f"<{STRUCK}>"]}  # type: ignore[union-attr]
    assert isinstance(note, ContextNote)
    assert "7 places" in note.text
    assert entries[4].parent_id == entries[3].id
    assert await store.search("p4ss") == []
    assert len(await store.search("redacted")) == 3
    assert await store.redact(id, [KEY]) == 0
    assert len(await entries_in(store, id)) == 5


async def test_texts_that_overlap_leave_no_rest_and_those_that_entries_are_read_by_are_refused(
    store: SessionStore,
) -> None:
    id = await a_session(store, "abcde abab ababab user")
    for secrets, says in (([""], "no text"), (["use"], "Give more of it")):
        with pytest.raises(StorageError, match=says):
            await store.redact(id, secrets)
    assert await texts_in(store, id) == ["abcde abab ababab user"]
    assert await store.redact(id, ["abc", "bcde", "abab"]) == 3
    assert (await texts_in(store, id))[0] == f"{STRUCK} {STRUCK} {STRUCK} user"


async def test_redaction_reaches_every_copy_and_the_trash(
    store: SessionStore,
) -> None:
    source = await a_session(store, f"{KEY} opens", "after")
    removed = await a_fork(store, source, "its own")
    first, _ = await entries_in(store, source)
    open_fork, _ = await store.fork(source, cwd=HERE, at=first.id)
    await kept(open_fork, f"its {KEY}")
    late, _ = await store.fork(source, cwd=HERE)  # not stored yet
    await store.remove(removed)
    assert await store.redact(source, [KEY]) == 1
    for log in (open_fork, late):
        await kept(log, "goes on")
        await log.close()
        info, entries = await store.load(log.session_id)
        assert texts_of(entries)[0] == info.title == f"{STRUCK} opens"
    assert texts_of(entries) == [f"{STRUCK} opens", "after", "goes on"]
    assert len(await store.search("p4ss")) == 1, "what is a fork's own stays"
    assert await store.redact(open_fork.session_id, [KEY]) == 1
    assert await store.search("p4ss") == []
    await store.restore(removed)
    assert await texts_in(store, removed) == [f"{STRUCK} opens", "after", "its own"]
