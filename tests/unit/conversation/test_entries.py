"""Entries: to records and back, and from what older versions stored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallsStarted,
    Compaction,
    ContextNote,
    Entry,
    Paid,
    ProviderSwitch,
    Queued,
    Result,
    Retracted,
    Rewound,
    User,
    from_record,
    reminder,
    to_record,
)
from agentcli.conversation.schema import SCHEMA_VERSION, STEPS
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
    st.builds(Assistant, contents, words, words, usages, stop_reasons, st.none() | st.floats(0, 1e6)),
    st.builds(Result, results, words, words, st.floats(0, 1e9), json_values, words),
    st.builds(Compaction, words, st.tuples(words, words), words, st.dictionaries(words, words, max_size=2)),
    st.builds(ContextNote, words),
    st.builds(Rewound, words),
    st.builds(Retracted, st.lists(words, max_size=2).map(tuple)),
    st.builds(ProviderSwitch, words, words, st.sampled_from(["chosen", "fallback", "budget"])),
    st.builds(Queued, st.lists(contents, max_size=2).map(tuple), st.lists(contents, max_size=2).map(tuple)),
    st.builds(Paid, words, usages, st.none() | st.floats(0, 1e6), st.sampled_from(["aside", "refused"]), words),
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


def test_the_kinds_have_the_names_that_stand_in_stored_logs() -> None:
    some: list[Body] = [
        User((Text("a"),)),
        Assistant((Text("a"),), "p", "m"),
        Result(ToolResult("c", "a"), "think"),
        Compaction("a"),
        ContextNote("a"),
        Rewound("i"),
        Retracted(("i",)),
        ProviderSwitch("p/m", "p/n"),
        Queued(),
        Paid("p/m"),
        CallsStarted(("c",)),
    ]
    assert [to_record(Entry("i", None, 0.0, body))["kind"] for body in some] == [
        "user",
        "assistant",
        "tool_result",
        "compaction",
        "context_note",
        "rewound",
        "retracted",
        "provider_switched",
        "queue",
        "paid",
        "calls_started",
    ]


def test_a_record_of_a_newer_program_is_refused_and_so_is_one_that_cannot_be_read() -> None:
    record = to_record(Entry("the-id", None, 0.0, ContextNote("a")))
    with pytest.raises(ValueError, match=r"the-id.*newer agentcli"):
        from_record({**record, "schema_version": SCHEMA_VERSION + 1})
    with pytest.raises(ValueError, match="the-id cannot be read"):
        from_record({**record, "body": '{"kind":"poem"}'})
    with pytest.raises(ValueError, match="the-id cannot be read"):
        from_record({**record, "body": '{"kind":'})


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
            ToolResult("c", "ok"), "bash", "1 line", 3.5, {"exit_code": 0}, tool_version="1", caller="main", mode=""
        ),
    ),
    (1, '{"kind":"user","content":[{"type":"text","text":"Hi"}]}', User((Text("Hi"),))),
    (2, '{"kind":"summary","text":"So far."}', Compaction("So far.")),
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
        Paid("a/b", Usage(3), 0.5),
    ),
    (2, '{"kind":"system_event","event":"refused","data":{"note":"no"}}', Paid("", reason="refused", note="no")),
]


@pytest.mark.parametrize(("version", "stored", "today"), OLD_RECORDS)
def test_an_old_record_is_read_in_today_s_form(version: int, stored: str, today: Body) -> None:
    row = {"id": "i", "parent_id": None, "time": 1.0, "schema_version": version, "body": stored}
    entry = from_record(row)
    assert entry.body == today
    assert entry.schema_version == SCHEMA_VERSION


@pytest.mark.parametrize("version", [0, -1, SCHEMA_VERSION + 1, 99])
def test_a_record_that_no_step_leads_on_from_is_an_error_and_no_guess(version: int) -> None:
    row = {"id": "the-id", "parent_id": None, "time": 1.0, "schema_version": version, "body": OLD_RECORDS[1][1]}
    with pytest.raises(ValueError, match="the-id cannot be read"):
        from_record(row)


def test_every_older_version_has_a_step_and_an_old_record() -> None:
    assert set(STEPS) == set(range(1, SCHEMA_VERSION)) == {version for version, _, _ in OLD_RECORDS}
