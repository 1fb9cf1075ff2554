"""Pure converters, there and back."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Result, User, entry_now
from agentcli.conversation.schema import from_record, to_record
from agentcli.llm.messages import Message, StopReason, Text, ToolResult, ToolUse
from tests.transcripts import is_valid

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Valid ones: every call answered in the next message, before any text."""
    messages: list[Message] = []
    waiting: list[str] = []
    for number in range(draw(st.integers(0, 6))):
        results = tuple(ToolResult(id, draw(words), draw(st.booleans())) for id in waiting)
        said = (Text(draw(words)),) if not results or draw(st.booleans()) else ()
        messages.append(Message("user", results + said))
        waiting = [f"call_{number}_{n}" for n in range(draw(st.integers(0, 2)))]
        uses = tuple(ToolUse(id, draw(words), {"a": draw(words)}) for id in waiting)
        messages.append(Message("assistant", (Text(draw(words)), *uses)))
    if waiting:
        messages.append(Message("user", tuple(ToolResult(id, "done") for id in waiting)))
    return tuple(messages)


def bodies_of(messages: Iterable[Message]) -> list[Body]:
    bodies: list[Body] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            names |= {use.id: use.name for use in message.tool_uses}
            stop_reason: StopReason = "tool_use" if message.tool_uses else "end_turn"
            bodies.append(
                Assistant(
                    content=message.content, provider="anthropic", model="claude-sonnet-5-5", stop_reason=stop_reason
                )
            )
            continue
        results = [block for block in message.content if isinstance(block, ToolResult)]
        bodies += [Result(result=result, name=names.get(result.tool_use_id, "")) for result in results]
        if rest := tuple(block for block in message.content if not isinstance(block, ToolResult)):
            bodies.append(User(rest))
    return bodies


@given(conversations())
def test_messages_become_entries_and_records_and_messages_again(messages: tuple[Message, ...]) -> None:
    assert is_valid(messages)
    bodies = bodies_of(messages)
    entries = [entry_now(str(number), None, body) for number, body in enumerate(bodies)]
    assert Conversation(from_record(to_record(entry)) for entry in entries).messages == messages
