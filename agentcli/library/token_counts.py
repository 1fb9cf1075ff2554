"""Counts tokens for Python programs, and returns facts about models."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

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
