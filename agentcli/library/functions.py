"""Counts tokens for Python programs, returns facts about models, and turns answers into replies of other APIs."""

from __future__ import annotations

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
from agentcli.settings.files import is_file
from agentcli.settings.load import load_config
from agentcli.settings.paths import current_folder, find_paths


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
    """Return window, prices, capabilities and counting of a model; guesses if no table has it (`is_known` is false)."""
    models = _models()
    provider, slash, _ = model.partition("/")
    rows = (row for row in models.table() if model in (row.id, *row.aliases))
    info = models.info(model) if provider and slash else next(rows, ModelInfo(model, "", is_known=False))
    return models.encoders.facts(info)


def _models() -> Models:
    paths = find_paths(os.environ.get("AGENTCLI_HOME"))
    changed = paths.user_config.stat().st_mtime_ns if is_file(paths.user_config) else 0
    return _models_of(paths.config, current_folder(), os.environ.get("AGENTCLI_TOKENS_ENCODERS", ""), changed)


@lru_cache(maxsize=4)
def _models_of(home: Path, cwd: Path, encoders: str, changed: int) -> Models:
    """Return the models of the settings, which are read again when one of the arguments differs."""
    return Models(load_config(cwd))


# Replies of Chat Completions (openai 3.52) and of Messages (anthropic 2.11), for proxies

_CUT = ("max_tokens", "max_turns", "max_budget")  # ends that leave an answer unfinished


def to_chat_completion(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `chat.completion` object, with the usage of all its requests; "length" if it was cut."""
    used = done.usage
    return {
        "id": id or f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": done.text, "refusal": None},
                "finish_reason": "length" if done.reason in _CUT else "stop",
                "logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.context_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cache_read_input_tokens},
        },
    }


def to_anthropic_message(done: Done, *, model: str, id: str = "") -> dict[str, Any]:
    """Return the answer as a `message` object, with the usage of all its requests; "max_tokens" if a limit cut it."""
    return {
        "id": id or f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": done.text}] if done.text else [],
        "stop_reason": "max_tokens" if done.reason in _CUT else "end_turn",
        "stop_sequence": None,
        "usage": usage_object(done.usage),
    }
