"""The `result` object: how a prompt ended, in the field's own shape."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from agentcli.agent.events import Done, Event, TurnEnded, TurnFailed, TurnStarted
from agentcli.agent.result_object import result_object, usage_object
from agentcli.agent.session import Session
from agentcli.conversation.evidence import Claim

if TYPE_CHECKING:
    from agentcli.agent.answer_schema import AnswerSchema

INTERRUPTED_EXIT = 130
EXIT_CODES = {
    "end_turn": 0,
    "max_tokens": 0,
    "stopped": 0,
    "max_turns": 53,
    "max_budget": 54,
    "interrupted": INTERRUPTED_EXIT,
    "declined": INTERRUPTED_EXIT,
}
DENIED_EXIT = 56
UNPROVEN_EXIT = 57
MISFIT_EXIT = 55
_SUBTYPES = {
    "max_turns": "error_max_turns",
    "max_budget": "error_max_budget_usd",
    "interrupted": "interrupted",
    "declined": "interrupted",
}
_REASONS = {"LoopError": "loop"}  # why a turn failed, where that has a name of its own


class Demands(Struct, frozen=True):
    """What a run is to end with a code of its own for: a denied call (56), an answer that does not
    fit a schema (55), a claim that is not verified (57).
    """

    no_denials: bool = False
    evidence: bool = False
    schema: AnswerSchema | None = None

    def value(self, end: Done | TurnFailed) -> Any:
        """The value that an answer gives; None without a schema, or where it does not fit."""
        if self.schema is None or isinstance(end, TurnFailed) or self.schema.problem(end.text):
            return None
        return self.schema.value(end.text)

    def misfit(self, end: Done | TurnFailed) -> str:
        """Why an answer does not fit the schema; empty where it does, or where there is no answer."""
        if self.schema is None or isinstance(end, TurnFailed) or end.reason not in ("end_turn", "max_tokens"):
            return ""
        return self.schema.problem(end.text)

    def lack_evidence(self, end: Done | TurnFailed) -> bool:
        return self.evidence and bool(unproven(end))


NO_DEMANDS = Demands()


class ResultBuilder:
    """Watches a session's events and makes the result object of each prompt."""

    def __init__(self, session: Session, started: float | None = None) -> None:
        self._session = session
        self._started = time.monotonic() if started is None else started
        self._requested: float | None = None
        self._api_s = 0.0
        self._before = session.state.meter.total.usage, session.state.meter.total.whole_usd

    def heed(self, event: Event) -> None:
        if event.agent_id != "main":
            return
        if isinstance(event, TurnStarted):
            self._requested = time.monotonic()
            if event.turn == 1:  # a stream may have waited for the prompt
                self._started = self._requested
        elif isinstance(event, TurnEnded | TurnFailed | Done) and self._requested is not None:
            self._api_s += time.monotonic() - self._requested
            self._requested = None

    def build(self, end: Done | TurnFailed, demands: Demands = NO_DEMANDS) -> dict[str, Any]:
        """The object as the JSON outputs print it."""
        denials = [
            {
                "tool_name": denial.call.name,
                "tool_use_id": denial.call.id,
                "tool_input": denial.call.input,
                "kind": denial.kind,
            }
            for denial in end.denials
        ]
        if isinstance(end, TurnFailed):
            subtype, text = "error_during_execution", end.error
            reason = _REASONS.get(end.error_type, end.error_type or "error")
        else:
            subtype, text, reason = _SUBTYPES.get(end.reason, "success"), end.text, end.reason
            if demands.misfit(end):
                subtype, reason = "error_schema", "schema_not_met"
            elif demands.no_denials and denials and subtype == "success":
                subtype, reason = "error_permission", "permission_denied"
            elif demands.lack_evidence(end) and subtype == "success":
                subtype, reason = "error_evidence", "evidence_missing"
        by_model = self._session.state.meter.by_model
        return result_object(subtype, text, session_id=self._session.id, reason=reason) | {
            "num_turns": end.turns,
            "duration_ms": round((time.monotonic() - self._started) * 1000),
            "duration_api_ms": round(self._api_s * 1000),
            "total_cost_usd": end.cost_usd,
            "usage": usage_object(end.usage),
            "model_usage": {
                model: {**usage_object(usage), "cost_usd": cost} for model, (usage, cost) in by_model.items()
            },
            "permission_denials": denials,
            "structured_output": demands.value(end),
            "claims": [] if isinstance(end, TurnFailed) else to_builtins(end.claims),
        }

    def unfinished(self) -> dict[str, Any]:
        """The object of a prompt that is left in the middle."""
        total, (usage, cost) = self._session.state.meter.total, self._before
        spent = None if total.whole_usd is None or cost is None else total.whole_usd - cost
        before, now = usage_object(usage), usage_object(total.usage)
        end = Done("", 0, usage, "interrupted", spent)
        return self.build(end) | {"usage": {name: now[name] - before[name] for name in now}}


def unproven(end: Done | TurnFailed) -> list[Claim]:
    """The claims of an answer that are not verified."""
    return [] if isinstance(end, TurnFailed) else [claim for claim in end.claims if claim.verdict != "verified"]


def exit_code(end: Done | TurnFailed, demands: Demands) -> int:
    if isinstance(end, TurnFailed):
        return 1
    code = EXIT_CODES[end.reason]
    if code == 0 and demands.misfit(end):
        return MISFIT_EXIT
    if code == 0 and demands.no_denials and end.denials:
        return DENIED_EXIT
    return UNPROVEN_EXIT if code == 0 and demands.lack_evidence(end) else code
