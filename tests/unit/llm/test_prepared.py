"""Requests that share prepared messages have the bytes that they would have without."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from agentcli.agent.requests.attempts import without
from agentcli.llm.messages import (
    CacheControl,
    Message,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    encode_json,
    repair_messages,
    user_message,
)
from agentcli.llm.models import ModelInfo
from agentcli.llm.prepared import PreparedMessages
from agentcli.llm.provider import Request, ToolSpec
from agentcli.llm.providers import ollama
from agentcli.llm.providers.openai_compat import presets
from agentcli.llm.wire import anthropic, chat_completions, responses
from tests.conformance.test_transcripts import transcript

MODEL = ModelInfo("m", "p", takes_images=True, thinking="budget", max_output=9_000)
OPENROUTER, OPENAI = presets()["openrouter"].quirks, presets()["openai"].quirks
WIRES: dict[str, Callable[[Request], dict[str, Any]]] = {
    "anthropic": lambda request: anthropic.to_body(request, MODEL),
    "chat": lambda request: chat_completions.to_body(request, MODEL, OPENROUTER, "openrouter"),
    "responses": lambda request: responses.to_body(request, MODEL, OPENAI, "openai"),
    "ollama": lambda request: ollama.to_body(request, MODEL),
}


def growing(seed: int) -> list[tuple[Message, ...]]:
    """The messages of the requests of a conversation, in which anything may have happened, and of a second one."""
    rng, requests = random.Random(seed), list[tuple[Message, ...]]()
    for part in (seed, seed + 1_000):
        messages = (*transcript(part), *transcript(part + 2_000))
        for at in [n for n, one in enumerate(messages) if one.role == "user" and rng.random() < 0.05]:
            marked = Text("Kept.", CacheControl(rng.choice(("5m", "1h"))))
            messages = (*messages[:at], Message("user", (*messages[at].content, marked)), *messages[at + 1 :])
        requests += [messages[:end] for end in range(1, len(messages) + 1)]
    return requests


@pytest.mark.parametrize("wire", WIRES)
def test_the_bytes_of_a_growing_conversation_are_those_of_its_messages(wire: str) -> None:
    for seed in range(3):
        shared = PreparedMessages()
        for messages in growing(seed):
            if not (valid := repair_messages(messages)):
                continue
            transcript = shared.valid(messages)
            assert transcript == valid, seed
            alone = Request("You help.", valid, max_tokens=9_000, effort="low")
            request = replace(alone, messages=transcript)
            assert json.encode(WIRES[wire](request)) == json.encode(WIRES[wire](alone)), seed
            assert request.call_ids() == {use.id for message in valid for use in message.tool_uses}
            assert request.lasts_an_hour == alone.lasts_an_hour == ('"1h"' in str(json.encode(valid)))


@pytest.mark.parametrize("wire", WIRES)
def test_what_does_not_answer_the_prepared_messages_joins_them_as_if_nothing_was_prepared(wire: str) -> None:
    ask, answer = user_message, lambda text: Message("assistant", (Text(text),))
    thought = Message("assistant", (Thinking("Hm"),))
    for later in ((ask("a"), ask("e"), answer("3"), ask("f")), (ask("a"), thought, ask("e"))):
        shared = PreparedMessages()  # a window that leaves out the middle, and a branch after a rewind
        WIRES[wire](Request("", shared.valid((ask("a"), answer("1"), ask("b"), answer("2"), ask("c")))))
        alone = Request("", repair_messages(later))
        assert WIRES[wire](replace(alone, messages=shared.valid(later))) == WIRES[wire](alone)


@pytest.mark.parametrize("wire", WIRES)
def test_a_conversation_goes_on_from_any_message_after_a_rewind(wire: str) -> None:
    asked = [user_message(f"Step {number}") for number in range(5)]
    told = [Message("assistant", (Text(f"Done {number}"),)) for number in range(4)]
    messages = (*(one for turn in zip(asked, told, strict=False) for one in turn), asked[4])
    for end in range(1, len(messages)):
        for next_one in ((), (user_message("Another way"),), (Message("assistant", (Text("Well,"),)),)):
            shared, later = PreparedMessages(), repair_messages((*messages[:end], *next_one))
            WIRES[wire](Request("", shared.valid(messages)))
            again = WIRES[wire](Request("", shared.valid(later)))
            assert json.encode(again) == json.encode(WIRES[wire](Request("", later)))


def test_one_conversation_can_be_sent_to_several_apis_in_turn() -> None:
    shared, messages = PreparedMessages(), (user_message("Go on"),)
    for number in range(12):
        call = ToolUse(f"c{number}", "read_file", {"path": "\ud800"})
        answered = (Message("assistant", (Text("Hm"), call)), Message("user", (ToolResult(call.id, "ą\udcff"),)))
        messages = (*messages, *answered)
        alone = Request("You help.", messages)
        for body in list(WIRES.values())[:: number % 2 + 1]:
            sent, expected = body(replace(alone, messages=shared.valid(messages))), body(alone)
            assert encode_json(sent) == encode_json(expected)


def test_a_field_or_a_tool_that_a_server_refuses_leaves_the_messages_prepared() -> None:
    request = Request("", PreparedMessages().valid((user_message("Go on"),)), (ToolSpec("read_file", "Reads", {}),))
    refused = without(request, {"field stream_options", "tool read_file"})
    assert refused == replace(request, tools=(), unsent=frozenset({"stream_options"}))
    assert refused.prepared is request.prepared


def test_what_came_before_is_not_encoded_again() -> None:
    shared, messages, made = PreparedMessages(), (user_message("Go on"),), list[int]()

    def build(part: tuple[Message, ...]) -> list[str]:
        made.append(len(part))
        return [message.text for message in part]

    for number in range(50):
        messages = (*messages, Message("assistant", (Text(f"Step {number}"),)), user_message("Go on"))
        assert len(shared.wire_messages(messages, anthropic.MEDIA, wire_format="text", build=build)) == len(messages)
    assert sum(made) <= 6 * 50
