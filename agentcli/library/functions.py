"""Functions of the library that count tokens, describe models, and convert answers to replies of other APIs."""

import os
import time
import uuid
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentcli.agent.events import Done
from agentcli.agent.result import usage_object
from agentcli.llm.models import ModelInfo
from agentcli.llm.token_encoders import TOKENS_TO_REPLY, AnyMessage, AnyTool, ModelFacts, message_tokens, text_tokens
from agentcli.models.choice import Models
from agentcli.settings.files import current_folder, find_paths, is_file
from agentcli.settings.load import load_config


def count_tokens(text: str, model: str) -> int:
    """Return the tokens of a text for `provider/model`, or for a model by its own name.

    The count is exact for OpenAI's models and where the settings name an exact counter (`tokens.encoders`), which may
    take up to three seconds; for others it is an estimate with a margin. Raises `ConfigError` for wrong settings.
    """
    return text_tokens([text], model, _models().encoders)


def count_message_tokens(message: AnyMessage, model: str) -> int:
    """Return the tokens of one message with its images and documents: a `Message`, or a dict of either API."""
    return message_tokens([message], model, _models().encoders)


def count_conversation_tokens(
    messages: Iterable[AnyMessage], model: str, *, system: str = "", tools: Iterable[AnyTool] = ()
) -> int:
    """Return the tokens of messages as one request; `tools` are `ToolSpec`s or dicts."""
    return message_tokens(messages, model, _models().encoders, system=system, tools=tools) + TOKENS_TO_REPLY


def get_model_info(model: str) -> ModelFacts:
    """Return a model's window, prices, capabilities, and how its tokens are counted; guesses if not `is_known`."""
    models = _models()
    provider, slash, _ = model.partition("/")
    known = models.info(model) if provider and slash else models.table().find_short(model)
    return models.encoders.facts(known or ModelInfo(model, "", is_known=False))


def _models() -> Models:
    paths = find_paths(os.environ.get("AGENTCLI_HOME"))
    changed = paths.user_config.stat().st_mtime_ns if is_file(paths.user_config) else 0
    return _models_of(paths.config, current_folder(), os.environ.get("AGENTCLI_TOKENS_ENCODERS", ""), changed)


@lru_cache(maxsize=4)
def _models_of(home: Path, cwd: Path, encoders: str, changed: int) -> Models:
    """Return the models of the settings. The arguments are the cache key: if one differs, settings are read again."""
    return Models(load_config(cwd))


# Replies of Chat Completions (openai 3.52) and of Messages (anthropic 2.11), for proxies

_LIMITS = ("max_tokens", "max_turns", "max_budget")  # reasons of `Done` that leave an answer unfinished


def to_chat_completion(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `chat.completion`, with all its requests' usage; "length" means that a limit cut it."""
    used, finish_reason = done.usage, "length" if done.reason in _LIMITS else "stop"
    message = {"role": "assistant", "content": done.text, "refusal": None}
    return {
        "id": id or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.context_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cache_read_input_tokens},
        },
    }


def to_anthropic_message(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `message`, with all its requests' usage; "max_tokens" means that a limit cut it."""
    return {
        "id": id or f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": done.text}] if done.text else [],
        "stop_reason": "max_tokens" if done.reason in _LIMITS else "end_turn",
        "stop_sequence": None,
        "usage": usage_object(done.usage),
    }
