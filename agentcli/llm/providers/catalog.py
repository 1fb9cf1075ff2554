"""Names the providers and the bundled servers."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

PROVIDERS = ("anthropic", "openai_compat", "ollama", "local", "scripted", "bedrock", "vertex", "foundry")

_SHOWN = {
    "anthropic": "Anthropic", "azure": "Azure OpenAI", "bedrock": "Amazon Bedrock", "deepseek": "DeepSeek",
    "foundry": "Microsoft Foundry", "gemini": "Gemini", "groq": "Groq", "lmstudio": "LM Studio", "ollama": "Ollama",
    "openai": "OpenAI", "openrouter": "OpenRouter", "vertex": "Google Vertex AI", "vllm": "vLLM",
}  # fmt: skip


def provider_display_name(provider: str) -> str:
    """Return the name of a provider as its vendor writes it; of one from the settings its own."""
    return _SHOWN.get(provider, provider)


@cache
def preset_rows() -> dict[str, dict[str, Any]]:
    """Return the bundled servers as presets.toml has them; reading them needs no provider's module."""
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))


def provider_names() -> tuple[str, ...]:
    """Every name that needs no settings: the providers', and those of the bundled servers."""
    return (*(name for name in PROVIDERS if name != "openai_compat"), *preset_rows())
