"""The messages and blocks of a conversation, the same for every provider, named as in the Messages API."""

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import chain, count
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from agentcli.patterns import lazy_pattern

Role = Literal["user", "assistant"]

StopReason = Literal[
    "end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal", "model_context_window_exceeded",
    "interrupted",
]  # fmt: skip


class CacheControl(Struct, frozen=True, tag_field="type", tag="ephemeral", omit_defaults=True):
    """A breakpoint of Anthropic's prompt cache: everything up to its block is cached for `ttl`."""

    ttl: Literal["5m", "1h"] = "5m"


class Text(Struct, frozen=True, tag="text", omit_defaults=True):
    """A text. A caller may end a cached prefix here with `cache_control`, which is sent only to Anthropic's API."""

    text: str
    cache_control: CacheControl | None = None


GO_ON = Text("Go on.")  # added for APIs whose last message must be the user's


class Thinking(Struct, frozen=True, tag="thinking", omit_defaults=True):
    """The model's reasoning. A block with a `signature` must go back to its provider unchanged."""

    thinking: str
    signature: str | None = None


class RedactedThinking(Struct, frozen=True, tag="redacted_thinking"):
    data: str


class ToolUse(Struct, frozen=True, tag="tool_use", omit_defaults=True):
    """A call of a tool. `unparsed` holds its arguments as the model wrote them, if they are not a JSON object."""

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

    @classmethod
    def of_url(cls, url: str) -> "Base64Source":
        """Return the contents of a `data:` URL. Raises `ValueError` for another URL."""
        import base64  # rarely needed: only programs and other libraries pass data URLs

        head, _, data = url.partition(",")  # data:image/png;base64,iVBORw0…
        kind, _, encoding = head.removeprefix("data:").partition(";")
        if not head.startswith("data:"):
            raise ValueError(f"only data: URLs hold a file, not {url[:40]!r}")
        return cls(kind, data if encoding else base64.b64encode(data.encode()).decode())


class Image(Struct, frozen=True, tag="image"):
    source: Base64Source


class Document(Struct, frozen=True, tag="document"):
    source: Base64Source


class ToolResult(Struct, frozen=True, tag="tool_result", omit_defaults=True):
    tool_use_id: str
    content: str | tuple[Text | Image | Document, ...] = ""
    is_error: bool = False

    @property
    def parts(self) -> tuple[Text | Image | Document, ...]:
        return (Text(self.content),) if isinstance(self.content, str) else self.content

    @property
    def text(self) -> str:
        """The text that a person reads; images and documents are only named."""
        return "\n".join(p.text if isinstance(p, Text) else f"[{type(p).__name__.lower()}]" for p in self.parts)


class Opaque(Struct, frozen=True, tag="opaque"):
    """A block that only `provider` understands. It goes back unchanged to that provider, and to no other."""

    provider: str
    data: dict[str, Any]


Block = Text | Thinking | RedactedThinking | ToolUse | Image | Document | ToolResult | Opaque
Content = str | Block | Sequence[str | Block]  # as callers may write it; `content_blocks` reads it


def block_text(block: Block) -> str:
    """Return the text of a block, including thinking and calls; empty for media and for opaque blocks."""
    match block:
        case Text(text) | Thinking(text):
            return text
        case ToolUse(_, name, input):
            return f"{name} {msgspec.json.encode(input).decode()}"
    return ""


class Message(Struct, frozen=True):
    role: Role
    content: tuple[Block, ...]

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, Text))

    @property
    def unsigned_thinking(self) -> str:
        """The reasoning that every provider can read. Signed reasoning is left out: only its own provider can."""
        return "".join(b.thinking for b in self.content if isinstance(b, Thinking) and not b.signature)

    @property
    def has_answer(self) -> bool:
        """True for a message with text or calls, the parts of a reply that other models understand."""
        return bool(self.text.strip() or self.tool_uses)

    @property
    def tool_uses(self) -> tuple[ToolUse, ...]:
        return tuple(block for block in self.content if isinstance(block, ToolUse))


