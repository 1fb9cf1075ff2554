"""The messages and blocks of a conversation, the same for every provider, by the names of the Messages API.

`is_valid` finds the faults that every provider would refuse, and `doctor` makes the least repair.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
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


log = logging.getLogger(__name__)

LOST = "The result was lost."
_OF_USERS = (Text, Image, Document, ToolResult)
_OF_ASSISTANTS = (Text, Thinking, RedactedThinking, ToolUse, Opaque)


def doctor(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The same messages when they are valid, else repaired ones.

    Every call has its own id and exactly one result, first in the next user message, in order; no result lacks its
    call; the first message is a user's; no message is empty or holds anything that its role cannot say.
    """
    if is_valid(messages):
        return messages
    repaired: list[Message] = []
    taken: set[str] = set()
    waiting: list[tuple[str, str]] = []  # calls without a result: the id they had, and the one they have now
    for message in _with_users_joined(messages):
        content = message.content
        if message.role == "user":
            content, waiting = _answers(waiting, content), []
        else:
            if waiting:
                repaired.append(Message("user", _answers(waiting, ())))
            if not repaired:
                repaired.append(Message("user", (Text("(the beginning of the conversation is missing)"),)))
            content, waiting = _with_own_ids(content, taken)
        if content:
            repaired.append(Message(message.role, content))
    if waiting:
        repaired.append(Message("user", _answers(waiting, ())))
    _note(f"repaired a conversation of {len(messages)} messages, which has {len(repaired)} now")
    return tuple(_with_users_joined(repaired))


def is_valid(messages: tuple[Message, ...], *, start: int = 0) -> bool:
    """Return True if a provider takes these messages, replies beside each other too. Those before `start` are valid."""
    before = messages[start - 1] if start else Message("assistant", ())
    expected = tuple(use.id for use in before.tool_uses)
    role = before.role
    for number, message in enumerate(messages[start:], start):
        if not message.content or _sayable(message) != message.content:
            return False
        if message.role == role and (role == "user" or expected or not number):
            return False
        role = message.role
        results = [block for block in message.content if isinstance(block, ToolResult)]
        if tuple(result.tool_use_id for result in results) != expected:
            return False
        if results and any(not isinstance(block, ToolResult) for block in message.content[: len(results)]):
            return False
        expected = tuple(use.id for use in message.tool_uses)
    new = [use.id for message in messages[start:] for use in message.tool_uses]
    old = {use.id for message in messages[:start] for use in message.tool_uses} if new else set()
    return not expected and len(set(new)) == len(new) and old.isdisjoint(new)


def in_turn(messages: Iterable[Message]) -> list[Message]:
    """The messages for APIs that want the roles in turn and the user's last, and take no reply of reasoning alone."""
    turns: list[Message] = []
    for message in messages:
        if message.role == "assistant" and not (message.text.strip() or message.tool_uses):
            continue
        if turns and turns[-1].role == message.role:
            turns[-1] = Message(message.role, turns[-1].content + message.content)
        else:
            turns.append(message)
    return [*turns, Message("user", (GO_ON,))] if turns and turns[-1].role == "assistant" else turns


def _sayable(message: Message) -> tuple[Block, ...]:
    kinds = _OF_USERS if message.role == "user" else _OF_ASSISTANTS
    return without_empty_text(block for block in message.content if isinstance(block, kinds))


def _with_own_ids(content: tuple[Block, ...], taken: set[str]) -> tuple[tuple[Block, ...], list[tuple[str, str]]]:
    """A reply whose calls have ids that no other call has, and those ids beside the ones they had."""
    blocks: list[Block] = []
    ids: list[tuple[str, str]] = []
    for block in content:
        if isinstance(block, ToolUse):
            id, number = block.id, 1
            while id in taken:
                number += 1
                id = f"{block.id}_{number}"
            taken.add(id)
            ids.append((block.id, id))
            block = replace(block, id=id)
        blocks.append(block)
    return tuple(blocks), ids


def _answers(calls: list[tuple[str, str]], content: tuple[Block, ...]) -> tuple[Block, ...]:
    """The results of these calls in their order, then the rest; results of other calls are dropped."""
    found: dict[str, list[ToolResult]] = {}
    for block in content:
        if isinstance(block, ToolResult):
            found.setdefault(block.tool_use_id, []).append(block)
    results: list[Block] = []
    for had, has in calls:
        mine = found.get(had)
        result = mine.pop(0) if mine else ToolResult(has, LOST, is_error=True)
        results.append(result if result.tool_use_id == has else replace(result, tool_use_id=has))
    return (*results, *(block for block in content if not isinstance(block, ToolResult)))


def _with_users_joined(messages: Iterable[Message]) -> list[Message]:
    """Return the messages that can be sent, neighbouring ones of the user joined. Replies stay as they came."""
    said: list[Message] = []
    for message in messages:
        content = _sayable(message)
        if content and said and said[-1].role == message.role == "user":
            said[-1] = Message("user", said[-1].content + content)
        elif content:
            said.append(Message(message.role, content))
    return said


@lru_cache(maxsize=256)
def _note(repair: str) -> None:
    """Log a repair once, however many requests it is made in."""
    log.warning(repair)
