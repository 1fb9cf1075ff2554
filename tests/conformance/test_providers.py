"""What every provider promises (the contract on `Provider`), run over all of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    BillingError,
    ConnectionFailed,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    ProviderError,
    RateLimit,
    ServerError,
    Timeout,
)
from agentcli.llm.messages import Message, Opaque, Text, Thinking, ToolResult
from agentcli.llm.provider import (
    Done,
    TextDelta,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from agentcli.llm.providers.openai_compat import OpenAICompatProvider, presets
from tests.conformance.backends import CHAT_BACKENDS, KEY, ONE_EACH, Backend, ScriptedBackend
from tests.conformance.cloud_backends import AWS_ENVIRONMENT, EVERY_HTTP, OVER_SDK
from tests.conformance.reading import Heard, asking, hear
from tests.conformance.replies import Call, Said
from tests.conformance.servers import (
    SILENCE,
    Cut,
    Reply,
    at_events,
    byte_by_byte,
    html,
    inside_characters,
    inside_line_ends,
    json_reply,
    pieces_of,
    refused_address,
    whole,
    with_crlf,
)


def by_speed(backends: list[Backend]) -> list[Any]:
    """One for each protocol is quick; the others, which speak one of these or load a vendor's SDK, are slow."""
    return [one if one in ONE_EACH else pytest.param(one, marks=pytest.mark.slow) for one in backends]


over_all = pytest.mark.parametrize("backend", [*by_speed(EVERY_HTTP), ScriptedBackend()], ids=repr)
over_http = pytest.mark.parametrize("backend", by_speed(EVERY_HTTP), ids=repr)
with_keys = pytest.mark.parametrize("backend", by_speed([b for b in EVERY_HTTP if b.protocol != "ollama"]), ids=repr)
one_each = pytest.mark.parametrize("backend", [*ONE_EACH, *OVER_SDK[:2]], ids=repr)

HARD_TEXT = 'Zażółć 🎉 世界 👩‍👩‍👧‍👦 é\u2028line\u0085end \U0010ffff <b>&\\" \t done'
READ = Call("toolu_01A09q90qw90lq917835lq9", "read_file", {"path": "src/główny.py"})
LIST = Call("toolu_02B19r91rx91mr928946mr0", "list_files", {})


@pytest.fixture(autouse=True)
def _aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


async def heard_from(backend: Backend, answer: Any, **options: Any) -> Heard:
    """What a provider makes of one answer of its server."""
    async with backend.playing(answer, **options) as stage:
        return await hear(stage.provider)


# What a reply becomes


@over_all
async def test_text_arrives_in_deltas_and_whole_in_done(backend: Backend) -> None:
    async with backend.playing("The parser drops the last line of the file.", "Hi.") as stage:
        heard = await hear(stage.provider)
        assert [event async for event in stage.provider.stream(asking())][-1].message.text == "Hi."
    assert heard.text == heard.done.message.text == "The parser drops the last line of the file."
    assert heard.done.message == Message("assistant", (Text("The parser drops the last line of the file."),))
    assert heard.done.stop_reason == "end_turn"
    # The replies of Bedrock have the model's own name, not the one that it is asked for by.
    assert heard.done.model == ("claude-sonnet-5-5" if backend.id == "bedrock" else stage.provider.model)


@over_all
async def test_thinking_stays_apart_from_text(backend: Backend) -> None:
    heard = await heard_from(backend, Said("Yes.", "The file has 12 lines, so yes."))
    assert (heard.thinking, heard.text) == ("The file has 12 lines, so yes.", "Yes.")
    first, *rest = heard.done.message.content
    assert isinstance(first, Thinking)
    assert first.thinking == "The file has 12 lines, so yes."
    assert [block for block in rest if not isinstance(block, Opaque)] == [Text("Yes.")]


