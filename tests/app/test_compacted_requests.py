"""Compaction before a server that counts tokens, binds thinking to all before it, and refuses what is too long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcli import Agent, AgentOptions
from agentcli.agent.events import Compaction
from tests.conformance.replies import Call, Said, anthropic_events, anthropic_sse, chat_reply
from tests.conformance.servers import ANTHROPIC_MODEL, SSE, Received, Reply, anthropic_server, chat_server, json_reply

WINDOW = 12_000
BYTES_PER_TOKEN = 3.4


def unmarked(value: Any) -> Any:
    """A part of a request without its cache breakpoints, which bind nothing."""
    if isinstance(value, dict):
        return {key: unmarked(item) for key, item in value.items() if key != "cache_control"}
    return [unmarked(item) for item in value] if isinstance(value, list) else value


class Strict:
    """A server's judgement: refuses thinking whose signature was given for other messages, and prompts too long."""

    def __init__(self, turns: int) -> None:
        self.said: list[Said] = []
        for number in range(turns):
            use = Call(f"toolu_{number:04}", "file_read", {"path": f"f{number % 5}.txt"})
            self.said += [Said(thinking=f"I need f{number % 5}.", calls=(use,)), Said(f"Answer {number}.")]
        self.signed: dict[str, str] = {}
        self.refused: list[str] = []
        self.counts: list[int] = []
        self.real_window = WINDOW

    def answers(self) -> Iterator[Any]:
        while True:
            yield self.answer

    def answer(self, received: Received) -> Reply:
        body = unmarked(received.json)
        tokens = int(len(received.body) / BYTES_PER_TOKEN)
        if tokens > self.real_window:
            return self.refuse(f"prompt is too long: {tokens} tokens > {self.real_window} maximum")
        for number, message in enumerate(body["messages"]):
            for block in message["content"] if isinstance(message["content"], list) else ():
                before = json.dumps([body["system"], body["tools"], body["messages"][:number]])
                if block["type"] == "thinking" and self.signed[block["signature"]] != before:
                    return self.refuse(f"messages.{number}.content.0: Invalid `signature` in `thinking` block.")
        signature = f"sig{len(self.counts)}"
        self.signed[signature] = json.dumps([body["system"], body["tools"], body["messages"]])
        said = self.said[len(self.counts)]
        self.counts.append(tokens)
        counted = Said(said.text, said.thinking, said.calls, prompt_tokens=tokens, cached_tokens=0)
        return Reply(anthropic_sse(anthropic_events(counted, signature=signature)), content_type=SSE)

    def refuse(self, message: str) -> Reply:
        self.refused.append(message)
        error = {"type": "invalid_request_error", "message": message}
        return json_reply({"type": "error", "error": error, "request_id": "req_1"}, 400)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTCLI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    folder = tmp_path / "work"
    folder.mkdir()
    for number in range(5):
        (folder / f"f{number}.txt").write_text(f"a line of file {number}\n" * 60)
    return folder


async def ask(agent: Agent, turns: int) -> list[Compaction]:
    compactions = []
    for number in range(turns):
        async for event in agent.stream(f"Question {number}?"):
            if isinstance(event, Compaction):
                compactions.append(event)
    return compactions


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["auto", "truncate", "extract"])
async def test_nothing_is_refused_across_compactions(
    work: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = Strict(60)
    model = json_reply(ANTHROPIC_MODEL | {"max_input_tokens": WINDOW})
    with anthropic_server(strict.answers(), model=model) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        rows = {"anthropic": {"claude-sonnet-5-5": {"window": WINDOW, "thinking": "adaptive"}}}
        settings = {"compaction": {"strategy": strategy}, "models": rows}
        async with Agent("anthropic/claude-sonnet-5-5", cwd=work, options=AgentOptions(settings=settings)) as agent:
            compactions = await ask(agent, 60)
    assert len(compactions) >= 3
    assert strict.refused == []
    after = [count for before, count in zip(strict.counts, strict.counts[1:], strict=False) if count < before]
    assert len(after) == len(compactions)
    assert all(count <= 0.36 * WINDOW for count in after)  # as the server counts, not as we estimate


@pytest.mark.slow
async def test_a_window_smaller_than_is_known_is_found_out(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = Strict(40)
    strict.real_window = 9_000
    with anthropic_server(strict.answers()) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        rows = {"anthropic": {"claude-sonnet-5-5": {"window": 200_000, "thinking": "adaptive"}}}
        async with Agent(
            "anthropic/claude-sonnet-5-5", cwd=work, options=AgentOptions(settings={"models": rows})
        ) as agent:
            compactions = await ask(agent, 40)
    assert {event.trigger for event in compactions} == {"overflow"}
    assert len(strict.refused) == len(compactions) >= 2
    assert len(strict.counts) == 80


@pytest.mark.slow
async def test_another_model_continues_behind_a_compaction(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = Strict(30)
    with anthropic_server(strict.answers()) as server, chat_server([chat_reply("From the other.")] * 3) as other:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
        rows = {
            "anthropic": {"claude-sonnet-5-5": {"window": WINDOW, "thinking": "adaptive"}},
            "openai": {"test-model": {"window": 6_000}},
        }
        async with Agent(
            "anthropic/claude-sonnet-5-5", cwd=work, options=AgentOptions(settings={"models": rows})
        ) as agent:
            compactions = await ask(agent, 20)
            (await agent.session()).state.model.name = "openai/test-model"
            assert (await agent.run("And you?")).text == "From the other."
            (await agent.session()).state.model.name = "anthropic/claude-sonnet-5-5"
            assert (await agent.run("Back again?")).text or strict.counts
    assert compactions
    assert "Question 0?" in json.dumps(other.requests[0].json)
    assert strict.refused == []
