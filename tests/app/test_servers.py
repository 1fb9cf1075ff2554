"""Servers with habits of their own, met by the program as people run it."""

from __future__ import annotations

import json
import signal
import time
from email.utils import formatdate
from typing import Any

import pytest

from agentcli.llm.addresses import basic_auth, ollama_address
from tests.app.running import Place, Ran
from tests.conformance.replies import (
    Call,
    Said,
    anthropic_events,
    anthropic_reply,
    anthropic_sse,
    block,
    call_delta,
    chat_chunk,
    chat_reply,
    chat_sse,
    message_end,
    message_start,
    ndjson,
    ollama_end,
    ollama_line,
    ollama_reply,
)
from tests.conformance.servers import (
    NDJSON,
    LoopbackServer,
    Received,
    Reply,
    anthropic_server,
    chat_server,
    json_reply,
    ollama_server,
)
from tests.conformance.socks_server import socks_server

# each case is a run of the whole program; its folder has a file
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("place_with_a_file")]

KEY = "sk-a-secret-key"
PLAIN = ("-m", "openai/test-model", "-p", "go", "--output-format", "json")


def asked(place: Place, base_url: str, *arguments: str, **env: str) -> Ran:
    """What came of a prompt that an OpenAI-compatible server at `base_url` was to answer."""
    return place.run(*PLAIN, *arguments, env={"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": KEY, **env})


def addresses(url: str) -> dict[str, str]:
    """The environment in which every provider is at `url`."""
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "OLLAMA_HOST": url,
    }


def answer_of(ran: Ran) -> str:
    assert ran.code == 0, ran
    return str(ran.result["result"])


def failure_of(ran: Ran, code: int = 1) -> str:
    assert ran.code == code, ran
    assert "Traceback" not in ran.err
    return str(ran.result["result"])


# Redirects


def leading_to(location: str | None, status: int = 308) -> Reply:
    return Reply(b"moved", status, "text/plain", {} if location is None else {"location": location})


def test_a_login_in_the_address_goes_in_place_of_a_bearer_token(place: Place) -> None:
    with chat_server([chat_reply("Hi.")]) as server:
        assert answer_of(asked(place, server.url.replace("//", "//me:p%40ss@"))) == "Hi."
        assert server.requests[0].headers["authorization"] == basic_auth("me", "p@ss")


@pytest.mark.parametrize(
    ("provider", "status"), [("openai", 301), ("openai", 303), ("anthropic", 307), ("ollama", 308)]
)
def test_a_redirect_to_another_place_is_named_and_not_followed_nor_retried(
    place: Place, provider: str, status: int
) -> None:
    with chat_server([chat_reply("Stolen.")]) as elsewhere:
        reply = leading_to(f"http://u:hidden@127.0.0.1:{elsewhere.port}/v1/chat/completions?token=hidden", status)
        serving = {"openai": chat_server, "anthropic": anthropic_server, "ollama": ollama_server}[provider]
        with serving([reply, reply]) as server:
            env = addresses(server.url)
            ran = place.run("-m", f"{provider}/m", "-p", "go", "--output-format", "json", env=env)
            assert len(server.requests) == 1
        assert elsewhere.requests == []
    told = failure_of(ran)
    assert f"redirects to http://127.0.0.1:{elsewhere.port}/v1/chat/completions," in told
    assert f"HTTP {status}" in told
    assert "hidden" not in told


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("/elsewhere?token=x", "/elsewhere, where the request is not sent"),
        (None, "redirects to "),
        ("http://[half", "redirects to a malformed address"),
        ("https://127.0.0.1/v1/chat/completions", "https://127.0.0.1/v1/chat/completions"),
        ("ftp://127.0.0.1/", "ftp://127.0.0.1/"),
        ("//other.example/%1b[2J", "http://other.example/"),
    ],
)
def test_a_redirect_ends_the_turn_and_is_not_followed(place: Place, location: str | None, says: str) -> None:
    with chat_server([leading_to(location)] * 20) as server:
        told = failure_of(asked(place, server.url))
        assert len(server.requests) == 1
    assert says in told


# The ids of calls


@pytest.mark.sampled(2)
@pytest.mark.parametrize("id", ["call_0", "", " "])
@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama"])
def test_calls_that_share_an_id_or_have_none_each_get_their_own_result(place: Place, provider: str, id: str) -> None:
    (place.folder / "b.py").write_text('print("ho")\n')
    said = Said(calls=(Call(id, "file_read", {"path": "a.py"}), Call(id, "file_read", {"path": "b.py"})))
    again = Said(calls=(Call(id, "file_read", {"path": "a.py"}),))
    makes, serves = {
        "openai": (chat_reply, chat_server),
        "anthropic": (anthropic_reply, anthropic_server),
        "ollama": (ollama_reply, ollama_server),
    }[provider]
    with serves([makes(said), makes(again), makes("Read.")]) as server:
        model = f"{provider}/m"
        ran = place.run("-m", model, "-p", "go", "--output-format", "stream-json", env=addresses(server.url))
    calls = [call for line in ran.of("assistant") for call in line["message"]["content"] if call["type"] == "tool_use"]
    results = {
        result["tool_use_id"]: str(result["content"])
        for line in ran.of("user")
        for result in line["message"]["content"]
        if result["type"] == "tool_result"
    }
    assert len(results) == len(calls) == 3
    for call in calls:
        assert ('print("hi")' if call["input"]["path"] == "a.py" else 'print("ho")') in results[call["id"]]


