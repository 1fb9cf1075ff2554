"""A conversation: the branch of its entries that counts, the messages made of it, and the calls open in it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallsStarted,
    Compaction,
    ContextNote,
    Entry,
    Paid,
    Queued,
    Result,
    Retracted,
    Rewound,
    User,
)
from agentcli.conversation.history import LogSearch
from agentcli.llm.messages import (
    Base64Source,
    Image,
    Message,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    repair_messages,
)
from tests.properties import examples
from tests.transcripts import is_valid

quick = examples(150)

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
                add(Assistant(content=(Text(draw(TEXTS)), *uses), provider="p", model="m"))
            case 5 | 6:
                id = draw(st.sampled_from(calls)) if calls else "stray"
                add(Result(result=ToolResult(id, draw(TEXTS)), name="think"), id)
            case 7:
                add(Compaction(carried="so far"))
            case 8:
                add(draw(st.sampled_from([ContextNote("secret"), CallsStarted(("secret",)), Paid(model="secret")])))
            case _:
                ids = draw(st.lists(st.sampled_from([entry.id for entry in log]), max_size=2)) if log else []
                add(Retracted(tuple(ids)) if draw(st.booleans()) or not ids else Rewound(ids[0]))
    return log


@given(logs())
@examples(400)
def test_messages_built_from_any_log_can_be_sent(log: list[Entry]) -> None:
    messages = Conversation(log).valid_messages()
    assert is_valid(messages)
    for before, after in pairwise(messages):
        assert before.role != after.role or (before.role == "assistant" and not before.tool_uses)
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
@examples(200)
def test_entries_added_at_the_end_leave_earlier_messages_as_they_are(log: list[Entry]) -> None:
    """But for a summary and for what is taken back, which are there to change them."""
    before = Conversation(log).messages
    after = Conversation([*log, Entry("new", None, 0.0, User((Text("new"),)))]).messages
    assert after[: len(before) - 1] == before[:-1]
    assert "new" in after[-1].text


@given(logs())
@quick
def test_open_calls_are_those_without_a_result(log: list[Entry]) -> None:
    remaining = Conversation(log).path
    asked = [
        use.id
        for entry in remaining
        if isinstance(entry.body, Assistant)
        for use in Message("assistant", entry.body.content).tool_uses
    ]
    assert set(Conversation(log).open_calls) == {id for id in asked if not any(entry.id == id for entry in remaining)}


def made(*log: Body) -> list[Entry]:
    ids = [body.result.tool_use_id if isinstance(body, Result) else f"e{n}" for n, body in enumerate(log)]
    return [Entry(id, parent, 0.0, body) for id, parent, body in zip(ids, [None, *ids], log, strict=False)]


USE = Assistant(content=(ToolUse("call_1", "think", {}),), provider="p", model="m")
ANSWER = Result(result=ToolResult("call_1", "x"), name="think")


def user(text: str) -> User:
    return User((Text(text),))


@pytest.mark.parametrize(
    ("log", "path"),
    [
        (
            (user("one"), USE, ANSWER, user("two"), USE, ANSWER, Queued(), Rewound("e3"), user("three")),
            "e0 e1 call_1 e7 e8",
        ),
        ((user("one"), USE, ANSWER, user("two"), USE, ANSWER, Retracted(("e3", "e4", "call_1"))), "e0 e1 call_1 e6"),
    ],
)
def test_undo_from_an_entry_removes_later_changes_and_keeps_earlier_ones(log: tuple[Body, ...], path: str) -> None:
    conversation = Conversation(made(*log))
    assert [entry.id for entry in conversation.path] == path.split()
    assert is_valid(conversation.messages)


def test_a_call_with_the_id_of_an_answered_one_is_open_until_it_is_answered_itself() -> None:
    assert list(Conversation(made(USE, ANSWER, USE)).open_calls) == ["call_1"]
    assert not Conversation(made(USE, ANSWER, USE, ANSWER)).open_calls


def test_a_summary_replaces_everything_before_it_unless_it_was_undone() -> None:
    log = made(
        user("a"), Assistant(content=(Text("b"),), provider="p", model="m"), Compaction(carried="a and b"), user("c")
    )
    assert [message.text for message in Conversation(log).messages] == ["a and bc"]
    log = made(user("a"), Compaction(carried="s"), Retracted(("e1",)), user("c"))
    assert [message.text for message in Conversation(log).messages] == ["ac"]


def test_thinking_keeps_its_signature_and_its_place() -> None:
    content = (Thinking("Hm.", "sig"), Text("a"), ToolUse("c", "think", {}))
    (message,) = Conversation(made(Assistant(content=content, provider="p", model="m"))).messages
    assert message.content == content


def test_an_image_beside_an_empty_text_stays() -> None:
    picture = Image(Base64Source("image/png", "AAAA"))
    (message,) = Conversation(made(User((Text(" "), picture)))).messages
    assert message.content == (picture,)


@given(logs())
@examples(300)
def test_a_conversation_that_grew_is_the_one_that_was_read_whole(log: list[Entry]) -> None:
    """Whatever was asked of it meanwhile."""
    grown = Conversation()
    for entry in log:
        grown.add(entry)
        grown.valid_messages()
    whole = Conversation(log)
    assert grown.path == whole.path
    assert grown.open_calls == whole.open_calls
    assert grown.messages == whole.messages
    assert grown.valid_messages() == repair_messages(whole.messages)


def test_a_compaction_keeps_the_entries_it_names_and_shows_stubs_for_what_they_held() -> None:
    call, long = ToolUse("call_1", "think", {}), ToolUse("call_2", "think", {"thought": "t" * 200})
    use = Assistant(content=(Thinking("Hm.", "sig"), Text("Let me look."), call), provider="p", model="m")
    early = Assistant(content=(Text("a long thought"), long), provider="p", model="m")
    result = Result(result=ToolResult("call_1", "a long result"), name="think")
    stubs = {"call_1": "a lo… (recall call_1)", "e3": "a lo…"}
    compaction = Compaction(carried="so far", covers=("e0", "e1"), first_kept="e2", stubs=stubs)
    log = made(
        User((Text("one"),)), Assistant(content=(Text("1"),), provider="p", model="m"), User((Text("two"),)),
        early, Result(result=ToolResult("call_2", "ok"), name="think"), use, result, compaction,
    )  # fmt: skip
    log += made(*[ContextNote("")] * 8, User((Text("three"),)))[8:]
    messages = Conversation(log).messages
    assert [message.text for message in messages] == ["so fartwo", "a lo…", "", "Let me look.", "three"]
    assert messages[4].content[0] == ToolResult("call_1", "a lo… (recall call_1)")
    assert messages[3].content == (Text("Let me look."), call)  # signed thinking is bound to what stood before it
    assert messages[1].tool_uses[0].input == {"thought": "t" * 100 + "… [+100 characters]"}
    assert is_valid(messages)


def test_entries_that_follow_another_parent_begin_a_branch_and_the_way_back_is_open() -> None:
    log = made(*(User((Text(text),)) for text in ("a", "b", "c")))
    conversation = Conversation(log)
    conversation.add(Entry("branch", "e0", 3.0, User((Text("d"),))))
    assert [entry.id for entry in conversation.path] == ["e0", "branch"]
    conversation.add(Entry("back", "e2", 4.0, User((Text("e"),))))
    assert [entry.id for entry in conversation.path] == ["e0", "e1", "e2", "back"]
    assert [message.text for message in conversation.messages] == ["abce"]


def test_an_entry_with_the_rarest_word_of_a_query_is_found_first() -> None:
    texts = ["the flywheel wobbles", *["the parser works"] * 5]
    log = [Entry(f"e{n}", f"e{n - 1}" if n else None, float(n), User((Text(text),))) for n, text in enumerate(texts)]
    found = LogSearch(Conversation(log)).search("flywheel of the parser")
    assert len(found) == 6
    assert found[0] == "[#1 user] the flywheel wobbles"
