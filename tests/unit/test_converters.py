"""Pure converters, there and back."""

from hypothesis import given
from hypothesis import strategies as st

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import entry_now, from_messages, from_record, to_record
from agentcli.llm.messages import Message, Text, ToolResult, ToolUse
from agentcli.llm.transcript import is_valid

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


@given(conversations())
def test_messages_become_entries_and_records_and_messages_again(messages: tuple[Message, ...]) -> None:
    assert is_valid(messages)
    bodies = from_messages(messages, provider="anthropic", model="claude-sonnet-5-5")
    entries = [entry_now(str(number), None, body) for number, body in enumerate(bodies)]
    assert Conversation(from_record(to_record(entry)) for entry in entries).messages == messages
