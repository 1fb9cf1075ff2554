"""Replies without an end: cancelled at a limit that is named, and kept in a bounded form."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.app.running import Place, Ran
from tests.conformance.replies import (
    anthropic_sse,
    block,
    call_delta,
    chat_chunk,
    chat_sse,
    message_start,
    ndjson,
    ollama_line,
)
from tests.conformance.servers import (
    NDJSON,
    LoopbackServer,
    Reply,
    anthropic_server,
    at_events,
    at_lines,
    chat_server,
    ollama_server,
)

KB = "x" * 1_024


def asked(place: Place, provider: str, server: LoopbackServer, **env: str) -> Ran:
    place_of = dict.fromkeys(("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "OLLAMA_HOST"), server.url)
    keys = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-1"}
    model = {"anthropic": "anthropic/claude-sonnet-5-5"}.get(provider, f"{provider}/m")
    return place.run("-m", model, "-p", "go", "--output-format", "json", env=place_of | keys | env)


def endless(provider: str, kilobytes: int = 2_048) -> Reply:
    """Text that never ends: the connection stays open behind it."""
    match provider:
        case "openai":
            body, cut, kind = chat_sse([chat_chunk({"content": KB})] * kilobytes, done=False), at_events, {}
        case "anthropic":
            deltas = [{"type": "text_delta", "text": KB}] * kilobytes
            events = [message_start(), *block(0, {"type": "text", "text": ""}, deltas, ends=False)]
            body, cut, kind = anthropic_sse(events), at_events, {}
        case _:
            body, cut = ndjson([ollama_line({"content": KB})] * kilobytes), at_lines
            kind = {"content_type": NDJSON}
    return Reply(body, cut=cut, falls_silent_after=len(body), **kind)


SERVERS = {"openai": chat_server, "anthropic": anthropic_server, "ollama": ollama_server}


@pytest.mark.parametrize("provider", SERVERS)
def test_text_without_end_is_cancelled_and_kept_bounded(place: Place, provider: str) -> None:
    with SERVERS[provider]([endless(provider)]) as server:
        ran = asked(place, provider, server, AGENTCLI_LIMITS_MAX_REPLY_MB="1")
        assert len(server.requests) == 1
        assert server.requests[0].left.wait(5)
    assert ran.code == 1
    assert "limits.max_reply_mb = 1 MB, so the request was cancelled" in ran.result["result"]
    shown = place.run("sessions", "show", ran.result["session_id"], "--json").out
    (said,) = [block["text"] for block in json.loads(shown)["messages"][1]["content"]]
    assert len(said) < 201_000
    assert "characters of this reply omitted" in said


def test_arguments_without_end_are_cancelled_and_never_run(place: Place) -> None:
    deltas: list[dict[str, Any]] = [call_delta(0, "c", "file_write", '{"path":"a","content":"')]
    deltas += [call_delta(0, None, None, KB)] * 2_048
    body = chat_sse([chat_chunk({"tool_calls": [delta]}) for delta in deltas], done=False)
    with chat_server([Reply(body, cut=at_events, falls_silent_after=len(body))]) as server:
        ran = asked(place, "openai", server, AGENTCLI_LIMITS_MAX_ARGUMENTS_MB="1")
        assert len(server.requests) == 1
    assert "limits.max_arguments_mb = 1 MB" in ran.result["result"]
    assert ran.code == 1


def test_a_reply_that_takes_too_long_as_a_whole_is_cancelled(place: Place) -> None:
    slow = endless("openai").but(pause_s=0.05)
    with chat_server([slow]) as server:
        ran = asked(place, "openai", server, AGENTCLI_LIMITS_MAX_REPLY_S="0.3")
        assert len(server.requests) == 1
    assert "limits.max_reply_s = 0.3 seconds" in ran.result["result"]


@pytest.mark.slow
def test_a_compressed_reply_that_unfolds_without_end_is_cancelled(place: Place) -> None:
    body = gzip.compress(chat_sse([chat_chunk({"content": KB})] * 20_000, done=False))
    with chat_server([Reply(body, headers={"content-encoding": "gzip"})]) as server:
        assert "limits.max_reply_mb = 8 MB" in asked(place, "openai", server).result["result"]