def test_of_two_calls_with_one_id_in_a_script_only_the_approved_one_runs(place: Place) -> None:
    calls = [{"id": "x", "name": "bash", "input": {"command": f"touch {name}"}} for name in ("one", "two")]
    calls.append({"id": "call_1_4", "name": "bash", "input": {"command": "touch four"}})
    calls.append({"name": "bash", "input": {"command": "touch five"}})
    model = place.script({"tool_calls": calls}, {"text": "Done."})
    ran = place.run("-m", model, "-p", "go", "--output-format", "stream-json", "--allow", "bash(touch two)")
    ids = [call["id"] for line in ran.of("assistant") for call in line["message"]["content"] if "id" in call]
    assert len(set(ids)) == len(ids) == 4
    assert [name for name in ("one", "two", "four", "five") if (place.folder / name).exists()] == ["two"]
    results = [part for line in ran.of("user") for part in line["message"]["content"] if part["type"] == "tool_result"]
    failed = {result["tool_use_id"]: bool(result.get("is_error")) for result in results}
    assert [failed[id] for id in ids] == [True, False, True, True]


# How a stream ends


def sse(*deltas: dict[str, Any], finish: str | None = None, done: bool = False) -> Reply:
    chunks = [*(chat_chunk(delta) for delta in deltas), *([chat_chunk({}, finish)] if finish else [])]
    return Reply(chat_sse(chunks, done=done))


READ = {"tool_calls": [call_delta(0, "call_1", "file_read", '{"path":"a.py"}')]}


SILENT_END = "[providers.openai.quirks]\nsilent_end = true\n"


def settings(place: Place, text: str) -> None:
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(text)


@pytest.mark.parametrize("done", [True, False])
def test_an_end_without_a_finish_reason_is_an_end_where_the_server_says_so(place: Place, done: bool) -> None:
    settings(place, "" if done else SILENT_END)
    with chat_server([sse({"content": "All of it."}, done=done)]) as server:
        ran = asked(place, server.url)
    assert (answer_of(ran), ran.result["terminal_reason"]) == ("All of it.", "end_turn")


@pytest.mark.parametrize("done", [True, False])
def test_calls_without_a_finish_reason_are_run_where_the_server_says_so(place: Place, done: bool) -> None:
    settings(place, "" if done else SILENT_END)
    with chat_server([sse(READ, done=done), chat_reply("It prints hi.")]) as server:
        ran = asked(place, server.url)
        assert "print" in server.requests[1].json["messages"][-1]["content"]
    assert (answer_of(ran), ran.result["num_turns"]) == ("It prints hi.", 2)


def test_a_stream_whose_end_never_came_is_a_broken_connection(place: Place) -> None:
    half = sse({"content": "All is well wi"})
    with chat_server([half, chat_reply("th it."), half, half]) as server:
        assert answer_of(asked(place, server.url)) == "All is well with it."
        assert "silent_end = true" in failure_of(asked(place, server.url))


