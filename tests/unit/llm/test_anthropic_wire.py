"""The Messages API, event by event and field by field."""

from __future__ import annotations

import copy
import itertools
from typing import Any, get_args

import msgspec
import pytest

from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    BillingError,
    ConnectionFailed,
    Overloaded,
    ProviderError,
    RateLimit,
    ServerError,
    Timeout,
)
from agentcli.llm.messages import (
    CacheControl,
    Message,
    Opaque,
    RedactedThinking,
    StopReason,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Usage,
)
from agentcli.llm.models import ModelInfo, bundled_models
from agentcli.llm.provider import (
    Done,
    Request,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnded,
    UsageUpdate,
)
from agentcli.llm.providers.anthropic import AnthropicProvider
from agentcli.llm.wire.anthropic import MAX_BREAKPOINTS, AnthropicReader, to_body
from agentcli.llm.wire.reply_parts import CallIds
from tests.conformance.reading import LIST_FILES, READ_FILE, asking
from tests.conformance.replies import Call, Said, anthropic_events, block, message_end, message_start

SONNET = bundled_models().find("anthropic", "claude-sonnet-5-5")
HAIKU_4_5 = bundled_models().find("anthropic", "claude-haiku-4-5")


def read_all(*events: dict[str, Any]) -> list[StreamEvent]:
    reader, out = AnthropicReader("claude-sonnet-5-5", ids=CallIds()), []
    for event in events:
        if not reader.has_ended:  # as `stream_reply` does
            reader.feed(event, out)
    if reader.has_ended:
        done = reader.finish(out)
        out.append(done)
    return out


def done(*events: dict[str, Any]) -> Done:
    last = read_all(*events)[-1]
    assert isinstance(last, Done)
    return last


def partial(*events: dict[str, Any]) -> Message:
    reader = AnthropicReader("claude-sonnet-5-5", ids=CallIds())
    for event in events:
        reader.feed(event, [])
    return reader.partial()


def text_block(index: int = 0, *parts: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, [{"type": "text_delta", "text": part} for part in parts])


def tool_block(index: int, *parts: str, id: str = "toolu_1", ends: bool = True) -> list[dict[str, Any]]:
    start = {"type": "tool_use", "id": id, "name": "read_file", "input": {}}
    return block(index, start, [{"type": "input_json_delta", "partial_json": part} for part in parts], ends=ends)


# Replies


def without_index(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "index"} for event in events]


CALL = ToolUse("toolu_1", "read_file", {"path": "a"})
BADLY_NUMBERED = {
    "all alike": [*text_block(0, "Hi", "."), *tool_block(0, '{"path":', '"a"}')],
    "none": without_index([*text_block(0, "Hi", "."), *tool_block(1, '{"path":', '"a"}')]),
    "null": [event | {"index": None} for event in [*text_block(0, "Hi."), *tool_block(1, '{"path":"a"}')]],
    "words": [*text_block("0", "Hi."), *tool_block("1", '{"path":"a"}')],  # type: ignore[arg-type]
    "no ends": [*text_block(0, "Hi.")[:-1], *tool_block(1, '{"path":"a"}', ends=False)],
    "no ends, all alike": [*text_block(0, "Hi.")[:-1], *tool_block(0, '{"path":"a"}', ends=False)],
}


@pytest.mark.parametrize("how", BADLY_NUMBERED)
def test_nothing_is_lost_of_blocks_that_are_badly_numbered(how: str) -> None:
    heard = read_all(message_start(), *BADLY_NUMBERED[how], *message_end("tool_use"))
    assert isinstance(heard[-1], Done)
    assert heard[-1].message == Message("assistant", (Text("Hi."), CALL))
    assert [event.id for event in heard if isinstance(event, ToolCallEnded)] == ["toolu_1"]


@pytest.mark.parametrize(
    "events",
    [text_block(0, "Hi.")[1:], tool_block(0, "{}")[1:], [*tool_block(0, "{}"), text_block(0, "Hi.")[1]],
     [*text_block(0, "Hi."), tool_block(0, "{}")[1]]],
)  # fmt: skip
def test_a_part_of_no_block_is_a_failure(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ServerError):
        read_all(message_start(), *events)


def text_delta(text: str, index: int = 0) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}


