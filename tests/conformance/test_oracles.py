"""The vendors' SDKs as oracles: the same bytes mean the same to them and to us, and they know what we send."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentcli.llm.messages import (
    Base64Source,
    Document,
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from agentcli.llm.provider import Done, Request
from tests.conformance.backends import (
    CHAT_BACKENDS,
    KEY,
    AnthropicBackend,
    Backend,
    OllamaBackend,
    ResponsesBackend,
)
from tests.conformance.cloud_backends import SdkBackend
from tests.conformance.reading import asking, hear
from tests.conformance.replies import Call, Said, anthropic_reply, chat_reply, ollama_reply, responses_reply
from tests.conformance.servers import (
    NDJSON,
    SSE,
    Cut,
    Reply,
    anthropic_server,
    byte_by_byte,
    chat_server,
    ollama_server,
    pieces_of,
    recorded,
    responses_server,
    whole,
)

pytestmark = pytest.mark.oracle
cuts = pytest.mark.parametrize("cut", [whole, byte_by_byte, pieces_of(11)], ids=["whole", "bytes", "elevens"])

CALLS = (
    Call("call_1", "read_file", {"path": "główny 🎉.py", "nested": {"list": [1, 2.5, None, True]}}),
    Call("call_2", "list_files", {}),
)

replies = pytest.mark.parametrize(
    "said",
    [
        Said("Hi."),
        Said("Yes.", "Because 🎉"),
        Said("", "", CALLS),
        Said("Half", is_cut=True),
        Said("Both", "Hm", CALLS),
    ],
    ids=["text", "thinking", "calls", "cut", "all"],
)
PICTURE = Base64Source("image/png", "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk")


def ours(backend: Backend, reply: Reply) -> Done:
    async def run() -> Done:
        async with backend.playing(reply) as stage:
            return (await hear(stage.provider)).done

    return asyncio.run(run())


def body_sent(backend: Backend, request: Request) -> Any:
    async def run() -> Any:
        async with backend.playing("Hi.") as stage:
            await hear(stage.provider, request)
            return stage.server.requests[0].json

    return asyncio.run(run())


def rich_conversation() -> Request:
    """Every kind of block in every place where one can stand."""
    return asking(
        Message("user", (Text("Look:"), Image(PICTURE), Document(Base64Source("application/pdf", "JVBERi0xLjQK")))),
        Message(
            "assistant",
            (
                Thinking("I look.", "EqoBCkgIARAB"),
                RedactedThinking("EmwKAhgBEgy3va3pzix"),
                Text("Looking."),
                ToolUse("call_1", "read_file", CALLS[0].input),
                ToolUse("call_2", "list_files", {}),
            ),
        ),
        Message(
            "user",
            (
                ToolResult("call_1", (Text("seen"), Image(PICTURE))),
                ToolResult("call_2", "no such folder", is_error=True),
                Text("Go on."),
            ),
        ),
        max_tokens=4_000,
        effort="high",
        temperature=0.5,
    )


def as_known(adapter: Any, body: dict[str, Any]) -> Any:
    """The body as the SDK's request types read it; fields they do not know are gone."""
    return _plain(adapter.validate_python(body))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, str | bytes | int | float | None):
        return value
    return [_plain(item) for item in value]


# Anthropic


def read_by_anthropic(reply: Reply) -> Any:
    import anthropic

    with anthropic_server([reply]) as server:
        client = anthropic.Anthropic(api_key=KEY, base_url=server.url, max_retries=0)
        asked: Any = {
            "model": "claude-sonnet-5-5",
            "max_tokens": 1_000,
            "messages": [{"role": "user", "content": "Hello"}],
        }
        with client.messages.stream(**asked) as stream:
            return stream.get_final_message()


