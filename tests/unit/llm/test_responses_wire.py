"""OpenAI's Responses API, event by event and item by item."""

from __future__ import annotations

from typing import Any

import pytest

from agentcli.agent.requests.attempts import rewrites, without
from agentcli.llm.errors import (
    BillingError,
    ConnectionFailed,
    ContextOverflow,
    ProviderError,
    RateLimit,
    ServerError,
    error_for_status,
)
from agentcli.llm.messages import (
    Base64Source,
    Document,
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
from agentcli.llm.provider import Done, StreamEvent, TextDelta, ThinkingDelta, ToolCallEnded, ToolCallStarted
from agentcli.llm.wire.chat_completions import Quirks
from agentcli.llm.wire.reply_parts import CallIds
from agentcli.llm.wire.responses import ResponsesReader, to_body
from tests.conformance.reading import asking
from tests.conformance.replies import Call, Said, responses_events
from tests.conformance.wire_rules import as_received, pdf, picture, refusals_of_responses

MODEL = ModelInfo("gpt-x", "openai", thinking="effort", takes_images=True, api="responses", max_output=9_000)
READ = Call("call_1", "read_file", {"path": "a"})
PLAIN = Quirks()
KEPT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
REASONING = Opaque("openai/responses", KEPT)


def read_all(*events: dict[str, Any]) -> tuple[list[StreamEvent], ResponsesReader]:
    reader, out = ResponsesReader("gpt-x", "openai", ids=CallIds()), []
    for event in events:
        reader.feed(event, out)
    return out, reader


def done(*events: dict[str, Any]) -> Done:
    out, reader = read_all(*events)
    return reader.finish(out)


def body_of(*messages: Message, model: ModelInfo = MODEL, quirks: Quirks = PLAIN, **more: Any) -> dict[str, Any]:
    body = as_received(to_body(asking(*messages, **more), model, quirks, "openai"))
    assert refusals_of_responses(body) == []
    return body


# Replies


def test_reasoning_is_kept_as_text_and_as_it_goes_back() -> None:
    reply = done(*responses_events(Said("Yes.", "I think.", (READ,))))
    thought, reasoning, text, call = reply.message.content
    assert (thought, text) == (Thinking("I think."), Text("Yes."))
    assert isinstance(reasoning, Opaque)
    assert (reasoning.provider, reasoning.data["id"]) == ("openai/responses", "rs_1")
    assert reasoning.data["encrypted_content"] == "gAAAAABo"  # the whole one, not the first
    assert call == ToolUse("call_1", "read_file", {"path": "a"})
    assert reply.usage.reasoning_tokens == 7


def test_parts_of_a_summary_are_paragraphs() -> None:
    added = {"type": "response.reasoning_summary_part.added", "output_index": 0}
    delta = {"type": "response.reasoning_summary_text.delta", "output_index": 0}
    out, _ = read_all(added, delta | {"delta": "One."}, added, delta | {"delta": "Two."})
    assert "".join(event.text for event in out if isinstance(event, ThinkingDelta)) == "One.\n\nTwo."


def test_the_phase_of_a_message_is_kept_beside_it() -> None:
    events = responses_events(Said("I look.", calls=(READ,)))
    for event in events:
        if event["type"] == "response.output_item.done" and event["item"]["type"] == "message":
            event["item"]["phase"] = "commentary"
    reply = done(*events).message
    assert reply.content[:2] == (Opaque("openai/responses", {"phase": "commentary"}), Text("I look."))
    body = body_of(user_message("Hi"), reply, Message("user", (ToolResult("call_1", "x"),)))
    assert body["input"][1] == {
        "type": "message",
        "role": "assistant",
        "content": "I look.",
        "phase": "commentary",
    }


@pytest.mark.parametrize("ends", [True, False])
def test_a_call_that_was_cut_is_lost_and_no_other(ends: bool) -> None:
    second = Call("call_2", "list_files", {"path": "b"})
    events = responses_events(Said("Reading.", calls=(READ, second)))
    item = next(e for e in events if e["type"] == "response.output_item.done" and e["item"].get("call_id") == "call_2")
    item["item"] |= {"status": "incomplete", "arguments": '{"path": '}
    if not ends:
        events.remove(item)
    events[-1]["type"] = "response.incomplete"
    events[-1]["response"] |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    reply = done(*events)
    assert (reply.stop_reason, reply.lost_tool_call) == ("max_tokens", True)
    assert [use.id for use in reply.message.tool_uses] == ["call_1"]


def test_a_refusal_is_reported_as_one() -> None:
    delta = {"type": "response.refusal.delta", "output_index": 0, "content_index": 0, "delta": "I will not."}
    reply = done(delta, responses_events(Said())[-1])
    assert (reply.stop_reason, reply.message.text) == ("refusal", "I will not.")


def test_a_filter_that_cuts_the_reply_is_a_refusal() -> None:
    events = responses_events(Said("Half"))
    events[-1]["type"] = "response.incomplete"
    events[-1]["response"]["incomplete_details"] = {"reason": "content_filter"}
    assert done(*events).stop_reason == "refusal"


def test_what_came_without_deltas_is_reported_at_the_end() -> None:
    """Some servers send whole items, or the whole response, alone."""
    events = responses_events(Said("Yes.", "Hm.", (READ,)))
    whole = [event for event in events if event["type"].startswith(("response.output_item.done", "response.comp"))]
    empty = {"type": "response.output_text.delta", "output_index": 0, "delta": ""}
    for some in (whole, whole[-1:], [empty, whole[-1]], [events[-1]["response"]]):
        out, reader = read_all(*some)
        reply = reader.finish(out)
        assert TextDelta("Yes.") in out
        assert ThinkingDelta("Hm.") in out
        assert {ToolCallStarted("call_1", "read_file"), ToolCallEnded("call_1")} <= {
            event for event in out if isinstance(event, ToolCallStarted | ToolCallEnded)
        }
        assert (reply.message.text, reply.message.tool_uses[0].input) == ("Yes.", {"path": "a"})


def test_a_stream_that_ends_early_is_a_failure_that_keeps_text_and_whole_calls() -> None:
    events = responses_events(Said("Yes.", "Hm.", (READ, Call("call_2", "list_files", {}))))
    out, reader = read_all(*events[:-2])
    with pytest.raises(ConnectionFailed):
        reader.finish(out)
    assert [use.id for use in reader.partial().tool_uses] == ["call_1"]
    assert reader.partial().text == "Yes."


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", ServerError),
        ("rate_limit_exceeded", RateLimit),
        ("insufficient_quota", BillingError),
        ("context_length_exceeded", ContextOverflow),
        ("some_new_code", ServerError),
    ],
)
def test_an_error_is_known_by_its_code(code: str, kind: type[ProviderError]) -> None:
    failed = responses_events(Said())[-1]
    failed["type"] = "response.failed"
    failed["response"]["error"] = {"code": code, "message": "it went wrong"}
    for event in (failed, {"type": "error", "code": code, "message": "it went wrong"}):
        with pytest.raises(kind, match="it went wrong") as caught:
            read_all(event)
        assert type(caught.value) is kind