@pytest.mark.parametrize("breaks", ["connection", "event", "error"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_reply_of_text_and_a_call_that_breaks_off_in_the_call_continues(
    place: Place, provider: str, breaks: str
) -> None:
    model, serve, reply = {
        "openai": ("openai/test-model", chat_server, chat_reply),
        "anthropic": ("anthropic/claude-sonnet-5-5", anthropic_server, anthropic_reply),
    }[provider]
    read = Call("c1", "file_read", {"path": "a.py"})
    whole = reply(Said("Let me look.", calls=(read,)))
    cut = whole.body.index(b"\n\n", whole.body.index(b"file_read")) + 2
    wrong = {
        "connection": b"",
        "event": b"data: {half\n\n",
        "error": b'data: {"type":"error","error":{"message":"busy"}}\n\n',
    }[breaks]
    broken = Reply(whole.body[:cut] + wrong)
    with serve([broken, reply(Said(calls=(read,))), reply("It prints hi.")]) as server:
        ran = place.run("-m", model, "-p", "go", "--output-format", "json", env=addresses(server.url))
        assert len(server.requests) == 3
        assert "it did not run" in str(server.requests[1].json["messages"][-1])
    assert answer_of(ran) == "It prints hi."


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_call_whose_reply_lacks_only_its_last_events_is_run(place: Place, provider: str) -> None:
    model, serve, reply, mark = {
        "openai": ("openai/test-model", chat_server, chat_reply, b'"finish_reason":"tool_calls"'),
        "anthropic": ("anthropic/claude-sonnet-5-5", anthropic_server, anthropic_reply, b'"stop_reason":"tool_use"'),
    }[provider]
    whole = reply(Said("Let me look.", calls=(Call("c1", "file_read", {"path": "a.py"}),)))
    cut = whole.body.index(b"\n\n", whole.body.index(mark)) + 2
    for broken in (whole.but(breaks_after=cut), Reply(whole.body[:cut] + b"data: {half\n\n")):
        with serve([broken, reply("It prints hi.")]) as server:
            ran = place.run("-m", model, "-p", "go", "--output-format", "json", env=addresses(server.url))
            assert len(server.requests) == 2
        assert answer_of(ran) == "It prints hi."


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_reply_that_breaks_off_in_its_reasoning_is_retried(place: Place, provider: str) -> None:
    if provider == "openai":
        half = sse({"reasoning_content": "Let me"})
        model, serve, reply = "openai/test-model", chat_server, chat_reply
    else:
        deltas = [{"type": "thinking_delta", "thinking": "Let me"}]
        events = [message_start(), *block(0, {"type": "thinking", "thinking": ""}, deltas)]
        half = Reply(anthropic_sse(events[:-1]))
        model, serve, reply = "anthropic/claude-sonnet-5-5", anthropic_server, anthropic_reply
    with serve([half, half, reply("Now.")]) as server:
        ran = place.run("-m", model, "-p", "go", "--output-format", "json", env=addresses(server.url))
    assert answer_of(ran) == "Now."


def test_half_a_call_without_a_finish_reason_is_never_run(place: Place) -> None:
    half = {"tool_calls": [call_delta(0, "call_1", "bash", '{"command":"touch made"')]}
    for done in (True, False):
        with chat_server([sse(half, done=done), chat_reply("Then not.")]) as server:
            assert answer_of(asked(place, server.url, "--permission-mode", "bypassPermissions")) == "Then not."
        assert not (place.folder / "made").exists()


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("finish", ["stop", None])
def test_a_last_chunk_without_its_blank_line_is_read(place: Place, cut: int, finish: str | None) -> None:
    settings(place, "" if finish else SILENT_END)
    last = [chat_chunk({"content": " it."}, finish)]
    body = (chat_sse([chat_chunk({"content": "All of"})], done=False) + chat_sse(last, done=False)).replace(
        b"\n", b"\r\n"
    )
    with chat_server([Reply(body[:-cut])]) as server:
        assert answer_of(asked(place, server.url)) == "All of it."


@pytest.mark.parametrize("tail", [b'data: {"choices":[{"delta":{"content":" of', b"data: [DON", b"da", b"data:"])
def test_a_body_that_ends_inside_an_event_is_broken_and_retried(place: Place, tail: bytes) -> None:
    call_only = chat_sse([chat_chunk(READ)], done=False)
    with chat_server([Reply(call_only + tail), chat_reply("Now.")]) as server:
        assert answer_of(asked(place, server.url)) == "Now."
        assert len(server.requests) == 2


def test_a_body_that_ends_inside_an_event_after_text_fails_the_second_time_and_keeps_the_text(place: Place) -> None:
    half = Reply(chat_sse([chat_chunk({"content": "Half"})], done=False) + b'data: {"cho')
    with chat_server([half, half]) as server:
        ran = asked(place, server.url)
        assert len(server.requests) == 2
    assert "in the middle of an event" in failure_of(ran)
    shown = place.run("sessions", "show", ran.result["session_id"], "--json").out
    assert shown.count('"Half"') >= 2


@pytest.mark.parametrize("form", ["json", "text", "stream-json"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_an_answer_that_breaks_off_is_continued_once_and_joined(place: Place, provider: str, form: str) -> None:
    serve, reply, name = (
        (chat_server, chat_reply, "openai/test-model")
        if provider == "openai"
        else (anthropic_server, anthropic_reply, "anthropic/claude-sonnet-5-5")
    )
    whole = reply("All is well wi")
    half = whole.but(breaks_after=whole.body.index(b"\n\n", whole.body.index(b"well wi")) + 2)
    with serve([half, reply("th it.")]) as server:
        ran = place.run("-m", name, "-p", "go", "--output-format", form, env=addresses(server.url))
        first, second = (received.body for received in server.requests)
    assert ran.code == 0, ran
    if form == "text":
        assert ran.out == "All is well with it.\n"
        assert "Continuing where it stopped" in ran.err
        return
    assert ran.result["result"] == "All is well with it."
    assert ran.result["num_turns"] == 2
    sent = json.loads(second)["messages"]
    assert sent[-2]["role"] == "assistant"
    assert "All is well wi" in str(sent[-2])
    assert "Continue exactly where it stopped" in str(sent[-1])
    assert len(sent) == len(json.loads(first)["messages"]) + 2
    usage = 2 if provider == "anthropic" else 1  # what the first had counted when it broke
    assert ran.result["usage"]["cache_read_input_tokens"] == 1_000 * usage


def test_nothing_lost_after_the_finish_reason_is_a_failure(place: Place) -> None:
    whole = chat_sse([chat_chunk({"content": "All."}), chat_chunk({}, "stop")], done=False)
    for reply in (Reply(whole + b'data: {"usa'), Reply(whole + b"data: [DONE]\n\n", breaks_after=len(whole))):
        with chat_server([reply]) as server:
            assert answer_of(asked(place, server.url)) == "All."


def test_a_reply_that_was_not_streamed_is_read(place: Place) -> None:
    def whole(message: dict[str, Any], finish: str) -> Reply:
        choices = [{"index": 0, "message": message, "finish_reason": finish}]
        return json_reply({"object": "chat.completion", "choices": choices, "usage": {"prompt_tokens": 7}})

    read = READ["tool_calls"][0]
    said = {"role": "assistant", "content": "<think>Hm.</think>Yes. " + "x" * 100_000}
    with chat_server([whole({"content": None, "tool_calls": [read]}, "tool_calls"), whole(said, "stop")]) as server:
        ran = asked(place, server.url)
    assert answer_of(ran) == "Yes. " + "x" * 100_000
    assert (ran.result["num_turns"], ran.result["usage"]["input_tokens"]) == (2, 14)


def test_only_nothing_is_not_a_reply(place: Place) -> None:
    with chat_server([Reply(b"data: [DONE]\n\n"), sse({"role": "assistant"}), chat_reply("Now.")]) as server:
        assert answer_of(asked(place, server.url)) == "Now."
        assert len(server.requests) == 3


def test_anthropic_s_last_event_may_lack_its_blank_line_or_be_missing(place: Place) -> None:
    body = anthropic_sse(anthropic_events(Said("All of it.")))
    without = anthropic_sse(anthropic_events(Said("All of it."))[:-1])
    for reply in (Reply(body.rstrip(b"\n")), Reply(without), Reply(b"\xef\xbb\xbf" + body)):
        with anthropic_server([reply]) as server:
            env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY}
            ran = place.run("-m", "anthropic/claude-sonnet-5-5", "-p", "go", "--output-format", "json", env=env)
        assert answer_of(ran) == "All of it."
        assert ran.result["usage"]["output_tokens"] == 42


@pytest.mark.sampled(1)
@pytest.mark.parametrize("line_end", [b"", b"\n", b" "])
def test_a_line_without_an_end_is_bounded(place: Place, line_end: bytes) -> None:
    """17 MB in pieces of 1 kB: quadratic reading would take minutes."""
    endless = (b"data: " + line_end + b"x" * 1_017) * (17 << 10)

    def cut(body: bytes) -> list[bytes]:
        return [body[at : at + 1_024] for at in range(0, len(body), 1_024)]

    started = time.monotonic()
    with chat_server([Reply(endless, cut=cut)] * 4) as server:
        told = failure_of(asked(place, server.url))
        assert len(server.requests) == 1
    assert "16 MB" in told
    with ollama_server([Reply(endless.replace(b"\n", b" "), content_type=NDJSON, cut=cut)] * 4) as ollama:
        assert "16 MB" in failure_of(from_ollama(place, ollama))
    assert time.monotonic() - started < 60


# What stands in a reply


def test_choices_but_the_first_are_ignored(place: Place) -> None:
    def of(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}

    chunks = [of(1, "No"), of(0, "Y"), of(1, "!", "stop"), of(0, "es"), of(0, ".", "stop"), of(2, "?", "length")]
    both = {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}, {"message": {"content": "No."}}]}
    for body in (chat_sse(chunks), chat_sse([both])):
        with chat_server([Reply(body)]) as server:
            ran = asked(place, server.url)
        assert (answer_of(ran), ran.result["terminal_reason"]) == ("Yes.", "end_turn")


THOUGHTS = [
    (["\n<th", "ink>\nHm", ".\n</thi", "nk>\n\n", "Yes."], "Yes."),
    (["Write <think> and </think> around it."], "Write <think> and </think> around it."),
    (["<think>Hm.</think>End it with `</think>`."], "End it with `</think>`."),
]


@pytest.mark.parametrize(("parts", "text"), THOUGHTS)
def test_reasoning_in_tags_is_not_a_part_of_the_answer(place: Place, parts: list[str], text: str) -> None:
    lines = [*(ollama_line({"content": part}) for part in parts), ollama_end(Said())]
    with ollama_server([Reply(ndjson(lines), content_type=NDJSON)]) as server:
        assert answer_of(from_ollama(place, server)) == text
    with chat_server([sse(*({"content": part} for part in parts), finish="stop")]) as server:
        assert answer_of(asked(place, server.url)) == text


def test_reasoning_that_never_ends_is_not_an_answer(place: Place) -> None:
    lines = [ollama_line({"content": "<think>Hm. </thi"}), ollama_end(Said())]
    with ollama_server([Reply(ndjson(lines), content_type=NDJSON)] * 2) as server:
        assert "returned an empty answer" in failure_of(from_ollama(place, server))


EMPTY = [{"content": ""}, {"reasoning_content": "Hm."}, {"content": "\n"}]


@pytest.mark.parametrize("delta", EMPTY)
def test_an_empty_reply_is_asked_for_once_more_and_then_a_failure(place: Place, delta: dict[str, Any]) -> None:
    empty = sse(delta, finish="stop", done=True)
    with chat_server([empty, chat_reply("Now.")]) as server:
        assert answer_of(asked(place, server.url)) == "Now."
        assert "Your reply was empty" in str(server.requests[1].json["messages"][-1])
    with chat_server([empty, empty]) as server:
        assert "The model returned an empty answer twice" in failure_of(asked(place, server.url))
        assert len(server.requests) == 2


@pytest.mark.parametrize("provider", ["openai", "ollama"])
def test_reasoning_that_only_a_closing_tag_ends_is_not_a_part_of_the_answer(place: Place, provider: str) -> None:
    parts = ["secret", " plan", "\n</th", "ink>\n\nAnswer", " C"]
    if provider == "openai":
        reply, serve = sse(*({"content": part} for part in parts), finish="stop"), chat_server
    else:
        lines = [*(ollama_line({"content": part}) for part in parts), ollama_end(Said())]
        reply, serve = Reply(ndjson(lines), content_type=NDJSON), ollama_server
    with serve([reply]) as server:
        ran = place.run("-m", f"{provider}/m", "-p", "go", "--output-format", "json", env=addresses(server.url))
        assert answer_of(ran) == "Answer C"
    (said,) = json.loads(place.run("sessions", "show", ran.result["session_id"], "--json").out)["messages"][1:]
    assert [block.get("text") for block in said["content"] if block["type"] == "text"] == ["Answer C"]


def test_with_reasoning_first_it_is_not_shown_as_text_and_a_reply_without_it_is_all_text(place: Place) -> None:
    settings(place, "[providers.openai.quirks]\nreasoning_first = true\n")
    partly = ("--output-format", "stream-json", "--include-partial-messages")
    with chat_server([sse({"content": "plan"}, {"content": "\n</think>\n\nYes."}, finish="stop")]) as server:
        ran = asked(place, server.url, *partly)
    deltas = [line["event"]["delta"] for line in ran.of("stream_event") if "delta" in line["event"]]
    assert [delta["text"] for delta in deltas if delta.get("type") == "text_delta"] == ["Yes."]
    with chat_server([sse({"content": "No plan."}, finish="stop")]) as server:
        assert answer_of(asked(place, server.url)) == "No plan."


def test_a_call_written_as_text_is_reported_with_the_setting_that_reads_it(place: Place) -> None:
    written = {"content": '<tool_call>\n{"name": "file_read", "arguments": {"path": "a.py"}}\n</tool_call>'}
    with chat_server([sse(written, finish="stop")]) as server:
        assert "providers.openai.quirks.read_text_calls = true" in asked(place, server.url).err


def test_an_answer_that_begins_with_the_tag_is_text_where_reasoning_comes_apart(place: Place) -> None:
    with chat_server([sse({"reasoning_content": "Hm."}, {"content": "<think> opens it."}, finish="stop")]) as server:
        assert answer_of(asked(place, server.url)) == "<think> opens it."
    lines = [ollama_line({"thinking": "Hm."}), ollama_line({"content": "<think> opens it."}), ollama_end(Said())]
    with ollama_server([Reply(ndjson(lines), content_type=NDJSON)]) as server:
        assert answer_of(from_ollama(place, server)) == "<think> opens it."


HALVES = "\ud83d", "\ude00"


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama"])
def test_a_character_that_two_deltas_halve_arrives_whole(place: Place, provider: str) -> None:
    high, low = HALVES
    parts = (f"a{high}", f"{low}b\\", f"c \\{high}", f"{low}{high}", low)
    chat = "".join(f"data: {json.dumps(chat_chunk({'content': part}))}\n\n" for part in parts).encode()
    chat += b"data: [DONE]\n\n"
    deltas = [{"type": "text_delta", "text": part} for part in parts]
    events = [message_start(), *block(0, {"type": "text", "text": ""}, deltas), *message_end()]
    messages = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    lines = "".join(f"{json.dumps(ollama_line({'content': part}))}\n" for part in parts).encode()
    reply, serves = {
        "openai": (Reply(chat), chat_server),
        "anthropic": (Reply(messages), anthropic_server),
        "ollama": (Reply(lines + ndjson([ollama_end(Said())]), content_type=NDJSON), ollama_server),
    }[provider]
    with serves([reply]) as server:
        ran = place.run("-m", f"{provider}/m", "-p", "go", "--output-format", "json", env=addresses(server.url))
    assert answer_of(ran) == "a😀b\\c \\😀😀"


def test_a_character_halved_inside_a_call_s_arguments_is_written_whole(place: Place) -> None:
    high, low = HALVES
    arguments = json.dumps({"path": "face.txt", "content": "a😀b"}, ensure_ascii=False)
    before, after = arguments.split("😀")
    parts = [
        {"tool_calls": [call_delta(0, "call_1", "file_write", before + high)]},
        {"tool_calls": [call_delta(0, None, None, low + after)]},
    ]
    body = "".join(f"data: {json.dumps(chat_chunk(part))}\n\n" for part in parts).encode()
    with chat_server([Reply(body + chat_sse([chat_chunk({}, "tool_calls")])), chat_reply("Written.")]) as server:
        assert answer_of(asked(place, server.url, "--permission-mode", "bypassPermissions")) == "Written."
    assert (place.folder / "face.txt").read_text("utf-8") == "a😀b"


def from_anthropic(place: Place, server: LoopbackServer) -> Ran:
    return place.run("-m", "anthropic/m", "-p", "go", "--output-format", "json", env=addresses(server.url))


@pytest.mark.parametrize("index", [{"index": 0}, {}])
def test_blocks_that_a_gateway_does_not_number_are_all_read(place: Place, index: dict[str, int]) -> None:
    events = anthropic_events(Said("I read it.", calls=(Call("t", "file_read", {"path": "a.py"}),)))
    bare = [{key: value for key, value in event.items() if key != "index"} for event in events]
    numbered = [event | index if "content_block" in event["type"] else event for event in bare]
    with anthropic_server([Reply(anthropic_sse(numbered)), anthropic_reply("It prints hi.")]) as server:
        assert answer_of(from_anthropic(place, server)) == "It prints hi."
        (said, call) = server.requests[1].json["messages"][-2]["content"]
    assert (said["text"], call["input"]) == ("I read it.", {"path": "a.py"})


def test_a_reply_whose_call_did_not_arrive_is_asked_for_again(place: Place) -> None:
    lost = [message_start(), *message_end("tool_use")]
    with anthropic_server([Reply(anthropic_sse(lost)), anthropic_reply("Now.")]) as server:
        assert answer_of(from_anthropic(place, server)) == "Now."


# Errors and what they show


@pytest.mark.sampled(1)
@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama"])
def test_no_password_of_an_address_is_shown(place: Place, provider: str) -> None:
    page = Reply(b"<html>hidden-word</html>", content_type="text/html")
    busy = Reply(b"", 418, "text/plain")
    lost = [page, busy, leading_to("/x"), leading_to(None), json_reply({}, 404)]
    for reply in lost:
        with chat_server([reply] * 9) as server:
            for path in ("/v1/chat/completions", "/v1/messages", "/api/show", "/x"):
                server._routes[f"POST {path}"] = reply
            url = server.url.replace("//", "//me:hidden-word@")
            ran = place.run("-m", f"{provider}/m", "-p", "go", "--output-format", "json", env=addresses(url))
        assert "127.0.0.1" in failure_of(ran)
        assert "hidden-word" not in ran.out + ran.err
    for address in ("http://me:hidden-word@127.0.0.1:9/v1", "http://me:hidden-word@[::1]:9/v1"):
        env = addresses(address) | {"AGENTCLI_RETRY_MAX": "1"}
        ran = place.run("-m", f"{provider}/m", "-p", "go", "--output-format", "json", env=env)
        assert "Could not connect to http://" in failure_of(ran)
        assert "hidden-word" not in ran.out + ran.err


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_key_that_an_error_quotes_is_masked(place: Place, provider: str) -> None:
    told = f"Incorrect API key provided: Bearer {KEY} ({KEY})."
    in_stream = Reply(f"data: {json.dumps({'type': 'error', 'error': {'message': told}})}\n\n".encode())
    page = Reply(f"<html>{KEY}</html>".encode(), content_type="text/html")
    for reply in (json_reply({"error": {"message": told}}, 401), in_stream, page):
        with chat_server([reply] * 4) as server:
            server._routes["POST /v1/messages"] = reply
            env = addresses(server.url) | {"AGENTCLI_RETRY_MAX": "1"}
            ran = place.run("-m", f"{provider}/m", "-p", "go", "--output-format", "json", env=env)
        assert "[masked]" in failure_of(ran)
        assert KEY not in ran.out + ran.err


@pytest.mark.parametrize(
    ("status", "begins", "content_type"),
    [
        (401, "x" * 490, "text/plain"),
        (404, "x " * 244, "text/plain"),
        (400, '{"error": {"message": ["' + "x" * 490, "application/json"),
        (400, '"' + "x" * 491, "application/json"),
        (200, "<html>" + "x" * 104, "text/html"),
    ],
)
def test_a_key_that_the_end_of_a_message_cuts_is_masked(
    place: Place, status: int, begins: str, content_type: str
) -> None:
    ends = {"{": '"]}}', '"': '"'}.get(begins[0], "")
    with chat_server([Reply(f"{begins}{KEY} is wrong{ends}".encode(), status, content_type)]) as server:
        told = failure_of(asked(place, server.url))
    assert "xxxx" in told.replace(" ", "")
    assert KEY[:4] not in told


def test_a_404_names_the_address_that_was_asked(place: Place) -> None:
    for body in (b"", b"404 page not found", b'{"error": {"message": "Not here."}}'):
        with chat_server([Reply(body, 404, "text/plain")]) as server:
            told = failure_of(asked(place, server.url))
        assert f"{server.url}/chat/completions" in told


@pytest.mark.parametrize("error", [None, ""])
def test_an_empty_error_is_none(place: Place, error: str | None) -> None:
    lines = [ollama_line({"content": "Fine."}) | {"error": error}, ollama_end(Said()) | {"error": error}]
    with ollama_server([Reply(ndjson(lines), content_type=NDJSON)]) as server:
        assert answer_of(from_ollama(place, server)) == "Fine."


def test_done_ends_a_messages_reply_that_has_a_stop_reason(place: Place) -> None:
    events = anthropic_events(Said("All."))
    for body in (anthropic_sse(events[:-1]), anthropic_sse(events)):
        with anthropic_server([Reply(body + b"data: [DONE]\n\n")]) as server:
            assert answer_of(from_anthropic(place, server)) == "All."
            assert len(server.requests) == 1


def test_use_below_zero_counts_nothing(place: Place) -> None:
    usage = {"prompt_tokens": -5, "completion_tokens": -7, "cost": -1.5}
    with chat_server([Reply(chat_sse([chat_chunk({"content": "Hi."}, "stop", usage=usage)]))]) as server:
        ran = asked(place, server.url)
    assert answer_of(ran) == "Hi."
    assert (ran.result["usage"]["input_tokens"], ran.result["usage"]["output_tokens"]) == (0, 0)
    assert not ran.result["total_cost_usd"]


# Addresses


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999/v1", "localhost:8000/v1", "http://", "http://[::1/v1"])
def test_a_malformed_address_is_a_configuration_error_that_names_its_variable(place: Place, address: str) -> None:
    for provider, variable in (("openai", "OPENAI_BASE_URL"), ("anthropic", "ANTHROPIC_BASE_URL")):
        ran = place.run("-m", f"{provider}/m", "-p", "go", env=addresses("http://127.0.0.1:9") | {variable: address})
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"agentcli: {variable}: this is not a server address")
    ran = place.run("-m", "ollama/m", "-p", "go", env={"OLLAMA_HOST": "127.0.0.1:99999"})
    assert (ran.code, "OLLAMA_HOST" in ran.err) == (2, True)