HI, SIGNATURE = text_block(0, "Hi"), {"type": "signature_delta", "signature": "Eqo="}
COMPACTED = {"content": "So far: …", "encrypted_content": "Zm9v"}
FIRST, SECOND = text_block(0, "a", "c"), tool_block(1, '{"path":', '"a"}')
# What stands between a message's start and its end, and the blocks that it is.
REPLIES: dict[str, tuple[list[dict[str, Any]], tuple[Any, ...]]] = {
    "unknown events and deltas": (
        [{"type": "ping"}, {"type": "forecast", "tokens": 7}, *HI[:-1],
         {"type": "content_block_delta", "index": 0, "delta": {"type": "mood_delta", "mood": "glad"}}, HI[-1],
         {"type": "content_block_stop", "index": 9}],
        (Text("Hi"),),
    ),
    "text begins in the start": (block(0, {"type": "text", "text": "H"}, [text_delta("i")["delta"]]), (Text("Hi"),)),
    "thinking without text": (
        [*block(0, {"type": "thinking", "thinking": "", "signature": ""},
                [{"type": "thinking_delta", "thinking": "", "estimated_tokens": 40}, SIGNATURE]), *text_block(1, "Hi")],
        (Thinking("", "Eqo="), Text("Hi")),
    ),
    "redacted thinking": (
        [*block(0, {"type": "redacted_thinking", "data": "EmwK"}), *text_block(1, "Hi")],
        (RedactedThinking("EmwK"), Text("Hi")),
    ),
    "interleaved": (
        [FIRST[0], SECOND[0], FIRST[1], SECOND[1], FIRST[2], SECOND[2], SECOND[3], FIRST[3]], (Text("ac"), CALL)
    ),
    "input in the start": (
        block(0, {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "a"}}), (CALL,)
    ),
    "no arguments": (tool_block(0), (ToolUse("toolu_1", "read_file", {}),)),
    "blank arguments": (tool_block(0, "", " "), (ToolUse("toolu_1", "read_file", {}),)),
    "compaction": (
        block(0, {"type": "compaction", "content": None}, [{"type": "compaction_delta", **COMPACTED}]),
        (Opaque("anthropic", {"type": "compaction", **COMPACTED}),),
    ),
    "citations": (
        block(0, {"type": "text", "text": "", "citations": None},
              [{"type": "citations_delta", "citation": {"type": "char_location"}}, text_delta("Hi")["delta"]]),
        (Text("Hi"),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REPLIES)
def test_a_reply_is_its_blocks(what: str) -> None:
    between, content = REPLIES[what]
    events = read_all(message_start("claude-sonnet-5-5-20260811"), *between, *message_end())
    assert isinstance(events[-1], Done)
    assert (events[-1].message.content, events[-1].model) == (content, "claude-sonnet-5-5-20260811")
    assert all(event.text for event in events if isinstance(event, TextDelta | ThinkingDelta))


@pytest.mark.parametrize(
    "events",
    [
        tool_block(0, '{"path":"a"}')[1:],
        [*text_block(0, "Hi."), *tool_block(0, '{"path":"a"}')[1:]],
        text_block(0, "Hi."),
        [],
    ],
)
def test_a_call_that_did_not_arrive_is_an_error(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ServerError):
        done(message_start(), *events, *message_end("tool_use"))


def test_a_reply_that_ends_before_it_began_is_an_error() -> None:
    with pytest.raises(ConnectionFailed):
        done(message_start(), {"type": "message_stop"})
    assert done(message_start(), *message_end()).message == Message("assistant", ())


@pytest.mark.parametrize("stop", ["max_tokens", "refusal"])
def test_a_call_that_is_open_when_a_reply_breaks_off_is_never_whole(stop: str) -> None:
    reply = done(message_start(), *tool_block(0, '{"path":"a"}', ends=False), *message_end(stop))
    assert (reply.message.tool_uses, reply.lost_tool_call) == ((), True)


def test_nothing_after_message_stop_counts() -> None:
    events = read_all(
        message_start(), *text_block(0, "Hi"), *message_end(), *text_block(1, "late"), *message_end("refusal")
    )
    assert [event for event in events if isinstance(event, Done)] == [events[-1]]
    assert events[-1].message.text == "Hi"  # type: ignore[union-attr]


@pytest.mark.parametrize("written", ['{"path": }', "[1]", '"x"', "7", "null", '{"a":1}{"b":2}', '{"a": NaN}'])
def test_arguments_that_are_not_object_are_kept_as_written(written: str) -> None:
    reply = done(message_start(), *tool_block(0, written), *message_end("tool_use"))
    assert reply.message.tool_uses == (ToolUse("toolu_1", "read_file", {}, unparsed=written),)
    assert not reply.lost_tool_call


@pytest.mark.parametrize("stop", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("parts", [('{"path": "a', "bc"), ("",), ()])
@pytest.mark.parametrize("ends", [True, False])
def test_a_call_that_the_limit_cut_is_lost(stop: str, parts: tuple[str, ...], ends: bool) -> None:
    whole = tool_block(1, '{"path": "x"}')
    reply = done(
        message_start(),
        *text_block(0, "Hm"),
        *whole,
        *tool_block(2, *parts, id="toolu_2", ends=ends),
        *message_end(stop),
    )
    assert reply.lost_tool_call
    assert reply.stop_reason == stop
    assert reply.message.content == (Text("Hm"), ToolUse("toolu_1", "read_file", {"path": "x"}))


def test_text_after_a_malformed_call_survives_the_limit() -> None:
    reply = done(message_start(), *tool_block(0, "{"), *text_block(1, "And"), *message_end("max_tokens"))
    assert reply.message.text == "And"
    assert not reply.lost_tool_call


@pytest.mark.parametrize(
    ("told", "details", "stop", "note"),
    [
        *((stop, None, stop, "") for stop in get_args(StopReason) if stop != "interrupted"),
        ("tired", None, "end_turn", "unknown stop reason 'tired'"),
        ("refusal", {"category": "cyber", "explanation": "No malware."}, "refusal", "No malware."),
        ("refusal", {"category": "bio", "explanation": None}, "refusal", "bio"),
        ("refusal", {"category": None, "explanation": None}, "refusal", ""),
    ],
)
def test_each_stop_reason_is_kept_with_its_note(told: str, details: Any, stop: str, note: str) -> None:
    end = message_end(told, stop_details=details)
    reply = done(message_start(), *text_block(0, "Hi"), *tool_block(1, "{}"), *end)
    assert (reply.stop_reason, reply.note) == (stop, note)


def test_a_paused_server_tool_can_be_sent_back_as_it_came() -> None:
    start = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in ('{"query": ', '"x"}')]
    result = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type": "web_search_result"}]}
    events = read_all(message_start(), *block(0, start, deltas), *block(1, result), *message_end("pause_turn"))
    reply = events[-1]
    assert isinstance(reply, Done)
    assert reply.stop_reason == "pause_turn"
    assert reply.message.tool_uses == ()
    assert not [event for event in events if isinstance(event, ToolCallDelta)]
    body = to_body(asking("Hi", reply.message), SONNET)
    assert _unmarked(body["messages"][1]["content"]) == [start | {"input": {"query": "x"}}, result]


# Usage


def test_usage_is_overwritten_and_a_null_says_nothing() -> None:
    start = message_start()
    start["message"]["usage"] = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3000,
        "cache_creation": {"ephemeral_5m_input_tokens": 120, "ephemeral_1h_input_tokens": 80},
        "output_tokens": 1,
    }
    first = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 20, "input_tokens": None}}
    last = {"output_tokens": 50, "cache_read_input_tokens": None, "output_tokens_details": {"thinking_tokens": 30}}
    events = read_all(
        start,
        first,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": last},
        {"type": "message_stop"},
    )
    assert [event.usage.output_tokens for event in events if isinstance(event, UsageUpdate)] == [1, 20, 50]
    assert events[-1].usage == Usage(10, 50, 200, 3000, 80, 30)  # type: ignore[union-attr]
    assert events[-1].usage.prompt_tokens == 3210  # type: ignore[union-attr]


