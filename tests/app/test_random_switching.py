"""Models change at random between any two requests, among servers that refuse what the real ones refuse.

The one that plays Anthropic signs its thinking, and takes it back only after the very messages it followed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentcli import Agent, AgentFailed, AgentOptions
from agentcli.llm.models import bundled_models
from tests.app.test_model_switching import work as work
from tests.conformance.backends import CHAT_BACKENDS, AnthropicBackend, Backend, OllamaBackend
from tests.conformance.replies import Call, Said, anthropic_events, anthropic_sse
from tests.conformance.servers import Received, Reply, json_reply

CHAT = {backend.id: backend for backend in CHAT_BACKENDS}
KINDS: dict[str, tuple[Backend, dict[str, Any]]] = {
    "sonnet": (AnthropicBackend(), {}),
    "haiku": (AnthropicBackend(), {"info": bundled_models().find("anthropic", "claude-haiku-4-5")}),
    "openai": (CHAT["openai"], {"info": msgspec.structs.replace(CHAT["openai"].info, takes_images=True)}),
    "deepseek": (CHAT["deepseek"], {}),
    "openrouter": (CHAT["openrouter"], {}),
    "ollama": (OllamaBackend(), {}),
    "local": (CHAT["local"], {}),
}
IDS = ("call_0", "functions.file_read:1", "toolu_01", "")


class Signed:
    """Anthropic's hold on its thinking: a block is bound to all that was sent before it, but for other thinking."""

    def __init__(self) -> None:
        self.prefixes: dict[str, str] = {}
        self.refusals = 0

    def refusal(self, body: dict[str, Any]) -> Reply | None:
        for number, message in enumerate(body["messages"]):
            for block in message["content"]:
                if block["type"] == "thinking" and self.prefixes[block["signature"]] != prefix(body, number):
                    self.refusals += 1
                    why = f"messages.{number}.content.0: Invalid `signature` in `thinking` block."
                    return json_reply(
                        {"type": "error", "error": {"type": "invalid_request_error", "message": why}}, 400
                    )
        return None

    def reply(self, body: dict[str, Any], said: Said) -> Reply:
        signature = f"Sig{len(self.prefixes)}"
        self.prefixes[signature] = prefix(body, len(body["messages"]))
        return Reply(anthropic_sse(anthropic_events(said, signature=signature)))


def prefix(body: dict[str, Any], end: int) -> str:
    """What stands before a message, as the API compares it: neighbours of one role joined, marks left out."""
    said = [
        (message["role"], {key: value for key, value in block.items() if key != "cache_control"})
        for message in body["messages"][:end]
        for block in message["content"]
        if block["type"] not in ("thinking", "redacted_thinking")
    ]
    tools = [{key: value for key, value in tool.items() if key != "cache_control"} for tool in body.get("tools", ())]
    return json.dumps([body.get("system"), tools, said], sort_keys=True).replace('"cache_control"', "")


def said_next(rng: random.Random, received: Received) -> Said:
    """Thinking, text, and at times calls; some of them fail."""
    files = ("a.png", "a.txt", "missing.txt", "a.txt")
    calls = tuple(
        Call(rng.choice(IDS), rng.choice(("file_read", "file_read", "no.such tool")), {"path": rng.choice(files)})
        for _ in range(rng.choice((0, 0, 1, 2)))
    )
    text = "" if calls and rng.random() < 0.5 else f"Word {rng.randrange(1_000)}."
    return Said(text, rng.choice(("", "Let me think.")), calls, prompt_tokens=len(received.body) // 4, cached_tokens=0)


def answers(backend: Backend, rng: random.Random, signed: Signed, breaks: list[int]) -> Iterator[Any]:
    def answer(received: Received) -> Reply:
        body, said = received.json, said_next(rng, received)
        if isinstance(backend, AnthropicBackend):
            reply = signed.refusal(body) or signed.reply(body, said)
        else:
            reply = backend.reply(said)
        if reply.status == 200 and rng.random() < 0.1:
            breaks.append(1)
            return reply.but(breaks_after=len(reply.body) * 2 // 3)
        return reply

    while True:
        yield answer


async def play(work: Path, seed: int, prompts: int) -> tuple[int, int, int]:
    """How many requests were made, replies broken, and requests refused for their thinking."""
    rng, signed, breaks, requests = random.Random(seed), Signed(), [], 0
    async with AsyncExitStack() as stack:
        providers = []
        for backend, how in KINDS.values():
            stage = await stack.enter_async_context(backend.playing(*(), **how))
            stage.server._script = answers(backend, rng, signed, breaks)
            providers.append(stage.provider)

        async def resolve(state: Any) -> Any:
            nonlocal requests
            requests += 1
            provider = rng.choice(providers)
            return provider, provider.info

        settings = {"tokens": {"effort": "high"}, "limits": {"max_turns": 6}}
        async with Agent("ollama/any", cwd=work, options=AgentOptions(resolve=resolve, settings=settings)) as agent:
            for number in range(prompts):
                try:
                    await agent.run(f"prompt {number}" + rng.choice(("", " about @a.png", " about @a.txt")))
                except AgentFailed as failed:  # a stream that broke
                    if not failed.is_retryable:
                        raise
    return requests, len(breaks), signed.refusals


async def test_no_model_refuses_what_others_left(work: Path) -> None:
    requests, breaks, refusals = await play(work, 1, 15)
    assert requests > 20
    assert breaks
    assert refusals == 0


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 22))
async def test_nor_in_long_conversations(work: Path, seed: int) -> None:
    *_, refusals = await play(work, seed, 40)
    assert refusals == 0