def assert_same_as_anthropic(done: Done, theirs: Any) -> None:
    blocks: list[Any] = []
    for block in theirs.content:
        match block.type:
            case "text":
                blocks.append(Text(block.text))
            case "thinking":
                blocks.append(Thinking(block.thinking, block.signature))
            case "redacted_thinking":
                blocks.append(RedactedThinking(block.data))
            case "tool_use":
                blocks.append(ToolUse(block.id, block.name, block.input))
    assert list(done.message.content) == blocks
    assert (done.stop_reason, done.model) == (theirs.stop_reason, theirs.model)
    usage = done.usage
    assert usage.input_tokens == theirs.usage.input_tokens
    assert usage.output_tokens == theirs.usage.output_tokens
    assert usage.cache_read_input_tokens == (theirs.usage.cache_read_input_tokens or 0)
    assert usage.cache_creation_input_tokens == (theirs.usage.cache_creation_input_tokens or 0)
    if details := theirs.usage.output_tokens_details:
        assert usage.reasoning_tokens == details.thinking_tokens
    if creation := theirs.usage.cache_creation:
        assert usage.cache_creation_1h_input_tokens == creation.ephemeral_1h_input_tokens


@pytest.mark.sampled(2)
@cuts
@pytest.mark.parametrize("name", ["anthropic_tools.sse", "anthropic_refusal.sse"])
def test_a_recorded_stream_means_the_same_to_the_anthropic_sdk(name: str, cut: Cut) -> None:
    reply = Reply(recorded(name), content_type=SSE, cut=cut)
    assert_same_as_anthropic(ours(AnthropicBackend(), reply), read_by_anthropic(reply))


@pytest.mark.sampled(2)
@replies
def test_a_reply_means_the_same_to_the_anthropic_sdk(said: Said) -> None:
    reply = anthropic_reply(said)
    assert_same_as_anthropic(ours(AnthropicBackend(), reply), read_by_anthropic(reply))


def test_an_error_event_is_an_error_to_the_anthropic_sdk_too() -> None:
    import anthropic

    backend = AnthropicBackend()
    reply = backend.reply("Hi.")
    told = reply.but(
        body=reply.body[: reply.body.index(b"event: content")] + backend.error_event("overloaded_error", "Overloaded")
    )
    with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
        read_by_anthropic(told)


def test_the_anthropic_sdk_s_types_know_every_field_we_send() -> None:
    from anthropic.types.message_create_params import MessageCreateParamsStreaming
    from pydantic import TypeAdapter

    body = body_sent(AnthropicBackend(), rich_conversation())
    assert len(body["messages"]) == 3
    assert body["output_config"] == {"effort": "high"}
    assert as_known(TypeAdapter(MessageCreateParamsStreaming), body) == body


def test_the_anthropic_sdk_sends_the_api_version_that_we_send() -> None:
    import anthropic

    async def headers_sent() -> dict[str, str]:
        async with AnthropicBackend().playing("Hi.") as stage:
            await hear(stage.provider)
            return stage.server.requests[0].headers

    with anthropic_server([anthropic_reply("Hi.")]) as server:
        client = anthropic.Anthropic(api_key=KEY, base_url=server.url, max_retries=0)
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}], stream=True)
        theirs = server.requests[0].headers
    mine = asyncio.run(headers_sent())
    same = ("anthropic-version", "content-type")
    assert [mine[name] for name in same] == [theirs[name] for name in same]


@pytest.mark.parametrize("name", ["anthropic_tools.sse", "anthropic_refusal.sse"])
def test_a_recorded_stream_means_the_same_whatever_carries_it(name: str) -> None:
    reply = Reply(recorded(name), content_type=SSE, cut=pieces_of(11))
    assert ours(SdkBackend(), reply) == ours(AnthropicBackend(), reply)


# OpenAI


def read_by_openai(reply: Reply) -> Any:
    import openai

    with chat_server([reply]) as server:
        client = openai.OpenAI(api_key=KEY, base_url=server.url, max_retries=0)
        asked: Any = {"model": "test-model", "messages": [{"role": "user", "content": "Hello"}]}
        with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            return stream.get_final_completion()


