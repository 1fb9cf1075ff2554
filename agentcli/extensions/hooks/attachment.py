"""Attaches hooks to a session: those of the settings, and those of a program that drives it."""

from typing import Any

from agentcli.agent.interfaces import EventAnswer, EventHooks, EventName
from agentcli.agent.session import Session
from agentcli.conversation.entries import reminder
from agentcli.extensions.hooks.run import RunningHooks, combine_answers
from agentcli.llm.messages import ToolUse


class JoinedHooks:
    """Fires events for several hooks. Implements `EventHooks`."""

    def __init__(self, *hooks: EventHooks) -> None:
        self._hooks = hooks

    async def fire(self, event: EventName, **fields: Any) -> EventAnswer:
        return combine_answers([await hooks.fire(event, **fields) for hooks in self._hooks])

    async def fire_about(self, event: EventName, call: ToolUse, input: dict[str, Any], **fields: Any) -> EventAnswer:
        return combine_answers([await hooks.fire_about(event, call, input, **fields) for hooks in self._hooks])


async def attach_hooks(session: Session, hooks: RunningHooks) -> None:
    """Let hooks run around the calls and at the events of a session, and fire `SessionStart`."""
    services, delegates = session.runtime.calls.services, session.runtime.calls.delegates
    hooks.session.publish = session.publish
    if services.mask is not None:
        hooks.session.mask = services.mask.text
    services.hooks = (*services.hooks, hooks)
    delegates.events = JoinedHooks(delegates.events, hooks) if delegates.events else hooks
    source = "resume" if session.state.conversation.entries else "startup"
    answer = await hooks.fire("SessionStart", subject=source, source=source)
    if answer.context:
        session.state.notes.append(reminder(answer.context))
