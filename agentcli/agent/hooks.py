"""Where code that embeds agentcli looks in on a turn, and may end it."""

from __future__ import annotations

from typing import Any, Protocol

from agentcli.agent.call_record import CallRecord
from agentcli.conversation.entries import Entry
from agentcli.llm.messages import ToolResult, Usage


class TurnHooks(Protocol):
    """Called while a turn runs, in order, and waited for."""

    async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
        """After each reply and before its calls; False ends the turn. An error here ends it with an error event."""
        ...

    async def on_message(self, entry: Entry) -> None:
        """When an assistant or tool_result entry has joined the state. An error here is logged."""
        ...

    async def on_error(self, text: str, is_retryable: bool) -> None:
        """When the provider or the resolver failed. An error here is ignored."""
        ...


class CallHooks(Protocol):
    """Called around every call of a tool, in order, and waited for."""

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> dict[str, Any] | None:
        """Other arguments, or None for those given. Raises `ToolError` to refuse the call."""
        ...

    async def after_call(self, record: CallRecord, result: ToolResult) -> None:
        """Once the call has its result, whatever it is. An error here ends the turn with an error event."""
        ...


class NoHooks:
    """Hooks that do nothing; a place to inherit from when only one is wanted."""

    async def on_turn_end(self, turn: int, usage: Usage, model: str, provider: str) -> bool:
        return True

    async def on_message(self, entry: Entry) -> None:
        pass

    async def on_error(self, text: str, is_retryable: bool) -> None:
        pass