def test_settings_that_no_request_can_be_made_of_are_configuration_errors(place: Place) -> None:
    place.home.mkdir(exist_ok=True)
    for line in ('base_url = "http://127.0.0.1:99999/v1"', 'base_url = "http://h/v1"\nheaders = {"x y" = "1"}'):
        (place.home / "config.toml").write_text(f"[providers.mine]\n{line}\n")
        ran = place.run("-m", "mine/m", "-p", "go")
        assert (ran.code, "providers.mine" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("localhost", "http://localhost:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("::1", "http://[::1]:11434"),
        ("[::]:80", "http://[::1]:80"),
        ("box/ollama", "http://box:11434/ollama"),
        ("http://0.0.0.0:11434/", "http://127.0.0.1:11434/"),
        ("https://box", "https://box"),
    ],
)
def test_ollama_host_is_read_as_ollama_does(written: str, address: str) -> None:
    assert ollama_address(written) == address


# Ollama


def from_ollama(place: Place, server: LoopbackServer, **env: str) -> Ran:
    return place.run(
        "-m", "ollama/qwen3:8b", "-p", "go", "--output-format", "json", env={"OLLAMA_HOST": server.url, **env}
    )


LOADED = ollama_line(done=True, done_reason="load")


def test_a_model_that_was_only_loaded_is_asked_again(place: Place) -> None:
    with ollama_server([Reply(ndjson([LOADED]), content_type=NDJSON), ollama_reply("Ready.")]) as server:
        assert answer_of(from_ollama(place, server)) == "Ready."


