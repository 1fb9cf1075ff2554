"""The prompt cache: nothing agentcli does breaks a prefix, and what was lost otherwise is told with its cause."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.app.running import Place, Ran
from tests.app.terminal import Terminal
from tests.conformance.replies import anthropic_sse, block, call_delta, chat_chunk, chat_sse, message_end, message_start
from tests.conformance.servers import Answer, LoopbackServer, Received, Reply, anthropic_server, chat_server

pytestmark = pytest.mark.slow

STREAM = ("--output-format", "stream-json", "--input-format", "stream-json", "--permission-mode", "acceptEdits")
LOOK_BACK = 20  # blocks from a breakpoint in which the API looks for what was written before


def unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


def parts_of(body: dict[str, Any]) -> list[tuple[str, bool]]:
    """Everything a prompt holds in the order it is cached, and whether a breakpoint stands on it."""
    system = body.get("system", [])
    parts = [*body.get("tools", ()), *system]
    for message in body["messages"]:
        content = message.get("content")
        if "tool_calls" in message or not isinstance(content, list):
            parts.append(message)
        else:
            parts += [{"role": message["role"], **one} for one in content]
    return [(json.dumps(unmarked(part)), "cache_control" in part) for part in parts]


class Cache:
    """Keeps prompts as the providers do; gives what was read and written, in characters for tokens."""

    def __init__(self, *, explicit: bool) -> None:
        self._explicit = explicit
        self._kept: set[str] = set()

    def read(self, body: dict[str, Any]) -> tuple[int, int, int]:
        """Characters read, written, and neither."""
        parts = parts_of(body)
        prefixes = [body["model"] + "\0".join(text for text, _ in parts[: n + 1]) for n in range(len(parts))]
        marks = [n for n, (_, is_marked) in enumerate(parts) if is_marked] if self._explicit else [len(parts) - 1]
        assert len(marks) <= 4
        back = LOOK_BACK if self._explicit else len(parts)
        hits = (n for mark in reversed(marks) for n in range(mark, max(-1, mark - back), -1))
        hit = next((len(prefixes[n]) for n in hits if prefixes[n] in self._kept), 0)
        self._kept |= {prefixes[n] for n in (marks if self._explicit else range(len(parts)))}
        last = len(prefixes[marks[-1]]) if marks else 0
        return hit, last - hit, len(prefixes[-1]) - last

    def forget(self) -> None:
        self._kept.clear()


Said = str | dict[str, Any] | list[dict[str, Any]]  # a text, or the arguments of calls of bash


def answers(said: Iterator[Said], cache: Cache) -> Iterator[Answer]:
    """Replies in the Messages API."""
    numbers = iter(range(1_000))

    def answer(received: Received) -> Reply:
        body = received.json
        read, written, rest = cache.read(body)
        start = message_start(body["model"], rest, read)
        start["message"]["usage"]["cache_creation_input_tokens"] = written
        one = next(said, "Fine.")
        content = []
        if isinstance(one, str):
            content = block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": one}])
        for index, input in enumerate([one] if isinstance(one, dict) else one if isinstance(one, list) else []):
            call = {"type": "tool_use", "id": f"toolu_{next(numbers)}", "name": "bash", "input": {}}
            content += block(index, call, [{"type": "input_json_delta", "partial_json": json.dumps(input)}])
        stop = "end_turn" if isinstance(one, str) else "tool_use"
        return Reply(anthropic_sse([start, *content, *message_end(stop, 20)]))

    while True:
        yield answer


def chat_answers(said: Iterator[Said], cache: Cache) -> Iterator[Answer]:
    """Replies in Chat Completions."""
    numbers = iter(range(1_000))

    def answer(received: Received) -> Reply:
        read, written, rest = cache.read(received.json)
        one = next(said, "Fine.")
        usage = {
            "prompt_tokens": read + written + rest,
            "completion_tokens": 20,
            "prompt_tokens_details": {"cached_tokens": read // 128 * 128},
        }
        if isinstance(one, str):
            chunks = [chat_chunk({"content": one}, "stop", usage=usage)]
        else:
            call = call_delta(0, f"call_{next(numbers)}", "bash", json.dumps(one))
            chunks = [chat_chunk({"tool_calls": [call]}, "tool_calls", usage=usage)]
        return Reply(chat_sse(chunks))

    while True:
        yield answer


WIRES: dict[str, tuple[Any, Callable[[Iterator[Said], Cache], Iterator[Answer]], tuple[str, str]]] = {
    "anthropic": (anthropic_server, answers, ("anthropic/claude-sonnet-5-5", "anthropic/claude-opus-5-5")),
    "openai": (chat_server, chat_answers, ("openai/gpt-6.1-sol", "openai/test-model")),
}


def environment(server: LoopbackServer) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-test",
        "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-test",
    }  # fmt: skip


def command(place: Place, server: LoopbackServer, text: str, *flags: str) -> str:
    model = "anthropic/claude-sonnet-5-5"
    return place.run("-m", model, "-c", "-p", text, *flags, env=environment(server)).out


@pytest.mark.full
@pytest.mark.parametrize("wire", WIRES)
def test_no_request_of_a_long_session_changes_an_earlier_byte(place: Place, wire: str) -> None:
    made, replies, (model, other) = WIRES[wire]
    (place.folder / "AGENTS.md").write_text("Use tabs.\n")
    (place.folder / "notes.md").write_text("A note.\n")
    looks: list[Said] = [{"command": f"echo step {n}"} for n in range(30)]
    writes: Said = {"command": "echo more > made.txt"}
    said: list[Said] = [
        *looks, "Done.", "Planned.", "Back.", writes, "Written.", "Other.", "Again.", *looks[:12], "Steered.",
        "Read.", "Resumed.", "Still.",
    ]  # fmt: skip
    cache = Cache(explicit=wire == "anthropic")
    with made(replies(iter(said), cache)) as server:
        env = environment(server)

        def turns(running: Any, number: int) -> None:
            running.wait_for(lambda line: len(results(running)) >= number)

        def results(running: Any) -> list[Any]:
            return [line for line in map(json.loads, running._out) if line["type"] == "result"]

        with place.start("-m", model, "--max-turns", "60", *STREAM, env=env, stdin=True) as running:
            running.say("go")
            turns(running, 1)
            running.control("set_permission_mode", mode="plan")
            running.say("plan it")
            turns(running, 2)
            running.control("set_permission_mode", mode="acceptEdits")
            running.say("go on")
            turns(running, 3)
            running.control("command", text="/context")
            running.say("write it")
            turns(running, 4)
            running.control("set_model", model=other)
            running.say("and you?")
            turns(running, 5)
            running.control("set_model", model=model)
            running.say("now you again")
            turns(running, 6)
            running.say("once more")
            running.control("steer", message={"role": "user", "content": "be brief"})
            turns(running, 7)
            running.say("look at @notes.md")
            turns(running, 8)
            ran: Ran = running.ended()
        assert ran.code == 0, ran.err
        ran = place.run("-m", model, "-c", "-p", "on", "--output-format", "json", env=env)
        assert ran.code == 0, ran.err
        ran = place.run("-m", model, "-c", "-p", "and on", "--output-format", "json", env=env)
        shown = place.run("-m", model, "-c", "-p", "/cache", env=env).out
        why = place.run("-m", model, "-c", "-p", "/cache why", env=env).out
    bodies = [request.json for request in server.requests]
    assert len(bodies) >= 50
    for before, after in pairwise(bodies):
        old, new = ([text for text, _ in parts_of(body)] for body in (before, after))
        assert new[: len(old)] == old
        assert before["model"] != after["model"] or _head(before) == _head(after)
    # Two changes of the model; the way back finds what had been kept.
    assert "  missed: " in shown
    lost = why.count(" tokens read, extra cost: ")
    assert lost == 2 if wire == "anthropic" else lost >= 1


def _head(body: dict[str, Any]) -> Any:
    """What stands beside the messages; how long a reply may be is no part of the prompt."""
    return unmarked({key: value for key, value in body.items() if key not in ("messages", "max_tokens")})


def test_a_session_that_continues_after_many_results_reads_what_was_kept(place: Place) -> None:
    many: Said = [{"command": f"echo {n}"} for n in range(LOOK_BACK + 10)]
    with anthropic_server(answers(iter(["Hi.", many]), Cache(explicit=True))) as server:
        model = ("-m", "anthropic/claude-sonnet-5-5")
        place.run(*model, "-p", "hi", env=environment(server))
        ran = place.run(*model, "-c", "-p", "go", "--max-turns", "1", env=environment(server))
        assert ran.code == 53
        place.run(*model, "-c", "-p", "on", env=environment(server))
        assert command(place, server, "/cache why") == "No cache misses.\n"


def test_what_the_provider_drops_is_reported_with_its_price(place: Place) -> None:
    cache = Cache(explicit=True)
    with anthropic_server(answers(iter(()), cache)) as server:
        command(place, server, "/status")
        model = ("-m", "anthropic/claude-sonnet-5-5")
        place.run(*model, "-p", "go", env=environment(server))
        place.run(*model, "-c", "-p", "on", env=environment(server))
        assert "No cache misses." in command(place, server, "/cache")
        assert command(place, server, "/cache why") == "No cache misses.\n"
        cache.forget()
        place.run(*model, "-c", "-p", "on", env=environment(server))
        shown = command(place, server, "/cache")
        why = command(place, server, "/cache why")
    assert "  missed: " in shown
    found = re.search(r": 0 of ([\d,]+) tokens read, extra cost: \$([\d.]+)$", why, re.MULTILINE)
    assert found, why
    held = int(found[1].replace(",", ""))
    assert held > 1_000
    assert float(found[2]) == pytest.approx(held * (2.5 - 0.1) / 1e6, abs=1e-4)


def grow_older(place: Place, seconds: int) -> None:
    database = sqlite3.connect(place.home / "state" / "sessions.db")
    database.execute("UPDATE entries SET time = time - ?", (seconds,))
    database.commit()
    database.close()


def test_a_provider_that_caches_nothing_loses_nothing(place: Place) -> None:
    model = place.script({"text": "a"}, {"text": "b"})
    place.run("-m", model, "-p", "go")
    place.run("-m", model, "-c", "-p", "on")
    out = place.run("-m", model, "-c", "-p", "/cache").out
    assert "No cache misses." in out
    assert place.run("-m", model, "-c", "-p", "/cache everything").code == 2


def test_a_callers_breakpoint_reaches_the_wire(place: Place) -> None:
    with anthropic_server(answers(iter(()), Cache(explicit=True))) as server:
        with place.start("-m", "anthropic/claude-sonnet-5-5", *STREAM, env=environment(server), stdin=True) as running:
            content = [
                {"type": "text", "text": "A long document.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
                {"type": "text", "text": "What does it say?"},
            ]
            running.send({"type": "user", "message": {"role": "user", "content": content}})
            ran = running.ended()
        assert ran.code == 0, ran.err
    parts = [part for message in server.requests[0].json["messages"] for part in message["content"]]
    marked = [part["cache_control"] for part in parts if part["text"] == "A long document."]
    assert marked == [{"type": "ephemeral", "ttl": "1h"}]


def test_the_status_line_says_what_reading_a_dropped_conversation_costs(place: Place) -> None:
    (place.folder / "script.jsonl").write_text(json.dumps({"text": "Hi.", "usage": {"input_tokens": 100_000}}))
    place.run("-m", "scripted/script.jsonl", "-p", "go")
    flags = ("-m", "anthropic/claude-sonnet-5-5", "-c")
    env = {"ANTHROPIC_API_KEY": "k", "AGENTCLI_HOME": str(place.home)}
    terminal = Terminal(place.folder, *flags, **env)
    try:
        assert "cache expired" not in terminal.settle(1.0)
    finally:
        terminal.close()
    grow_older(place, 400)
    terminal = Terminal(place.folder, *flags, **env)
    try:
        terminal.see(r"cache expired: \$0\.25 to continue")
    finally:
        terminal.close()
