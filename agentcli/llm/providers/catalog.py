"""Finds the module of each provider, and keeps one instance for each (name, model)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from agentcli.llm.provider import Provider

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


class ProviderPool:
    """The providers of one program: asked twice for the same (name, model), it gives the same one."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Provider] = {}
        self._old: list[Provider] = []

    def get(self, name: str, model: str, make: Callable[[], Provider]) -> Provider:
        if (name, model) not in self._made:
            self._made[(name, model)] = make()
        return self._made[(name, model)]

    async def disconnect(self) -> None:
        """Close what the providers have open; they open it anew when they are asked again."""
        for provider in (*self._old, *self._made.values()):
            await provider.aclose()

    def forget(self, name: str) -> None:
        """Have the providers of that name made anew. A request may run on the old ones: they close with the pool."""
        self._old += [self._made.pop(key) for key in list(self._made) if key[0] == name]

    async def aclose(self) -> None:
        await self.disconnect()
        self._old.clear()
        self._made.clear()
