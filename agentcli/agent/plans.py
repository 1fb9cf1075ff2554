"""The end of plan mode: a plan that the person accepts, changes or rejects."""

from __future__ import annotations

import re

from agentcli.agent.events import PlanApproval
from agentcli.agent.ops import Approve
from agentcli.agent.turn_log import Turn, add, begin_answer
from agentcli.conversation.entries import PlanAccepted, User, reminder
from agentcli.llm.messages import Text

_HEADING = re.compile(r"^#{1,4}[ \t].*\bplan\b", re.IGNORECASE | re.MULTILINE)
_ACCEPTED = "The user has accepted your plan: carry it out now. Keep a list of its steps with todo."
_CHANGED = "The user has changed your plan to the following, and accepted it: carry it out now.\n"


async def settle_plan(turn: Turn) -> bool:
    """Ask about the plan that an answer in plan mode holds; True where the turn goes on with what the person says."""
    state, ask = turn.state, turn.runtime.calls.ask
    plan = "".join(turn.answer).strip()
    if state.mode != "plan" or ask is None or turn.runtime.calls.made_by is not None or not _HEADING.search(plan):
        return False
    title, mode = "Carry out this plan?", state.mode_before_plan
    answer = await ask(PlanApproval(f"plan_{turn.round}", title, preview=plan, next_mode=mode), None)
    if not isinstance(answer, Approve):
        return False
    if answer.allowed:
        changed = answer.comment.strip()
        add(turn, PlanAccepted(changed or plan), reminder(f"{_CHANGED}{changed}" if changed else _ACCEPTED))
        begin_answer(turn)
        return True
    if answer.comment.strip():
        add(turn, User((Text(answer.comment.strip()),)))
        begin_answer(turn)
        return True
    return False
