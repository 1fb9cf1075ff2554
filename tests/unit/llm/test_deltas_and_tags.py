"""Deltas joined, and reasoning told from text."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.llm.errors import RateLimit, ServerError
from agentcli.llm.messages import Usage
from agentcli.llm.provider import (
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    UsageUpdate,
)
from agentcli.llm.wire.reply_parts import Prose, join_deltas, read_items
from tests.properties import examples

quick = examples(200)

texts = st.text(max_size=3)
ids = st.sampled_from(["a", "b"])
events = st.one_of(
    texts.map(TextDelta),
    texts.map(ThinkingDelta),
    st.builds(ToolCallDelta, ids, texts),
    st.builds(ToolCallStarted, ids, texts),
    ids.map(ToolCallEnded),
    st.integers(0, 3).map(lambda n: UsageUpdate(Usage(n))),
)


def kind_of(event: StreamEvent) -> Any:
    match event:
        case TextDelta() | ThinkingDelta():
            return type(event)
        case ToolCallDelta(id):
            return (ToolCallDelta, id)
        case _:
            return event


def piece_of(event: StreamEvent) -> str:
    return event.partial_json if isinstance(event, ToolCallDelta) else getattr(event, "text", "")


@quick
@given(st.lists(events, max_size=30))
def test_joining_keeps_order_and_every_character(given_events: list[StreamEvent]) -> None:
    joined = join_deltas(given_events)
    runs = []
    for kind, run in groupby(given_events, kind_of):
        members = list(run)
        repeats = 1 if isinstance(kind, type | tuple) else len(members)
        runs += [(kind, "".join(map(piece_of, members)))] * repeats
    assert [(kind_of(event), piece_of(event)) for event in joined] == runs
    assert join_deltas(joined) == joined


def test_text_before_a_failure_is_read() -> None:
    def feed(item: int, out: list[StreamEvent]) -> None:
        if item == 3:
            raise RateLimit("slow")
        out.append(TextDelta(str(item)))

    heard, failure = read_items([1, 2, 3, 4], feed)
    assert heard == [TextDelta("12")]
    assert isinstance(failure, RateLimit)
    assert read_items([1], feed) == ([TextDelta("1")], None)


def test_an_event_of_another_shape_is_a_server_error_with_its_cause() -> None:
    heard, failure = read_items([{"a": 1}, {}], lambda item, out: out.append(TextDelta(str(item["a"]))))
    assert heard == [TextDelta("1")]
    assert isinstance(failure, ServerError)
    assert isinstance(failure.__cause__, KeyError)


# <think>


def parted(*chunks: str) -> tuple[str, str]:
    """(thinking, text)"""
    prose, out = Prose(), list[StreamEvent]()
    for chunk in chunks:
        prose.add(chunk, out)
    prose.close(out)
    return "".join(prose.thinking), "".join(prose.text)


def test_reasoning_in_tags_is_thinking() -> None:
    assert parted("<think>\nHm.\n</think>\n\nYes.") == ("Hm.\n", "Yes.")
    assert parted(" \n<think>Hm.</think>Yes.") == ("Hm.", "Yes.")
    assert parted("<think></think>Yes.") == ("", "Yes.")
    assert parted("<think>never ends") == ("never ends", "")


def test_a_tag_in_the_middle_of_text_is_text() -> None:
    assert parted("Write <think> to open.") == ("", "Write <think> to open.")
    assert parted("a < b and <thinking> too") == ("", "a < b and <thinking> too")


def test_what_stands_before_a_closing_tag_that_none_opened_was_thinking() -> None:
    assert parted("Hm.</think>Yes.") == ("Hm.", "Yes.")
    assert parted("Hm", ".\n</th", "ink>\n\nYes", ".") == ("Hm.\n", "Yes.")


def test_a_closing_tag_in_prose_is_text() -> None:
    for text in ("Use <think> and </think>.", "It is `</think>` here.", 'Write "</think>" now.', "A </think> tag"):
        assert parted(text) == parted(*text) == ("", text)


def test_after_reasoning_of_its_own_field_the_opening_tag_is_text() -> None:
    prose, out = Prose(), list[StreamEvent]()
    prose.add_thinking("Hm.", out)
    prose.add("<think> opens it", out)
    assert out == [ThinkingDelta("Hm."), TextDelta("<think> opens it")]


def test_text_that_only_begins_like_a_tag_is_kept() -> None:
    for text in ("<", "<thin", "  ", "Yes.</thi", "<think", "\n"):
        assert parted(text) == ("", text)


def test_plain_text_is_not_held_back() -> None:
    out: list[StreamEvent] = []
    Prose().add("Hello", out)
    assert out == [TextDelta("Hello")]


tagged = st.lists(
    st.sampled_from(["```", "<think>", "</think>", "\n", " ", "<", "a", "th", "ink>", "</", "é"]), max_size=12
).map("".join)


@quick
@given(tagged, st.lists(st.integers(0, 60), max_size=8))
@example("<think>\nHm.\n</think>\n\nYes.", [7, 8, 20, 21, 22])
def test_tags_mean_the_same_however_the_text_is_cut(text: str, places: list[int]) -> None:
    edges = sorted([0, *(min(place, len(text)) for place in places), len(text)])
    chunks = [text[start:end] for start, end in pairwise(edges)]
    assert parted(*chunks) == parted(*text) == parted(text)


def test_an_answer_about_the_closing_tag_keeps_it() -> None:
    _, text = parted("<think>hm</think>End it with </think>, then ", "</think> again.")
    assert text == "End it with </think>, then </think> again."