def user_message(text: str) -> Message:
    return Message("user", (Text(text),))


def content_blocks(content: Content) -> tuple[Block, ...]:
    """Return a caller's texts and blocks as blocks. Raises `TypeError` for anything else.

    Python reads bytes that are not UTF-8 as lone surrogates. They become `?`, because JSON cannot contain them.
    """
    blocks: list[Block] = []
    for part in content if isinstance(content, list | tuple) else (content,):
        block = Text(part) if isinstance(part, str) else part
        if isinstance(block, Text):
            block = structs.replace(block, text=block.text.encode(errors="replace").decode())
        elif not isinstance(block, Block):
            raise TypeError(f"Expected a text, or a list of texts and blocks such as Image, not {type(part).__name__}.")
        blocks.append(block)
    return tuple(blocks)


def without_empty_text(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Return the blocks that providers accept: texts with nothing but white space are left out."""
    return tuple(block for block in blocks if not (isinstance(block, Text) and not block.text.strip()))


class Usage(Struct, frozen=True, omit_defaults=True):
    """Token counts of one or more requests.

    `input_tokens` are those that were not cached; `prompt_tokens` are all of the prompt. `reasoning_tokens` are part of
    `output_tokens`, and `cache_creation_1h_input_tokens` of `cache_creation_input_tokens`. `cost_usd` is set if the
    provider itself names the price.
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
        """The tokens that the request and its reply take of the window."""
        return self.prompt_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        names = (name for name in self.__struct_fields__ if name != "cost_usd")
        counts = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Usage(**counts, cost_usd=sum(costs) if costs else None)


BLOCKS_OF_ROLE = {
    "user": (Text, Image, Document, ToolResult), "assistant": (Text, Thinking, RedactedThinking, ToolUse, Opaque)
}  # fmt: skip


def repair_messages(
    messages: tuple[Message, ...], *, checked: int = 0, used_ids: Iterable[str] = ()
) -> tuple[Message, ...]:
    """Return the same messages if every provider accepts them, else repaired ones.

    The first `checked` messages, whose calls have `used_ids`, are known to be valid; a reply follows them.

    In valid messages every call has its own id and exactly one result, at the beginning of the next user message and in
    the order of the calls. No result lacks its call, the first message is a user's, and no message is empty or holds a
    block that its role cannot have. Replies may follow each other, which some APIs reject (`with_alternating_roles`).
    """
    repaired: list[Message] = []
    unchecked, taken_ids = messages[checked:], set(used_ids)
    waiting: list[tuple[str, str]] = []  # calls without a result: the id they had, and the one they have now
    # The empty message at the end gets the missing results of the newest calls; without any, it is dropped again.
    for message in (*_allowed(unchecked), Message("user", ())):
        if message.role == "user":
            content, waiting = _results_in_order(waiting, message.content), []
        else:
            if waiting:  # one reply follows another: the results belong between them
                repaired.append(Message("user", _results_in_order(waiting, ())))
            if not (checked or repaired):
                repaired.append(Message("user", (Text("(the beginning of the conversation is missing)"),)))
            content, waiting = _with_unique_ids(message.content, taken_ids)
        if content:
            repaired.append(Message(message.role, content))
    if (valid := tuple(_allowed(repaired))) == unchecked:
        return messages
    log_once(f"repaired a conversation of {len(messages)} messages, which has {checked + len(valid)} now")
    return messages[:checked] + valid


def with_alternating_roles(messages: Iterable[Message]) -> list[Message]:
    """Return the messages for APIs whose roles alternate, the user last. Replies with only reasoning are left out."""
    with_answer = (message for message in messages if message.role == "user" or message.has_answer)
    joined = _joined(with_answer, roles=("user", "assistant"))
    return [*joined, Message("user", (GO_ON,))] if joined and joined[-1].role == "assistant" else joined


def _joined(messages: Iterable[Message], *, roles: Sequence[Role]) -> list[Message]:
    joined: list[Message] = []
    for message in messages:
        if joined and joined[-1].role == message.role and message.role in roles:
            joined[-1] = Message(message.role, joined[-1].content + message.content)
        else:
            joined.append(message)
    return joined


def _with_unique_ids(content: tuple[Block, ...], used_ids: set[str]) -> tuple[tuple[Block, ...], list[tuple[str, str]]]:
    """Return a reply whose calls have ids that are not in `used_ids`, and for each call its old and its new id."""
    blocks: list[Block] = []
    ids: list[tuple[str, str]] = []
    for block in content:
        if isinstance(block, ToolUse):
            candidates = chain([block.id], (f"{block.id}_{number}" for number in count(2)))
            id = next(candidate for candidate in candidates if candidate not in used_ids)
            used_ids.add(id)
            ids.append((block.id, id))
            block = structs.replace(block, id=id)
        blocks.append(block)
    return tuple(blocks), ids


def _results_in_order(calls: list[tuple[str, str]], content: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the results of these calls in their order, then the rest; results of other calls are dropped."""
    found: dict[str, list[ToolResult]] = {}
    for block in content:
        if isinstance(block, ToolResult):
            found.setdefault(block.tool_use_id, []).append(block)
    results: list[Block] = []
    for old_id, new_id in calls:
        # Calls that shared an id take its results in order.
        own_results = found.get(old_id) or [ToolResult(old_id, "The result was lost.", is_error=True)]
        results.append(structs.replace(own_results.pop(0), tool_use_id=new_id))
    return (*results, *(block for block in content if not isinstance(block, ToolResult)))


def _allowed(messages: Iterable[Message]) -> list[Message]:
    """Remove blocks that a message's role cannot have and empty messages, and join the user's neighbouring ones."""
    allowed: list[Message] = []
    for message in messages:
        blocks = (block for block in message.content if isinstance(block, BLOCKS_OF_ROLE[message.role]))
        if content := without_empty_text(blocks):
            allowed.append(Message(message.role, content))
    return _joined(allowed, roles=("user",))


@lru_cache(maxsize=256)
def log_once(text: str) -> None:
    logging.getLogger(__name__).warning(text)


# JSON with the faults that servers send: lone surrogates, and endless nesting

_SURROGATE = lazy_pattern("[\ud800-\udfff]")


_REASONING = frozenset(("reasoning_details", "encrypted_content"))  # keys of `Opaque` blocks that hold reasoning


def is_thought(block: Block) -> bool:
    """Return True for a block of reasoning, in the provider's own form or ours."""
    is_opaque_thought = isinstance(block, Opaque) and not _REASONING.isdisjoint(block.data)
    return is_opaque_thought or isinstance(block, Thinking | RedactedThinking)


def decode_json(data: bytes | str) -> Any:
    """Return one JSON value with U+FFFD for each lone surrogate. Raises `ValueError`, also for NaN and Infinity."""
    try:
        return msgspec.json.decode(data)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    except msgspec.DecodeError as error:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        # Only an escaped surrogate (\ud83d) and bytes that are not UTF-8 can be fixed.
        if "\\ud" not in text.lower() and "�" not in text:
            raise ValueError(f"not JSON ({error}): {text[:80]!r}") from error
        import json

        try:
            # int raises ValueError for NaN and Infinity.
            return without_lone_surrogates(json.loads(text, parse_constant=int))
        except RecursionError:
            raise ValueError("JSON nested too deeply") from error


def encode_json(value: Any) -> bytes:
    """Return `value` as JSON; a lone surrogate, which UTF-8 cannot encode, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(without_lone_surrogates(value))


def without_lone_surrogates(value: Any) -> Any:
    import json

    text = json.dumps(value, ensure_ascii=False, default=decode_json)  # a part that is `Raw` JSON is decoded
    return json.loads(_SURROGATE.sub("\ufffd", text)) if _SURROGATE.search(text) else value