@over_all
async def test_a_call_starts_grows_and_ends_and_is_in_done(backend: Backend) -> None:
    heard = await heard_from(backend, Said("Let me look.", calls=(READ,)))
    (use,) = heard.done.message.tool_uses
    assert (use.name, use.input, use.unparsed) == ("read_file", READ.input, "")
    assert (heard.done.stop_reason, heard.done.lost_tool_call) == ("tool_use", False)
    assert heard.of(Done) == [heard.events[-1]]
    assert heard.of(ToolCallStarted) == [ToolCallStarted(use.id, "read_file")]
    assert heard.of(ToolCallEnded) == [ToolCallEnded(use.id)]
    assert msgspec.json.decode(heard.arguments_of(use.id)) == READ.input
    calls = [event for event in heard.events if isinstance(event, ToolCallStarted | ToolCallDelta | ToolCallEnded)]
    assert isinstance(calls[0], ToolCallStarted)
    assert isinstance(calls[-1], ToolCallEnded)


@over_all
async def test_parallel_calls_keep_their_order_and_have_ids_of_their_own(backend: Backend) -> None:
    second = replace(READ, id="toolu_03", input={"path": "b.py"})
    heard = await heard_from(backend, Said(calls=(READ, second, LIST)))
    uses = heard.done.message.tool_uses
    assert [(use.name, use.input, use.unparsed) for use in uses] == [
        (c.name, c.input, "") for c in (READ, second, LIST)
    ]
    assert len({use.id for use in uses}) == 3
    assert [event.id for event in heard.of(ToolCallStarted)] == [use.id for use in uses]  # type: ignore[union-attr]


@over_http
async def test_a_result_goes_back_beside_its_call(backend: Backend) -> None:
    async with backend.playing(Said("Let me look.", calls=(READ, LIST)), "It is a parser.") as stage:
        question = asking("What is main.py?")
        reply = (await hear(stage.provider, question)).done.message
        results = tuple(ToolResult(use.id, f"result of {use.name}") for use in reply.tool_uses)
        follow_up = asking(*question.messages, reply, Message("user", results))
        assert (await hear(stage.provider, follow_up)).text == "It is a parser."
    body = stage.server.requests[1].json
    assert backend.calls_in(body) == [("read_file", READ.input), ("list_files", {})]
    keys = [use.name if backend.protocol == "ollama" else use.id for use in reply.tool_uses]
    assert backend.results_in(body) == list(zip(keys, ["result of read_file", "result of list_files"], strict=True))


@over_http
async def test_the_request_names_model_tools_and_conversation(backend: Backend) -> None:
    async with backend.playing("Hi.") as stage:
        await hear(stage.provider, asking("How are you?", system="Be brief.", max_tokens=777))
    body = backend.asked(stage.server.requests[0])
    assert body["model"] == stage.provider.model
    assert body["stream"] is True
    assert [tool.get("name") or tool["function"]["name"] for tool in body["tools"]] == ["read_file", "list_files"]
    written = msgspec.json.encode(body).decode()
    assert "Be brief." in written
    assert "How are you?" in written
    assert "777" in written
    assert backend.key_sent(stage.server.requests[0].headers) == ("" if backend.protocol == "ollama" else KEY)


@over_http
async def test_a_lone_surrogate_in_the_conversation_is_sent_as_a_replacement(backend: Backend) -> None:
    async with backend.playing("Hi.") as stage:
        assert (await hear(stage.provider, asking("file \udcff name"))).text == "Hi."
        await stage.provider.count_tokens(asking("file \udcff name"))
    assert "file \ufffd name" in stage.server.requests[0].body.decode()


@over_all
async def test_usage_is_counted(backend: Backend) -> None:
    usage = (
        await heard_from(backend, Said("Hi.", prompt_tokens=1_200, cached_tokens=1_000, output_tokens=42))
    ).done.usage
    assert usage.output_tokens == 42
    assert usage.prompt_tokens == (200 if isinstance(backend, ScriptedBackend) else 1_200)
    assert usage.cache_read_input_tokens == (1_000 if backend.caches else 0)


