"""Defines hooks: code of others that is called around turns and calls, and may change or end them."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from msgspec import Struct

from agentcli.agent.permissions.modes import Mode
from agentcli.conversation.entries import Entry
from agentcli.llm.messages import ToolResult, ToolUse, Usage

EventName = Literal[
    "SessionStart", "SessionEnd", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolUseFailure",
    "PermissionRequest", "PermissionDenied", "Notification", "Stop", "StopFailure", "SubagentStart", "SubagentStop",
    "PreCompact", "PostCompact",
]  # fmt: skip
Decision = Literal["", "allow", "ask", "deny"]


class CallRecord(Struct, frozen=True):
    """A call, for hooks. `id` is the model's, `caller` the agent that made the call, `mode` the permission mode."""

    id: str
    tool: str
    version: str
    caller: str
    mode: Mode


class TurnHooks(Protocol):
    """Called while a turn runs, in order, and waited for."""

    async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
        """Called after each reply, before its calls; False ends the turn. An error here ends it with an error event."""

    async def on_message(self, entry: Entry) -> None:
        """Called when a reply or a result is stored. An error here is logged."""

    async def on_error(self, text: str, is_retryable: bool) -> None:
        """Called when the provider or the resolver failed. An error here is ignored."""


class HookAnswer(Struct, frozen=True):
    """A hook's answer to a call that is about to run.

    The decision "allow" permits a call that would ask, "ask" asks the person, "deny" denies the call; no hook overrides
    deny rules and catastrophic commands. `input` replaces the arguments, the model reads `context` with the result.
    `stops` ends the turn after this call.
    """

    decision: Decision = ""
    reason: str = ""
    input: dict[str, Any] | None = None
    context: str = ""
    stops: bool = False


class EventAnswer(HookAnswer, frozen=True):
    """The answer of hooks to an event. `notices` are for the person, `problem` says what went wrong with a hook."""

    notices: tuple[str, ...] = ()
    problem: str = ""

    @property
    def blocks(self) -> bool:
        return self.decision == "deny"


class EventHooks(Protocol):
    """Answers events of a session."""

    async def fire(self, event: EventName, *, agent_id: str = "main", **fields: Any) -> EventAnswer:
        """Return the answer to an event, such as `Stop`, which the fields describe. Never raises."""

    async def fire_about(
        self, event: EventName, call: ToolUse, input: dict[str, Any], *, agent_id: str = "main", **fields: Any
    ) -> EventAnswer:
        """As `fire`, for an event about a call with these arguments."""


class CallHooks(Protocol):
    """Called around every call of a tool, in the order of their list, and waited for."""

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        """Return an answer, or None. `input` has the changes of earlier hooks. Raises `ToolError` to deny the call."""

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        """Return text that the model reads after the result, or None. An error here ends the turn."""


class NoHooks:
    """Hooks that do nothing, to inherit from."""

    async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
        return True

    async def on_message(self, entry: Entry) -> None:
        pass

    async def on_error(self, text: str, is_retryable: bool) -> None:
        pass
