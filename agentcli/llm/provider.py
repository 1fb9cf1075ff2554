"""The interface that every model provider implements, with its requests and its events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from agentcli.llm.messages import CacheControl, Message, StopReason, Text, Usage

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it; `input_schema` is a JSON Schema object."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Prefix(Struct, frozen=True):
    """The fixed beginning of every request to a kind of model: the same objects, so the same bytes, each time."""

    system: str
    tools: tuple[ToolSpec, ...]


class Request(Struct, frozen=True):
    """One request to a model.

    `max_tokens` limits the reply. `answer_schema` is the JSON Schema of the answer, for APIs that can enforce one.
    `unsent` are fields of the body that the model was found to reject.
    """

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int = 8192
    temperature: float | None = None
    effort: Effort | None = None
    unsent: frozenset[str] = frozenset()
    answer_schema: dict[str, Any] | None = None

    @property
    def earlier_messages(self) -> int:
        """The number of `messages` that the newest reply's request held; a prompt cache was written there."""
        return next((n for n in range(len(self.messages) - 1, -1, -1) if self.messages[n].role == "assistant"), 0)

    def sent(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a body without the fields that stay unsent."""
        return {name: value for name, value in body.items() if name not in self.unsent} if self.unsent else body


def lasts_an_hour(request: Request) -> bool:
    """Return True if a caller's breakpoint keeps a part of the request cached for an hour, which costs more."""
    blocks = (block for message in request.messages for block in message.content)
    return any(isinstance(block, Text) and block.cache_control == CacheControl("1h") for block in blocks)


class TextDelta(Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag="thinking_delta"):
    text: str


class ToolCallStarted(Struct, frozen=True, tag="tool_call_started"):
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True, tag="tool_call_delta"):
    id: str
    partial_json: str


class ToolCallEnded(Struct, frozen=True, tag="tool_call_ended"):
    id: str


class UsageUpdate(Struct, frozen=True, tag="usage"):
    """The tokens that the server has counted so far; a later update replaces an earlier one."""

    usage: Usage


class Done(Struct, frozen=True, tag="done"):
    """The last event of every reply, with the whole message.

    `lost_tool_call`: the reply was cut inside a call, which the message does not hold. `note` is what the provider says
    about the stop reason: the explanation of a refusal, or the name of a reason that is not known here.
    """

    message: Message
    stop_reason: StopReason
    usage: Usage
    model: str
    lost_tool_call: bool = False
    note: str = ""


StreamEvent = TextDelta | ThinkingDelta | ToolCallStarted | ToolCallDelta | ToolCallEnded | UsageUpdate | Done


class TokenCount(Struct, frozen=True):
    """A number of tokens: `exact` if the provider counted them, else an estimate that includes its safety margin."""

    tokens: int
    exact: bool


class Health(Struct, frozen=True):
    """The result of a provider's health check. `models` are the models it lists, if it has a list."""

    ok: bool
    detail: str
    models: tuple[str, ...] = ()


class Provider(Protocol):
    """One model behind one API. `name` is that of the provider, `model` that of the model as the API spells it."""

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        """Send one request and yield its events, `Done` last; closing the iterator ends the request.

        Raises `ProviderError` for every failure; its `partial` holds all that had arrived, without calls that were cut.
        """
        ...

    async def count_tokens(self, request: Request) -> TokenCount:
        """Count the prompt tokens of `request`. Raises `ProviderError`."""
        ...

    async def health_check(self) -> Health:
        """Check that the server answers and accepts the key. Does not raise, and costs no tokens."""
        ...

    async def aclose(self) -> None:
        """Release connections and processes; safe to call twice."""
        ...


@runtime_checkable
class Warmable(Protocol):
    """A provider that answers the first request sooner if it was warmed with its beginning."""

    async def warm(self, request: Request) -> None: ...


async def complete(provider: Provider, request: Request) -> Done:
    """Return the whole reply at once. Raises `ProviderError`."""
    async with aclosing(provider.stream(request)) as events:
        async for event in events:
            if isinstance(event, Done):
                return event
    raise AssertionError(f"{provider.name} ended its stream without Done")