def test_a_reply_that_follows_the_loading_is_read(place: Place) -> None:
    body = ndjson([LOADED]) + ollama_reply("Ready.").body
    with ollama_server([Reply(body, content_type=NDJSON)]) as server:
        assert answer_of(from_ollama(place, server)) == "Ready."


@pytest.mark.parametrize("reason", ["load", "unload"])
def test_a_model_that_never_answers_is_reported(place: Place, reason: str) -> None:
    reply = Reply(ndjson([LOADED | {"done_reason": reason}]), content_type=NDJSON)
    with ollama_server([reply] * 9) as server:
        told = failure_of(from_ollama(place, server, AGENTCLI_RETRY_MAX="1"))
        assert len(server.requests) == 2
    assert f"only {reason}ed qwen3:8b" in told


def test_json_lines_may_begin_with_a_byte_order_mark(place: Place) -> None:
    for cut in (lambda body: [body], lambda body: [body[at : at + 1] for at in range(len(body))]):
        reply = ollama_reply("Hi.")
        with ollama_server([reply.but(body=b"\xef\xbb\xbf" + reply.body, cut=cut)]) as server:
            assert answer_of(from_ollama(place, server)) == "Hi."


# Waits


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("600", "600 s (10 min)"),
        ("5400.0", "5400 s (1 h 30 min)"),
        ("90", "90 s (1 min 30 s)"),
        ("date", "(1 h"),
        ("172800", "172800 s (2 d)"),
    ],
)
def test_a_far_retry_after_is_reported_and_not_waited_for(place: Place, value: str, says: str) -> None:
    value = formatdate(time.time() + 3_700, usegmt=True) if value == "date" else value
    slow = json_reply({"error": {"message": "Slow down."}}, 429, retry_after=value)
    started = time.monotonic()
    with chat_server([slow, chat_reply("Now.")]) as server:
        told = failure_of(asked(place, server.url))
        assert len(server.requests) == 1
    assert time.monotonic() - started < 60  # of the 90 s at least
    assert "Slow down (HTTP 429). The server asks to wait" in told
    assert says in told


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama"])
def test_a_check_tells_a_far_retry_after(place: Place, provider: str) -> None:
    slow = json_reply({"error": {"message": "Slow down."}}, 429, retry_after="5400")
    with chat_server([]) as server:
        for route in (
            "GET /v1/models",
            "GET /models",
            "GET /v1/models/m",
            "GET /v1/v1/models/m",
            "POST /v1/api/show",
            "POST /api/show",
        ):
            server._routes[route] = slow
        ran = place.run("models", "check", f"{provider}/m", env=addresses(server.url))
    assert ran.code == 1
    assert f"{provider}/m: Slow down. The server asks to wait 5400 s (1 h 30 min), until " in ran.out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", ["0", "0.02", "-3", "nan", "inf", "soon", "past", "naive"])
