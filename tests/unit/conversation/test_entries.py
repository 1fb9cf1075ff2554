"""Entries: to records and back, and from what older versions stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.conversation.entries import (
    SCHEMA_VERSION,
    Assistant,
    Body,
    CallsStarted,
    Compaction,
    ContextNote,
    Entry,
    Labelled,
    Paid,
    Pinned,
    ProviderSwitch,
    Queued,
    Result,
    Retracted,
    Rewound,
    User,
    reminder,
)
from agentcli.conversation.schema import UPGRADES, from_record, to_record
from agentcli.llm.messages import Base64Source, Image, Text, ToolResult, Usage
from tests.properties import examples
from tests.unit.llm.test_messages import blocks, json_values, words

quick = examples(150)

counts = st.integers(0, 10**9)
usages = st.builds(Usage, counts, counts, counts, counts, counts, counts, st.none() | st.floats(0, 1e6))
contents = st.lists(blocks, max_size=3).map(tuple)
results = st.builds(ToolResult, words, words, st.booleans())
stop_reasons = st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "interrupted"])
bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(User, contents, st.booleans()),
    st.builds(
        Assistant,
        content=contents,
        provider=words,
        model=words,
        usage=usages,
        stop_reason=stop_reasons,
        cost_usd=st.none() | st.floats(0, 1e6),
    ),
    st.builds(
        Result,
        result=results,
        name=words,
        summary=words,
        duration_ms=st.floats(0, 1e9),
        structured=json_values,
        error_kind=words,
    ),
    st.builds(
        Compaction,
        carried=words,
        covers=st.tuples(words, words),
        first_kept=words,
        stubs=st.dictionaries(words, words, max_size=2),
    ),
    st.builds(ContextNote, words),
    st.builds(Rewound, words),
    st.builds(Retracted, st.lists(words, max_size=2).map(tuple)),
    st.builds(ProviderSwitch, words, words, st.sampled_from(["chosen", "fallback", "budget"])),
    st.builds(Queued, st.lists(contents, max_size=2).map(tuple), st.lists(contents, max_size=2).map(tuple)),
    st.builds(
        Paid,
        model=words,
        usage=usages,
        cost_usd=st.none() | st.floats(0, 1e6),
        reason=st.sampled_from(["aside", "refused"]),
        note=words,
    ),
    st.builds(CallsStarted, st.lists(words, max_size=2).map(tuple)),
)
entries = st.builds(Entry, words, st.none() | words, st.floats(0, 2e9), bodies)


@given(entries)
@quick
def test_an_entry_is_the_same_after_a_record(entry: Entry) -> None:
    record = to_record(entry)
    assert from_record(record) == entry
    assert record["kind"] in record["body"]
    assert {type(value) for value in record.values()} <= {str, int, float, type(None)}


KINDS: dict[str, Body] = {
    "user": User((Text("a"),)),
    "assistant": Assistant(content=(Text("a"),), provider="p", model="m"),
    "tool_result": Result(result=ToolResult("c", "a"), name="think"),
    "compaction": Compaction(carried="a"),
    "context_note": ContextNote("a"),
    "pinned": Pinned("a"),
    "labelled": Labelled("a"),
    "rewound": Rewound("i"),
    "retracted": Retracted(("i",)),
    "provider_switched": ProviderSwitch("p/m", "p/n"),
    "queue": Queued(),
    "paid": Paid(model="p/m"),
    "calls_started": CallsStarted(("c",)),
}


def test_the_kinds_have_the_names_that_are_in_stored_logs() -> None:
    assert [to_record(Entry("i", None, 0.0, body))["kind"] for body in KINDS.values()] == [*KINDS]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": SCHEMA_VERSION + 1}, "newer agentcli"),
        *(({"schema_version": version}, "nothing is known") for version in (0, -1)),
        ({"body": '{"kind":"poem"}'}, "poem"),
        ({"body": '{"kind":'}, "truncated"),
    ],
)
def test_a_record_that_cannot_be_read_is_an_error_and_no_guess(change: dict[str, Any], says: str) -> None:
    record = to_record(Entry("the-id", None, 0.0, ContextNote("a")))
    with pytest.raises(ValueError, match=f"the-id cannot be read.*{says}"):
        from_record({**record, **change})


def test_a_reminder_is_marked_for_the_model_and_in_the_log() -> None:
    note = reminder("Plan mode is on.")
    assert note.is_reminder
    assert note.text == "<system-reminder>Plan mode is on.</system-reminder>"


def test_the_text_of_a_prompt_is_its_text_blocks_only() -> None:
    content: Any = (Text("a"), Image(Base64Source("image/png", "AAAA")), Text("b"))
    assert User(content).text == "ab"


# What older versions stored, as they stored it.
OLD_RECORDS = [
    (
        1,
        (
            '{"kind":"tool_result","result":{"type":"tool_result","tool_use_id":"c","content":"ok"},"name":"bash",'
            '"summary":"1 line","duration_ms":3.5,"structured":{"exit_code":0}}'
        ),
        Result(
            result=ToolResult("c", "ok"),
            name="bash",
            summary="1 line",
            duration_ms=3.5,
            structured={"exit_code": 0},
            tool_version="1",
            caller="main",
            mode="",
        ),
    ),
    (1, '{"kind":"user","content":[{"type":"text","text":"Hi"}]}', User((Text("Hi"),))),
    (2, '{"kind":"summary","text":"So far."}', Compaction(carried="So far.")),
    (2, '{"kind":"tool_log","event":"started","data":{"ids":["c1"]}}', CallsStarted(("c1",))),
    (2, '{"kind":"system_event","event":"retracted","data":{"ids":["e1","e2"]}}', Retracted(("e1", "e2"))),
    (2, '{"kind":"system_event","event":"retracted","data":{"since":"e1"}}', Rewound("e1")),
    (
        2,
        '{"kind":"system_event","event":"provider_switched","data":{"before":"a/b","after":"c/d"}}',
        ProviderSwitch("a/b", "c/d"),
    ),
    (
        2,
        '{"kind":"system_event","event":"queue","data":{"steering":[],"follow_ups":[[{"type":"text","text":"x"}]]}}',
        Queued((), ((Text("x"),),)),
    ),
    (
        2,
        '{"kind":"system_event","event":"aside","data":{"model":"a/b","usage":{"input_tokens":3},"cost_usd":0.5}}',
        Paid(model="a/b", usage=Usage(3), cost_usd=0.5),
    ),
    (2, '{"kind":"system_event","event":"refused","data":{"note":"no"}}', Paid(model="", reason="refused", note="no")),
]


@pytest.mark.parametrize(("version", "stored", "today"), OLD_RECORDS)
def test_an_old_record_is_read_in_today_s_form(version: int, stored: str, today: Body) -> None:
    row = {"id": "i", "parent_id": None, "time": 1.0, "schema_version": version, "body": stored}
    entry = from_record(row)
    assert entry.body == today
    assert entry.schema_version == SCHEMA_VERSION


def test_every_older_version_has_a_step_and_an_old_record() -> None:
    assert set(UPGRADES) == set(range(1, SCHEMA_VERSION)) == {version for version, _, _ in OLD_RECORDS}


def test_the_request_of_a_server_to_the_model_is_read_from_an_older_log() -> None:
    stored = '{"kind":"paid","model":"a/b","cost_usd":0.5,"reason":"server"}'
    row = {"id": "i", "parent_id": None, "time": 1.0, "schema_version": 3, "body": stored}
    assert from_record(row).body == Paid(model="a/b", cost_usd=0.5, reason="server")
