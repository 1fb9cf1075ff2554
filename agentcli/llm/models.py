"""Models: their tables (models.json, and presets.json for bundled servers), prices, and estimates of tokens.

Tokens are estimated from bytes, scaled by a factor that is learned for each model from its provider's counts.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from agentcli.llm.media import document_tokens, image_tokens
from agentcli.llm.messages import Block, Document, Image, Text, Thinking, ToolResult, ToolUse, Usage
from agentcli.llm.provider import Provider, Request, TokenCount, ToolSpec
from agentcli.patterns import lazy_pattern

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
    higher: "Prices | None" = None

    def cost(self, usage: Usage) -> float:
        """Return the USD for one request. The length of its prompt decides the prices of all its tokens."""
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

    def times(self, factor: float) -> "Prices":
        rates = ("input", "output", "cache_write", "cache_write_1h", "cache_read")
        scaled = {name: rate * factor for name in rates if (rate := getattr(self, name)) is not None}
        return msgspec.structs.replace(self, **scaled, higher=self.higher and self.higher.times(factor))

    def cached_for_an_hour(self) -> "Prices":
        """Return the prices of a request that may write all of its prompt to the cache for an hour."""
        write = self.cache_write if self.cache_write_1h is None else self.cache_write_1h
        higher = self.higher.cached_for_an_hour() if self.higher else None
        return msgspec.structs.replace(self, cache_write=write, higher=higher)

    def max_rates(self, prompt_tokens: int) -> tuple[float, float]:
        """Return upper bounds in USD per token: of a prompt of this length, and of its reply.

        The prompt may be written to the cache, at the price `cache_write`.
        """
        is_long = self.above is not None and prompt_tokens > self.above
        prices = self.higher if self.higher and is_long else self
        return max(prices.input, prices.cache_write or 0.0) / 1e6, prices.output / 1e6


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


# Clouds name models us.anthropic.claude-haiku-4-5-20251001-v1:0 (Bedrock) or claude-haiku-4-5@20251001 (Vertex).
_MAKERS = {"bedrock": "anthropic", "vertex": "anthropic", "foundry": "anthropic", "azure": "openai"}
_NAME_IN_CLOUD = lazy_pattern(
    r"(?:(?P<region>(?!anthropic)[a-z-]+)\.)?(?:anthropic\.)?(?P<name>[\w.-]+?)(?:-v\d+(?::\d+)?|@\w+)?"
)


class ModelTable:
    """Models by provider and id. Later rows replace earlier ones of the same id."""

    def __init__(self, rows: list[ModelInfo]) -> None:
        self._rows = {(row.provider, row.id): row for row in rows}
        self._aliases = {(row.provider, alias): row.id for row in rows for alias in row.aliases}

    def __iter__(self) -> Any:
        return iter(self._rows.values())

    def find(self, provider: str, model: str) -> ModelInfo:
        """Return the row of a model (in a cloud, that of its maker), or assumptions about an unknown model."""
        id = self._aliases.get((provider, model), model)
        row = self._rows.get((provider, model)) or self._rows.get((provider, id)) or self._cloud_row(provider, model)
        return row or ModelInfo(model, provider, is_known=False)

    def find_short(self, name: str) -> ModelInfo | None:
        """Return the first model with an id or alias, whatever its provider: `opus` is `anthropic/claude-opus-5-5`."""
        return next((row for row in self._rows.values() if name in (row.id, *row.aliases)), None)

    def _cloud_row(self, cloud: str, model: str) -> ModelInfo | None:
        """Return the row of the model's maker with the prices of a cloud; None if there is no such row."""
        maker, parts = _MAKERS.get(cloud), _NAME_IN_CLOUD.fullmatch(model)
        if maker is None or parts is None:
            return None
        if not (row := self.find(maker, parts["name"])).is_known:
            return None
        surcharge = {None: 1.0, "global": 1.0, "us-gov": GOVERNMENT}.get(parts["region"], REGIONAL)
        prices = row.prices and row.prices.times(surcharge)  # None stays None
        return msgspec.structs.replace(row, id=model, provider=cloud, prices=prices, aliases=())


@cache
def bundled_models() -> ModelTable:
    """Return the table in models.json: prices in USD per million tokens, limits in tokens, and where they are from."""
    providers = msgspec.json.decode(Path(__file__).with_name("models.json").read_bytes())
    return ModelTable(model_rows({name: provider["models"] for name, provider in providers.items()}))


