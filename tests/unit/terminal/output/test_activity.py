"""Shows work under way in as many rows as there are."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.agent.events import Retry
from agentcli.conversation.entries import Queued
from agentcli.frontends.terminal.output.activity import (
    TAIL_ROWS,
    Activity,
    ArrivingCall,
    PendingRetry,
    RunningCall,
    TurnClock,
)
from agentcli.frontends.terminal.text.fragments import plain, row_width
from agentcli.frontends.terminal.text.markdown import MarkdownStream
from agentcli.llm.messages import Text

# Control characters never get here (see turn_view.py).
TEXT = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    st.text("日本🎉a\u0301\t\n "),
    st.integers(0, 3_000).map(lambda n: "日x" * n),
)
QUEUE = st.lists(TEXT.map(lambda text: (Text(text),)), max_size=3).map(tuple)
ZERO = st.just(0.0)
CALLS = st.lists(st.builds(RunningCall, name=TEXT, title=TEXT, started=st.floats(0, 10), tail=TEXT), max_size=4)


def arriving(*sources: str, columns: int = 30) -> MarkdownStream:
    """An answer of which no part is printed yet."""
    stream = MarkdownStream(width=lambda: columns)
    for source in sources:
        stream.feed(source)
    return stream


@given(
    st.builds(
        Activity,
        calls=CALLS.map(lambda calls: {str(n): call for n, call in enumerate(calls)}),
        commands=st.dictionaries(TEXT, st.floats(0, 10), max_size=2),
        clock=st.builds(
            TurnClock, st.one_of(st.none(), st.floats(0, 10)), st.dictionaries(st.sampled_from("012"), ZERO)
        ),
        thinking=TEXT,
        pending=st.one_of(
            st.none(), st.builds(PendingRetry, st.builds(Retry, st.just(1), ZERO, TEXT), st.floats(0, 10))
        ),
        answer=st.builds(arriving, TEXT, TEXT, st.just("\n|a|\n|-|\n|"), TEXT, columns=st.integers(1, 300)),
        queue=st.builds(Queued, QUEUE, QUEUE),
    ),
    st.one_of(st.integers(1, 4), st.integers(1, 300)),
    st.integers(-1, 20),
)
def test_rows_fit_any_window_whatever_they_say(activity: Activity, columns: int, most: int) -> None:
    rows = activity.rows(columns, most)
    assert len(rows) <= max(0, most)
    assert all(row_width(row) <= columns for row in rows)
    assert not any("\n" in plain(row) or "\t" in plain(row) for row in rows)


def running(tail: str = "", *, seconds: float = 0.0) -> RunningCall:
    return RunningCall(name="bash", title="make", started=time.monotonic() - seconds, tail=tail)


def shown(activity: Activity, columns: int = 60, most: int = 10) -> list[str]:
    return [plain(row) for row in activity.rows(columns, most)]


def test_a_running_call_shows_its_title_time_and_tail() -> None:
    activity = Activity(calls={"1": running("one\ntwo\nthree\nfour\n\n", seconds=5)})
    lines = shown(activity)
    assert lines[0][1:] == " make · 5 s"
    assert lines[1:] == ["  two", "  three", "  four"]


def test_the_row_of_a_subagent_shows_its_task_first() -> None:
    call = RunningCall(
        name="create_subagent", title=f"general-1: {'task ' * 30}", started=time.monotonic() - 5, rounds=1, tokens=3_939
    )
    assert shown(Activity(calls={"1": call}), 40)[0][1:].startswith(" general-1: task task task t… · 5 s")


def test_a_call_that_waits_for_an_approval_is_not_running() -> None:
    assert shown(Activity(calls={"1": running()}, clock=TurnClock(0.0, {"1": 0.0}))) == []


@pytest.mark.parametrize("pending", [None, ArrivingCall("file_write"), PendingRetry(Retry(1, 9.9, "503"), 0.0)])
def test_a_model_that_sends_nothing_is_not_shown_as_working(pending: ArrivingCall | PendingRetry | None) -> None:
    now = time.monotonic()
    clock = TurnClock(now - 99.0, last_event=now - 45.0)
    activity = Activity(clock=clock, pending=pending)
    assert [line[1:] for line in shown(activity)] == [" Nothing received for 45 s · Esc to stop"]
    clock.last_event = now - 25.0
    assert "Nothing" not in shown(activity)[0]


def test_a_retry_says_why_and_when_on_one_line() -> None:
    now = time.monotonic()
    retry = Retry(3, 9.9, "503:\n  overloaded", 7)
    activity = Activity(clock=TurnClock(now), pending=PendingRetry(retry, now + 9.9))
    assert [line[1:] for line in shown(activity)] == [" Retry 3 of 7 in 10 s · Esc to stop · 503: overloaded"]


def test_thoughts_are_shown_by_their_end() -> None:
    lines = shown(Activity(clock=TurnClock(time.monotonic()), thinking="\n".join(map(str, range(9)))))
    assert lines[0].endswith("Thinking 0 s")
    assert lines[1:] == [f"  {n}" for n in range(9)][-TAIL_ROWS:]


def test_the_queue_stays_when_room_is_short() -> None:
    activity = Activity(
        clock=TurnClock(time.monotonic()),
        queue=Queued(((Text("now"),),), ((Text("then\nthat"),),)),
        answer=arriving("x" * 99),
    )
    assert [line[1:] for line in shown(activity, most=2)] == [" Working 0 s", "ext: now"]
    assert Activity(queue=Queued((), ((Text("a"),),) * 9)).rows(80, 8)[-1] == [("muted", "and 6 more")]
    assert shown(activity)[-2:] == ["next: now", "queued: then that"]


def test_text_that_is_not_printed_yet_is_shown_above_it() -> None:
    activity = Activity(
        clock=TurnClock(time.monotonic()), answer=arriving("A line and the rest of what has arrived so far")
    )
    assert shown(activity, columns=30)[:2] == ["A line and the rest of what", "has arrived so far"]


@pytest.mark.parametrize("columns", [1, 2, 3, 4])
def test_a_narrow_window_cuts_thoughts_too(columns: int) -> None:
    activity = Activity(clock=TurnClock(time.monotonic()), thinking="日本 and more")
    assert all(row_width(row) <= columns for row in activity.rows(columns, 10))


def test_a_call_that_arrives_is_named_as_soon_as_its_path_is_known_and_its_lines_are_counted() -> None:
    call = ArrivingCall("file_write")
    activity = Activity(clock=TurnClock(time.monotonic()), pending=call)
    assert shown(activity)[0][1:] == " Writing a file"
    arguments = json.dumps({"path": "/home/me/src/a.py", "content": 'x = "\\n"\n' + "pass\n" * 1_199})
    for start in range(0, len(arguments), 700):
        call.feed(arguments[start : start + 700], "/home/me")
    assert re.match(r" Writing ~/src/a\.py · 1,(19|20)\d lines", shown(activity)[0][1:])
    assert re.search(r"… · 1,(19|20)\d lines$", shown(activity, 20)[0])


@pytest.mark.parametrize(
    ("tool", "shows"),
    [
        ("file_edit", " Editing a file"),
        ("bash", " Preparing a command"),
        ("create_subagent", " Preparing a subagent's task"),
        ("mcp__wiki__find", " Preparing mcp__wiki__find"),
    ],
)
def test_other_calls_that_arrive_are_named_too(tool: str, shows: str) -> None:
    assert shown(Activity(clock=TurnClock(time.monotonic()), pending=ArrivingCall(tool)))[0][1:] == shows