def test_a_reply_without_usage_counts_nothing() -> None:
    start = message_start()
    del start["message"]["usage"]
    assert done(start, message_end()[0] | {"usage": None}, {"type": "message_stop"}).usage == Usage()


# What breaks


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("invalid_request_error", BadRequest),
        ("authentication_error", AuthError),
        ("billing_error", BillingError),
        ("permission_error", AuthError),
        ("rate_limit_error", RateLimit),
        ("api_error", ServerError),
        ("timeout_error", Timeout),
        ("overloaded_error", Overloaded),
        ("brand_new_error", ServerError),
    ],
)
def test_an_error_event_after_status_200_is_its_own_error(told: str, kind: type[ProviderError]) -> None:
    with pytest.raises(kind, match="words") as failed:
        read_all(message_start(), {"type": "error", "error": {"type": told, "message": "words"}})
    assert type(failed.value) is kind
    assert failed.value.code == told


def test_an_error_event_without_details_is_a_server_error() -> None:
    with pytest.raises(ServerError):
        read_all({"type": "error", "error": "boom"})


def test_a_broken_reply_keeps_text_signed_thinking_and_whole_calls() -> None:
    signed = block(
        0,
        {"type": "thinking", "thinking": ""},
        [{"type": "thinking_delta", "thinking": "Hm"}, {"type": "signature_delta", "signature": "E"}],
    )
    half = block(4, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, ends=False)
    open_text = block(2, {"type": "text", "text": ""}, [{"type": "text_delta", "text": "Let"}], ends=False)
    assert partial(
        message_start(), *signed, *tool_block(1, '{"path":"x"}'), *open_text, *tool_block(3, '{"pa', ends=False), *half
    ).content == (
        Thinking("Hm", "E"),
        ToolUse("toolu_1", "read_file", {"path": "x"}),
        Text("Let"),
    )


