"""The end of plan mode: a plan that the person accepts, changes or rejects."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentcli.agent.events import PlanApproval
from agentcli.agent.ops import Approve
from agentcli.agent.runtime import Step, Turn
from agentcli.agent.turn_log import add
from agentcli.conversation.entries import PlanAccepted, Result, User, reminder
from agentcli.llm import provider as llm
from agentcli.llm.messages import Text

_HEADING = re.compile(r"^#{1,4}[ \t].*\bplan\b", re.IGNORECASE | re.MULTILINE)
_ACCEPTED = "The user has accepted your plan: carry it out now. Keep a list of its steps with todo."
_CHANGED = "The user has changed your plan to the following, and accepted it: carry it out now.\n"


class PlanReview(Step):
    """Asks about the plan that an answer in plan mode holds; the turn goes on with what the person says."""

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        state, calls = turn.state, turn.runtime.calls
        plan = turn.answer.text.strip()
        if state.mode != "plan" or calls.ask is None or calls.made_by is not None or not _HEADING.search(plan):
            return False
        id, title = f"plan_{turn.round}", "Carry out this plan?"
        answer = await calls.ask(PlanApproval(id, title, preview=plan, next_mode=state.mode_before_plan), None)
        if not isinstance(answer, Approve):
            return False
        comment = answer.comment.strip()
        if answer.allowed:
            add(turn, PlanAccepted(comment or plan), reminder(f"{_CHANGED}{comment}" if comment else _ACCEPTED))
        elif comment:
            add(turn, User((Text(comment),)))
        else:
            return False
        turn.answer.begin()
        return True
