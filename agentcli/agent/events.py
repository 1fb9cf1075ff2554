"""Everything a front end is told (events), and everything it can ask for (ops).

`turn` counts the requests of one prompt, from 1: the field's name for what is a round elsewhere in this program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from agentcli.conversation.entries import Entry
from agentcli.llm.messages import Block, StopReason, ToolResult, ToolUse, Usage

DoneReason = Literal["end_turn", "max_tokens", "max_turns", "max_budget", "interrupted", "stopped"]


class TurnStarted(Struct, frozen=True, tag="turn_started"):
    turn: int


class TurnEnded(Struct, frozen=True, tag="turn_ended"):
    """A reply is complete and stored; its calls come next."""

    turn: int
    stop_reason: StopReason
    model: str
    provider: str


class TextDelta(Struct, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, frozen=True, tag="thinking_delta"):
    text: str


class ToolStarted(Struct, frozen=True, tag="tool_started"):
    """`title` is one line for the person."""

    id: str
    name: str
    input: dict[str, Any]
    title: str


class ToolOutput(Struct, frozen=True, tag="tool_output"):
    """Output of a call that is still running."""

    id: str
    text: str


class ToolFinished(Struct, frozen=True, tag="tool_finished"):
    id: str
    name: str
    result: ToolResult
    duration_ms: float
    summary: str = ""
    structured: Any = None
    error_kind: str = ""


class ClientToolRequested(Struct, frozen=True, tag="client_tool_requested"):
    """Calls the client has to run; the turn waits for their results."""

    calls: tuple[ToolUse, ...]


class Steered(Struct, frozen=True, tag="steered"):
    """A message reached the model early; these calls were not started for it."""

    skipped: tuple[ToolUse, ...]


class ProviderSwitched(Struct, frozen=True, tag="provider_switched"):
    """Names as `provider/model`."""

    before: str
    after: str


class Retry(Struct, frozen=True, tag="retry"):
    """A request failed and is tried again. `number` counts from 1."""

    number: int
    delay_s: float
    error: str


class ApprovalRequested(Struct, frozen=True, tag="approval_requested"):
    """A call waits for `Approve` with this id. `preview` is the exact command, or the diff it would make."""

    id: str
    call: ToolUse
    title: str
    reason: str
    preview: str


class Compaction(Struct, frozen=True, tag="compaction"):
    tokens_before: int
    tokens_after: int


class UsageReported(Struct, frozen=True, tag="usage"):
    """Of one reply, and the session's total cost so far (None where a price is unknown)."""

    usage: Usage
    cost_usd: float | None
    total_cost_usd: float | None
    model: str
    provider: str


class EntryStored(Struct, frozen=True, tag="entry_stored"):
    """An entry is on disk. `seq` counts the entries of the session."""

    entry: Entry
    seq: int


class Notice(Struct, frozen=True, tag="notice"):
    """Something the person should know that ends nothing."""

    text: str


class Done(Struct, frozen=True, tag="done"):
    """The answer to a prompt is complete. `turns` is how many requests it took."""

    text: str
    turns: int
    usage: Usage
    reason: DoneReason = "end_turn"
    cost_usd: float | None = None


class TurnFailed(Struct, frozen=True, tag="turn_failed"):
    """The prompt could not be answered; what had been said is kept. `error_type` is the error's class."""

    error: str
    is_retryable: bool
    error_type: str = ""
    turns: int = 0
    usage: Usage = Usage()
    cost_usd: float | None = None


Event = (
    TurnStarted
    | TurnEnded
    | TextDelta
    | ThinkingDelta
    | ToolStarted
    | ToolOutput
    | ToolFinished
    | ClientToolRequested
    | Steered
    | ProviderSwitched
    | Retry
    | ApprovalRequested
    | Compaction
    | UsageReported
    | EntryStored
    | Notice
    | Done
    | TurnFailed
)

Emit = Callable[[Event], None]  # synchronous and never waits


class Prompt(Struct, frozen=True, tag="prompt"):
    """Start a turn; while one runs, wait for its end."""

    content: tuple[Block, ...]


class Steer(Struct, frozen=True, tag="steer"):
    """Reach the model before its next request; calls not yet started are skipped. Without a turn it is a prompt."""

    content: tuple[Block, ...]


class Interrupt(Struct, frozen=True, tag="interrupt"):
    """End the turn now; what was said is kept."""


class Approve(Struct, frozen=True, tag="approve"):
    """Answer an `ApprovalRequested`. `scope` "session" also allows what is like it; a comment goes to the model."""

    id: str
    allowed: bool
    scope: Literal["once", "session"] = "once"
    comment: str = ""


class SetModel(Struct, frozen=True, tag="set_model"):
    """Use another model from the next request on: `provider/model`."""

    name: str


class SetMode(Struct, frozen=True, tag="set_mode"):
    """Judge calls by another permission mode from the next call on."""

    mode: str


Op = Prompt | Steer | Interrupt | Approve | SetModel | SetMode