def test_thinking_that_was_cut_before_its_signature_is_not_kept() -> None:
    thought = block(0, {"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": "Hm"}], ends=False)
    assert partial(message_start(), *thought).content == ()


# Requests


def conversation(rounds: int) -> list[Message]:
    messages = [Message("user", (Text("Do it."),))]
    for number in range(rounds):
        id = f"toolu_{number}"
        messages.append(
            Message("assistant", (Thinking("Hm", "Eqo="), ToolUse(id, "read_file", {"path": f"{number}.py"})))
        )
        messages.append(Message("user", (ToolResult(id, f"contents {number}"),)))
    return messages


def marked_places(body: dict[str, Any]) -> list[str]:
    places = [f"tools.{n}" for n, tool in enumerate(body.get("tools", ())) if "cache_control" in tool]
    places += [f"system.{n}" for n, part in enumerate(body.get("system", ())) if "cache_control" in part]
    for number, message in enumerate(body["messages"]):
        places += [f"messages.{number}.{n}" for n, part in enumerate(message["content"]) if "cache_control" in part]
    return places


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [_unmarked(item) for item in value] if isinstance(value, list | tuple) else value


def test_breakpoints_are_behind_tools_and_system_at_the_earlier_end_and_at_the_end() -> None:
    body = to_body(asking(*conversation(3)), SONNET)
    assert marked_places(body) == ["system.0", "messages.4.0", "messages.6.0"]
    without_system = to_body(Request(system="", messages=asking("Hi").messages, tools=asking("Hi").tools), SONNET)
    assert marked_places(without_system) == ["tools.1", "messages.0.0"]
    assert body["system"][0]["cache_control"] == {"type": "ephemeral"}


def test_the_first_request_has_one_breakpoint_in_its_messages() -> None:
    assert marked_places(to_body(asking("Hi"), SONNET)) == ["system.0", "messages.0.0"]
    assert marked_places(to_body(Request(system="", messages=asking("Hi").messages), SONNET)) == ["messages.0.0"]


@pytest.mark.parametrize("rounds", range(5))
def test_there_are_never_more_than_four_breakpoints(rounds: int) -> None:
    assert len(marked_places(to_body(asking(*conversation(rounds)), SONNET))) <= MAX_BREAKPOINTS


def marked_by_caller(*places: int, ttl: Any = "5m") -> Request:
    messages = conversation(3)
    for place in places:
        messages[place] = Message("user", (*messages[place].content, Text(f"part {place}", CacheControl(ttl))))
    return asking(*messages)


def test_a_callers_breakpoints_take_the_place_of_ours() -> None:
    body = to_body(marked_by_caller(0), SONNET)
    assert marked_places(body) == ["system.0", "messages.0.1", "messages.4.0", "messages.6.0"]
    assert body["messages"][0]["content"][1]["cache_control"] == {"type": "ephemeral"}
    assert marked_places(to_body(marked_by_caller(0, 2, 4), SONNET)) == [
        "messages.0.1", "messages.2.1", "messages.4.1", "messages.6.0",
    ]  # fmt: skip


def test_hour_long_cache_marks_come_before_short_ones() -> None:
    body = to_body(marked_by_caller(0, ttl="1h"), SONNET)
    kept = [block["cache_control"].get("ttl") for block in (body["system"][0], body["messages"][0]["content"][1])]
    assert kept == ["1h", "1h"]
    assert body["messages"][6]["content"][0]["cache_control"] == {"type": "ephemeral"}


def test_no_breakpoint_is_on_thinking_or_on_empty_text() -> None:
    last = Message("assistant", (Text("Hm"), Thinking("a", "E"), RedactedThinking("x"), Text(" ")))
    body = to_body(asking("Hi", last), SONNET)
    assert marked_places(body)[-1] == "messages.1.0"
    only_thinking = to_body(asking("Hi", Message("assistant", (Thinking("a", "E"),))), SONNET)
    assert marked_places(only_thinking) == ["system.0", "messages.0.0"]