def test_a_near_or_senseless_retry_after_is_retried(place: Place, value: str) -> None:
    value = {"past": formatdate(time.time() - 5, usegmt=True), "naive": "Sun, 22 Nov 2020 10:00:00"}.get(value, value)
    slow = json_reply({"error": {"message": "Slow down."}}, 429, retry_after=value)
    with chat_server([slow, chat_reply("Now.")]) as server:
        assert answer_of(asked(place, server.url)) == "Now."


# Proxies

THERE = "http://model.example/v1"


@pytest.mark.parametrize(
    ("variable", "scheme"), [("HTTP_PROXY", "socks5"), ("all_proxy", "socks5h"), ("ALL_PROXY", "socks")]
)
def test_a_socks_proxy_leads_to_the_server(place: Place, variable: str, scheme: str) -> None:
    with chat_server([chat_reply("Hi.")]) as server, socks_server(server.port) as proxy:
        assert answer_of(asked(place, THERE, **{variable: f"{scheme}://{proxy.address}"})) == "Hi."
        assert proxy.asked_for == ["model.example:80"]
        assert server.requests[0].headers["host"] == "model.example"


def test_a_socks_proxy_may_want_a_password(place: Place) -> None:
    with chat_server([chat_reply("Hi.")]) as server, socks_server(server.port, login="me:p@ss") as proxy:
        assert answer_of(asked(place, THERE, ALL_PROXY=f"socks5h://me:p%40ss@{proxy.address}")) == "Hi."
        for address in (proxy.address, f"me:wrong-word@{proxy.address}"):
            told = failure_of(asked(place, THERE, ALL_PROXY=f"socks5h://{address}"))
            assert f"proxy socks5h://{proxy.address}" in told
            assert "wrong-word" not in told
        assert len(server.requests) == 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("proxy_scheme", "scheme"), [("socks5", "http"), ("socks5h", "https"), ("http", "https")])
