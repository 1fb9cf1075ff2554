"""Builds the `result` object, which reports the end of a prompt in the form that coding agents commonly print."""

import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.agent.events import Done, Event, TurnEnded, TurnFailed, TurnStarted
from agentcli.conversation.evidence import Claim
from agentcli.errors import UsageError
from agentcli.llm.messages import Usage
from agentcli.patterns import lazy_pattern

if TYPE_CHECKING:
    from agentcli.agent.session import Session

INTERRUPTED_EXIT = 130
EXIT_CODES = {
    **dict.fromkeys(("end_turn", "max_tokens", "stopped", "paused"), 0),
    "max_turns": 53,
    "max_budget": 54,
    **dict.fromkeys(("interrupted", "declined"), INTERRUPTED_EXIT),
}
DENIED_EXIT = 56
UNPROVEN_EXIT = 57
MISFIT_EXIT = 55
_SUBTYPES = {
    "max_turns": "error_max_turns",
    "max_budget": "error_max_budget_usd",
    "interrupted": "interrupted",
    "declined": "interrupted",
    "paused": "paused",
}
# By exit code: the `subtype` and the `terminal_reason` of a result that does not meet the requirement.
_UNMET = {
    MISFIT_EXIT: ("error_schema", "schema_not_met"),
    DENIED_EXIT: ("error_permission", "permission_denied"),
    UNPROVEN_EXIT: ("error_evidence", "evidence_missing"),
}
_REASONS = {"LoopError": "loop"}  # `terminal_reason` by error class; for others it is the name of the class
_USAGE = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


class Requirements(msgspec.Struct, frozen=True):
    """Requirements for the answer of a run; a run that does not meet one ends with its exit code."""

    no_denials: bool = False  # 56: no call was denied
    evidence: bool = False  # 57: all claims of the answer are verified
    schema: "AnswerSchema | None" = None  # 55: the answer fits this schema

    def value(self, end: Done | TurnFailed) -> Any:
        """Return the value of an answer; None without a schema, or if the answer does not fit it."""
        if self.schema is None or isinstance(end, TurnFailed) or self.schema.problem(end.text):
            return None
        return self.schema.value(end.text)

    def schema_problem(self, end: Done | TurnFailed) -> str:
        """Return why an answer does not fit the schema; empty if it fits, or if there is no answer or schema."""
        if self.schema is None or isinstance(end, TurnFailed) or end.reason not in ("end_turn", "max_tokens"):
            return ""
        return self.schema.problem(end.text)

    def unmet(self, end: Done | TurnFailed) -> set[int]:
        """Return the exit codes of the requirements that are not met. The program exits with the lowest of them."""
        is_unmet = {
            MISFIT_EXIT: bool(self.schema_problem(end)),
            DENIED_EXIT: self.no_denials and bool(end.denials),
            UNPROVEN_EXIT: self.evidence and bool(unproven(end)),
        }
        return {code for code in is_unmet if is_unmet[code]}


NO_REQUIREMENTS = Requirements()


class ResultBuilder:
    """Watches a session's events and builds the result object of each prompt."""

    def __init__(self, session: "Session", started: float | None = None) -> None:
        self._session = session
        self._started = time.monotonic() if started is None else started  # of the prompt
        self._requested: float | None = None  # the monotonic time at which the running request was sent
        self._api_s = 0.0  # seconds of requests so far
        total = session.state.meter.total
        self._usage_before, self._usd_before = total.usage, total.full_cost_usd

    def note(self, event: Event) -> None:
        """Measure the time of the main agent's requests from its events."""
        match event:
            case TurnStarted(turn, agent_id="main"):
                self._requested = time.monotonic()
                if turn == 1:  # before the first request, an input stream may have waited for the prompt
                    self._started = self._requested
            case TurnEnded() | TurnFailed() | Done() if event.agent_id == "main" and self._requested is not None:
                self._api_s += time.monotonic() - self._requested
                self._requested = None

    def build(self, end: Done | TurnFailed, requirements: Requirements = NO_REQUIREMENTS) -> dict[str, Any]:
        """Return the result object of a prompt, for the JSON output formats."""
        denials = [
            {"tool_name": one.call.name, "tool_use_id": one.call.id, "tool_input": one.call.input, "kind": one.kind}
            for one in end.denials
        ]
        if isinstance(end, TurnFailed):
            subtype, text = "error_during_execution", end.error
            reason = _REASONS.get(end.error_type, end.error_type or "error")
        else:
            subtype, text, reason = _SUBTYPES.get(end.reason, "success"), end.text, end.reason
            if subtype == "success" and (unmet := requirements.unmet(end)):
                subtype, reason = _UNMET[min(unmet)]  # like the program's exit code
        by_model = self._session.state.meter.by_model.items()
        return result_object(subtype, text, session_id=self._session.id, reason=reason) | {
            "num_turns": end.turns,
            "duration_ms": round((time.monotonic() - self._started) * 1000),
            "duration_api_ms": round(self._api_s * 1000),
            "total_cost_usd": end.cost_usd,
            "usage": usage_object(end.usage),
            "model_usage": {model: {**usage_object(usage), "cost_usd": cost} for model, (usage, cost) in by_model},
            "permission_denials": denials,
            "structured_output": requirements.value(end),
            "claims": [] if isinstance(end, TurnFailed) else msgspec.to_builtins(end.claims),
        }

    def unfinished(self) -> dict[str, Any]:
        """Return the result object of an abandoned prompt, with the usage since this builder was created."""
        total, usd_before = self._session.state.meter.total, self._usd_before
        spent = None if total.full_cost_usd is None or usd_before is None else total.full_cost_usd - usd_before
        before, now = usage_object(self._usage_before), usage_object(total.usage)
        result = self.build(Done("", 0, Usage(), "interrupted", spent))
        return result | {"usage": {name: now[name] - before[name] for name in now}}


