"""Repairs: any transcript becomes one that a provider takes, and touches nothing that already is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.llm.messages import (
    Block,
    Message,
    Text,
    ToolResult,
    ToolUse,
    repair_messages,
    user_message,
)
from tests.properties import examples
from tests.transcripts import is_valid


@st.composite
def valid_transcripts(draw: st.DrawFn) -> tuple[Message, ...]:
    messages: list[Message] = []
    waiting: tuple[ToolUse, ...] = ()
    number = 0
    for round in range(draw(st.integers(0, 5))):
        answers = tuple(ToolResult(use.id, f"result {use.id}") for use in waiting)
        said: tuple[Block, ...] = (Text(f"prompt {round}"),) if not answers or draw(st.booleans()) else ()
        messages.append(Message("user", answers + said))
        uses = []
        for _ in range(draw(st.integers(0, 3))):
            number += 1
            uses.append(ToolUse(f"c{number}", "think", {}))
        waiting = tuple(uses)
        text: tuple[Block, ...] = (Text(f"reply {round}"),) if not waiting or draw(st.booleans()) else ()
        messages.append(Message("assistant", text + waiting))
    if waiting:
        messages.append(Message("user", tuple(ToolResult(use.id, "last") for use in waiting)))
    return tuple(messages)


@st.composite
def mutilated(draw: st.DrawFn) -> tuple[Message, ...]:
    """A transcript with messages and blocks lost, doubled and moved."""
    messages = list(draw(valid_transcripts()))
    for _ in range(draw(st.integers(1, 4))):
        if not messages:
            break
        at = draw(st.integers(0, len(messages) - 1))
        blocks = list(messages[at].content)
        match draw(st.sampled_from(["lose", "double", "swap", "lose block", "reverse", "empty", "turn"])):
            case "lose":
                del messages[at]
            case "double":
                messages.insert(at, messages[at])
            case "swap":
                other = draw(st.integers(0, len(messages) - 1))
                messages[at], messages[other] = messages[other], messages[at]
            case "lose block":
                messages[at] = Message(messages[at].role, tuple(blocks[1:]))
            case "reverse":
                messages[at] = Message(messages[at].role, tuple(reversed(blocks)))
            case "empty":
                messages[at] = Message(messages[at].role, ())
            case _:
                mine = [block for block in blocks if isinstance(block, Text)]
                messages[at] = Message("user" if messages[at].role == "assistant" else "assistant", tuple(mine))
    return tuple(messages)


@pytest.mark.slow
@given(valid_transcripts())
@examples(200)
def test_a_valid_transcript_is_left_untouched(messages: tuple[Message, ...]) -> None:
    assert is_valid(messages)
    assert repair_messages(messages) is messages


@given(mutilated())
@examples(500)
def test_a_mutilated_transcript_becomes_valid(messages: tuple[Message, ...]) -> None:
    mended = repair_messages(messages)
    assert is_valid(mended), mended
    assert repair_messages(mended) is mended


@given(mutilated())
@examples(300)
def test_mending_loses_no_text_and_no_call(messages: tuple[Message, ...]) -> None:
    mended = repair_messages(messages)

    def texts(of: tuple[Message, ...]) -> list[str]:
        return [block.text for message in of for block in message.content if isinstance(block, Text)]

    added = "(the beginning of the conversation is missing)"
    assert [text for text in texts(mended) if text != added] == texts(messages)
    calls = [use.id for message in mended for use in message.tool_uses]
    had = [use.id for message in messages if message.role == "assistant" for use in message.tool_uses]
    assert [id.partition("_")[0] for id in calls] == had
    assert len(set(calls)) == len(calls)


def use(id: str) -> Message:
    return Message("assistant", (ToolUse(id, "think", {}),))


def result(*ids: str) -> Message:
    return Message("user", tuple(ToolResult(id, id) for id in ids))


def test_an_open_call_gets_a_result_that_says_it_was_lost() -> None:
    mended = repair_messages((user_message("a"), use("c"), user_message("b")))
    assert mended[2] == Message("user", (ToolResult("c", "The result was lost.", is_error=True), Text("b")))


def test_a_reply_that_says_nothing_after_a_call_leaves_the_call_answered_once() -> None:
    mended = repair_messages((user_message("a"), use("c"), Message("assistant", ()), user_message("b")))
    assert is_valid(mended)
    assert [m.role for m in mended] == ["user", "assistant", "user"]


def test_results_in_another_order_are_put_in_the_order_of_the_calls() -> None:
    asked = Message("assistant", (ToolUse("a", "think", {}), ToolUse("b", "think", {})))
    mended = repair_messages((user_message("x"), asked, result("b", "a")))
    assert mended[2] == result("a", "b")


def test_a_result_without_its_call_is_dropped() -> None:
    assert repair_messages((user_message("a"), Message("user", (ToolResult("c", "c"), Text("b"))))) == (
        Message("user", (Text("a"), Text("b"))),
    )


def test_results_in_two_messages_both_reach_their_calls() -> None:
    asked = Message("assistant", (ToolUse("a", "think", {}), ToolUse("b", "think", {})))
    assert repair_messages((user_message("x"), asked, result("a"), result("b")))[2] == result("a", "b")


def test_a_call_whose_id_another_one_has_gets_its_own_and_its_result() -> None:
    first, second = Message("user", (ToolResult("c", "one"),)), Message("user", (ToolResult("c", "two"),))
    mended = repair_messages((user_message("a"), use("c"), first, use("c"), second))
    assert mended[3:] == (use("c_2"), Message("user", (ToolResult("c_2", "two"),)))


def test_what_a_role_cannot_say_and_blank_text_are_left_out() -> None:
    strange = Message("user", (Text(" "), ToolUse("a", "think", {}), Text("b")))
    assert repair_messages((strange, Message("assistant", (Text("\n"),)))) == (user_message("b"),)


def test_replies_that_follow_each_other_stay_as_they_came() -> None:
    said = (user_message("a"), Message("assistant", (Text("b"),)), Message("assistant", (Text("c"),)))
    assert repair_messages(said) is said


def test_a_repair_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broken = (user_message("a"), *[use(f"once{number}") for number in range(99)])
    for _ in range(3):
        repair_messages(broken)
    assert len(caplog.records) == 1


def test_a_conversation_that_lost_its_beginning_gets_one() -> None:
    mended = repair_messages((Message("assistant", (Text("As I said"),)), user_message("a")))
    assert [message.role for message in mended] == ["user", "assistant", "user"]


def test_nothing_at_all_is_valid() -> None:
    assert repair_messages(()) == ()
