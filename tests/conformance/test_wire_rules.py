"""The validators themselves: each takes an ordinary conversation, and refuses it with any one thing wrong in it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from agentcli.llm.messages import (
    Base64Source,
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    user_message,
)
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request
from agentcli.llm.providers import ollama
from agentcli.llm.providers.local import QUIRKS
from agentcli.llm.wire import anthropic as wire_anthropic
from agentcli.llm.wire import chat_completions, responses
from tests.conformance.reading import LIST_FILES, READ_FILE
from tests.conformance.wire_rules import (
    Body,
    as_received,
    picture,
    refusals_of_anthropic,
    refusals_of_chat,
    refusals_of_local,
    refusals_of_ollama,
    refusals_of_responses,
)
from tests.rows import each_row

MESSAGES = (
    user_message("What is in a.png and b.txt?"),
    Message(
        "assistant",
        (
            Thinking("I look.", "EqoB"),
            Opaque("openai/responses", {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gA"}),
            Text("I look."),
            ToolUse("toolu_1", "read_file", {"path": "a"}),
            ToolUse("toolu_2", "list_files", {}),
        ),
    ),
    Message("user", (ToolResult("toolu_1", "A cat."), ToolResult("toolu_2", "gone", is_error=True), Text("Well?"))),
)
SEEN = Message("user", (Text("Look"), Image(Base64Source("image/png", picture()))))
ASKED = Request("You help.", MESSAGES, (READ_FILE, LIST_FILES))
SEEING = Request("You help.", (SEEN,), (READ_FILE,))
MODEL = ModelInfo("m", "p", takes_images=True, thinking="adaptive", max_output=9_000)

Break = Callable[[Body], Any]


def broken(body: Body, how: Break) -> Body:
    changed = copy.deepcopy(as_received(body))
    how(changed)
    return changed


ANTHROPIC: dict[str, Break] = {
    "no result": lambda b: b["messages"][2]["content"].pop(0),
    "text first": lambda b: b["messages"][2]["content"].reverse(),
    "orphan": lambda b: b["messages"][1]["content"].pop(2),
    "same ids": lambda b: b["messages"][1]["content"][3].update(id="toolu_1"),
    "empty text": lambda b: b["messages"][1]["content"][1].update(text=" \n"),
    "empty message": lambda b: b["messages"].append({"role": "user", "content": []}),
    "empty error": lambda b: b["messages"][2]["content"][1].update(content=""),
    "unsigned thinking": lambda b: b["messages"][1]["content"][0].pop("signature"),
    "bad name": lambda b: b["messages"][1]["content"][2].update(name="functions.read"),
    "bad id": lambda b: b["messages"][1]["content"][2].update(id="functions.read:0"),
    "prefill": lambda b: b["messages"].append({"role": "assistant", "content": "So"}),
    "assistant first": lambda b: b["messages"].pop(0),
    "temperature": lambda b: b.update(temperature=1),
    "five marks": lambda b: [block.update(cache_control={}) for block in b["messages"][1]["content"][1:]],
    "system": lambda b: b["messages"].append({"role": "tool", "content": "x"}),
    "budget": lambda b: b.update(thinking={"type": "enabled", "budget_tokens": 99_999}),
}
CHAT: dict[str, Break] = {
    "no result": lambda b: b["messages"].pop(3),
    "late result": lambda b: b["messages"].insert(3, {"role": "user", "content": "x"}),
    "long id": lambda b: [b["messages"][2]["tool_calls"][0].update(id="x" * 41)],
    "bad name": lambda b: b["messages"][2]["tool_calls"][0]["function"].update(name="a.b"),
    "bad arguments": lambda b: b["messages"][2]["tool_calls"][0]["function"].update(arguments="{"),
    "object arguments": lambda b: b["messages"][2]["tool_calls"][0]["function"].update(arguments={}),
    "says nothing": lambda b: b["messages"].insert(2, {"role": "assistant", "content": None}),
    "unknown field": lambda b: b["messages"][2].update(thinking="Hm"),
    "empty": lambda b: b["messages"][1].update(content=""),
    "assistant last": lambda b: b["messages"].append({"role": "assistant", "content": "x"}),
}
OLLAMA: dict[str, Break] = {
    "no result": lambda b: b["messages"].pop(3),
    "text arguments": lambda b: b["messages"][2]["tool_calls"][0]["function"].update(arguments="{}"),
    "parts": lambda b: b["messages"][1].update(content=[{"type": "text", "text": "x"}]),
    "picture": lambda b: b["messages"][1].update(images=[picture()]),
    "no picture": lambda b: b["messages"][1].update(images=["x"]),
    "window": lambda b: b["options"].update(num_ctx=0),
    "assistant last": lambda b: b["messages"].append({"role": "assistant", "content": "x"}),
}
RESPONSES: dict[str, Break] = {
    "no result": lambda b: b["input"].pop(5),
    "orphan": lambda b: b["input"].pop(3),
    "same ids": lambda b: b["input"][4].update(call_id="toolu_1"),
    "reasoning alone": lambda b: b["input"].insert(4, b["input"].pop(1)),
    "reasoning last": lambda b: b["input"].append(b["input"][1]),
    "not encrypted": lambda b: b["input"][1].pop("encrypted_content"),
    "kept": lambda b: b.update(store=True),
    "chat field": lambda b: b.update(max_tokens=9),
    "chat tool": lambda b: b["tools"][0].update(function={}),
    "bad name": lambda b: b["input"][3].update(name="a.b"),
    "bad id": lambda b: b["input"][3].update(call_id="x" * 65),
    "empty": lambda b: b["input"][0].update(content=[]),
    "parts": lambda b: b["input"][0]["content"][0].update(type="text"),
    "says nothing": lambda b: b["input"][2].update(content=" "),
    "unknown item": lambda b: b["input"].append({"type": "item_reference", "id": "rs_1"}),
}
LOCAL: dict[str, Break] = CHAT | {
    "two users": lambda b: b["messages"].append({"role": "user", "content": "x"}),
    "parts": lambda b: b["messages"][1].update(content=[{"type": "text", "text": "x"}]),
}


CASES = {"anthropic": ANTHROPIC, "chat": CHAT, "responses": RESPONSES, "ollama": OLLAMA, "local": LOCAL}


def bodies() -> dict[str, tuple[Body, Callable[..., list[str]]]]:
    return {
        "anthropic": (wire_anthropic.to_body(ASKED, MODEL), refusals_of_anthropic),
        "chat": (chat_completions.to_body(ASKED, MODEL, chat_completions.Quirks(), "openai"), refusals_of_chat),
        "responses": (
            responses.to_body(ASKED, MODEL, chat_completions.Quirks(), "openai"),
            refusals_of_responses,
        ),
        "ollama": (ollama.to_body(ASKED, MODEL), refusals_of_ollama),
        "local": (chat_completions.to_body(ASKED, MODEL, QUIRKS, "local"), refusals_of_local),
    }


@pytest.mark.parametrize("wire", bodies())
def test_an_ordinary_conversation_is_taken(wire: str) -> None:
    body, refusals = bodies()[wire]
    assert refusals(as_received(body)) == []


@each_row(
    "wire, how",
    [(wire, how) for wire, cases in CASES.items() for how in cases],
)
def test_one_thing_wrong_is_refused(wire: str, how: str) -> None:
    body, refusals = bodies()[wire]
    assert refusals(broken(body, CASES[wire][how]))


IMAGES = [
    ("image/png", picture(8_001, 4)),
    ("image/jpeg", picture()),
    ("image/bmp", picture(4, 4, "BMP")),
    ("image/png", "iVBORw0KGgo"),
]


@pytest.mark.parametrize(("media_type", "data"), IMAGES)
def test_images_are_looked_at(media_type: str, data: str) -> None:
    body = wire_anthropic.to_body(SEEING, MODEL)
    assert refusals_of_anthropic(as_received(body)) == []
    source = {"type": "base64", "media_type": media_type, "data": data}
    assert refusals_of_anthropic(broken(body, lambda b: b["messages"][0]["content"][1].update(source=source)))


def test_many_images_are_smaller_and_not_too_many() -> None:
    body = wire_anthropic.to_body(SEEING, MODEL)
    large = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture(2_001, 4)}}
    assert not refusals_of_anthropic(broken(body, lambda b: b["messages"][0]["content"].extend([large] * 19)))
    assert refusals_of_anthropic(broken(body, lambda b: b["messages"][0]["content"].extend([large] * 20)))
    small = body["messages"][0]["content"][1]
    assert refusals_of_anthropic(broken(body, lambda b: b["messages"][0]["content"].extend([small] * 100)), window=9)


def test_thinking_that_is_asked_for_begins_the_reply_before_results() -> None:
    budget = {"type": "enabled", "budget_tokens": 1_024}
    body = wire_anthropic.to_body(ASKED, MODEL) | {"thinking": budget}
    assert refusals_of_anthropic(as_received(body)) == []
    assert refusals_of_anthropic(broken(body, lambda b: b["messages"][1]["content"].pop(0)))
