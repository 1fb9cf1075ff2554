"""Where each provider lives, and one instance for each (name, model)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from agentcli.errors import UserError
from agentcli.llm.provider import Provider

# Importing one costs 35 to 60 ms (HTTP client included), so it waits until it is used.
PROVIDERS = {
    "anthropic": "agentcli.llm.providers.anthropic:AnthropicProvider",
    "openai_compat": "agentcli.llm.providers.openai_compat:OpenAICompatProvider",
    "ollama": "agentcli.llm.providers.ollama:OllamaProvider",
    "local": "agentcli.llm.providers.local:LocalProvider",
    "scripted": "agentcli.llm.providers.scripted:ScriptedProvider",
}


def provider_class(kind: str) -> type[Any]:
    """The class behind a kind of provider. Raises `UserError` for one that does not exist."""
    if kind not in PROVIDERS:
        raise UserError(f"No provider {kind!r}; there is {', '.join(PROVIDERS)}.")
    module, _, attribute = PROVIDERS[kind].partition(":")
    found: type[Any] = getattr(import_module(module), attribute)
    return found


class ProviderPool:
    """The providers of one program: asked twice for the same (name, model), it gives the same one."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Provider] = {}

    def get(self, name: str, model: str) -> Provider | None:
        return self._made.get((name, model))

    def add(self, name: str, model: str, provider: Provider) -> Provider:
        self._made[(name, model)] = provider
        return provider

    async def aclose(self) -> None:
        while self._made:
            _, provider = self._made.popitem()
            await provider.aclose()