@over_all
async def test_a_reply_cut_by_length_says_so(backend: Backend) -> None:
    done = (await heard_from(backend, Said("And then the", is_cut=True))).done
    assert (done.stop_reason, done.message.text) == ("max_tokens", "And then the")


# How the bytes arrive


@pytest.mark.slow
@pytest.mark.parametrize("cut", [whole, byte_by_byte, inside_characters, inside_line_ends, at_events, pieces_of(7)])
@over_http
async def test_the_reply_is_the_same_however_the_bytes_are_cut(backend: Backend, cut: Cut) -> None:
    said = Said(HARD_TEXT, HARD_TEXT[::-1], (replace(READ, input={"path": HARD_TEXT}),))
    heard = await heard_from(backend, backend.reply(said, cut=cut))
    assert heard.text == heard.done.message.text == HARD_TEXT
    assert heard.thinking == HARD_TEXT[::-1]
    assert heard.done.message.tool_uses[0].input == {"path": HARD_TEXT}
    assert msgspec.json.decode(heard.arguments_of(heard.done.message.tool_uses[0].id)) == {"path": HARD_TEXT}


@pytest.mark.parametrize("cut", [whole, byte_by_byte, inside_line_ends])
@over_http
async def test_lines_may_end_with_crlf(backend: Backend, cut: Cut) -> None:
    reply = backend.reply(Said("Two\nlines.", calls=(READ,)), cut=cut)
    done = (await heard_from(backend, reply.but(body=with_crlf(reply.body)))).done
    assert (done.message.text, done.message.tool_uses[0].input) == ("Two\nlines.", READ.input)


@over_http
async def test_deltas_that_arrive_together_are_one_event(backend: Backend) -> None:
    heard = await heard_from(backend, "word " * 200)
    assert len(heard.of(TextDelta)) == 1


@over_http
async def test_the_connection_is_used_again_for_the_next_request(backend: Backend) -> None:
    async with backend.playing("One.", "Two.", "Three.") as stage:
        for text in ("One.", "Two.", "Three."):
            assert (await hear(stage.provider)).text == text
        assert stage.server.connections == 1


@one_each
async def test_an_end_that_comes_a_little_late_is_waited_for(backend: Backend) -> None:
    reply = backend.reply("Hi.")
    late = reply.but(body=reply.body + b"\n", cut=lambda body: [body[:-1], body[-1:]], pause_s=0.03)
    async with backend.playing(late, "Again.") as stage:
        assert (await hear(stage.provider)).done.message.text == "Hi."
        assert (await hear(stage.provider)).text == "Again."
        assert stage.server.connections == 1


@one_each
async def test_a_server_that_never_ends_a_whole_reply_is_not_waited_for(backend: Backend) -> None:
    whole_reply = backend.reply("Hi.")
    silent = whole_reply.but(falls_silent_after=len(whole_reply.body))
    async with backend.playing(silent) as stage, asyncio.timeout(3):
        assert (await hear(stage.provider)).done.message.text == "Hi."


# What breaks


