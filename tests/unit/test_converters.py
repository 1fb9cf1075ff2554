"""Pure converters, there and back."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import entry_now, from_messages, from_record, to_record
from agentcli.llm.messages import Message, Text, ToolResult, ToolUse
from agentcli.llm.provider import ToolSpec
from agentcli.llm.transcript import is_valid
from agentcli.llm.wire.tools import tool_from_wire

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
schemas = st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(words, st.just({}))})
specs = st.builds(ToolSpec, words, st.text(st.characters(exclude_categories=["Cs"])), schemas)


@given(specs)
def test_a_tool_in_the_messages_apis_form_comes_back(spec: ToolSpec) -> None:
    assert tool_from_wire(msgspec.to_builtins(spec)) == spec


@given(specs)
def test_a_tool_in_chat_completions_form_comes_back(spec: ToolSpec) -> None:
    function = {"name": spec.name, "description": spec.description, "parameters": spec.input_schema}
    assert tool_from_wire({"type": "function", "function": function}) == spec


@pytest.mark.parametrize("data", [{}, {"name": 3}, {"type": "function"}, {"name": "a", "input_schema": [1]}])
def test_what_is_no_tool_is_refused_by_name(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not a tool"):
        tool_from_wire(data)


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
