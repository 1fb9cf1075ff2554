"""Entries: to records and back, to messages, and what is open among them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcli.conversation.entries import (
    Assistant,
    Body,
    ContextNote,
    Entry,
    Result,
    Summary,
    SystemEvent,
    ToolLog,
    User,
    from_record,
    kept,
    open_calls,
    reminder,
    to_messages,
    to_record,
)
from agentcli.conversation.schema import SCHEMA_VERSION, STEPS
from agentcli.llm.messages import Base64Source, Image, Message, Text, Thinking, ToolResult, ToolUse, Usage
from agentcli.llm.transcript import doctor, is_valid
from tests.unit.llm.test_messages import blocks, json_values, objects, words

quick = settings(max_examples=150, deadline=None)

counts = st.integers(0, 10**9)
usages = st.builds(Usage, counts, counts, counts, counts, counts, counts, st.none() | st.floats(0, 1e6))
contents = st.lists(blocks, max_size=3).map(tuple)
results = st.builds(ToolResult, words, words, st.booleans())
stop_reasons = st.sampled_from(["end_turn", "tool_use", "max_tokens", "refusal", "interrupted"])
bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(User, contents, st.booleans()),
    st.builds(Assistant, contents, words, words, usages, stop_reasons, st.none() | st.floats(0, 1e6)),
    st.builds(Result, results, words, words, st.floats(0, 1e9), json_values, words),
    st.builds(Summary, words),
    st.builds(ContextNote, words),
    st.builds(SystemEvent, words, objects),
    st.builds(ToolLog, words, objects),
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
        Summary("a"),
        ContextNote("a"),
        SystemEvent("mode"),
        ToolLog("started"),
    ]
    assert [to_record(Entry("i", None, 0.0, body))["kind"] for body in some] == [
        "user",
        "assistant",
        "tool_result",
        "summary",
        "context_note",
        "system_event",
        "tool_log",
    ]


def test_a_record_of_a_newer_program_is_refused_and_so_is_one_that_cannot_be_read() -> None:
    record = to_record(Entry("the-id", None, 0.0, Summary("a")))
    with pytest.raises(ValueError, match=r"the-id.*newer agentcli"):
        from_record({**record, "schema_version": SCHEMA_VERSION + 1})
    with pytest.raises(ValueError, match="the-id cannot be read"):
        from_record({**record, "body": '{"kind":"poem"}'})
    with pytest.raises(ValueError, match="the-id cannot be read"):
        from_record({**record, "body": '{"kind":'})


# Random logs: what a person, a model and crashes can write one after another.

TEXTS = st.sampled_from(["", " ", "\n", "a", "b c"])


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """A log in which calls may be answered late, twice or never, and entries may be taken back."""
    log: list[Entry] = []
    calls: list[str] = []

    def add(body: Body, id: str | None = None) -> None:
        log.append(Entry(id or f"e{len(log)}", log[-1].id if log else None, float(len(log)), body))

    for _ in range(draw(st.integers(0, 14))):
        match draw(st.integers(0, 9)):
            case 0 | 1:
                add(User((Text(draw(TEXTS)),), draw(st.booleans())))
            case 2 | 3 | 4:
                uses = []
                for _ in range(draw(st.integers(0, 3))):
                    calls.append(f"c{len(calls)}")
                    uses.append(ToolUse(calls[-1], "think", {}))
                add(Assistant((Text(draw(TEXTS)), *uses), "p", "m"))
            case 5 | 6:
                id = draw(st.sampled_from(calls)) if calls else "stray"
                add(Result(ToolResult(id, draw(TEXTS)), "think"), id)
            case 7:
                add(Summary("so far"))
            case 8:
                add(draw(st.sampled_from([ContextNote("secret"), ToolLog("secret"), SystemEvent("secret")])))
            case _:
                ids = draw(st.lists(st.sampled_from([entry.id for entry in log]), max_size=2)) if log else []
                add(SystemEvent("retracted", {"ids": ids}))
    return log


@given(logs())
@settings(max_examples=400, deadline=None)
def test_whatever_a_log_holds_the_messages_made_of_it_can_be_sent(log: list[Entry]) -> None:
    messages = doctor(to_messages(log))
    assert is_valid(messages)
    for before, after in pairwise(messages):
        assert before.role != after.role
    asked = [use.id for message in messages for use in message.tool_uses]
    answered = [b.tool_use_id for message in messages for b in message.content if isinstance(b, ToolResult)]
    assert answered == asked
    for message in messages:
        assert message.content
        assert not any(isinstance(block, Text) and not block.text.strip() for block in message.content)
        kinds = [isinstance(block, ToolResult) for block in message.content]
        assert kinds == sorted(kinds, reverse=True)
    assert not messages or messages[0].role == "user"
    assert "secret" not in str(messages)


@given(logs())
@settings(max_examples=200, deadline=None)
def test_entries_added_at_the_end_leave_earlier_messages_as_they_are(log: list[Entry]) -> None:
    """But for a summary and for what is taken back, which are there to change them."""
    before = to_messages(log)
    after = to_messages([*log, Entry("new", None, 0.0, User((Text("new"),)))])
    assert after[: len(before) - 1] == before[:-1]
    assert "new" in after[-1].text


@given(logs())
@quick
def test_open_calls_are_those_without_a_result(log: list[Entry]) -> None:
    remaining = kept(log)
    asked = [
        use.id
        for entry in remaining
        if isinstance(entry.body, Assistant)
        for use in Message("assistant", entry.body.content).tool_uses
    ]
    assert set(open_calls(log)) == {id for id in asked if not any(entry.id == id for entry in remaining)}


def made(*log: Body) -> list[Entry]:
    return [
        Entry(body.result.tool_use_id if isinstance(body, Result) else f"e{n}", None, 0.0, body)
        for n, body in enumerate(log)
    ]


def test_what_is_taken_back_from_an_entry_on_is_gone_and_what_came_before_stays() -> None:
    use = Assistant((ToolUse("call_1", "think", {}),), "p", "m")
    result = Result(ToolResult("call_1", "a"), "think")
    log = made(User((Text("one"),)), use, result, User((Text("two"),)), use, result, SystemEvent("queue"))
    log += made(*[ContextNote("")] * 7, SystemEvent("retracted", {"since": "e3"}), User((Text("three"),)))[7:]
    assert [entry.id for entry in kept(log)] == ["e0", "e1", "call_1", "e6", "e7", "e8"]
    assert is_valid(to_messages(log))


def test_an_id_that_came_again_is_taken_back_only_from_the_first_one_named_on() -> None:
    use = Assistant((ToolUse("call_1", "think", {}),), "p", "m")
    result = Result(ToolResult("call_1", "a"), "think")
    log = made(User((Text("one"),)), use, result, User((Text("two"),)), use, result)
    log += made(*[ContextNote("")] * 6, SystemEvent("retracted", {"ids": ["e3", "e4", "call_1"]}))[6:]
    assert [entry.id for entry in kept(log)] == ["e0", "e1", "call_1", "e6"]


def test_a_call_with_the_id_of_an_answered_one_is_open_until_it_is_answered_itself() -> None:
    use = Assistant((ToolUse("call_1", "think", {}),), "p", "m")
    answer = Result(ToolResult("call_1", "x"), "think")
    assert open_calls(made(use, answer, use)) == ("call_1",)
    assert open_calls(made(use, answer, use, answer)) == ()


def test_a_summary_stands_for_everything_before_it() -> None:
    log = made(User((Text("a"),)), Assistant((Text("b"),), "p", "m"), Summary("a and b"), User((Text("c"),)))
    assert [message.text for message in to_messages(log)] == ["a and bc"]


def test_a_summary_that_was_taken_back_brings_back_what_it_stood_for() -> None:
    log = made(User((Text("a"),)), Summary("s"), SystemEvent("retracted", {"ids": ["e1"]}), User((Text("c"),)))
    assert [message.text for message in to_messages(log)] == ["ac"]


def test_thinking_keeps_its_signature_and_its_place() -> None:
    content = (Thinking("Hm.", "sig"), Text("a"), ToolUse("c", "think", {}))
    (message,) = to_messages(made(Assistant(content, "p", "m")))
    assert message.content == content


def test_an_image_beside_an_empty_text_stays() -> None:
    picture = Image(Base64Source("image/png", "AAAA"))
    (message,) = to_messages(made(User((Text(" "), picture))))
    assert message.content == (picture,)


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
