"""Fires the events of a turn at the person's hooks, and does what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentcli.agent.hooks import EventAnswer, EventName
from agentcli.agent.permissions.decide import Verdict
from agentcli.conversation.entries import User, reminder
from agentcli.errors import UserError

if TYPE_CHECKING:
    from agentcli.agent.calls.model import Call, SessionCalls
    from agentcli.agent.events import ApprovalRequested
    from agentcli.agent.turn_log import Turn

MOST_STOPS = 5  # times that hooks let one turn go on


async def fire(calls: SessionCalls, event: EventName, **fields: Any) -> EventAnswer:
    """The answer of the hooks of an event; an empty one where there are none."""
    events = calls.services.events
    return EventAnswer() if events is None else await events.fire(event, agent_id=calls.agent_id, **fields)


async def fire_about(call: Call, event: EventName, **fields: Any) -> EventAnswer:
    """The same for an event about a call."""
    use, calls = call.use, call.turn.session
    events = calls.services.events
    if events is None:
        return EventAnswer()
    return await events.fire_about(event, use, use.input, agent_id=calls.agent_id, **fields)


async def end_session(calls: SessionCalls) -> None:
    """Tell that a session ends; a subagent's is a part of its parent's."""
    if calls.made_by is None:
        await fire(calls, "SessionEnd", reason="other")


async def heed_prompt(turn: Turn) -> None:
    """Let hooks see the prompt before the model does. Raises `UserError` where one refuses it: it is taken back."""
    from_person = turn.runtime.calls.made_by is None
    event: EventName = "UserPromptSubmit" if from_person else "SubagentStart"
    if not turn.prompt_ids:
        return
    entries = [entry.body for entry in turn.state.conversation.path if entry.id in turn.prompt_ids]
    prompt = "\n".join(body.text for body in entries if isinstance(body, User))
    answer = await fire(turn.runtime.calls, event, prompt=prompt)
    if answer.context:
        turn.state.notes.append(reminder(answer.context))
    if (answer.blocks or answer.stops) and from_person:
        turn.is_refused_by_hook = True
        raise UserError(f"A hook refused the message: {answer.reason or 'it gave no reason'} It was taken back.")


async def heed_stop(turn: Turn) -> bool:
    """True where a hook wants the turn to go on, with its reason as a note for the model."""
    event: EventName = "Stop" if turn.runtime.calls.made_by is None else "SubagentStop"
    if turn.stops >= MOST_STOPS:
        return False
    answer = await fire(turn.runtime.calls, event, stop_hook_active=turn.stops > 0)
    if answer.stops or not answer.blocks:
        return False
    turn.stops += 1
    turn.state.notes.append(reminder(f"A hook does not let you end yet: {answer.reason}"))
    return True


async def asked_hooks(call: Call, request: ApprovalRequested) -> Verdict | None:
    """What hooks decide in the person's place; None where the person is to be asked."""
    calls = call.turn.session
    answer = await fire_about(call, "PermissionRequest")
    if answer.decision in ("allow", "deny"):
        return Verdict(answer.decision, answer.reason or "a hook decided it")
    await fire(calls, "Notification", message=request.title, notification_type="permission_prompt")
    return None
