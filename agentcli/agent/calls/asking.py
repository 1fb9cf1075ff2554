"""Puts a question of a running call to the person."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count

from agentcli.agent.calls.scopes import Call, SessionCalls
from agentcli.agent.events import ApprovalRequested
from agentcli.agent.ops import Approve
from agentcli.llm.messages import ToolUse
from agentcli.tools.tool import Ask


def asking(call: Call) -> Ask | None:
    """What a tool asks the person with; None where nobody can be asked.

    Such a question is no entry: a call that has begun is not begun again after a crash, so it would not be asked again.
    """
    ask, numbers = call.turn.session.ask, count(1)
    if ask is None:
        return None

    async def asked(question: str, options: Sequence[str]) -> str | None:
        request = ApprovalRequested(
            f"{call.use.id}-{next(numbers)}", call.use, question, "", "", kind="ask", options=tuple(options)
        )
        since = time.perf_counter()
        try:
            answer = await ask(request, None)
        finally:
            call.report.waited_s += time.perf_counter() - since
        return answer.comment if isinstance(answer, Approve) and answer.allowed else None

    return asked


def asking_outside_calls(calls: SessionCalls) -> Ask:
    """What asks the person about something that no call of the model's is about; None is answered where nobody is."""
    numbers = count(1)

    async def asked(question: str, options: Sequence[str]) -> str | None:
        if (ask := calls.ask) is None:
            return None
        id = f"question-{next(numbers)}"
        use = ToolUse(id, "ask_user", {"question": question, "options": list(options)})
        answer = await ask(ApprovalRequested(id, use, question, "", "", kind="ask", options=tuple(options)), None)
        return answer.comment if isinstance(answer, Approve) and answer.allowed else None

    return asked