def test_blank_text_and_messages_without_anything_are_not_sent() -> None:
    silent = Message("assistant", (Text(""), Thinking("unsigned"), Opaque("openrouter", {"reasoning_details": []})))
    body = to_body(asking("Hi", silent, "Are you there?"), SONNET)
    assert [message["content"][0]["text"] for message in body["messages"]] == ["Hi", "Are you there?"]
    assert marked_places(body)[1:] == ["messages.0.0", "messages.1.0"]


def test_a_reply_is_sent_back_as_it_came() -> None:
    said = Said(
        "Reading.", "I look.", (Call("toolu_1", "read_file", {"path": "ü.py"}), Call("toolu_2", "list_files", {}))
    )
    redacted = block(7, {"type": "redacted_thinking", "data": "EmwK"})
    events = anthropic_events(said, signature="EqoB")
    events[-2:-2] = redacted
    reply = done(*events).message
    sent = to_body(asking("Hi", reply, "Go on"), SONNET)["messages"][1]["content"]
    assert sent == [
        {"type": "thinking", "thinking": "I look.", "signature": "EqoB"},
        {"type": "text", "text": "Reading."},
        {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "ü.py"}},
        {"type": "tool_use", "id": "toolu_2", "name": "list_files", "input": {}},
        {"type": "redacted_thinking", "data": "EmwK"},
    ]


def test_arguments_that_could_not_be_read_are_sent_back_as_an_empty_object() -> None:
    body = to_body(asking("Hi", Message("assistant", (ToolUse("t", "read_file", {}, unparsed="{"),))), SONNET)
    assert _unmarked(body["messages"][1]["content"]) == [
        {"type": "tool_use", "id": "t", "name": "read_file", "input": {}}
    ]


def test_every_earlier_byte_stays_the_same_while_a_conversation_grows() -> None:
    """Cache marks excepted: they may move (the API's own rule)."""
    messages = conversation(4)
    written = []
    for end in range(1, len(messages) + 1, 2):
        body = to_body(asking(*messages[:end]), SONNET)
        assert list(body)[-3:] == ["tools", "system", "messages"]
        written.append(msgspec.json.encode(_unmarked(body)).removesuffix(b"]}"))
    for earlier, later in itertools.pairwise(written):
        assert later.startswith(earlier)


def test_writing_a_body_changes_neither_the_request_nor_the_next_body() -> None:
    data = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    request = asking("Hi", Message("assistant", (Opaque("anthropic", data),)))
    before = copy.deepcopy(request)
    first = msgspec.json.encode(to_body(request, SONNET))
    assert msgspec.json.encode(to_body(request, SONNET)) == first
    assert request == before
    assert "cache_control" not in data
    assert READ_FILE.input_schema.keys() == LIST_FILES.input_schema.keys() | {"required"}


# Thinking, effort, temperature


@pytest.mark.parametrize(
    "model", [row for row in bundled_models() if row.thinking == "adaptive"], ids=lambda row: row.id
)
def test_an_adaptive_model_shows_summaries_and_takes_the_effort(model: ModelInfo) -> None:
    body = to_body(asking("Hi", effort="high"), model)
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body.get("output_config") == ({"effort": "high"} if model.takes_effort else None)
    assert "output_config" not in to_body(asking("Hi"), model)


def test_a_budget_model_thinks_only_when_asked_and_within_its_reply() -> None:
    assert to_body(asking("Hi", effort="high", max_tokens=8_000), HAIKU_4_5)["thinking"] == {
        "type": "enabled",
        "budget_tokens": 4_000,
    }
    assert to_body(asking("Hi", effort="low", max_tokens=64_000), HAIKU_4_5)["thinking"]["budget_tokens"] == 16_000
    for request in (asking("Hi"), asking("Hi", effort="high", max_tokens=2_048)):
        assert "thinking" not in to_body(request, HAIKU_4_5)
    assert "output_config" not in to_body(asking("Hi", effort="high"), HAIKU_4_5)


@pytest.mark.parametrize(
    "model", [row for row in bundled_models() if row.provider == "anthropic"], ids=lambda row: row.id
)
def test_no_bundled_claude_is_sent_a_temperature(model: ModelInfo) -> None:
    assert "temperature" not in to_body(asking("Hi", temperature=0.2), model)


def test_an_unknown_claude_is_sent_a_temperature_only_under_an_api_version_that_takes_it() -> None:
    unknown = bundled_models().find("anthropic", "claude-opus-9")
    new = AnthropicProvider(unknown, api_key="k")
    old = AnthropicProvider(unknown, api_key="k", api_version="2023-06-01")
    assert "temperature" not in to_body(asking("Hi", temperature=0.2), new.info)
    assert to_body(asking("Hi", temperature=0.2), old.info)["temperature"] == 0.2