@over_http
async def test_a_cut_stream_never_yields_half_a_call(backend: Backend) -> None:
    reply = backend.reply(Said("Let me look.", "Hm.", (READ, replace(READ, id="toolu_9", input={"path": "b.py"}))))
    end_marks = (
        b"event: message_stop",
        b"event: response.completed",
        b'data: {"id":"chatcmpl-BkX2s7aqzsvX","object":"chat.completion.chunk"',
        b"\n",
    )
    last = max(reply.body.rstrip().rfind(mark) for mark in end_marks)
    places = [*range(0, last, max(1, last // 24)), last]
    async with backend.playing(*(reply.but(breaks_after=place) for place in places)) as stage:
        for place in places:
            heard = await hear(stage.provider)
            if heard.error is None:  # the stop reason had come: only what the reply cost, or its last event, is lost
                assert backend.protocol in ("chat", "anthropic")
                assert len(heard.done.message.tool_uses) == 2
                continue
            assert isinstance(heard.error, ConnectionFailed), place
            assert heard.error.is_retryable
            assert heard.error.partial is not None
            assert heard.error.partial.text == heard.text
            assert all(use.input in (READ.input, {"path": "b.py"}) for use in heard.error.partial.tool_uses)
            assert not heard.of(Done)


# Ollama's calls arrive whole; the Responses API says of each whether it did (tests/unit/llm/test_responses_wire.py).
@pytest.mark.parametrize("backend", [b for b in EVERY_HTTP if b.protocol in ("anthropic", "chat")], ids=repr)
async def test_a_reply_cut_by_length_inside_a_call_loses_that_call_only(backend: Backend) -> None:
    body = backend.reply(Said("Reading.", calls=(READ, replace(READ, id="toolu_9"))), cut=whole).body
    body = body.replace(b'"stop_reason":"tool_use"', b'"stop_reason":"max_tokens"')
    body = body.replace(b'"finish_reason":"tool_calls"', b'"finish_reason":"length"')
    events = body.split(b"\n\n")
    argument_events = [at for at, event in enumerate(events) if b'"arguments":"' in event or b"partial_json" in event]
    del events[argument_events[-1]]
    done = (await heard_from(backend, Reply(b"\n\n".join(events)))).done
    assert done.stop_reason == "max_tokens"
    assert done.lost_tool_call
    assert [use.input for use in done.message.tool_uses] == [READ.input]


@over_http
async def test_an_empty_body_is_a_failure_and_not_an_empty_reply(backend: Backend) -> None:
    content_type = backend.reply("x").content_type
    error = (await heard_from(backend, Reply(b"", content_type=content_type))).error
    assert isinstance(error, ConnectionFailed)
    assert error.is_retryable
    assert error.partial == Message("assistant", ())


@over_http
async def test_a_broken_event_is_a_server_error_with_the_text_before_it(backend: Backend) -> None:
    reply = backend.reply("All is well.")
    at = (
        reply.body.rindex(b"\n", 0, len(reply.body) // 2) + 1
        if backend.protocol == "ollama"
        else _event_end(reply.body)
    )
    for cut in (whole, byte_by_byte):
        broken = reply.but(body=reply.body[:at] + backend.broken_event + reply.body[at:], cut=cut)
        async with backend.playing(broken) as stage:
            heard = await hear(stage.provider)
        assert isinstance(heard.error, ServerError)
        assert heard.error.partial is not None
        assert "All is well.".startswith(heard.error.partial.text)
        assert heard.text == heard.error.partial.text != ""


def _event_end(body: bytes) -> int:
    return body.rindex(b"\n\n", 0, body.index(b"well")) + 2


@over_http
async def test_an_event_of_a_foreign_shape_is_a_server_error(backend: Backend) -> None:
    reply = backend.reply("Hi.")
    foreign, before = {
        "anthropic": (
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":7}}\n\n',
            b"event: content_block_stop",
        ),
        "responses": (
            b'data: {"type":"response.output_text.delta","output_index":0,"delta":7}\n\n',
            b"event: response.output_item.done",
        ),
        "ollama": (b'{"message":["x"],"done":false}\n', b"\n"),
        "chat": (b'data: {"choices":["x"]}\n\n', b"data: "),
    }[backend.protocol]
    at = reply.body.index(before) + (1 if backend.protocol == "ollama" else 0)
    error = (await heard_from(backend, reply.but(body=reply.body[:at] + foreign + reply.body[at:]))).error
    assert isinstance(error, ServerError)


@over_http
async def test_an_error_inside_the_stream_is_raised_with_the_text_before_it(backend: Backend) -> None:
    reply = backend.reply("All is well.")
    at = reply.body.rindex(b"\n", 0, reply.body.index(b"well")) + 1
    told = backend.error_event("overloaded_error", "Overloaded, try later")  # type: ignore[attr-defined]
    for cut in (whole, byte_by_byte):
        async with backend.playing(reply.but(body=reply.body[:at] + told, cut=cut)) as stage:
            heard = await hear(stage.provider)
        assert heard.error is not None
        assert heard.error.is_retryable
        assert "Overloaded, try later" in str(heard.error)
        assert heard.error.partial is not None
        assert heard.error.partial.text == heard.text != ""


# Refusals

LIMIT = ("rate_limit_error", "Number of requests exceeds the limit of 50")
CONTEXT = ("server_error", "the request exceeds the available context size")
# The answer of a backend's server, the error that it is, if another try is worth while, and what the error says.
REFUSALS: dict[str, tuple[Callable[[Backend], Any], type[ProviderError], bool, str]] = {
    "a page": (lambda _: html(200), ServerError, False, r"text/html.*base_url"),
    "a gateway's page": (lambda _: html(502), ServerError, True, r"^(?!.*<html)"),
    "an error with status 200": (lambda b: b.refusal(200, *CONTEXT), ContextOverflow, False, CONTEXT[1]),
    "corrupt compression": (
        lambda b: b.reply("Hi.").but(headers={"content-encoding": "gzip"}), ConnectionFailed, True, "damaged|header"
    ),
    "a wrong key": (lambda b: b.refusal(401, "authentication_error", "bad key"), AuthError, False, "^bad key$"),
    "a forbidden key": (lambda b: b.refusal(403, "authentication_error", "bad key"), AuthError, False, "^bad key$"),
    "a rate limit": (lambda b: b.refusal(429, *LIMIT, retry_after="7"), RateLimit, True, LIMIT[1]),
    "a rate limit in ms": (lambda b: b.refusal(429, *LIMIT, retry_after_ms="7000"), RateLimit, True, LIMIT[1]),
    "a prompt that is too long": (lambda b: b.overflow, ContextOverflow, False, r"^[^{]"),
    "a missing model": (lambda b: b.missing_model, ModelNotFound, False, ""),
    "silence": (lambda _: SILENCE, Timeout, True, "sent nothing"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
@over_http
async def test_a_refusal_is_its_own_error(backend: Backend, what: str) -> None:
    answer, kind, is_retryable, words = REFUSALS[what]
    error = (await heard_from(backend, answer(backend), read_timeout=0.15 if what == "silence" else 600)).error
    assert (type(error), error.is_retryable if error else None) == (kind, is_retryable)
    assert re.search(words, str(error))
    if "limit" in what:
        assert error is not None
        assert error.retry_after == 7


@with_keys
async def test_no_error_shows_the_key(backend: Backend) -> None:
    for key in (f"{KEY}\n{KEY}", f"{KEY}…"):
        async with backend.playing("Hi.", api_key=key) as stage:
            heard = await hear(stage.provider)
            health = await stage.provider.health_check()
        assert isinstance(heard.error, AuthError)
        assert not health.ok
        assert KEY not in str(heard.error) + health.detail


STATUSES: dict[type[ProviderError], tuple[int, ...]] = {
    BadRequest: (400, 404, 413, 422), BillingError: (402,), ServerError: (409, 500, 502), Timeout: (408, 504),
    Overloaded: (503, 529),
}  # fmt: skip


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for kind, some in STATUSES.items() for status in some])
@one_each
async def test_each_status_is_its_own_error(backend: Backend, status: int, kind: type[ProviderError]) -> None:
    error = (await heard_from(backend, backend.refusal(status, "some_error", "it went wrong"))).error
    assert type(error) is kind
    assert error.status == status
    said, _, place = str(error).partition(", asked at ")
    assert said == "it went wrong"
    assert bool(place) == (status == 404)


@over_http
async def test_a_refused_connection_is_a_retryable_failure_that_names_the_address(backend: Backend) -> None:
    address = refused_address()
    provider = backend.provider(address)
    heard = await hear(provider)
    assert isinstance(heard.error, ConnectionFailed)
    assert heard.error.is_retryable
    assert address in str(heard.error)
    await provider.aclose()


@over_http
async def test_silence_inside_the_reply_is_a_timeout_that_keeps_the_text(backend: Backend) -> None:
    reply = backend.reply("All is well.", cut=byte_by_byte)
    silent = reply.but(falls_silent_after=reply.body.index(b"well"))
    heard = await heard_from(backend, silent, read_timeout=0.15)
    assert isinstance(heard.error, Timeout)
    assert heard.error.partial is not None
    assert heard.error.partial.text == heard.text == "All is "


@over_http
async def test_an_address_that_is_none_is_a_bad_request(backend: Backend) -> None:
    for address in ("http://[half", "ftp://example.org", "http://exa mple.org/\x00"):
        provider = backend.provider(address)
        heard = await hear(provider)
        assert isinstance(heard.error, ProviderError), address
        assert not (await provider.health_check()).ok
        await provider.aclose()


# Leaving early


@over_http
async def test_closing_the_iterator_closes_the_connection(backend: Backend) -> None:
    reply = backend.reply("All is well.", cut=byte_by_byte)
    async with backend.playing(reply.but(falls_silent_after=reply.body.index(b"well"))) as stage:
        async with aclosing(stage.provider.stream(asking())) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        assert await asyncio.to_thread(stage.server.requests[0].left.wait, 3)


@over_http
async def test_cancelling_ends_the_request_and_is_passed_on(backend: Backend) -> None:
    reply = backend.reply("All is well.", cut=byte_by_byte)
    async with backend.playing(reply.but(falls_silent_after=reply.body.index(b"well"))) as stage:
        started = asyncio.Event()

        async def read() -> None:
            async for event in stage.provider.stream(asking()):
                if isinstance(event, TextDelta):
                    started.set()

        task = asyncio.create_task(read())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(stage.server.requests[0].left.wait, 3)


@over_all
async def test_a_provider_may_be_closed_twice_and_before_its_first_request(backend: Backend) -> None:
    async with backend.playing("Hi.") as stage:
        await stage.provider.aclose()
        assert (await hear(stage.provider)).text == "Hi."
        await stage.provider.aclose()
        await stage.provider.aclose()


@over_all
async def test_two_requests_may_run_at_the_same_time(backend: Backend) -> None:
    async with backend.playing("Same.", "Same.", "Same.") as stage:
        all_heard = await asyncio.gather(*(hear(stage.provider) for _ in range(3)))
    assert [heard.text for heard in all_heard] == ["Same."] * 3


# Health and counts


@over_all
async def test_a_server_that_answers_is_healthy(backend: Backend) -> None:
    async with backend.playing() as stage:
        health = await stage.provider.health_check()
    assert health.ok
    assert health.detail


@pytest.mark.parametrize(
    "answer",
    [
        html(200),
        html(502),
        SILENCE,
        Reply(b"", content_type="application/json"),
        Reply(b"{", content_type="application/json"),
        json_reply({"error": {"message": "invalid x-api-key"}}, 401),
        json_reply("wat"),
        json_reply([]),
        json_reply(7),
        json_reply(None),
        json_reply({"data": 7, "model_info": 7, "capabilities": 7, "max_input_tokens": "many"}),
        json_reply({"data": [7, None], "model_info": {"a.context_length": "x"}, "capabilities": [7]}),
    ],
    ids=lambda reply: f"{reply.status}-{reply.body[:12].decode()}" if reply.answers else "silence",
)
@one_each
async def test_a_health_check_never_raises(backend: Backend, answer: Reply) -> None:
    async with backend.playing(health=answer, read_timeout=0.15) as stage:
        health = await stage.provider.health_check()
    assert isinstance(health.ok, bool)
    assert health.detail
    if answer.status != 200 or not answer.answers or answer.content_type != "application/json":
        assert not health.ok


@over_http
async def test_a_server_that_has_gone_is_not_healthy(backend: Backend) -> None:
    async with backend.playing("Hi.") as stage:
        await hear(stage.provider)
        assert (await stage.provider.health_check()).ok
        stage.server.stop()
        assert not (await stage.provider.health_check()).ok


@over_all
async def test_a_longer_prompt_counts_more_tokens(backend: Backend) -> None:
    async with backend.playing() as stage:
        short = await stage.provider.count_tokens(asking("Hello"))
        long = await stage.provider.count_tokens(asking("Hello " * 500))
    assert short.tokens > 0
    assert short.exact == backend.counts_exactly
    assert long.tokens > short.tokens or short.exact


@pytest.mark.parametrize("backend", [b for b in EVERY_HTTP if b.id in ("anthropic", "openai", "deepseek")], ids=repr)
async def test_a_missing_key_is_reported_before_anything_is_sent(backend: Backend) -> None:
    async with backend.playing("Hi.", api_key="") as stage:
        heard = await hear(stage.provider)
        health = await stage.provider.health_check()
    assert isinstance(heard.error, AuthError)
    assert f"{backend.id.upper()}_API_KEY" in str(heard.error)
    assert not health.ok
    assert stage.server.requests == stage.server.others == []


async def test_a_server_without_keys_is_asked_without_one() -> None:
    (backend,) = [b for b in CHAT_BACKENDS if b.id == "lmstudio"]
    async with backend.playing("Hi.", api_key="") as stage:
        assert (await hear(stage.provider)).text == "Hi."
    assert "authorization" not in stage.server.requests[0].headers


@pytest.mark.parametrize("name", sorted(presets()))
async def test_every_preset_makes_a_provider_that_is_named_after_it(name: str) -> None:
    (backend,) = [b for b in CHAT_BACKENDS if b.id == name]
    provider = OpenAICompatProvider(backend.info, preset=presets()[name], api_key=KEY)
    assert provider.name == name
    assert presets()[name].base_url.startswith("http") or name == "azure"  # each resource of which has its own


async def test_a_listed_server_without_the_model_is_not_healthy() -> None:
    listed: Any = json_reply({"object": "list", "data": [{"id": "llama-3"}, {"id": "qwen"}]})
    async with CHAT_BACKENDS[0].playing(health=listed) as stage:
        health = await stage.provider.health_check()
    assert not health.ok
    assert "llama-3, qwen" in health.detail


async def test_gemini_lists_its_models_with_their_folder_and_refuses_keys_in_its_own_way() -> None:
    (backend,) = [b for b in CHAT_BACKENDS if b.id == "gemini"]
    async with backend.playing(health=json_reply({"data": [{"id": "models/test-model"}]})) as stage:
        health = await stage.provider.health_check()
    assert health.ok
    assert health.models == ("test-model",)
    refused = json_reply([{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}], 400)
    async with backend.playing(refused, health=refused) as stage:
        assert isinstance((await hear(stage.provider)).error, AuthError)
        assert not (await stage.provider.health_check()).ok


async def test_a_deployment_of_azure_need_not_be_in_its_list() -> None:
    (backend,) = [b for b in CHAT_BACKENDS if b.id == "azure"]
    for answer in (json_reply({"data": [{"id": "gpt-5"}]}), json_reply({"error": {"code": "404"}}, 404)):
        async with backend.playing(health=answer) as stage:
            assert (await stage.provider.health_check()).ok
    async with backend.playing(health=json_reply({"error": {"code": "401"}}, 401)) as stage:
        assert not (await stage.provider.health_check()).ok


async def test_a_query_in_an_address_goes_along_with_every_request() -> None:
    (backend,) = [b for b in CHAT_BACKENDS if b.id == "azure"]
    async with backend.playing("Hi.") as stage:
        stage.server._chat_path += "?api-version=2025-01-01"
        provider = backend.provider(f"{stage.server.url}/?api-version=2025-01-01")
        assert (await hear(provider)).text == "Hi."
        await provider.aclose()
