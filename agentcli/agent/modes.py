"""What the model is told of the permission mode: the system text never changes, so notes say it."""

from __future__ import annotations

from agentcli.agent.state import AgentState
from agentcli.conversation.entries import User, reminder

_PLAN_ON = reminder("Plan mode is on: only look, change nothing, and end with a plan.")
_PLAN_OFF = reminder("Plan mode is off: you may make changes now.")


def mode_notes(before: str, after: str) -> list[User]:
    """What the model is told of a change of mode: only plan mode asks something of it."""
    if after == "plan":
        return [_PLAN_ON]
    return [_PLAN_OFF] if before == "plan" else []


def untold_mode(state: AgentState) -> list[User]:
    """The note that is missing where the one about the present mode was taken back."""
    bodies = [*(entry.body for entry in state.conversation.path), *state.notes]
    told = next((body for body in reversed(bodies) if body in (_PLAN_ON, _PLAN_OFF)), _PLAN_OFF)
    due = _PLAN_ON if state.mode == "plan" else _PLAN_OFF
    return [] if told == due else [due]