def unproven(end: Done | TurnFailed) -> list[Claim]:
    return [] if isinstance(end, TurnFailed) else [claim for claim in end.claims if claim.verdict != "verified"]


def exit_code(end: Done | TurnFailed, requirements: Requirements) -> int:
    if isinstance(end, TurnFailed):
        return 1
    return EXIT_CODES[end.reason] or min(requirements.unmet(end), default=0)


def result_object(subtype: str, text: str, *, session_id: str = "", reason: str = "") -> dict[str, Any]:
    """Return the object of a run without requests. Durations are in milliseconds, costs in USD (None if unknown)."""
    return {
        "type": "result",
        "subtype": subtype,
        "is_error": subtype not in ("success", "paused"),
        "result": text,
        "structured_output": None,
        "session_id": session_id,
        "num_turns": 0,
        "duration_ms": 0,
        "duration_api_ms": 0,
        "total_cost_usd": 0.0,
        "usage": usage_object(Usage()),
        "model_usage": {},
        "permission_denials": [],
        "claims": [],
        "terminal_reason": reason or subtype,
        "uuid": _uuid4(),
    }


def usage_object(usage: Usage) -> dict[str, int]:
    return {name: getattr(usage, name) for name in _USAGE}


def to_json_line(value: Any) -> bytes:
    """Return a value as one line of JSON in UTF-8. Strings may contain U+2028 as it is: only \\n ends a line."""
    return msgspec.json.encode(value) + b"\n"


def _uuid4() -> str:
    """Return a random UUID (RFC 9562 §5.4). A signal handler may call this, and must not import `uuid`."""
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"  # version 4, variant 10


_FENCED = lazy_pattern(r"```(?:json)?\s*\n(.*?)\n\s*```", re.DOTALL)
Convert = Callable[[Any], Any]
_MAX_PROBLEM_CHARS = 500  # of a validator's message


class AnswerSchema:
    """Checks answers against a JSON Schema, by default of draft 2020-12, or with `convert`. Raises `UsageError`."""

    max_tries = 2  # times that the model is asked again

    def __init__(self, schema: dict[str, Any], convert: Convert | None = None, name: str = "--json-schema") -> None:
        import jsonschema  # 60 ms
        from referencing.exceptions import Unresolvable

        self.schema, self._convert = schema, convert
        self._reference_errors = (Unresolvable, RecursionError)
        self._best_match = jsonschema.exceptions.best_match
        try:
            validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
            validator.check_schema(schema)
            self._validator = validator(schema)
            list(self._validator.iter_errors(None))  # raises an error for a reference without a target
        except jsonschema.SchemaError as error:
            raise UsageError(f"{name} is not valid: {error.message[:_MAX_PROBLEM_CHARS]}.") from error
        except self._reference_errors as error:
            raise UsageError(f"{name} has a reference that is missing or circular: {error}.") from error

    @property
    def request(self) -> str:
        shown = msgspec.json.encode(self.schema).decode()
        return f"Your final answer must be one JSON value and nothing else. It must match this JSON Schema: {shown}"

    def value(self, text: str) -> Any:
        """Return the JSON value of a text, or of its only code block. Raises `ValueError` if it does not fit."""
        blocks = _FENCED.findall(text)
        try:
            value = msgspec.json.decode((blocks[0] if len(blocks) == 1 else text).strip())
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(f"it is not valid JSON ({error})") from error
        if self._convert is not None:
            return self._convert(value)
        try:
            problem = self._best_match(self._validator.iter_errors(value))
        except self._reference_errors as error:
            raise ValueError(f"it cannot be checked against the schema ({error})") from error
        if problem:
            raise ValueError(f"{problem.json_path}: {problem.message[:_MAX_PROBLEM_CHARS]}")
        return value

    def problem(self, text: str) -> str:
        """Return why a text does not fit; empty if it does."""
        try:
            self.value(text)
        except ValueError as error:
            return str(error)
        return ""
