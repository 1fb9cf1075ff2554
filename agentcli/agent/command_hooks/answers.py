"""Reads what a hook said: its exit code, its JSON, its plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentcli.agent.command_hooks.specs import HookSpec

BLOCKS = 2  # the exit code
_NOT_RUN = (126, 127)  # of a shell that could not run the command (POSIX XCU 2.8.2)
# Interpreters that do not find their script end with 2 or 1, and say so.
_NO_SCRIPT = re.compile(
    r"can't open file|cannot open|No such file or directory|not found|Cannot find module|Could not open input file|"
    r"Can't open perl script|Permission denied",
    re.IGNORECASE,
)
_PLAIN_CONTEXT = ("SessionStart", "UserPromptSubmit", "SubagentStart")  # whose plain output is told to the model
Decision = Literal["", "allow", "ask", "deny"]
_STRENGTH: dict[Decision, int] = {"": 0, "allow": 1, "ask": 2, "deny": 3}


class Ended(Struct, frozen=True):
    """How a hook's process ended; `failure` says why it did not run to its end."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    failure: str = ""
    seconds: float = 0.0


class Said(Struct, frozen=True):
    """What hooks say to an event. `stops` ends the turn, `input` replaces a call's arguments.

    `context` is for the model, `notices` are for the person, `problem` says what went wrong with a hook.
    """

    decision: Decision = ""
    reason: str = ""
    input: dict[str, Any] | None = None
    context: str = ""
    notices: tuple[str, ...] = ()
    stops: bool = False
    problem: str = ""

    @property
    def blocks(self) -> bool:
        return self.decision == "deny"


def combined(all: Sequence[Said]) -> Said:
    """Several answers as one: a deny wins over an ask, an ask over an allow, of equals the first."""
    strongest = max(all, key=lambda said: _STRENGTH[said.decision], default=Said())
    inputs = [said.input for said in all if said.input is not None]
    return Said(
        strongest.decision,
        strongest.reason,
        inputs[-1] if inputs else None,
        "\n".join(said.context for said in all if said.context),
        tuple(notice for said in all for notice in said.notices),
        stops=any(said.stops for said in all),
        problem="; ".join(said.problem for said in all if said.problem),
    )


def read_answer(spec: HookSpec, ended: Ended) -> Said:
    """The answer of one hook."""
    if why := _not_started(ended):
        return _failed(spec, why)
    if ended.exit_code == BLOCKS:
        return Said("deny", ended.stderr.strip() or ended.stdout.strip() or f"The hook `{spec.command}` refused this.")
    if ended.exit_code:
        told = ended.stderr.strip().splitlines()[:1] or [""]
        return Said(problem=f"`{spec.command}` ended with {ended.exit_code}: {told[0]}".rstrip(": "))
    text = ended.stdout.strip()
    if not text.startswith("{"):
        return Said(context=text if spec.event in _PLAIN_CONTEXT else "")
    try:
        return _read_json(msgspec.json.decode(text, type=dict[str, Any]))
    except msgspec.MsgspecError as error:
        return _failed(spec, f"its answer is no JSON ({error})")


def _not_started(ended: Ended) -> str:
    """Why a hook has decided nothing; empty for one that ran."""
    if ended.failure or ended.exit_code is None:
        return ended.failure or "it was ended"
    is_missing = ended.exit_code in (1, BLOCKS) and not ended.stdout.strip() and _NO_SCRIPT.search(ended.stderr)
    if ended.exit_code in _NOT_RUN or is_missing:
        return f"it could not be started ({' '.join(ended.stderr.split())[:200]})"
    return ""


def _failed(spec: HookSpec, why: str) -> Said:
    problem = f"`{spec.command}`: {why}"
    if spec.on_error == "allow":
        return Said(problem=problem)
    return Said(spec.on_error, f"A hook that has to be asked failed: {problem}", problem=problem)


def _read_json(answer: dict[str, Any]) -> Said:
    own = answer.get("hookSpecificOutput")
    own = own if isinstance(own, dict) else {}
    behaviour = own.get("decision")  # of PermissionRequest
    behaviour = behaviour if isinstance(behaviour, dict) else {}
    decision = own.get("permissionDecision") or behaviour.get("behavior") or answer.get("decision") or ""
    decision = {"block": "deny", "approve": "allow"}.get(decision, decision)
    reason = own.get("permissionDecisionReason") or behaviour.get("message") or answer.get("reason") or ""
    stops = answer.get("continue") is False
    updated = own.get("updatedInput", behaviour.get("updatedInput"))
    notice = answer.get("systemMessage")
    return Said(
        decision if decision in _STRENGTH else "",
        str(answer.get("stopReason") or reason) if stops else str(reason),
        updated if isinstance(updated, dict) else None,
        str(own.get("additionalContext") or ""),
        (str(notice),) if notice else (),
        stops=stops,
    )
