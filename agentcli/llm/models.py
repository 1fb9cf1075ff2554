"""The tables of models (models.toml) and of bundled servers (presets.toml), with the names of all providers."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from agentcli.llm.messages import Usage

Positive = Annotated[int, msgspec.Meta(ge=1)]
Usd = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
UNKNOWN_WINDOW = 128_000
UNKNOWN_MAX_OUTPUT = 8_192
# The surcharges of clouds for an endpoint that stays in a region (their price lists, 2026-11).
REGIONAL, GOVERNMENT = 1.1, 1.2


class Prices(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """USD per million tokens. Prompts of more than `above` tokens have the `higher` prices."""

    input: Usd = 0.0
    output: Usd = 0.0
    cache_write: Usd | None = None  # for five minutes; the price of input if absent
    cache_write_1h: Usd | None = None
    cache_read: Usd | None = None  # the price of input if absent
    above: Positive | None = None
    higher: Prices | None = None

    def cost(self, usage: Usage) -> float:
        """Return the USD for one request, all of which has the prices for the length of its prompt."""
        if self.above is not None and self.higher is not None and usage.prompt_tokens > self.above:
            return self.higher.cost(usage)
        write = self.input if self.cache_write is None else self.cache_write
        write_1h = write if self.cache_write_1h is None else self.cache_write_1h
        read = self.input if self.cache_read is None else self.cache_read
        written_1h = usage.cache_creation_1h_input_tokens
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + (usage.cache_creation_input_tokens - written_1h) * write
            + written_1h * write_1h
            + usage.cache_read_input_tokens * read
        ) / 1_000_000

    def times(self, factor: float) -> Prices:
        rates = ("input", "output", "cache_write", "cache_write_1h", "cache_read")
        dearer = {name: rate * factor for name in rates if (rate := getattr(self, name)) is not None}
        return msgspec.structs.replace(self, **dearer, higher=self.higher and self.higher.times(factor))

    def max_rates(self, prompt_tokens: int) -> tuple[float, float]:
        """Return the highest USD per token of a prompt of this length, and those of its reply."""
        band = self.higher if self.higher and self.above is not None and prompt_tokens > self.above else self
        return max(band.input, band.cache_write or 0.0) / 1e6, band.output / 1e6


class ModelInfo(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One model. `window` and `max_output` are in tokens; `prices` is None if they are not known.

    `thinking` is the form of its reasoning: "adaptive" or "budget" (Anthropic), "effort", or "toggle", an on/off field.
    `token_factor` scales the estimate of its tokens. `sends_back` says which replies go back to it with their unsigned
    thinking. An empty `api` means the usual one of its provider.
    """

    id: str
    provider: str
    window: Positive = UNKNOWN_WINDOW
    max_output: Positive = UNKNOWN_MAX_OUTPUT
    prices: Prices | None = None
    thinking: Literal["none", "adaptive", "budget", "effort", "toggle"] = "none"
    takes_effort: bool = False
    takes_temperature: bool = True
    takes_images: bool = False
    takes_tools: bool = True
    takes_schema: bool = False  # its API can enforce a JSON Schema of the answer
    small: bool = False  # it gets the short system text and few tools
    token_factor: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    aliases: tuple[str, ...] = ()
    is_known: bool = True  # False for a model that no table names
    sends_back: Literal["all", "calls", "none"] = "all"
    api: Literal["", "chat", "responses"] = ""

    @property
    def name(self) -> str:
        return f"{self.provider}/{self.id}"

    def cost(self, usage: Usage) -> float | None:
        """Return the USD for one request's usage; None if no price is known."""
        if usage.cost_usd is not None:
            return usage.cost_usd
        return None if self.prices is None else self.prices.cost(usage)