def assert_same_as_openai(done: Done, theirs: Any) -> None:
    (choice,) = theirs.choices
    assert done.message.text == (choice.message.content or "")
    calls = [(c.id, c.function.name, json.loads(c.function.arguments or "{}")) for c in choice.message.tool_calls or ()]
    assert [(use.id, use.name, use.input) for use in done.message.tool_uses] == calls
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
    assert (done.stop_reason, done.model) == (reasons[choice.finish_reason], theirs.model)
    assert done.usage.prompt_tokens == theirs.usage.prompt_tokens
    assert done.usage.output_tokens == theirs.usage.completion_tokens
    if details := theirs.usage.prompt_tokens_details:
        assert done.usage.cache_read_input_tokens == (details.cached_tokens or 0)
    if details := theirs.usage.completion_tokens_details:
        assert done.usage.reasoning_tokens == (details.reasoning_tokens or 0)


@pytest.mark.sampled(2)
@cuts
@pytest.mark.parametrize(
    "name", ["openai_tools.sse", "openrouter_reasoning.sse", "deepseek_reasoning.sse", "llamacpp_text.sse"]
)
def test_a_recorded_stream_means_the_same_to_the_openai_sdk(name: str, cut: Cut) -> None:
    reply = Reply(recorded(name), content_type=SSE, cut=cut)
    assert_same_as_openai(ours(CHAT_BACKENDS[0], reply), read_by_openai(reply))


@pytest.mark.parametrize(
    "said", [Said("Hi."), Said("Yes.", "Because 🎉"), Said("", "", CALLS)], ids=["text", "thinking", "calls"]
)
def test_a_reply_means_the_same_to_the_openai_sdk(said: Said) -> None:
    reply = chat_reply(said)
    assert_same_as_openai(ours(CHAT_BACKENDS[0], reply), read_by_openai(reply))


def test_the_openai_sdk_s_types_know_every_field_we_send() -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from pydantic import TypeAdapter

    body = body_sent(CHAT_BACKENDS[0], rich_conversation())
    assert body["reasoning_effort"] == "high"
    assert body["messages"][0]["role"] == "developer"
    assert as_known(TypeAdapter(CompletionCreateParamsStreaming), body) == body


# OpenAI's Responses

RESPONSES = ResponsesBackend(CHAT_BACKENDS[0])


def read_by_responses(reply: Reply) -> Any:
    import openai

    with responses_server([reply]) as server:
        client = openai.OpenAI(api_key=KEY, base_url=server.url, max_retries=0)
        asked: Any = {"model": "test-model", "input": [{"type": "message", "role": "user", "content": "Hello"}]}
        server.rules = lambda received: []  # this request is the oracle's own
        *_, last = client.responses.create(**asked, stream=True)
        return last.response


def assert_same_as_responses(done: Done, theirs: Any) -> None:
    calls = [(c.call_id, c.name, json.loads(c.arguments)) for c in theirs.output if c.type == "function_call"]
    assert [(use.id, use.name, use.input) for use in done.message.tool_uses] == calls
    said = [part for item in theirs.output if item.type == "message" for part in item.content]
    assert done.message.text == "".join(part.text if part.type == "output_text" else part.refusal for part in said)
    reasoning = [item for item in theirs.output if item.type == "reasoning"]
    assert [block.thinking for block in done.message.content if isinstance(block, Thinking)] == [
        "\n\n".join(part.text for part in item.summary) for item in reasoning if item.summary
    ]
    kept = [block.data for block in done.message.content if isinstance(block, Opaque) and "id" in block.data]
    assert [item["encrypted_content"] for item in kept] == [item.encrypted_content for item in reasoning]
    assert done.usage.prompt_tokens == theirs.usage.input_tokens
    assert done.usage.cache_read_input_tokens == theirs.usage.input_tokens_details.cached_tokens
    assert done.usage.output_tokens == theirs.usage.output_tokens
    assert done.usage.reasoning_tokens == theirs.usage.output_tokens_details.reasoning_tokens
    assert done.model == theirs.model
    reasons = {None: "tool_use" if calls else "end_turn", "max_output_tokens": "max_tokens"}
    details = theirs.incomplete_details
    has_refused = any(part.type == "refusal" for part in said)
    assert done.stop_reason == ("refusal" if has_refused else reasons[details.reason if details else None])


