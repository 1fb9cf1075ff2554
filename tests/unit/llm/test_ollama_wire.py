"""Ollama's native API: lines in, messages out."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from agentcli.llm.errors import BadRequest, ConnectionFailed, ContextOverflow, ProviderError, ServerError
from agentcli.llm.messages import (
    Base64Source,
    Document,
    Image,
    Message,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    user_message,
)
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Done, Request, StreamEvent, ToolCallDelta, ToolSpec
from agentcli.llm.providers.ollama import OllamaProvider, OllamaReader, to_body, with_abilities
from agentcli.llm.wire.reply_parts import CallIds
from tests.conformance.reading import asking, hear
from tests.conformance.replies import Said, ndjson, ollama_end, ollama_line, ollama_reply
from tests.conformance.servers import NDJSON, OLLAMA_SHOW, LoopbackServer, Reply, json_reply, ollama_server, recorded
from tests.conformance.wire_rules import picture

INFO = ModelInfo("qwen3:8b", "ollama", thinking="toggle", max_output=8_192)
PICTURE = Image(Base64Source("image/png", picture()))


def read_all(*lines: Any) -> list[StreamEvent]:
    reader, out = OllamaReader(asking("Hi"), INFO, ids=CallIds(prefix="call_x_")), []
    for line in lines:
        reader.feed(line if isinstance(line, dict) else {}, out)  # as the loop does
    return [*out, reader.finish(out)]


def done(*lines: Any) -> Done:
    last = read_all(*lines)[-1]
    assert isinstance(last, Done)
    return last


def calling(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return ollama_line({"tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]})


END = ollama_end(Said())


# Replies


@pytest.mark.parametrize(
    ("arguments", "use"),
    [
        (None, ToolUse("call_x_1", "read_file", {})),
        ({}, ToolUse("call_x_1", "read_file", {})),
        ("", ToolUse("call_x_1", "read_file", {})),
        ('{"path": "a"}', ToolUse("call_x_1", "read_file", {"path": "a"})),
        ("path a", ToolUse("call_x_1", "read_file", {}, unparsed="path a")),
    ],
)
def test_calls_have_ids_of_their_own_and_arguments_as_they_are_written(arguments: Any, use: ToolUse) -> None:
    reply = done(
        calling("read_file", arguments), calling("list_files", {}, id="call_9"), calling("list_files", {}), END
    )
    assert reply.message.tool_uses == (use, ToolUse("call_9", "list_files", {}), ToolUse("call_x_3", "list_files", {}))
    assert reply.stop_reason == "tool_use"


def test_the_arguments_delta_is_json() -> None:
    deltas = [e for e in read_all(calling("read_file", {"path": "it's ü"}), END) if isinstance(e, ToolCallDelta)]
    assert deltas == [ToolCallDelta("call_x_1", '{"path":"it\'s ü"}')]


def test_a_reply_cut_by_length_says_so_even_with_a_call() -> None:
    assert done(calling("list_files", {}), ollama_end(Said(is_cut=True))).stop_reason == "max_tokens"


def test_an_error_line_is_raised() -> None:
    with pytest.raises(ServerError, match="runner has stopped"):
        read_all(ollama_line({"content": "Hi"}), {"error": "llama runner has stopped"})


def test_lines_that_are_not_objects_are_passed_over() -> None:
    assert done(7, None, [], ollama_line({"content": "Hi"}), END).message.text == "Hi"


def test_a_stream_without_its_last_line_is_a_failure() -> None:
    with pytest.raises(ConnectionFailed):
        read_all(ollama_line({"content": "Hi"}))


def heard_from(*replies: Reply, request: Any = None, show: Reply | None = None, **options: Any) -> Any:
    async def run(server: LoopbackServer) -> Any:
        provider = OllamaProvider(**{"info": INFO, "base_url": server.url} | options)
        try:
            return await hear(provider, request)
        finally:
            await provider.aclose()

    with ollama_server(replies, show=show) as server:
        return asyncio.run(run(server))


def test_a_recorded_reply_is_read() -> None:
    reply = heard_from(Reply(recorded("ollama_tools.ndjson"), content_type=NDJSON)).done
    assert reply.message.content == (
        Thinking("The user wants both files. 🤔"),
        Text("Reading both — Zażółć 🎉👩‍👩‍👧‍👦."),
        ToolUse("call_9x4k2jqz", "read_file", {"limit": 200, "path": "src/main.py", "tags": ["ü", "🎉"]}),
        ToolUse("call_b2m8tw1c", "list_files", {}),
    )
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (426, 98)


@pytest.mark.parametrize("after", [b"", b"\n" + ndjson([ollama_line({"content": " late"})]) + b"{broken\n"])
def test_the_last_line_is_the_end_with_or_without_its_line_end(after: bytes) -> None:
    body = ollama_reply("Hi.").body.rstrip(b"\n") + after
    assert heard_from(Reply(body, content_type=NDJSON)).done.message.text == "Hi."


# The window


def test_a_prompt_whose_beginning_was_dropped_is_an_overflow() -> None:
    error = heard_from(ollama_reply(Said("Hi.", prompt_tokens=4_096)), request=asking("word " * 40_000)).error
    assert isinstance(error, ContextOverflow)
    assert "4,096" in str(error)
    assert error.partial is not None
    assert error.partial.text == "Hi."


def test_a_prompt_that_was_read_whole_is_not_an_overflow() -> None:
    for counted in (0, 40_000):
        request = asking("word " * 40_000)
        assert heard_from(ollama_reply(Said("Hi.", prompt_tokens=counted)), request=request).error is None


def test_a_few_cheap_images_are_not_a_overflow() -> None:
    request = asking(Message("user", (PICTURE,) * 6))
    sees = json_reply(OLLAMA_SHOW | {"capabilities": ["completion", "tools", "vision"]})
    assert heard_from(ollama_reply(Said("Hi.", prompt_tokens=1_600)), request=request, show=sees).error is None


def test_the_window_is_sent_and_truncation_refused() -> None:
    body = to_body(asking("Hi", max_tokens=99, temperature=0.5), msgspec.structs.replace(INFO, window=16_384))
    assert body["options"] == {"num_ctx": 16_384, "num_predict": 99, "temperature": 0.5}
    assert (body["truncate"], body["shift"], body["keep_alive"]) == (False, False, "5m")


def test_the_window_asked_for_is_bounded_by_what_the_model_was_made_for() -> None:
    seen: list[Any] = []

    def answer(received: Any) -> Reply:
        seen.append(received.json)
        return ollama_reply("Hi.")

    async def run(url: str) -> OllamaProvider:
        provider = OllamaProvider(INFO, base_url=url, num_ctx=100_000)
        await hear(provider)
        await hear(provider)
        await provider.aclose()
        return provider

    with ollama_server([answer, answer]) as server:
        provider = asyncio.run(run(server.url))
        assert [received.path for received in server.others] == ["/api/show"]
    assert provider.info.window == 40_960 == seen[0]["options"]["num_ctx"] == seen[1]["options"]["num_ctx"]


def test_what_the_server_shows_is_learned() -> None:
    info = with_abilities(INFO, OLLAMA_SHOW | {"capabilities": ["completion", "vision"]})
    assert (info.thinking, info.takes_images, info.takes_tools) == ("none", True, False)
    gptoss = {"capabilities": ["thinking", "tools"], "model_info": {"general.architecture": "gptoss"}}
    assert with_abilities(INFO, gptoss).thinking == "effort"
    assert with_abilities(INFO, {}) == INFO


@pytest.mark.parametrize(
    ("thinking", "effort", "sent"),
    [
        ("toggle", None, True),
        ("toggle", "low", False),
        ("toggle", "max", True),
        ("effort", None, "medium"),
        ("effort", "low", "low"),
        ("effort", "xhigh", "high"),
        ("none", "high", None),
    ],
)
def test_thinking_is_asked_for_in_the_model_s_form(thinking: Any, effort: Any, sent: Any) -> None:
    info = ModelInfo("m", "ollama", thinking=thinking)
    assert to_body(asking("Hi", effort=effort), info).get("think") == sent


# Requests


def test_a_conversation_is_written_with_results_by_name() -> None:
    reply = Message(
        "assistant",
        (Thinking("Hm"), Text("Ok"), ToolUse("c1", "read_file", {"path": "ü"}), ToolUse("c2", "list_files", {})),
    )
    results = Message(
        "user", (ToolResult("c1", (Text("seen"), PICTURE)), ToolResult("c2", "gone", is_error=True), Text("Go on."))
    )
    sees = msgspec.structs.replace(INFO, takes_images=True)
    body = to_body(asking("Hi", reply, results), sees)
    assert body["messages"] == [
        {"role": "system", "content": "You help with code."},
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "Ok",
            "thinking": "Hm",
            "tool_calls": [
                {"function": {"name": "read_file", "arguments": {"path": "ü"}}},
                {"function": {"name": "list_files", "arguments": {}}},
            ],
        },
        {"role": "tool", "tool_name": "read_file", "content": "seen", "images": [picture()]},
        {"role": "tool", "tool_name": "list_files", "content": "Error: gone"},
        {"role": "user", "content": "Go on."},
    ]


def test_an_empty_reply_is_not_sent_back() -> None:
    messages = (user_message("Hi"), Message("assistant", (Thinking("Hm"),)), user_message("Hello?"))
    sent = to_body(asking(*messages, system=""), INFO)["messages"]
    assert sent == [{"role": "user", "content": "Hi\n\nHello?"}]


# The server


def test_a_model_that_is_missing_is_reported_before_the_chat() -> None:
    with ollama_server([], show=json_reply({"error": "model 'qwen3:8b' not found"}, 404)) as server:
        error = asyncio.run(hear(OllamaProvider(INFO, base_url=server.url))).error
        assert isinstance(error, BadRequest)
        assert server.requests == []


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", ":{port}", "0.0.0.0:{port}", "http://127.0.0.1:{port}/"])
def test_an_address_may_be_a_bare_host_and_port(address: str) -> None:
    with ollama_server([ollama_reply("Hi.")]) as server:
        provider = OllamaProvider(INFO, base_url=address.format(port=server.port))
        assert asyncio.run(hear(provider)).text == "Hi."


def test_a_pdf_is_named_where_the_server_takes_none() -> None:
    pdf = Document(Base64Source("application/pdf", "JVBERi0="))
    body = to_body(Request("", (Message("user", (Text("read"), pdf)),)), INFO)
    assert "[PDF left out: this model takes none" in body["messages"][0]["content"]


def test_a_model_without_tools_is_refused_before_it_is_asked() -> None:
    async def ask(url: str) -> ProviderError | None:
        tool = ToolSpec("look", "Look.", {"type": "object"})
        heard = await hear(OllamaProvider(INFO, base_url=url), Request("", (user_message("hi"),), (tool,)))
        return heard.error

    with ollama_server([], show=json_reply({"capabilities": ["completion"], "model_info": {}})) as server:
        error = asyncio.run(ask(server.url))
    assert isinstance(error, BadRequest)
    assert "--tools none" in str(error)