# Requests


def test_a_request_keeps_nothing_with_the_provider() -> None:
    body = body_of(user_message("Hi"), effort="max", quirks=Quirks(efforts={"max": "xhigh"}, no_obfuscation=True))
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["reasoning"] == {"summary": "auto", "effort": "xhigh"}
    assert body["stream_options"] == {"include_obfuscation": False}
    assert list(body)[-2:] == ["instructions", "input"]


def test_reasoning_goes_back_before_what_followed_it_and_nowhere_else() -> None:
    conversation = (
        user_message("Hi"),
        Message("assistant", (Thinking("Hm."), REASONING, Text("I look."), ToolUse("call_1", "read_file", {}))),
        Message("user", (ToolResult("call_1", "x"),)),
        Message("assistant", (Text("It is x."), REASONING)),  # was broken off here
        user_message("And?"),
    )
    kinds = [(item["type"], item.get("role", "")) for item in body_of(*conversation)["input"]]
    assert kinds == [
        ("message", "user"),
        ("reasoning", ""),
        ("message", "assistant"),
        ("function_call", ""),
        ("function_call_output", ""),
        ("message", "assistant"),
        ("message", "user"),
    ]
    elsewhere = to_body(asking(*conversation), MODEL, Quirks(), "azure")
    assert "reasoning" not in [item["type"] for item in elsewhere["input"]]


def test_images_and_documents_go_where_they_stand() -> None:
    image = Image(Base64Source("image/png", picture()))
    document = Document(Base64Source("application/pdf", pdf(1)))
    body = body_of(
        Message("user", (Text("Look:"), image, document)),
        Message("assistant", (ToolUse("call_1", "read_file", {}), ToolUse("call_2", "read_file", {}))),
        Message("user", (ToolResult("call_1", (Text("seen"), image)), ToolResult("call_2", "gone", is_error=True))),
        quirks=Quirks(documents=True),
    )
    assert [part["type"] for part in body["input"][0]["content"]] == ["input_text", "input_image", "input_file"]
    seen, gone = body["input"][3:]
    assert [part["type"] for part in seen["output"]] == ["input_text", "input_image"]
    assert gone["output"] == "Error: gone"


def test_a_refusal_of_what_only_reasoning_models_take_names_fields_that_can_go() -> None:
    request = asking("Hi")
    for said, field in (
        ("Encrypted content is not supported with this model.", "include"),
        ("Unsupported parameter: 'reasoning.effort' is not supported with this model.", "reasoning"),
        ("Your organization must be verified to generate reasoning summaries.", "reasoning"),
    ):
        error = error_for_status(400, said)
        error.sent = to_body(request, MODEL, Quirks(), "openai")
        way = rewrites(request, error)[0]
        assert field not in to_body(without(request, way.keys), MODEL, Quirks(), "openai")


def test_reasoning_that_is_refused_can_be_left_out() -> None:
    messages = (user_message("Hi"), Message("assistant", (REASONING, Text("Yes."))), user_message("And?"))
    request = asking(*messages)
    error = error_for_status(400, "The encrypted content for item rs_1 could not be verified.")
    error.sent = to_body(request, MODEL, Quirks(), "openai")
    (way, *_) = [way for way in rewrites(request, error) if way.phrase == "without earlier reasoning"]
    left = to_body(without(request, way.keys), MODEL, Quirks(), "openai")["input"]
    assert [item["type"] for item in left] == ["message"] * 3
