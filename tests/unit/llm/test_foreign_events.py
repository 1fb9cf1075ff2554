"""Whatever a server sends ends in `Done` or in a `ProviderError`, and what it leaves can be stored and sent."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import StreamEvent
from agentcli.llm.providers import ollama
from agentcli.llm.wire import anthropic as wire_anthropic
from agentcli.llm.wire import chat_completions
from agentcli.llm.wire.reply_parts import CallIds, read_items
from tests.conformance.reading import asking
from tests.conformance.replies import Call, Said, anthropic_events, chat_chunks, ollama_lines
from tests.properties import examples

quick = examples(250)
INFO = ModelInfo("m", "p")
SAID = Said("Text.", "Hm.", (Call("a", "read_file", {"path": "x"}), Call("b", "list_files", {})))

scalars = st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | st.sampled_from([b"x".decode(), 0.5])
foreign = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "name", "index", "content", "input", "code"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found += places_in(item, (*path, key))
    return found


def changed(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], by)
    return copy


@st.composite
def disturbed(draw: Any, events: list[Any]) -> list[Any]:
    """The events of a sound reply, some of them changed in one place, doubled or left out."""
    result = []
    for event in events:
        fate = draw(st.integers(0, 12))
        if fate == 0:
            place = draw(st.sampled_from(places_in(event)))
            event = changed(event, place, draw(foreign))
        if fate != 1:
            result.append(event)
        if fate == 2:
            result.append(event)
    return result


def assert_sound(message: Message) -> None:
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message
    request = asking("Hi", message, "Go on")
    for body in (
        wire_anthropic.to_body(request, INFO),
        chat_completions.to_body(request, INFO, chat_completions.Quirks(echo_reasoning=True), "p"),
        ollama.to_body(request, INFO),
    ):
        assert msgspec.json.encode(body)


def assert_can_be_stored(events: list[StreamEvent]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(events), type=list[StreamEvent]) == events


def objects(events: list[Any]) -> list[dict[str, Any]]:
    return [event for event in events if isinstance(event, dict)]  # as the providers do


@quick
@example([{"type": "content_block_start", "index": 1, "content_block": {"type": None, "content": [None]}}])
@given(disturbed(anthropic_events(SAID)))
def test_a_disturbed_messages_stream_leaves_a_sound_message(events: list[Any]) -> None:
    reader = wire_anthropic.AnthropicReader("m", ids=CallIds())
    heard, failure = read_items(objects(events), reader.feed)
    assert_sound(reader.partial())
    assert_can_be_stored(heard)
    if failure is None:
        try:
            assert_sound(reader.finish([]).message)
        except ProviderError:
            pass


def assert_message_is_sound(reader: Any, events: Any) -> None:
    heard, failure = read_items(events, reader.feed)
    assert_can_be_stored(heard)
    if failure is None:
        try:
            done = reader.finish([])
            assert_sound(done.message)
            assert_can_be_stored([done])
        except ProviderError:
            pass
    assert_sound(reader.partial())


@quick
@given(disturbed(chat_chunks(SAID)))
def test_a_disturbed_chat_stream_leaves_a_sound_message(chunks: list[Any]) -> None:
    reader = chat_completions.ChatReader(
        "m", "p", quirks=chat_completions.Quirks(), tool_names=frozenset({"read_file"}), ids=CallIds(prefix="c")
    )
    assert_message_is_sound(reader, objects(chunks))


@quick
@given(disturbed(ollama_lines(SAID)))
def test_a_disturbed_ollama_stream_leaves_a_sound_message(lines: list[Any]) -> None:
    reader = ollama.OllamaReader(asking("Hi"), INFO, ids=CallIds(prefix="c"))
    assert_message_is_sound(reader, objects(lines))
