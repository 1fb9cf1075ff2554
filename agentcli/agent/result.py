"""The `result` object: how a prompt ended, in the field's own shape."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from agentcli.agent.events import Done, Event, TurnEnded, TurnFailed, TurnStarted
from agentcli.agent.session import Session
from agentcli.llm.messages import Usage

INTERRUPTED_EXIT = 130
EXIT_CODES = {
    "end_turn": 0,
    "max_tokens": 0,
    "stopped": 0,
    "max_turns": 53,
    "max_budget": 54,
    "interrupted": INTERRUPTED_EXIT,
}
DENIED_EXIT = 56
_SUBTYPES = {"max_turns": "error_max_turns", "max_budget": "error_max_budget_usd", "interrupted": "interrupted"}


class ResultBuilder:
    """Watches a session's events and makes the result object of each prompt."""

    def __init__(self, session: Session, started: float | None = None) -> None:
        self._session = session
        self._started = time.monotonic() if started is None else started
        self._requested: float | None = None
        self._api_s = 0.0

    def heed(self, event: Event) -> None:
        if isinstance(event, TurnStarted):
            self._requested = time.monotonic()
            if event.turn == 1:  # a stream may have waited for the prompt
                self._started = self._requested
        elif isinstance(event, TurnEnded | TurnFailed | Done) and self._requested is not None:
            self._api_s += time.monotonic() - self._requested
            self._requested = None

    def build(self, end: Done | TurnFailed, *, fail_on_denial: bool = False) -> dict[str, Any]:
        """The object as the JSON outputs print it. Durations in milliseconds, costs in USD (null where unknown)."""
        denials = [{"tool_name": call.name, "tool_use_id": call.id, "tool_input": call.input} for call in end.denials]
        if isinstance(end, TurnFailed):
            subtype, text, reason = "error_during_execution", end.error, end.error_type or "error"
        else:
            subtype, text, reason = _SUBTYPES.get(end.reason, "success"), end.text, end.reason
            if fail_on_denial and denials and subtype == "success":
                subtype, reason = "error_permission", "permission_denied"
        by_model = self._session.state.meter.by_model
        return {
            "type": "result",
            "subtype": subtype,
            "is_error": subtype != "success",
            "result": text,
            "structured_output": None,
            "session_id": self._session.id,
            "num_turns": end.turns,
            "duration_ms": round((time.monotonic() - self._started) * 1000),
            "duration_api_ms": round(self._api_s * 1000),
            "total_cost_usd": end.cost_usd,
            "usage": usage_object(end.usage),
            "model_usage": {
                model: {**usage_object(usage), "cost_usd": cost} for model, (usage, cost) in by_model.items()
            },
            "permission_denials": denials,
            "terminal_reason": reason,
            "uuid": str(uuid.uuid4()),
        }


def exit_code(end: Done | TurnFailed, *, fail_on_denial: bool) -> int:
    if isinstance(end, TurnFailed):
        return 1
    code = EXIT_CODES[end.reason]
    return DENIED_EXIT if fail_on_denial and end.denials and code == 0 else code


def usage_object(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
    }


def to_json_line(value: Any) -> bytes:
    """One line of UTF-8; a line separator inside a string never splits it, since only \\n ends a line."""
    return msgspec.json.encode(value) + b"\n"