def model_rows(data: Mapping[str, Any]) -> list[ModelInfo]:
    """Return the rows in `data`, by provider and id. Raises `msgspec.ValidationError` that names the key."""
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

_DISPLAY_NAMES = {
    "anthropic": "Anthropic", "azure": "Azure OpenAI", "bedrock": "Amazon Bedrock", "deepseek": "DeepSeek",
    "foundry": "Microsoft Foundry", "gemini": "Gemini", "groq": "Groq", "lmstudio": "LM Studio", "ollama": "Ollama",
    "openai": "OpenAI", "openrouter": "OpenRouter", "vertex": "Google Vertex AI", "vllm": "vLLM",
}  # fmt: skip


def provider_display_name(provider: str) -> str:
    """Return the name of a provider as its vendor writes it."""
    return _DISPLAY_NAMES.get(provider, provider)


@cache
def preset_rows() -> dict[str, dict[str, Any]]:
    """Return the bundled servers as presets.json has them, without importing a provider's module.

    The differences are from the vendors' API references, read in 2026-11. JSON is read in a tenth of TOML's time.
    """
    return msgspec.json.decode(Path(__file__).with_name("presets.json").read_bytes(), type=dict[str, dict[str, Any]])


def provider_names() -> tuple[str, ...]:
    """Return the names that need no settings: the providers and the bundled servers."""
    return (*(name for name in PROVIDERS if name != "openai_compat"), *preset_rows())


class RequestTarget(msgspec.Struct, frozen=True):
    """The model that a request goes to; its name is `provider/model`."""

    provider: Provider
    info: ModelInfo

    @property
    def name(self) -> str:
        return f"{self.provider.name}/{self.provider.model}"


BYTES_PER_TOKEN = 3.0  # TOML and JSON have that few in the o200k encoding; source code and English about 4
TOKENS_PER_MESSAGE = 4  # its role and separators
SAFETY = 1.1  # the margin of an estimate

# The most tokens that a byte can be: base64 comes to 0.72 in cl100k_base, characters beyond ASCII to 0.95.
MAX_TOKENS_PER_BYTE, MAX_TOKENS_PER_FOREIGN_BYTE = 0.75, 1.0
MAX_TOKENS_PER_MESSAGE = 8
MEDIA_MARGIN = 1.5  # an image or a document has at most this many times the tokens that we count

MIN_LEARNED = 20  # estimated tokens; in a smaller request the fixed parts outweigh the texts
MIN_FACTOR, MAX_FACTOR = 0.2, 4.0  # beyond these, the provider counted something else
_FOREIGN = bytes(range(128, 256))  # the bytes of all characters beyond ASCII

# The first family with a word in the name wins: a distilled model ("deepseek-r1-distill-qwen") has its base's tokens.
_FAMILIES: dict[str, tuple[str, ...]] = {
    "claude": ("claude", "anthropic"),
    "gemini": ("gemini", "gemma"),
    "glm": ("glm", "zhipu", "z-ai"),
    "qwen": ("qwen", "qwq", "qvq"),
    "llama": ("llama",),
    "mistral": ("mistral", "mixtral", "ministral", "codestral", "devstral", "magistral", "pixtral"),
    "deepseek": ("deepseek",),
    "gpt": ("gpt", "openai", "codex", "davinci"),
}


def family_of(model: str) -> str:
    """Return the family of a model, whose members have similar tokens; "custom" for an unknown model."""
    for name in reversed(model.lower().split("/")):  # the last part names the model, earlier ones may name its maker
        name = name.replace("ollama", "")  # Ollama runs models of every family
        if re.match(r"o\d", name):  # o3, o4-mini
            return "gpt"
        for family, words in _FAMILIES.items():
            if any(word in name for word in words):
                return family
    return "custom"


class Size(msgspec.Struct, frozen=True):
    """Bytes of text, as ASCII and `foreign` (all other characters), and the tokens of images and documents."""

    ascii: int = 0
    foreign: int = 0
    media: int = 0

    @property
    def bytes(self) -> int:
        return self.ascii + self.foreign

    def plus(self, other: "Size") -> "Size":
        return Size(self.ascii + other.ascii, self.foreign + other.foreign, self.media + other.media)

    def minus(self, other: "Size") -> "Size":
        return Size(self.ascii - other.ascii, self.foreign - other.foreign, self.media - other.media)


MESSAGE_SIZE = Size(int(TOKENS_PER_MESSAGE * BYTES_PER_TOKEN))  # of a message without its blocks