@cuts
@pytest.mark.parametrize("name", ["responses_tools.sse", "responses_refusal.sse"])
def test_a_recorded_stream_means_the_same_to_the_openai_sdk_s_responses(name: str, cut: Cut) -> None:
    reply = Reply(recorded(name), content_type=SSE, cut=cut)
    assert_same_as_responses(ours(RESPONSES, reply), read_by_responses(reply))


@replies
def test_a_reply_means_the_same_to_the_openai_sdk_s_responses(said: Said) -> None:
    reply = responses_reply(said)
    assert_same_as_responses(ours(RESPONSES, reply), read_by_responses(reply))


def test_the_openai_sdk_s_types_know_every_field_we_send_to_responses() -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
    from pydantic import TypeAdapter

    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    asked = rich_conversation()
    reply = asked.messages[1]
    kept = (Opaque("openai/responses", item), Opaque("openai/responses", {"phase": "commentary"}))
    messages = (asked.messages[0], Message("assistant", (*kept, *reply.content)), *asked.messages[2:])
    body = body_sent(RESPONSES, asking(*messages, max_tokens=4_000, effort="high"))
    assert [item["type"] for item in body["input"]][1:3] == ["reasoning", "message"]
    assert as_known(TypeAdapter(ResponseCreateParamsStreaming), body) == body


# Ollama


def read_by_ollama(reply: Reply) -> list[Any]:
    import ollama

    with ollama_server([reply]) as server:
        messages = [{"role": "user", "content": "Hello"}]
        return list(ollama.Client(host=server.url).chat("qwen3:8b", messages=messages, stream=True))


def assert_same_as_ollama(done: Done, theirs: list[Any]) -> None:
    assert done.message.text == "".join(part.message.content or "" for part in theirs)
    thoughts = "".join(block.thinking for block in done.message.content if isinstance(block, Thinking))
    assert thoughts == "".join(part.message.thinking or "" for part in theirs)
    calls = [call.function for part in theirs for call in part.message.tool_calls or ()]
    assert [(use.name, use.input) for use in done.message.tool_uses] == [(c.name, dict(c.arguments)) for c in calls]
    last = theirs[-1]
    assert last.done
    assert (done.usage.input_tokens, done.usage.output_tokens) == (
        last.prompt_eval_count,
        last.eval_count,
    )
    assert done.stop_reason == ("max_tokens" if last.done_reason == "length" else "tool_use" if calls else "end_turn")


@cuts
def test_a_recorded_stream_means_the_same_to_the_ollama_client(cut: Cut) -> None:
    reply = Reply(recorded("ollama_tools.ndjson"), content_type=NDJSON, cut=cut)
    assert_same_as_ollama(ours(OllamaBackend(), reply), read_by_ollama(reply))


@pytest.mark.parametrize("said", [Said("Hi."), Said("Half", is_cut=True), Said("Both", "Hm", CALLS)])
def test_a_reply_means_the_same_to_the_ollama_client(said: Said) -> None:
    reply = ollama_reply(said)
    assert_same_as_ollama(ours(OllamaBackend(), reply), read_by_ollama(reply))


def test_the_ollama_client_s_types_know_every_field_we_send() -> None:
    from ollama._types import ChatRequest

    body = body_sent(OllamaBackend(), rich_conversation())
    assert (body.pop("truncate"), body.pop("shift")) == (False, False)  # newer than the client
    known = ChatRequest.model_validate(body).model_dump(exclude_none=True, exclude_unset=True)
    for message in known["messages"]:
        message["images"] = [str(image) for image in message.pop("images", ())]
    for message in body["messages"]:
        message.setdefault("images", [])
    known.pop("tools")
    assert [tool["function"]["name"] for tool in body.pop("tools")] == ["read_file", "list_files"]
    assert known == body
