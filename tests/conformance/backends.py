"""Every provider behind one face, so that the suite can be run over all of them.

A backend writes a `Said` in its protocol, serves it, and reads back from a request what the model would see. A provider
that speaks Chat Completions joins by one entry in `CHAT_BACKENDS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from agentcli.llm.messages import Usage
from agentcli.llm.models import ModelInfo, bundled_models
from agentcli.llm.provider import Provider
from agentcli.llm.providers.anthropic import AnthropicProvider
from agentcli.llm.providers.local import LocalProvider
from agentcli.llm.providers.ollama import OllamaProvider
from agentcli.llm.providers.openai_compat import OpenAICompatProvider, presets
from agentcli.llm.providers.scripted import ScriptedProvider
from tests.conformance.replies import Said, anthropic_reply, chat_reply, ollama_reply, responses_reply
from tests.conformance.servers import (
    Answer,
    Cut,
    LoopbackServer,
    Received,
    Reply,
    anthropic_server,
    chat_server,
    json_reply,
    ollama_server,
    responses_server,
    whole,
)

KEY = "sk-test-0123456789"


@dataclass
class Stage:
    """A provider and the server it speaks to."""

    provider: Provider
    server: LoopbackServer


class Backend:
    """One provider over one protocol."""

    id: str
    protocol: str
    caches = True
    counts_exactly = False
    overflow: Reply
    missing_model: Reply
    broken_event: bytes

    def reply(self, said: Said | str, *, cut: Cut = whole) -> Reply:
        raise NotImplementedError

    def refusal(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        """An error body in the shape of this API."""
        raise NotImplementedError

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        raise NotImplementedError

    def provider(self, url: str, **options: Any) -> Provider:
        raise NotImplementedError

    def asked(self, received: Received) -> dict[str, Any]:
        """What a request asks for, also what its address says."""
        body: dict[str, Any] = received.json
        return body

    def key_sent(self, headers: dict[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")

    def calls_in(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        """(name, arguments) of the calls in the conversation sent."""
        raise NotImplementedError

    def results_in(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        """(what names the call, text) of the results in the conversation sent."""
        raise NotImplementedError

    @asynccontextmanager
    async def playing(
        self, *script: Said | str | Answer, health: Answer | None = None, **options: Any
    ) -> AsyncIterator[Stage]:
        answers = [self.reply(item) if isinstance(item, Said | str) else item for item in script]
        with self.serving(answers, health) as server:
            provider = self.provider(server.url, **options)
            try:
                yield Stage(provider, server)
            finally:
                await provider.aclose()

    def __repr__(self) -> str:
        return self.id


class AnthropicBackend(Backend):
    id = protocol = "anthropic"
    counts_exactly = True
    info = bundled_models().find("anthropic", "claude-sonnet-5-5")
    broken_event = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"tex\n\n'

    def __init__(self) -> None:
        too_long = "prompt is too long: 1213462 tokens > 1000000 maximum"
        self.overflow = self.refusal(400, "invalid_request_error", too_long)
        self.missing_model = self.refusal(404, "not_found_error", "model: claude-sonnet-9")

    def reply(self, said: Said | str, *, cut: Cut = whole) -> Reply:
        return anthropic_reply(said, cut=cut)

    def refusal(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        body = {
            "type": "error",
            "error": {"type": kind, "message": message},
            "request_id": "req_011CSHoEeqs5C35K2UUqR7Fy",
        }
        return json_reply(body, status, **headers)

    def error_event(self, kind: str, message: str) -> bytes:
        event = {"type": "error", "error": {"type": kind, "message": message}}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        return anthropic_server(script, model=health)

    def provider(self, url: str, **options: Any) -> Provider:
        return AnthropicProvider(**{"info": self.info, "base_url": url, "api_key": KEY} | options)

    def key_sent(self, headers: dict[str, str]) -> str:
        return headers.get("x-api-key", "")

    def calls_in(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(block["name"], block["input"]) for block in _blocks(body, "tool_use")]

    def results_in(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        return [(block["tool_use_id"], block["content"]) for block in _blocks(body, "tool_result")]


def _blocks(body: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    return (block for message in body["messages"] for block in message["content"] if block["type"] == kind)


class ChatBackend(Backend):
    """A server that speaks Chat Completions; `preset` names its row in presets.json."""

    protocol = "chat"
    broken_event = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":"x\n\n'

    def __init__(
        self, preset: str, *, overflow: Reply, missing_model: Reply, reasoning_field: str = "reasoning_content"
    ) -> None:
        self.id = preset
        self.info = ModelInfo("test-model", preset, thinking="effort", window=131_072, max_output=16_384)
        self.overflow = overflow
        self.missing_model = missing_model
        self._reasoning_field = reasoning_field

    def reply(self, said: Said | str, *, cut: Cut = whole) -> Reply:
        return chat_reply(said, cut=cut, reasoning_field=self._reasoning_field)

    def refusal(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return chat_error(status, message, kind, **headers)

    def error_event(self, kind: str, message: str) -> bytes:
        error = {"error": {"message": message, "type": kind, "param": None, "code": None}}
        return b"data: " + msgspec.json.encode(error) + b"\n\n"

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        return chat_server(script, models=health)

    def provider(self, url: str, **options: Any) -> Provider:
        preset = presets()[self.id]
        return OpenAICompatProvider(**{"info": self.info, "preset": preset, "base_url": url, "api_key": KEY} | options)

    def calls_in(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        calls = [call for message in body["messages"] for call in message.get("tool_calls", ())]
        return [(call["function"]["name"], msgspec.json.decode(call["function"]["arguments"])) for call in calls]

    def results_in(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        return [(m["tool_call_id"], m["content"]) for m in body["messages"] if m["role"] == "tool"]


def chat_error(status: int, message: str, type: str, code: str | int | None = None, **headers: str) -> Reply:
    return json_reply({"error": {"message": message, "type": type, "param": None, "code": code}}, status, **headers)


class AzureBackend(ChatBackend):
    """Azure OpenAI: the key has a header of its own."""

    def key_sent(self, headers: dict[str, str]) -> str:
        return headers.get("api-key", "")


class ResponsesBackend(ChatBackend):
    """OpenAI's other API, for a model that has only that."""

    protocol = "responses"
    broken_event = b'data: {"type":"response.output_text.delta","output_index":0,"delta":"x\n\n'

    def __init__(self, base: ChatBackend) -> None:
        super().__init__(base.id, overflow=base.overflow, missing_model=base.missing_model)
        self.info = msgspec.structs.replace(self.info, api="responses")

    def reply(self, said: Said | str, *, cut: Cut = whole) -> Reply:
        return responses_reply(said, cut=cut)

    def error_event(self, kind: str, message: str) -> bytes:
        event = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 9}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        return responses_server(script, models=health)

    def calls_in(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        calls = [item for item in body["input"] if item["type"] == "function_call"]
        return [(call["name"], msgspec.json.decode(call["arguments"])) for call in calls]

    def results_in(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        return [(item["call_id"], item["output"]) for item in body["input"] if item["type"] == "function_call_output"]

    def __repr__(self) -> str:
        return f"{self.id}-responses"


class OllamaBackend(Backend):
    id = protocol = "ollama"
    caches = False
    info = ModelInfo("qwen3:8b", "ollama", max_output=8_192)
    broken_event = b'{"model":"qwen3:8b","message":{"role":"assistant","content":"x\n'

    def __init__(self) -> None:
        upstream = {
            "code": 400,
            "message": "request (48889 tokens) exceeds the available context size (32768 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 48889,
            "n_ctx": 32768,
        }
        self.overflow = self.refusal(400, "", msgspec.json.encode({"error": upstream}).decode())
        self.missing_model = self.refusal(404, "", "model 'qwen3:8b' not found")

    def reply(self, said: Said | str, *, cut: Cut = whole) -> Reply:
        return ollama_reply(said, cut=cut)

    def refusal(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return json_reply({"error": message}, status, **headers)

    def error_event(self, kind: str, message: str) -> bytes:
        return msgspec.json.encode({"error": message}) + b"\n"

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        return ollama_server(script, show=health)

    def provider(self, url: str, **options: Any) -> Provider:
        return OllamaProvider(**{"info": self.info, "base_url": url} | options)

    def calls_in(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        calls = [call["function"] for message in body["messages"] for call in message.get("tool_calls", ())]
        return [(call["name"], call["arguments"]) for call in calls]

    def results_in(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        return [(m["tool_name"], m["content"]) for m in body["messages"] if m["role"] == "tool"]


class ScriptedBackend(Backend):
    """No server: the script is the network."""

    id = protocol = "scripted"
    caches = False

    @asynccontextmanager
    async def playing(self, *script: Any, health: Any = None, **options: Any) -> AsyncIterator[Stage]:
        provider = ScriptedProvider([self.scripted(item) for item in script])
        yield Stage(provider, None)  # type: ignore[arg-type]

    def scripted(self, said: Any) -> dict[str, Any]:
        if isinstance(said, dict):
            return said
        said = Said(said) if isinstance(said, str) else said
        reply: dict[str, Any] = {"text": said.text, "thinking": said.thinking, "usage": Usage(200, said.output_tokens)}
        reply["tool_calls"] = [{"name": call.name, "input": call.input, "id": call.id} for call in said.calls]
        if said.is_cut:
            reply["stop_reason"] = "max_tokens"
        return reply


_openai_missing = "The model `test-model` does not exist or you do not have access to it."
CHAT_BACKENDS = [
    ChatBackend(
        "openai",
        overflow=chat_error(
            400,
            "Your input exceeds the context window of this model. Please adjust your input and try again.",
            "invalid_request_error",
            "context_length_exceeded",
        ),
        missing_model=chat_error(404, _openai_missing, "invalid_request_error", "model_not_found"),
    ),
    ChatBackend(
        "openrouter",
        overflow=json_reply(
            {
                "error": {
                    "message": "This endpoint's maximum context length is 131072 tokens. However, you requested about "
                    "152000 tokens (150000 of text input, 2000 in the output). Please reduce the length of either one.",
                    "code": 400,
                    "metadata": {"provider_name": None},
                },
                "user_id": "user_2x",
            },
            400,
        ),
        missing_model=json_reply({"error": {"message": "test-model is not a valid model ID", "code": 400}}, 400),
        reasoning_field="reasoning",
    ),
    ChatBackend(
        "deepseek",
        overflow=chat_error(
            400,
            "This model's maximum context length is 131072 tokens. However, you requested 140000 tokens (132000 in the "
            "messages, 8000 in the completion). Please reduce the length of the messages or completion.",
            "invalid_request_error",
            "invalid_request_error",
        ),
        missing_model=chat_error(400, "Model Not Exist", "invalid_request_error", "invalid_request_error"),
    ),
    ChatBackend(
        "groq",
        overflow=chat_error(
            400,
            "Please reduce the length of the messages or completion.",
            "invalid_request_error",
            "context_length_exceeded",
        ),
        missing_model=chat_error(404, _openai_missing, "invalid_request_error", "model_not_found"),
        reasoning_field="reasoning",
    ),
    ChatBackend(
        "lmstudio",
        overflow=json_reply(
            {
                "error": "The number of tokens to keep from the initial prompt is greater than the context length. "
                "Try to load the model with a larger context length, or provide a shorter input."
            },
            400,
        ),
        missing_model=chat_error(404, 'Model "test-model" not found', "invalid_request_error", "model_not_found"),
    ),
    ChatBackend(
        "vllm",
        overflow=json_reply(
            {
                "object": "error",
                "message": "The decoder prompt (length 40960) is longer than the maximum model length of 32768.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
            400,
        ),
        missing_model=json_reply(
            {
                "object": "error",
                "message": "The model `test-model` does not exist.",
                "type": "NotFoundError",
                "param": None,
                "code": 404,
            },
            404,
        ),
        reasoning_field="reasoning",
    ),
]


CHAT_BACKENDS += [
    ChatBackend(
        "gemini",
        overflow=json_reply(
            [
                {
                    "error": {
                        "code": 400,
                        "message": "The input token count (1100000) exceeds the maximum number of tokens allowed "
                        "(1048576).",
                        "status": "INVALID_ARGUMENT",
                    }
                }
            ],
            400,
        ),
        missing_model=json_reply(
            [
                {
                    "error": {
                        "code": 404,
                        "message": "models/test-model is not found for API version v1main, or is not supported for "
                        "generateContent.",
                        "status": "NOT_FOUND",
                    }
                }
            ],
            404,
        ),
    ),
    AzureBackend(
        "azure",
        overflow=CHAT_BACKENDS[0].overflow,
        missing_model=chat_error(
            404,
            "The API deployment for this resource does not exist. If you created the deployment within the last 5 "
            "minutes, please wait a moment and try again.",
            "",
            "DeploymentNotFound",
        ),
    ),
]


class _Started:
    """A model server that runs already."""

    is_running = True

    def __init__(self, url: str, api_key: str) -> None:
        self.base_url = url
        self.api_key = api_key

    def release(self) -> None:
        pass


class LocalBackend(ChatBackend):
    """llama.cpp's server, as the embedded model's provider meets it."""

    broken_event = b'data: {"choices":[{"delta":{"content":"x\n\n'

    def __init__(self) -> None:
        overflow = {
            "code": 400,
            "message": "request (9048 tokens) exceeds the available context size (8192 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9048,
            "n_ctx": 8192,
        }
        missing = chat_error(404, "The model `test-model` does not exist.", "not_found_error", 404)
        super().__init__("local", overflow=json_reply({"error": overflow}, 400), missing_model=missing)

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        return chat_server(script, models=health, is_local=True)

    def provider(self, url: str, **options: Any) -> Provider:
        key = options.pop("api_key", KEY)

        async def start() -> _Started:
            return _Started(url, key)

        return LocalProvider(**{"info": self.info, "start": start} | options)


CHAT_BACKENDS.append(LocalBackend())
OVER_HTTP: list[Backend] = [AnthropicBackend(), *CHAT_BACKENDS, ResponsesBackend(CHAT_BACKENDS[0]), OllamaBackend()]
ONE_EACH: list[Backend] = [OVER_HTTP[0], CHAT_BACKENDS[0], *OVER_HTTP[-2:]]  # one for each protocol
ALL: list[Backend] = [*OVER_HTTP, ScriptedBackend()]