class Calibration:
    """The tokens per byte of each model, learned from providers' counts. Recent and large texts weigh most."""

    def __init__(self) -> None:
        self._learned: dict[str, tuple[float, float]] = {}  # estimated and counted tokens of each model

    def learn(self, model: str, size: Size, counted: int) -> None:
        """Learn from texts of this size that the provider counted as `counted` tokens."""
        estimated = size.bytes / BYTES_PER_TOKEN
        if estimated >= MIN_LEARNED and MIN_FACTOR <= counted / estimated <= MAX_FACTOR:
            weight = 0.5 ** (estimated / 1_000)  # of earlier counts: 1,000 tokens halve it
            estimated_before, counted_before = self._learned.get(model, (0.0, 0.0))
            self._learned[model] = estimated_before * weight + estimated, counted_before * weight + counted

    def tokens(self, model: str, size: Size, default: float = 1.0) -> int:
        """Return the estimate for texts and media of this size; `default` is the factor until a count is known."""
        estimated, counted = self._learned.get(model, (1.0, default))
        return round(size.bytes / BYTES_PER_TOKEN * counted / estimated) + size.media


def estimate(request: Request, model: ModelInfo) -> TokenCount:
    """Estimate the prompt tokens of a request, rather too many than too few."""
    size = request_size(request, model)
    tokens = size.bytes / BYTES_PER_TOKEN * model.token_factor * SAFETY
    return TokenCount(int(tokens) + TOKENS_PER_MESSAGE * len(request.messages) + size.media, exact=False)


def max_estimate(request: Request, model: ModelInfo) -> int:
    """Return the most tokens that a request can have, as long as the provider has counted no part of it."""
    size = request_size(request, model)
    # A tokenizer may split a text into more tokens than usual ones do, but never into more than its bytes.
    ascii_text = size.ascii * min(1.0, MAX_TOKENS_PER_BYTE * max(1.0, model.token_factor))
    foreign_text = size.foreign * MAX_TOKENS_PER_FOREIGN_BYTE
    overhead = MAX_TOKENS_PER_MESSAGE * len(request.messages)
    return int(ascii_text + foreign_text + size.media * MEDIA_MARGIN + overhead) + 1  # rounded up


def estimate_text(text: str, model: ModelInfo | None = None) -> int:
    """Estimate the tokens of a text, with the margin of `estimate`."""
    factor = model.token_factor if model else 1.0
    return int(text_size(text).bytes / BYTES_PER_TOKEN * factor * SAFETY) + 1  # rounded up


def request_size(request: Request, model: ModelInfo) -> Size:
    blocks = (block for message in request.messages for block in sent_back(message.content, model))
    return size_of(blocks, model.id).plus(prefix_size(request.system, request.tools))


def sent_back(content: tuple[Block, ...], model: ModelInfo) -> tuple[Block, ...]:
    """Return the blocks of a message that later requests send: some models get no unsigned thinking back."""
    has_calls = any(isinstance(block, ToolUse) for block in content)
    if model.sends_back == "all" or (model.sends_back == "calls" and has_calls):
        return content
    return tuple(block for block in content if not isinstance(block, Thinking) or block.signature)


def prefix_size(system: str, tools: Iterable[ToolSpec]) -> Size:
    return reduce(Size.plus, (text_size(msgspec.json.encode(tool)) for tool in tools), text_size(system))


def size_of(content: Iterable[Block], model: str) -> Size:
    """Return the size of the blocks of a message; images and documents are counted as for the model's family."""
    return reduce(Size.plus, (_block_size(block, model) for block in content), Size())


def _block_size(block: Block, model: str) -> Size:
    match block:
        case Text(text) | Thinking(text) | ToolResult(_, str(text)):
            return text_size(text)
        case ToolUse():
            return text_size(msgspec.json.encode(block.input)).plus(text_size(block.name + block.unparsed))
        case ToolResult(_, tuple(parts)):
            return size_of(parts, model)
        case Image(source):
            return Size(media=image_tokens(source.data, family_of(model)))
        case Document(source):
            return Size(media=document_tokens(source.data, family_of(model)))
        case _:
            return text_size(msgspec.json.encode(block))


def text_size(text: str | bytes) -> Size:
    data = text.encode(errors="replace") if isinstance(text, str) else text
    ascii = len(data.translate(None, _FOREIGN))
    return Size(ascii, len(data) - ascii)
