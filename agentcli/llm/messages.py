"""The messages and blocks of a conversation, the same for every provider, by the names of the Messages API."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

Role = Literal["user", "assistant"]

StopReason = Literal[
    "end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal", "model_context_window_exceeded",
    "interrupted",
]  # fmt: skip


class CacheControl(Struct, frozen=True, tag_field="type", tag="ephemeral", omit_defaults=True):
    """A breakpoint of Anthropic's prompt cache: all up to its block is kept for so long."""

    ttl: Literal["5m", "1h"] = "5m"


class Text(Struct, frozen=True, tag="text", omit_defaults=True):
    """A caller may end a cached prefix here by `cache_control`; APIs that cache by themselves are not sent it."""

    text: str
    cache_control: CacheControl | None = None


GO_ON = Text("Go on.")  # said by us where APIs want the last message to be the user's


class Thinking(Struct, frozen=True, tag="thinking", omit_defaults=True):
    """The model's reasoning. A `signature` is opaque: the provider wants the block back unchanged."""

    thinking: str
    signature: str | None = None


class RedactedThinking(Struct, frozen=True, tag="redacted_thinking"):
    data: str


class ToolUse(Struct, frozen=True, tag="tool_use", omit_defaults=True):
    """A call the model asks for. `unparsed` holds its arguments as written when they are not a JSON object."""

    id: str
    name: str
    input: dict[str, Any]
    unparsed: str = ""


class Base64Source(Struct, frozen=True, tag="base64"):
    media_type: str
    data: str

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{self.data}"


class Image(Struct, frozen=True, tag="image"):
    source: Base64Source


class Document(Struct, frozen=True, tag="document"):
    source: Base64Source


class ToolResult(Struct, frozen=True, tag="tool_result", omit_defaults=True):
    """The result of a call, as the model sees it."""

    tool_use_id: str
    content: str | tuple[Text | Image | Document, ...] = ""
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text that a person reads; an image or document is only named."""
        if isinstance(self.content, str):
            return self.content
        parts = (part.text if isinstance(part, Text) else f"[{type(part).__name__.lower()}]" for part in self.content)
        return "\n".join(parts)


class Opaque(Struct, frozen=True, tag="opaque"):
    """A block only `provider` understands; it goes back to that provider as it came and to no other."""

    provider: str
    data: dict[str, Any]


Block = Text | Thinking | RedactedThinking | ToolUse | Image | Document | ToolResult | Opaque


def block_text(block: Block) -> str:
    """Return the words of a block, thinking and calls included; empty for media and for what one provider reads."""
    match block:
        case Text(text) | Thinking(text):
            return text
        case ToolUse(_, name, input):
            return f"{name} {msgspec.json.encode(input).decode()}"
        case _:
            return ""


class Message(Struct, frozen=True):
    role: Role
    content: tuple[Block, ...]

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, Text))

    @property
    def unsigned_thinking(self) -> str:
        """The reasoning; what is signed only its own provider can read."""
        return "".join(b.thinking for b in self.content if isinstance(b, Thinking) and not b.signature)

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        return tuple(block for block in self.content if isinstance(block, ToolUse))


def user_message(text: str) -> Message:
    return Message("user", (Text(text),))


def answered(messages: Sequence[Message]) -> int:
    """Count the messages that the newest reply among them answered."""
    return next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "assistant"), 0)


def without_surrogates(content: Sequence[Block]) -> tuple[Block, ...]:
    """The blocks with ? for lone surrogates, which bytes that are no UTF-8 leave in typed text: no JSON holds them."""
    return tuple(
        replace(block, text=block.text.encode(errors="replace").decode()) if isinstance(block, Text) else block
        for block in content
    )


def without_empty_text(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Providers refuse text blocks that hold nothing but white space."""
    return tuple(block for block in blocks if not (isinstance(block, Text) and not block.text.strip()))


class Usage(Struct, frozen=True, omit_defaults=True):
    """Token counts of one or more requests; `prompt_tokens` adds the cached parts to `input_tokens`.

    `reasoning_tokens` are part of `output_tokens`; `cache_creation_1h_input_tokens` of `cache_creation_input_tokens`.
    `cost_usd` is set when the provider itself names the price.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    cache_creation_1h_input_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    @property
    def context_tokens(self) -> int:
        """The tokens of the window that the request and its reply take."""
        return self.prompt_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        counts = (getattr(self, name) + getattr(other, name) for name in self.__struct_fields__[:-1])
        return replace(Usage(*counts), cost_usd=sum(costs) if costs else None)