def test_a_proxy_that_takes_the_connection_and_stays_silent_is_not_a_connection(
    place: Place, proxy_scheme: str, scheme: str
) -> None:
    started = time.monotonic()
    with socks_server(1, silent=True) as proxy:
        address = proxy.address
        variables = {"ALL_PROXY": f"{proxy_scheme}://me:hidden@{address}", "AGENTCLI_RETRY_MAX": "0"}
        told = failure_of(asked(place, f"{scheme}://model.example/v1", **variables))
    assert time.monotonic() - started < 40
    assert f"{scheme}://model.example/v1 (through the proxy {proxy_scheme}://{address}) did not accept" in told
    assert "within 10 s" in told


def test_a_proxy_that_refuses_is_reported_as_one(place: Place) -> None:
    with socks_server(1, refuses=True) as proxy:
        told = failure_of(asked(place, THERE, ALL_PROXY=f"socks5://{proxy.address}", AGENTCLI_RETRY_MAX="1"))
        assert len(proxy.asked_for) == 2
    assert "Connection refused" in told
    assert "proxy" in told


@pytest.mark.parametrize("says", [b"", b"\x05", b"\x05\x00\x05", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_is_not_a_socks_proxy_is_a_broken_connection(place: Place, says: bytes) -> None:
    with socks_server(1, answers=says) as proxy:
        address = proxy.address
        told = failure_of(asked(place, THERE, ALL_PROXY=f"socks5://{proxy.address}", AGENTCLI_RETRY_MAX="0"))
    assert f"The connection to {THERE} (through the proxy socks5://{address}) broke" in told


def test_a_plain_proxy_leads_to_the_server(place: Place) -> None:
    def through(received: Received) -> Reply:
        return chat_reply(received.path)

    for address in ("http://127.0.0.1:{}", "127.0.0.1:{}", "HTTP://127.0.0.1:{}/"):
        with chat_server() as proxy:
            proxy._routes[f"POST {THERE}/chat/completions"] = through
            ran = asked(place, THERE, HTTP_PROXY=address.format(proxy.port), ALL_PROXY="http://127.0.0.1:9")
            assert answer_of(ran) == f"{THERE}/chat/completions"


def test_a_proxy_that_is_down_is_named(place: Place) -> None:
    told = failure_of(asked(place, THERE, HTTP_PROXY="http://me:hidden@127.0.0.1:9", AGENTCLI_RETRY_MAX="0"))
    assert "through the proxy http://127.0.0.1:9" in told
    assert "hidden" not in told


@pytest.mark.parametrize("value", ["http://me:hidden@", "socks4://host:1", "http://host:port"])
def test_a_broken_proxy_variable_is_a_configuration_error(place: Place, value: str) -> None:
    ran = asked(place, THERE, HTTP_PROXY=value)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("agentcli: HTTP_PROXY: no usable proxy address")
    assert "hidden" not in ran.err
    ran = place.run("-m", "anthropic/m", "-p", "go", env={"ANTHROPIC_API_KEY": KEY, "ALL_PROXY": value})
    assert ran.code == 2
    assert "ALL_PROXY" in ran.err


def test_a_broken_proxy_variable_harms_nobody_who_does_not_need_it(place: Place) -> None:
    with chat_server([chat_reply("Hi.")]) as server:
        assert answer_of(asked(place, server.url, HTTP_PROXY="http://", ALL_PROXY="ftp://x")) == "Hi."
    assert place.run("-m", place.script({"text": "Hi."}), "-p", "go", env={"ALL_PROXY": "ftp://x"}).code == 0


def test_no_proxy_is_kept_to(place: Place) -> None:
    with chat_server([chat_reply("Hi.")]) as server, socks_server(server.port) as proxy:
        env = {"ALL_PROXY": f"socks5://{proxy.address}", "AGENTCLI_RETRY_MAX": "0"}
        assert "Could not connect" in failure_of(asked(place, THERE, NO_PROXY="a, .example", **env))
        assert proxy.asked_for == []
        assert asked(place, THERE, NO_PROXY="other.example", **env).code == 0


# What was paid


PRICED = """
[models.openai."test-model"]
prices = { input = 10.0, output = 100.0 }
"""
USAGE = {"prompt_tokens": 1_000, "completion_tokens": 10}


def paid(ran: Ran) -> tuple[int, int, float]:
    usage = ran.result["usage"]
    (by_model,) = ran.result["model_usage"].values()
    assert by_model["input_tokens"] == usage["input_tokens"]
    assert by_model["cost_usd"] == ran.result["total_cost_usd"]
    return usage["input_tokens"], usage["output_tokens"], round(ran.result["total_cost_usd"], 6)


@pytest.fixture
def priced(place: Place) -> Place:
    place.home.mkdir(exist_ok=True)
    (place.home / "config.toml").write_text(PRICED)
    return place


def goes_on(place: Place, *arguments: str) -> dict[str, Any]:
    """The session's whole use, as a resumed session knows it."""
    with chat_server([Reply(chat_sse([chat_chunk({"content": "On."}, "stop", usage=USAGE)]))]) as server:
        ran = asked(place, server.url, "--continue")
    (by_model,) = ran.result["model_usage"].values()
    return dict(by_model)


BROKEN = {
    "after text, and again": ([{"content": "Half"}], 2),
    "in its thinking, and again": ([{"reasoning_content": "Hm"}], 2),
    "in a call, and again": ([{"tool_calls": [call_delta(0, "a", "bash", '{"comm')]}], 2),
    "in silence, and again": ([{"content": ""}], 2),
}


@pytest.mark.parametrize("where", BROKEN)
def test_a_reply_that_broke_is_paid_for_now_and_after_a_restart(priced: Place, where: str) -> None:
    deltas, tries = BROKEN[where]
    body = chat_sse([chat_chunk(delta, usage=USAGE) for delta in deltas], done=False)
    broken = Reply(body + b"data: {", breaks_after=len(body))
    with chat_server([broken] * 2) as server:
        ran = asked(priced, server.url, AGENTCLI_RETRY_MAX="1")
        assert len(server.requests) == tries
    assert ran.code == 1
    assert paid(ran) == (1_000 * tries, 10 * tries, 0.011 * tries)
    whole = goes_on(priced)
    assert (whole["input_tokens"], round(whole["cost_usd"], 6)) == (1_000 * (tries + 1), round(0.011 * (tries + 1), 6))


def test_a_dry_run_that_broke_is_paid_for_beside_the_reply_that_came(priced: Place) -> None:
    body = chat_sse([chat_chunk({"content": ""}, usage=USAGE)], done=False)
    whole = Reply(chat_sse([chat_chunk({"content": "Now."}, "stop", usage=USAGE)]))
    with chat_server([Reply(body, breaks_after=len(body)), whole]) as server:
        ran = asked(priced, server.url)
    assert answer_of(ran) == "Now."
    assert paid(ran) == (2_000, 20, 0.022)
    assert goes_on(priced)["input_tokens"] == 3_000


def test_an_interrupted_reply_is_paid_for_now_and_after_a_restart(priced: Place) -> None:
    body = anthropic_reply("All is well with it.").body
    slow = Reply(body, falls_silent_after=body.index(b"well"))
    with anthropic_server([slow, anthropic_reply("On.")]) as server:
        env = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": KEY}
        arguments = ("-m", "anthropic/claude-sonnet-5-5", "--output-format", "stream-json")
        with priced.start(*arguments, "-p", "go", "--include-partial-messages", env=env) as running:
            running.wait_for(lambda line: line.get("event", {}).get("type") == "content_block_delta")
            running.signal(signal.SIGINT)
            ran = running.left()
        assert ran.code == 130
        first = paid(ran)
        assert first[0] == 200
        assert first[1] == 1
        assert first[2] > 0
        (partial,) = [line for line in ran.of("assistant") if line["message"]["stop_reason"] == "interrupted"]
        assert partial["message"]["usage"]["input_tokens"] == 200
        ran = priced.run(*arguments, "-p", "on", "--continue", env=env)
    (whole,) = ran.result["model_usage"].values()
    assert whole["input_tokens"] == 400
    assert whole["cost_usd"] == pytest.approx(first[2] + ran.result["total_cost_usd"])


def test_a_reply_that_broke_before_anything_was_counted_leaves_the_price_known(priced: Place) -> None:
    body = chat_sse([chat_chunk({"content": "Half"})], done=False)
    with chat_server([Reply(body, breaks_after=len(body))] * 2) as server:
        assert asked(priced, server.url).result["total_cost_usd"] > 0  # an estimate: it was paid for all the same
    assert goes_on(priced)["cost_usd"] > 0.011


def test_a_refusal_is_paid_for_after_a_restart(priced: Place) -> None:
    with chat_server([Reply(chat_sse([chat_chunk({"refusal": "No."}, "stop", usage=USAGE)]))]) as server:
        ran = asked(priced, server.url)
    assert paid(ran) == (1_000, 10, 0.011)
    assert goes_on(priced)["input_tokens"] == 2_000


def test_a_scripted_reply_that_breaks_is_paid_for(place: Place) -> None:
    script = place.script({"text": "Half", "usage": {"input_tokens": 7}, "error": {"kind": "connection"}})
    ran = place.run("-m", script, "-p", "go", "--output-format", "json")
    assert (ran.code, ran.result["usage"]["input_tokens"]) == (1, 7)
