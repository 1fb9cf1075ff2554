"""Chat Completions with the habits of the servers that speak it, each as a small recorded case."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    ConnectionFailed,
    ContextOverflow,
    Overloaded,
    ProviderError,
    RateLimit,
    ServerError,
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
    Usage,
    decode_json,
    user_message,
)
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import (
    Done,
    Request,
    StreamEvent,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from agentcli.llm.providers.openai_compat import OpenAICompatProvider, Preset, presets
from agentcli.llm.streaming import SseParser
from agentcli.llm.wire.chat_completions import ChatReader, Quirks, to_body, wire_id
from agentcli.llm.wire.reply_parts import CallIds
from tests.conformance.reading import asking, hear
from tests.conformance.replies import call_delta, chat_chunk, chat_sse
from tests.conformance.servers import Reply, chat_server, json_reply, recorded
from tests.conformance.wire_rules import picture

INFO = ModelInfo("test-model", "openrouter", thinking="effort")
NAMES = frozenset({"read_file", "list_files"})


def reader(provider: str = "openrouter", **options: Any) -> ChatReader:
    return ChatReader(
        "test-model", provider, **{"quirks": Quirks(), "tool_names": NAMES, "ids": CallIds(prefix="call_x_")} | options
    )


def read_all(*chunks: dict[str, Any], **options: Any) -> list[StreamEvent]:
    one, out = reader(**options), []
    for chunk in chunks:
        one.feed(chunk, out)
    done = one.finish(out)
    return [*out, done]


def done(*chunks: dict[str, Any], **options: Any) -> Done:
    last = read_all(*chunks, **options)[-1]
    assert isinstance(last, Done)
    return last


def saying(*deltas: dict[str, Any], finish: str | None = "stop") -> list[dict[str, Any]]:
    return [*(chat_chunk(delta) for delta in deltas), *([chat_chunk({}, finish)] if finish else [])]


def calling(*entries: dict[str, Any], finish: str | None = "tool_calls") -> list[dict[str, Any]]:
    """One chunk for each entry of `tool_calls`."""
    return saying(*({"tool_calls": [entry]} for entry in entries), finish=finish)


def calls_of(*entries: dict[str, Any], finish: str = "tool_calls", **options: Any) -> list[tuple[str, Any]]:
    return [
        (use.name, use.input or use.unparsed)
        for use in done(*calling(*entries, finish=finish), **options).message.tool_uses
    ]


TWO = [("read_file", {"path": "a"}), ("read_file", {"path": "b"})]


# Which call a delta belongs to


READ, LIST, A, B = "read_file", "list_files", '{"path":"a"}', '{"path":"b"}'
# Deltas (index, id, name, arguments), and the calls that they are.
DELTAS: dict[str, tuple[list[tuple[Any, ...]], list[tuple[str, Any]]]] = {
    "only the first has the id": ([(0, "a", READ, ""), (0, None, None, A[:5]), (0, None, None, A[5:])], TWO[:1]),
    "parallel calls are mixed": (
        [(0, "a", READ, A[:5]), (1, "b", READ, B[:5]), (0, None, None, A[5:]), (1, None, None, B[5:])], TWO
    ),
    "without an index an id begins a call": (
        [(None, "a", READ, A[:5]), (None, None, None, A[5:]), (None, "b", READ, B)], TWO
    ),
    "without an index an id repeated is the same call": (
        [(None, "a", READ, A[:5]), (None, "a", READ, A[5:6]), (None, "a", READ, A[6:])], TWO[:1]
    ),
    "without index and id a name begins a call": (
        [(None, None, READ, A), (None, None, LIST, "{}"), (None, None, READ, B)], [TWO[0], (LIST, ""), TWO[1]]
    ),
    "without index and id the same call twice is two": ([(None, None, READ, A)] * 2, [TWO[0]] * 2),
    "the first call has no id": ([(None, None, LIST, "{}"), (None, "b", READ, B)], [(LIST, ""), TWO[1]]),
    "without an index an empty last delta adds none": ([(None, None, READ, A), (None, None, READ, "")], TWO[:1]),
    "all have index 0 and ids": (
        [(0, "a", READ, A[:5]), (0, "", None, A[5:]), (0, "b", READ, ""), (0, "", None, B)], TWO
    ),
    "indexes begin at one and have gaps": ([(1, "a", READ, A), (7, "b", READ, B)], TWO),
    "the name is repeated": ([(0, None, READ, part) for part in ("", A[:5], A[5:], "")], TWO[:1]),
    "the name is repeated without index": ([(None, None, READ, part) for part in ("", A[:5], A[5:], "")], TWO[:1]),
    "the id comes late": ([(0, None, READ, A[:5]), (0, "late", None, A[5:])], TWO[:1]),
    "the arguments are of another type": ([(0, "a", READ, ["x", 1])], [(READ, '["x",1]')]),
    "the arguments need repair": ([(0, "a", READ, "{'path': 'a',}")], TWO[:1]),
    "the arguments are encoded twice": ([(0, "a", READ, '"{\\"path\\": \\"a\\"}"')], TWO[:1]),
    "the arguments cannot be read": ([(0, "a", READ, "path a")], [(READ, "path a")]),
}  # fmt: skip


@pytest.mark.parametrize("case", DELTAS)
def test_a_delta_belongs_to_its_call(case: str) -> None:
    deltas, calls = DELTAS[case]
    assert calls_of(*(call_delta(*delta) for delta in deltas)) == calls


def test_without_ids_calls_get_ids_of_their_own() -> None:
    for index in (None, 0):
        entries = [
            call_delta(index, None, "read_file", '{"path":"a"}'),
            call_delta(index, None, "read_file", '{"path":"b"}'),
        ]
        reply = done(*calling(*entries))
        assert [(use.id, use.input) for use in reply.message.tool_uses] == [
            ("call_x_1", {"path": "a"}),
            ("call_x_2", {"path": "b"}),
        ]


def test_several_calls_may_come_whole_in_one_delta() -> None:
    entries = [call_delta(0, "a", "read_file", '{"path":"a"}'), call_delta(1, "b", "read_file", '{"path":"b"}')]
    reply = done(*saying({"role": "assistant", "content": None, "tool_calls": entries}, finish="tool_calls"))
    assert [(use.name, use.input) for use in reply.message.tool_uses] == TWO


def test_a_whole_message_in_place_of_a_delta_is_read() -> None:
    chunk = chat_chunk({})
    chunk["choices"] = [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}]
    assert done(chunk).message.text == "Hi"


def test_a_name_split_over_deltas_is_joined() -> None:
    entries = [
        call_delta(0, "a", "read", None),
        call_delta(0, None, "_file", None),
        call_delta(0, None, None, '{"path":"a"}'),
    ]
    assert calls_of(*entries) == TWO[:1]
    started = [e for e in read_all(*calling(*entries)) if isinstance(e, ToolCallStarted)]
    assert started == [ToolCallStarted("a", "read_file")]


def test_ids_may_be_numbers() -> None:
    entry = call_delta(0, None, "read_file", '{"path":"a"}') | {"id": 7}
    assert done(*calling(entry)).message.tool_uses[0].id == "7"


def test_an_id_that_the_reply_or_the_conversation_holds_already_is_replaced() -> None:
    entries = [
        call_delta(0, "functions.read_file:0", "read_file", '{"path":"a"}'),
        call_delta(1, "new", "read_file", '{"path":"b"}'),
        call_delta(2, "new", "read_file", '{"path":"c"}'),
    ]
    reply = done(*calling(*entries), ids=CallIds(lambda: {"functions.read_file:0"}, prefix="call_x_"))
    assert [use.id for use in reply.message.tool_uses] == ["call_x_1", "new", "call_x_3"]


def test_a_server_that_counts_its_ids_from_zero_in_every_reply_gets_new_ones() -> None:
    body = chat_sse(calling(call_delta(0, "call_0", "list_files", "{}")))

    async def run(url: str) -> list[str]:
        provider = OpenAICompatProvider(INFO, preset=Preset(base_url=url, needs_key=False))
        first = (await hear(provider)).done.message
        result = Message("user", (ToolResult("call_0", "a.py"),))
        second = (await hear(provider, asking("Hi", first, result))).done.message
        await provider.aclose()
        return [use.id for use in first.tool_uses + second.tool_uses]

    with chat_server([Reply(body), Reply(body)]) as server:
        first, second = asyncio.run(run(server.url))
    assert first == "call_0" != second


# Arguments


@pytest.mark.parametrize("written", [None, "", "  ", "{}", {}])
def test_no_arguments_are_an_empty_object(written: Any) -> None:
    reply = done(*calling(call_delta(0, "a", "list_files", written)))
    assert reply.message.tool_uses == (ToolUse("a", "list_files", {}),)


def test_arguments_may_be_an_object() -> None:
    events = read_all(*calling(call_delta(0, "a", "read_file", {"path": "ü"})))
    assert events[-1].message.tool_uses[0].input == {"path": "ü"}  # type: ignore[union-attr]
    assert [e for e in events if isinstance(e, ToolCallDelta)] == [ToolCallDelta("a", '{"path":"ü"}')]


def test_arguments_that_stop_inside_a_string_are_not_completed_whatever_the_finish_reason() -> None:
    for finish in ("stop", "tool_calls"):
        (use,) = done(
            *calling(call_delta(0, "a", "write_file", '{"path":"a","content":"half of'), finish=finish)
        ).message.tool_uses
        assert (use.input, use.unparsed) == ({}, '{"path":"a","content":"half of')


def test_a_call_that_the_limit_cut_is_lost_and_the_earlier_ones_are_kept() -> None:
    for written in ('{"path":"b', "", '{"path":"b"'):
        entries = [call_delta(0, "a", "read_file", '{"path":"a"}'), call_delta(1, "b", "read_file", written)]
        reply = done(*calling(*entries, finish="length"))
        assert (reply.stop_reason, reply.lost_tool_call) == ("max_tokens", True)
        assert [(use.name, use.input) for use in reply.message.tool_uses] == TWO[:1]


def test_a_whole_call_before_the_limit_is_kept() -> None:
    reply = done(*calling(call_delta(0, "a", "read_file", '{"path":"a"}'), finish="length"))
    assert not reply.lost_tool_call
    assert len(reply.message.tool_uses) == 1


def test_every_call_starts_once_and_ends_once() -> None:
    entries = [call_delta(0, "a", "list_files", None), call_delta(1, "b", "read_file", '{"path":"a"}')]
    events = read_all(*calling(*entries))
    assert sorted(e.id for e in events if isinstance(e, ToolCallStarted)) == ["a", "b"]
    assert [e.id for e in events if isinstance(e, ToolCallEnded)] == ["a", "b"]


def test_text_may_come_before_calls() -> None:
    reply = done(*saying({"content": "Let me look."}, {"tool_calls": [call_delta(0, "a", "list_files", "{}")]}))
    assert reply.message.content == (Text("Let me look."), ToolUse("a", "list_files", {}))


# How it ends


@pytest.mark.parametrize("finish", ["stop", "tool_calls", "function_call", "whatever"])
def test_calls_outweigh_the_finish_reason(finish: str) -> None:
    assert done(*calling(call_delta(0, "a", "list_files", "{}"), finish=finish)).stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("finish", "stop", "note"),
    [
        ("stop", "end_turn", ""),
        ("length", "max_tokens", ""),
        ("content_filter", "refusal", ""),
        ("model_context_window_exceeded", "model_context_window_exceeded", ""),
        ("eos", "end_turn", "unknown finish reason 'eos'"),
    ],
)
def test_each_finish_reason_has_its_stop_reason(finish: str, stop: str, note: str) -> None:
    reply = done(*saying({"content": "Hi"}, finish=finish))
    assert (reply.stop_reason, reply.note) == (stop, note)


def test_a_refusal_is_text_and_a_stop_reason() -> None:
    reply = done(*saying({"refusal": "I can't"}, {"refusal": " help."}))
    assert (reply.message.text, reply.stop_reason) == ("I can't help.", "refusal")


@pytest.mark.parametrize("ends", [True, False])
def test_a_stream_may_end_without_a_finish_reason(ends: bool) -> None:
    preset = Preset(quirks=Quirks(silent_end=not ends))
    reply = heard_from(Reply(chat_sse(saying({"content": "All"}, finish=None), done=ends)), preset).done
    assert (reply.message.text, reply.stop_reason, reply.note) == ("All", "end_turn", "")
    reply = heard_from(Reply(chat_sse(calling(call_delta(0, "a", "x", "{}"), finish=None), done=ends)), preset).done
    assert (reply.message.tool_uses, reply.stop_reason) == ((ToolUse("a", "x", {}),), "tool_use")


def test_a_stream_that_ends_without_a_word_is_a_failure_though_it_looks_whole() -> None:
    for chunks in (saying({"content": "All"}, finish=None), calling(call_delta(0, "a", "x", "{}"), finish=None)):
        assert isinstance(heard_from(Reply(chat_sse(chunks, done=False))).error, ConnectionFailed)


@pytest.mark.parametrize("ends", [True, False])
def test_a_stream_that_ends_before_any_answer_is_a_failure(ends: bool) -> None:
    chunks = [chat_chunk(usage={})] if ends else saying({"reasoning_content": "Hm"}, finish=None)
    heard = heard_from(Reply(chat_sse(chunks, done=ends)))
    assert isinstance(heard.error, ConnectionFailed)
    assert heard.error.is_retryable


def test_a_stream_that_ends_inside_a_call_is_a_failure_unless_the_server_says_that_it_is_done() -> None:
    for arguments in ("", '{"a"', '{"a":1'):
        chunks = [chat_chunk({"content": "Half"}), *calling(call_delta(0, "a", "x", arguments), finish=None)]
        heard = heard_from(Reply(chat_sse(chunks, done=False)))
        assert isinstance(heard.error, ConnectionFailed)
        assert heard.error.partial == Message("assistant", (Text("Half"),))
        reply = heard_from(Reply(chat_sse(chunks, done=True))).done
        assert reply.lost_tool_call is bool(arguments)
        assert [use.input for use in reply.message.tool_uses] == ([] if arguments else [{}])


def test_reasoning_that_never_ended_is_the_text_of_a_whole_reply_and_of_no_broken_one() -> None:
    preset = Preset(quirks=Quirks(reasoning_first=True))
    chunks = saying({"content": "Hm."}, finish=None)
    assert heard_from(Reply(chat_sse(chunks)), preset).done.message == Message("assistant", (Text("Hm."),))
    assert heard_from(Reply(chat_sse(chunks, done=False)), preset).error.partial == Message("assistant", ())


def test_a_stream_without_done_is_whole_once_it_has_a_finish_reason() -> None:
    assert heard_from(Reply(chat_sse(saying({"content": "Hi"}), done=False))).done.message.text == "Hi"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"", chat_sse([chat_chunk({"content": " late"})], done=False) + b"data: {broken\n\n"),
        (b": OPENROUTER PROCESSING\n\n: keep-alive\n\ndata:\n\ndata: \n\n", b""),
        (b'data: []\n\ndata: 7\n\ndata: null\n\ndata: {"choices": null}\n\ndata: {"id": "x"}\n\n', b""),
    ],
)
def test_what_is_not_a_part_of_a_reply_is_passed_over(before: bytes, after: bytes) -> None:
    assert heard_from(Reply(before + chat_sse(saying({"content": "Hi"})) + after)).done.message.text == "Hi"


def heard_from(reply: Reply, preset: Preset | None = None) -> Any:
    async def run(url: str) -> Any:
        provider = OpenAICompatProvider(INFO, preset=preset or presets()["openrouter"], base_url=url, api_key="key")
        try:
            return await hear(provider)
        finally:
            await provider.aclose()

    with chat_server([reply]) as server:
        return asyncio.run(run(server.url))


# Errors inside a stream


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ({"code": 502, "message": "Provider down"}, ServerError, "Provider down"),
        ({"code": 429, "message": "Slow", "metadata": {"raw": "upstream: 60 rpm"}}, RateLimit, "upstream: 60 rpm"),
        ({"code": 401, "message": "No auth"}, AuthError, "No auth"),
        ({"code": 503, "message": "None available"}, Overloaded, "None available"),
        ({"code": 400, "message": "the request exceeds the available context size"}, ContextOverflow, "context size"),
        ({"message": "Bad things", "type": "server_error", "code": None}, ServerError, "Bad things"),
        ({"message": "Odd", "code": 7}, ServerError, "Odd"),
        ("plain words", ServerError, "plain words"),
        (None, BadRequest, "old style"),
    ],
)
def test_an_error_in_the_stream_is_its_own_error(error: Any, kind: type[ProviderError], words: str) -> None:
    chunk = {"error": error, "choices": [{"delta": {}, "finish_reason": "error"}]}
    if error is None:
        chunk = {"object": "error", "message": words, "type": "BadRequestError", "code": 400}
    with pytest.raises(ProviderError, match=words) as failed:
        read_all(chunk)
    assert type(failed.value) is kind


def test_an_error_in_a_choice_is_raised() -> None:
    chunk = chat_chunk({}, "error")
    with pytest.raises(ServerError):
        read_all(chunk)
    chunk["choices"][0]["error"] = {"code": 429, "message": "Slow"}
    with pytest.raises(RateLimit, match="Slow"):
        read_all(chunk)


def test_a_service_without_room_is_overloaded() -> None:
    with pytest.raises(Overloaded):
        read_all(*saying({"content": "Hi"}, finish="insufficient_system_resource"))


def test_a_failed_generation_of_a_call_may_be_retried() -> None:
    told = {
        "error": {"message": "Failed to call a function.", "code": "tool_use_failed", "failed_generation": "<function>"}
    }
    error = heard_from(json_reply(told, 400), presets()["groq"]).error
    assert isinstance(error, ServerError)
    assert error.is_retryable


# Usage


@pytest.mark.parametrize(
    ("counts", "beside", "usage"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 80, "cache_write_tokens": 15}}, {}, Usage(5, 5, 15, 80)),
        ({"prompt_tokens_details": None, "completion_tokens_details": None}, {}, Usage(100, 5)),
        ({"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, {}, Usage(36, 5, 0, 64)),
        ({"cached_tokens": 10}, {}, Usage(90, 5, 0, 10)),
        ({}, {"timings": {"cache_n": 60, "prompt_n": 40}}, Usage(40, 5, 0, 60)),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, {}, Usage(100, 5, reasoning_tokens=3)),
        ({"cost": 0.0012}, {}, Usage(100, 5, cost_usd=0.0012)),
        ({"prompt_tokens_details": {"cached_tokens": 800}}, {}, Usage(0, 5, 0, 800)),
        ({}, {"usage": None, "x_groq": {"usage": {"prompt_tokens": 100, "completion_tokens": 5}}}, Usage(100, 5)),
        ({}, {"usage": None}, Usage()),
    ],
)
def test_each_server_s_usage_is_read(counts: dict[str, Any], beside: dict[str, Any], usage: Usage) -> None:
    fields = {"usage": {"prompt_tokens": 100, "completion_tokens": 5, **counts}, **beside}
    assert done(*saying({"content": "Hi"}), chat_chunk(**fields)).usage == usage


@pytest.mark.parametrize("place", ["own chunk", "last choice's chunk", "in the choice"])
def test_usage_is_found_in_each_of_its_places(place: str) -> None:
    counts = {"prompt_tokens": 100, "completion_tokens": 5}
    chunks = saying({"content": "Hi"})
    if place == "own chunk":
        chunks.append(chat_chunk(usage=counts))
    elif place == "last choice's chunk":
        chunks[-1]["usage"] = counts
    else:
        chunks[-1]["choices"][0]["usage"] = counts
    assert done(*chunks).usage == Usage(100, 5)


# Reasoning


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_has_two_names(field: str) -> None:
    events = read_all(*saying({field: "Hm. "}, {field: "So."}, {"content": "Yes.", field: None}))
    assert [e.text for e in events if isinstance(e, ThinkingDelta)] == ["Hm. ", "So."]
    assert events[-1].message.content == (Thinking("Hm. So."), Text("Yes."))  # type: ignore[union-attr]


def test_reasoning_under_both_names_counts_once() -> None:
    reply = done(*saying({"reasoning_content": "Hm.", "reasoning": "Hm."}, {"content": "Yes."}))
    assert reply.message.content == (Thinking("Hm."), Text("Yes."))


def test_reasoning_in_tags_split_over_chunks_is_thinking() -> None:
    parts = ["<th", "ink>", "\nHm.", "</thi", "nk>\n", "\nYes", "."]
    reply = done(*saying(*({"content": part} for part in parts)))
    assert reply.message.content == (Thinking("Hm."), Text("Yes."))


def test_text_held_back_for_a_tag_is_given_at_the_end() -> None:
    events = read_all(*saying({"content": "a </th"}))
    assert events[-1].message.text == "a </th"  # type: ignore[union-attr]
    assert "".join(getattr(event, "text", "") for event in events[:-1]) == "a </th"


def test_content_in_parts_is_text() -> None:
    parts = [{"type": "text", "text": "Yes"}, {"type": "thinking", "thinking": []}, {"type": "text", "text": "."}]
    assert done(*saying({"content": parts})).message.text == "Yes."


def test_reasoning_details_are_joined_and_sent_back_to_the_same_provider_only() -> None:
    events = SseParser().feed(recorded("openrouter_reasoning.sse"))
    chunks = [decode_json(data) for data in events if data != "[DONE]"]
    reply = done(*chunks).message
    detail = {
        "type": "reasoning.text",
        "text": "Both files at once.",
        "format": "anthropic-claude-v1",
        "index": 0,
        "signature": "EroBCkYIBxgCKkCf7Lk0",
    }
    assert Opaque("openrouter", {"reasoning_details": [detail]}) in reply.content
    request = asking("Hi", reply, Message("user", (ToolResult(reply.tool_uses[0].id, "x"),)))
    assert to_body(request, INFO, Quirks(), "openrouter")["messages"][2]["reasoning_details"] == [detail]
    assert "reasoning_details" not in to_body(request, INFO, Quirks(), "vllm")["messages"][2]


def test_reasoning_details_of_several_blocks_stay_apart() -> None:
    first = {"type": "reasoning.text", "index": 0, "text": "a"}
    second = {"type": "reasoning.encrypted", "index": 1, "data": "x"}
    reply = done(*saying({"reasoning_details": [first, second]}, {"reasoning_details": [{**second, "data": "y"}]}))
    assert reply.message.content == (Opaque("openrouter", {"reasoning_details": [first, {**second, "data": "xy"}]}),)


@pytest.mark.parametrize("thought", ["I look.", ""])
def test_deepseek_gets_its_reasoning_back_in_turns_with_calls_even_when_empty(thought: str) -> None:
    quirks = presets()["deepseek"].quirks
    thinking = (Thinking(thought),) if thought else ()
    messages = (
        user_message("Hi"),
        Message("assistant", (*thinking, ToolUse("a", "list_files", {}))),
        Message("user", (ToolResult("a", "x"),)),
        Message("assistant", (*thinking, Text("Done."))),
        user_message("Thanks"),
    )
    sent = to_body(Request("", messages), INFO, quirks, "deepseek")["messages"]
    assert (sent[1]["reasoning_content"], sent[1]["content"]) == (thought, "")
    assert "reasoning_content" not in sent[3]
    assert "reasoning_content" not in to_body(Request("", messages), INFO, Quirks(), "vllm")["messages"][1]


# Calls written as text


@pytest.mark.parametrize(
    "written",
    [
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>',
        '[TOOL_CALLS] [{"name": "read_file", "arguments": {"path": "a"}}]',
        'Let me look.\n```json\n{"name": "read_file", "arguments": {"path": "a"}}\n```',
        '{"name": "read_file", "parameters": {"path": "a"}}',
        '{"name": "read_file", "arguments": "{\\"path\\": \\"a\\"}"}',
    ],
)
def test_a_call_written_as_text_is_a_call_where_the_server_needs_it(written: str) -> None:
    chunks = saying({"content": written})
    reply = done(*chunks, quirks=Quirks(read_text_calls=True))
    assert [(use.name, use.input) for use in reply.message.tool_uses] == TWO[:1]
    assert (reply.stop_reason, reply.message.text) == ("tool_use", written)
    plain = done(*chunks)
    assert plain.message.tool_uses == ()
    assert plain.stop_reason == "end_turn"


def test_text_about_other_things_is_not_taken_for_a_call() -> None:
    for written in (
        '```json\n{"name": "agentcli", "version": 1}\n```',
        '{"name": "delete_all"}',
        "<tool_call> is a tag",
    ):
        assert done(*saying({"content": written}), quirks=Quirks(read_text_calls=True)).message.tool_uses == ()


def test_a_cut_reply_s_text_is_not_taken_for_a_call() -> None:
    written = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"'
    reply = done(*saying({"content": written}, finish="length"), quirks=Quirks(read_text_calls=True))
    assert reply.message.tool_uses == ()


# Recorded servers


@pytest.mark.parametrize(
    ("name", "usage", "model"),
    [
        ("openai_tools.sse", Usage(206, 187, 0, 1280, reasoning_tokens=128), "gpt-5.9-2026-10-01"),
        (
            "openrouter_reasoning.sse",
            Usage(50, 64, 50, 1000, reasoning_tokens=12, cost_usd=0.00289),
            "anthropic/claude-sonnet-5.5",
        ),
        ("deepseek_reasoning.sse", Usage(64, 41, 0, 256, reasoning_tokens=17), "deepseek-v4"),
        ("llamacpp_text.sse", Usage(20, 3, 0, 100), "qwen2.5-coder-1.5b-instruct-q4_k_m"),
    ],
)
def test_a_recorded_server_s_usage_and_model_are_read(name: str, usage: Usage, model: str) -> None:
    heard = heard_from(Reply(recorded(name)))
    assert (heard.done.usage, heard.done.model) == (usage, model)
    assert (heard.thinking == "用户想要一个文件。") == name.startswith("deepseek")


# Requests


def body_of(
    *messages: Message | str, quirks: Quirks | None = None, info: ModelInfo = INFO, **more: Any
) -> dict[str, Any]:
    return to_body(asking(*messages, **more), info, quirks or Quirks(), "openrouter")


def test_the_reference_server_gets_its_own_fields() -> None:
    body = body_of("Hi", quirks=presets()["openai"].quirks, max_tokens=99, effort="max")
    assert body["messages"][0] == {"role": "developer", "content": "You help with code."}
    assert body["max_completion_tokens"] == 99
    assert "max_tokens" not in body
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    assert (body["reasoning_effort"], body["store"]) == ("xhigh", False)


def test_other_servers_get_the_old_fields() -> None:
    body = body_of("Hi", quirks=presets()["lmstudio"].quirks, max_tokens=99, effort="high")
    assert body["messages"][0]["role"] == "system"
    assert body["max_tokens"] == 99
    assert not {"max_completion_tokens", "store", "reasoning_effort", "parallel_tool_calls"} & body.keys()
    assert "stream_options" not in body_of("Hi", quirks=Quirks(stream_usage=False))


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ("none", {}),
        ("reasoning_effort", {"reasoning_effort": "high"}),
        ("thinking", {"thinking": {"type": "enabled"}, "reasoning_effort": "high"}),
        ("enable_thinking", {"enable_thinking": True}),
        ("chat_template_kwargs", {"chat_template_kwargs": {"enable_thinking": True}}),
    ],
)
def test_thinking_is_asked_for_in_each_server_s_form(form: Any, fields: dict[str, Any]) -> None:
    quirks = Quirks(thinking_format=form)
    plain = body_of("Hi", quirks=quirks)
    assert body_of("Hi", quirks=quirks, effort="high") == {**plain, **fields}
    assert body_of("Hi", quirks=quirks, effort="high", info=ModelInfo("m", "p")) == {**plain, "model": "m"}


def test_a_temperature_is_sent_only_to_a_model_that_takes_it() -> None:
    assert body_of("Hi", temperature=0.2)["temperature"] == 0.2
    assert "temperature" not in body_of("Hi", temperature=0.2, info=ModelInfo("m", "p", takes_temperature=False))
    assert "temperature" not in body_of("Hi")


def test_own_fields_go_over_everything() -> None:
    body = body_of("Hi", quirks=Quirks(extra_body={"provider": {"order": ["x"]}, "stream": True, "model": "other"}))
    assert body["provider"] == {"order": ["x"]}
    assert body["model"] == "other"


def test_a_call_without_text_has_null_content_where_that_is_allowed() -> None:
    call = Message("assistant", (ToolUse("a", "list_files", {}),))
    assert body_of("Hi", call)["messages"][2]["content"] is None
    assert body_of("Hi", call, quirks=Quirks(null_content=False))["messages"][2]["content"] == ""


def test_assistant_content_is_a_plain_string_and_empty_replies_are_left_out() -> None:
    said = Message("assistant", (Text("One. "), Text("Two.")))
    sent = body_of("Hi", said, "And?", Message("assistant", (Text(" "), Thinking("Hm"))), " ")["messages"]
    assert sent[1:] == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "One. Two."},
        {"role": "user", "content": "And?"},
    ]


def test_results_are_tool_messages_and_come_before_the_person_s_words() -> None:
    both = Message(
        "user", (Text("Go on."), ToolResult("a", "seen"), ToolResult("b", (Text("x"), Text("y")), is_error=True))
    )
    calls = Message("assistant", (ToolUse("a", "read_file", {}), ToolUse("b", "list_files", {})))
    assert body_of("Hi", calls, both)["messages"][3:] == [
        {"role": "tool", "tool_call_id": "a", "content": "seen"},
        {"role": "tool", "tool_call_id": "b", "content": "Error: x\ny"},
        {"role": "user", "content": "Go on."},
    ]


def test_pictures_in_a_result_follow_in_a_user_message() -> None:
    seen = Image(Base64Source("image/png", picture()))
    result = Message("user", (ToolResult("a", (seen,)), Text("What is it?")))
    asked = Message("assistant", (ToolUse("a", "read_file", {}),))
    sent = body_of("Hi", asked, result, info=msgspec.structs.replace(INFO, takes_images=True))["messages"][3:]
    assert sent[0]["content"] == "(the file follows in the next message)"
    assert sent[1]["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture()}"}},
        {"type": "text", "text": "What is it?"},
    ]


def test_a_document_is_a_file_part() -> None:
    pdf = Message("user", (Document(Base64Source("application/pdf", "JVBERi0=")),))
    sent = body_of(pdf, quirks=Quirks(documents=True))["messages"][1]["content"]
    assert sent == [
        {"type": "file", "file": {"filename": "document.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}}
    ]


def test_a_cache_mark_is_on_the_system_text_where_the_server_takes_it() -> None:
    (part,) = body_of("Hi", quirks=presets()["openrouter"].quirks)["messages"][0]["content"]
    assert part == {"type": "text", "text": "You help with code.", "cache_control": {"type": "ephemeral"}}


def test_parallel_calls_are_declared_on_request() -> None:
    body = body_of("Hi", quirks=Quirks(parallel_tool_calls=False))
    assert body["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body_of("Hi", quirks=Quirks(parallel_tool_calls=False), tools=())


def test_ids_are_sent_as_they_are_where_the_server_takes_them() -> None:
    plain, fixed = Quirks(), Quirks(fixed_ids=True)
    assert wire_id("toolu_01A-b", plain) == "toolu_01A-b"
    for id in ("functions.read_file:0", "x" * 41, "", "ü"):
        assert wire_id(id, plain) == wire_id(id, plain) != id
        assert len(wire_id(id, plain)) <= 40
    assert wire_id("abcDEF123", fixed) == "abcDEF123"
    assert len(wire_id("toolu_01A", fixed)) == 9
    assert wire_id("toolu_01A", fixed).isalnum()
    assert wire_id("a.b", plain) != wire_id("a_b", plain)


def test_a_call_and_its_result_carry_the_same_id() -> None:
    calls = Message("assistant", (ToolUse("functions.read_file:0", "read_file", {}),))
    sent = body_of(
        "Hi", calls, Message("user", (ToolResult("functions.read_file:0", "x"),)), quirks=Quirks(fixed_ids=True)
    )
    assert sent["messages"][2]["tool_calls"][0]["id"] == sent["messages"][3]["tool_call_id"]


def test_every_earlier_byte_stays_the_same_while_a_conversation_grows() -> None:
    messages = [user_message("Hi")]
    written = []
    for number in range(4):
        written.append(msgspec.json.encode(body_of(*messages)).removesuffix(b"]}"))
        messages.append(
            Message("assistant", (Thinking("Hm"), Text("Ok"), ToolUse(f"c.{number}", "read_file", {"path": "ü"})))
        )
        messages.append(Message("user", (ToolResult(f"c.{number}", "x"), Text("Go on."))))
    for earlier, later in itertools.pairwise(written):
        assert later.startswith(earlier)