# As in us.anthropic.claude-haiku-4-5-20251001-v1:0 (Bedrock) and claude-haiku-4-5@20251001 (Vertex).
_MAKERS = {"bedrock": "anthropic", "vertex": "anthropic", "foundry": "anthropic", "azure": "openai"}
_NAME_IN_CLOUD = re.compile(
    r"(?:(?P<place>(?!anthropic)[a-z-]+)\.)?(?:anthropic\.)?(?P<name>[\w.-]+?)(?:-v\d+(?::\d+)?|@\w+)?"
)


class ModelTable:
    """Models by provider and id. Rows given later replace those given earlier."""

    def __init__(self, rows: list[ModelInfo]) -> None:
        self._rows = {(row.provider, row.id): row for row in rows}
        self._aliases = {(row.provider, alias): row.id for row in rows for alias in row.aliases}

    def __iter__(self) -> Any:
        return iter(self._rows.values())

    def find(self, provider: str, model: str) -> ModelInfo:
        """Return the row of a model, for a cloud that of the model's maker, or assumptions about an unknown model."""
        id = model if (provider, model) in self._rows else self._aliases.get((provider, model), model)
        found = self._rows.get((provider, id)) or self._served(provider, model)
        return found or ModelInfo(model, provider, is_known=False)

    def _served(self, cloud: str, model: str) -> ModelInfo | None:
        if (maker := _MAKERS.get(cloud)) is None or (name := _NAME_IN_CLOUD.fullmatch(model)) is None:
            return None
        base = self.find(maker, name["name"])
        if not base.is_known:
            return None
        surcharge = {None: 1.0, "global": 1.0, "us-gov": GOVERNMENT}.get(name["place"], REGIONAL)
        prices = base.prices and base.prices.times(surcharge)
        return msgspec.structs.replace(base, id=model, provider=cloud, prices=prices, aliases=())


@cache
def bundled_models() -> ModelTable:
    """Return the table in models.toml, whose sections name their sources and dates."""
    text = Path(__file__).with_name("models.toml").read_text("utf-8")
    return ModelTable(rows_from_toml(tomllib.loads(text)))


def rows_from_toml(data: Mapping[str, Any]) -> list[ModelInfo]:
    """Return the rows of `[provider."model"]` tables. Raises `msgspec.ValidationError` that names the key."""
    return [
        msgspec.convert({"id": model, "provider": provider, **row}, ModelInfo)
        for provider, models in data.items()
        for model, row in models.items()
    ]


def with_listed_limits(info: ModelInfo, listed: Mapping[str, Any]) -> ModelInfo:
    """Return `info` with the limits that Anthropic's `GET /v1/models/{id}` answers."""
    limits = {"window": listed.get("max_input_tokens"), "max_output": listed.get("max_tokens")}
    known = {name: limit for name, limit in limits.items() if isinstance(limit, int) and limit > 0}
    return msgspec.structs.replace(info, **known)


PROVIDERS = ("anthropic", "openai_compat", "ollama", "local", "scripted", "bedrock", "vertex", "foundry")

_SHOWN = {
    "anthropic": "Anthropic", "azure": "Azure OpenAI", "bedrock": "Amazon Bedrock", "deepseek": "DeepSeek",
    "foundry": "Microsoft Foundry", "gemini": "Gemini", "groq": "Groq", "lmstudio": "LM Studio", "ollama": "Ollama",
    "openai": "OpenAI", "openrouter": "OpenRouter", "vertex": "Google Vertex AI", "vllm": "vLLM",
}  # fmt: skip


def provider_display_name(provider: str) -> str:
    """Return the name of a provider as its vendor writes it."""
    return _SHOWN.get(provider, provider)


@cache
def preset_rows() -> dict[str, dict[str, Any]]:
    """Return the bundled servers as presets.toml has them, without importing a provider's module."""
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text("utf-8"))


def provider_names() -> tuple[str, ...]:
    """Return the names that need no settings: the providers and the bundled servers."""
    return (*(name for name in PROVIDERS if name != "openai_compat"), *preset_rows())
