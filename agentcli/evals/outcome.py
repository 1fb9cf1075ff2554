"""Defines the variant of the agent that a run tries, and the outcome of an attempt, as plain data that can travel."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from agentcli.agent.accounting.usage import counted
from agentcli.frontends.export.markdown import money
from agentcli.llm.messages import Usage

End = Literal["end_turn", "max_tokens", "max_turns", "max_budget", "timeout", "stopped", "interrupted", "error"]


class Variant(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The setup of a run's agent, in which two runs may differ; its `settings`, nested, and `time_s` replace a task's.

    `model` may be `scripted/reference`, which plays each task's own solution, or `scripted/nothing`.
    """

    model: str
    system_prompt: str | None = None
    append_system_prompt: str = ""
    skills: tuple[str, ...] = ()
    time_s: float | None = None
    settings: dict[str, Any] = {}


class Outcome(Struct, frozen=True):
    """The outcome of one attempt. `score` is 0 to 1, `reason` the output of a check that did not pass.

    `turns` are requests. A cost of None: a price is not known. `verified`: a check passed after the last change.
    `claims` counts those of the answers by verdict. `prefix` are hashes of the tools and the system text. A `failure`
    is one of the provider or this machine: such an attempt is made again.
    """

    task: str
    sample: int
    passed: bool = False
    score: float = 0.0
    reason: str = ""
    end: End = "end_turn"
    error: str = ""
    turns: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0
    usage: Usage = Usage()
    tools: dict[str, int] = {}
    tool_errors: dict[str, int] = {}
    verified: bool = False
    claims: dict[str, int] = {}
    compactions: int = 0
    prefix: str = ""
    answered_by: str = ""
    failure: str = ""


class Attempted(Struct, frozen=True):
    """An outcome with its conversation, packed."""

    outcome: Outcome
    transcript: bytes = b""


def outcome_line(outcome: Outcome) -> str:
    false_claims = outcome.claims.get("refuted", 0)
    parts = [
        f"{outcome.score:.2f}",
        counted(outcome.turns, "request"),
        money(outcome.cost_usd),
        f"{outcome.seconds:.1f} s",
        outcome.end if outcome.end != "end_turn" else "",
        "verified" if outcome.verified else "",
        counted(false_claims, "false claim") if false_claims else "",
    ]
    return f"{'✓' if outcome.passed else '✗'} {outcome.task} #{outcome.sample}: {', '.join(filter(None, parts))}"
