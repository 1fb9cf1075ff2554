"""A prompt that is too long, in each service's own words: recorded bodies, read by the whole provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentcli.llm.errors import ContextOverflow, RateLimit
from agentcli.llm.models import ModelInfo
from agentcli.llm.providers.openai_compat import OpenAICompatProvider, Preset
from tests.conformance.backends import AnthropicBackend, Backend, ChatBackend, LocalBackend, OllamaBackend
from tests.conformance.reading import asking, hear
from tests.conformance.replies import Said, chat_reply, ollama_reply
from tests.conformance.servers import HTML, NDJSON, SSE, Reply, json_reply


class AnyServer(ChatBackend):
    """One that speaks Chat Completions and that no table knows."""

    def __init__(self) -> None:
        super().__init__("any", overflow=Reply(), missing_model=Reply())
        self.info = ModelInfo("test-model", "any", window=4_000, max_output=1_000)

    def provider(self, url: str, **options: Any) -> Any:
        return OpenAICompatProvider(**{"info": self.info, "preset": Preset(base_url=url, needs_key=False)} | options)


CHAT, LOCAL, OLLAMA, ANTHROPIC = AnyServer(), LocalBackend(), OllamaBackend(), AnthropicBackend()


def refused(message: str, status: int = 400, **more: Any) -> Reply:
    return json_reply({"error": {"message": message, **more}}, status)


def told(error: dict[str, Any], field: str = "data") -> Reply:
    """An error inside a stream whose status was 200."""
    return Reply(f"{field}: {json.dumps(error)}\n\n".encode(), content_type=SSE)


SIZES = {
    "code": 400, "message": "the request exceeds the available context size. try increasing the context size",
    "type": "exceed_context_size_error", "n_prompt_tokens": 14_429, "n_ctx": 8_192,
}  # fmt: skip
TOO_LONG = {"type": "invalid_request_error", "message": "prompt is too long: 213462 tokens > 200000 maximum"}
LIMIT = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
EXCEEDS = "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length"
RAW = {"code": 400, "message": "Provider returned error", "metadata": {"raw": LIMIT}}
DECODER = "The decoder prompt (length 40960) is longer than the maximum model length of 32768."
KEPT = "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 5000)."
CONTAINS = "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"
COUNT = {"code": 400, "message": "The input token count (1100000) exceeds the maximum number of tokens"}
PROMPT = "This model's maximum prompt length is 131072 but the request contains 140000 tokens."
ROWS: dict[str, tuple[Backend, Reply]] = {
    "anthropic": (ANTHROPIC, json_reply({"type": "error", "error": TOO_LONG}, 400)),
    "anthropic, in the stream": (ANTHROPIC, told({"type": "error", "error": TOO_LONG})),
    "anthropic, with the reply": (ANTHROPIC, refused(EXCEEDS)),
    "openai": (CHAT, refused("Your input exceeds the context window of this model.", code="context_length_exceeded")),
    "openai, by its code": (CHAT, refused("Bad request.", code="context_length_exceeded")),
    "openai, older": (CHAT, refused(LIMIT, type="invalid_request_error")),
    "openrouter": (CHAT, json_reply({"error": RAW}, 400)),
    "openrouter, in the stream": (CHAT, told({"error": {"code": 400, "message": LIMIT}, "choices": []})),
    "vllm": (CHAT, json_reply({"object": "error", "message": DECODER, "type": "BadRequestError", "code": 400}, 400)),
    "llama.cpp": (LOCAL, json_reply({"error": SIZES}, 400)),
    "llama.cpp, as 500": (LOCAL, refused("Context size has been exceeded.", 500, code=500, type="server_error")),
    "llama.cpp before 2025-10": (LOCAL, told({"error": SIZES})),
    "llama.cpp before 2025-10, as JSON": (LOCAL, json_reply({"error": SIZES})),
    "llama-cpp-python": (CHAT, refused("Requested tokens (2285) exceed context window of 2048", type="server_error")),
    "lm studio": (CHAT, json_reply({"error": KEPT}, 400)),
    "groq": (CHAT, refused("Please reduce the length of the messages or completion.", param="messages")),
    "mistral": (CHAT, json_reply({"object": "error", "message": CONTAINS, "type": "invalid_request"}, 400)),
    "gemini": (CHAT, json_reply([{"error": COUNT}], 400)),
    "xai": (CHAT, json_reply({"code": "Client specified an invalid argument", "error": PROMPT}, 400)),
    "bedrock": (CHAT, json_reply({"message": "Input is too long for requested model."}, 400)),
    "copilot": (CHAT, refused("prompt token count of 70000 exceeds the limit of 64000", code="model_max_tokens")),
    "kimi": (CHAT, refused("Invalid request: Your request exceeded model token limit: 262144")),
    "minimax": (CHAT, refused("invalid params, context window exceeds limit (2013)")),
    "cerebras": (CHAT, Reply(b"", 400, "")),
    "cerebras, as 413": (CHAT, Reply(b"", 413, "application/json")),
    "z.ai": (CHAT, chat_reply(Said("I remember nothing of it.", prompt_tokens=4_001))),
    "ollama": (OLLAMA, json_reply({"error": "the prompt is longer than the context length currently available"}, 400)),
    "ollama, its runner's answer": (OLLAMA, json_reply({"error": json.dumps({"error": SIZES})}, 400)),
    "ollama, in the stream": (OLLAMA, Reply(json.dumps({"error": LIMIT}).encode() + b"\n", 200, NDJSON)),
    "ollama, which says nothing": (OLLAMA, ollama_reply(Said("Hi.", prompt_tokens=2_050))),
    "generic": (CHAT, json_reply({"detail": "Too many tokens in the prompt"}, 422)),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
async def test_an_overflow_is_recognised(row: str) -> None:
    backend, reply = ROWS[row]
    question = asking("word " * 40_000) if row == "ollama, which says nothing" else asking("Hi")
    async with backend.playing(reply, "Nobody asks again.") as stage:
        error = (await hear(stage.provider, question)).error
    assert type(error) is ContextOverflow
    assert not error.is_retryable
    assert str(error)
    assert not str(error).startswith("{")


@pytest.mark.parametrize(
    "words",
    [
        "Rate limit reached for gpt-6 on tokens per min (TPM): too many tokens. Limit 30000, requested 40000.",
        "This request would exceed your account's rate limit: prompt is too long for 10,000 input tokens per minute.",
        "",
    ],
)
async def test_a_rate_limit_is_none_whatever_it_says(words: str) -> None:
    for backend in (ANTHROPIC, CHAT, OLLAMA):
        async with backend.playing(backend.refusal(429, "rate_limit_error", words)) as stage:
            assert type((await hear(stage.provider)).error) is RateLimit


@pytest.mark.parametrize(
    "reply", [Reply(HTML, 413, "text/html"), refused("max_tokens: 200000 > 128000"), refused("no such field", 422)]
)
async def test_other_refusals_are_none(reply: Reply) -> None:
    async with CHAT.playing(reply) as stage:
        assert not isinstance((await hear(stage.provider)).error, ContextOverflow)


async def test_a_prompt_that_fills_the_window_is_none() -> None:
    async with CHAT.playing(Said("Hi.", prompt_tokens=4_000)) as stage:
        assert (await hear(stage.provider)).done.message.text == "Hi."


async def test_a_guessed_window_is_not_held_against_a_reply() -> None:
    guessed = ModelInfo("test-model", "any", window=4_000, is_known=False)
    async with CHAT.playing(Said("Hi.", prompt_tokens=9_000), info=guessed) as stage:
        assert (await hear(stage.provider)).done.message.text == "Hi."
