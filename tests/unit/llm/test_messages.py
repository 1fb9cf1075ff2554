"""Conversations as data: JSON and back, blocks to the Messages API's form and back."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agentcli.llm.messages import (
    Base64Source,
    Block,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
    user_message,
    without_empty_text,
)
from agentcli.llm.wire.anthropic import block_to_wire
from tests.properties import examples

quick = examples(150)

words = st.text(max_size=8)
json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, json_values, max_size=3)
sources = st.builds(Base64Source, st.sampled_from(["image/png", "application/pdf"]), words)
filled_text = st.builds(Text, words.map(lambda text: text + "x"))
parts = filled_text | st.builds(Image, sources) | st.builds(Document, sources)
both_ways = st.one_of(
    st.builds(Text, words),
    st.builds(Thinking, words, st.none() | words),
    st.builds(RedactedThinking, words),
    st.builds(ToolUse, words, words, objects),
    st.builds(Image, sources),
    st.builds(Document, sources),
    st.builds(ToolResult, words, words | st.lists(parts, max_size=3).map(tuple), st.booleans()),
)
blocks = both_ways | st.builds(ToolUse, words, words, objects, words) | st.builds(Opaque, words, objects)


@quick
@given(st.builds(Message, st.sampled_from(["user", "assistant"]), st.lists(blocks, max_size=4).map(tuple)))
def test_a_message_comes_back_from_json(message: Message) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


@quick
@given(both_ways)
def test_a_block_is_whole_on_the_wire(block: Block) -> None:
    wire = msgspec.json.decode(msgspec.json.encode(block_to_wire(block)))
    assert msgspec.convert(wire, Block, strict=False) == block


def test_a_block_of_an_unknown_type_is_kept_whole() -> None:
    data = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]}
    assert block_to_wire(Opaque("anthropic", data)) == data


def test_a_signed_thinking_block_without_text_keeps_its_empty_text() -> None:
    assert block_to_wire(Thinking("", "EqoB")) == {"type": "thinking", "thinking": "", "signature": "EqoB"}


def test_a_result_s_empty_parts_are_not_sent() -> None:
    block = ToolResult("toolu_1", (Text(" \n"), Text("x")))
    assert list(block_to_wire(block)["content"]) == [{"type": "text", "text": "x"}]
    assert block_to_wire(ToolResult("toolu_1")) == {"type": "tool_result", "tool_use_id": "toolu_1"}


def test_a_message_gives_its_text_and_its_calls() -> None:
    use = ToolUse("toolu_1", "read_file", {})
    message = Message("assistant", (Text("One "), use, Text("two")))
    assert (message.text, message.tool_uses) == ("One two", (use,))
    assert user_message("Hi") == Message("user", (Text("Hi"),))


def test_blank_text_is_left_out_and_nothing_else() -> None:
    kept = (Text("x"), Thinking(""), ToolResult("a"))
    assert without_empty_text((Text(""), *kept, Text(" \n\t"))) == kept


def test_usage_adds_up_field_by_field() -> None:
    one = Usage(1, 2, 3, 4, 1, 1, 0.25)
    assert one.prompt_tokens == 8
    assert one + Usage(10, 20, 30, 40, 5, 6) == Usage(11, 22, 33, 44, 6, 7, 0.25)
    assert (Usage() + Usage()).cost_usd is None
    assert (one + one).cost_usd == 0.5
