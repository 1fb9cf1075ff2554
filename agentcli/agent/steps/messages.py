"""Messages that reach the model between two requests: queued ones, reports of subagents, instructions of folders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentcli.agent.context.nested_instructions import NestedInstructions
from agentcli.agent.events import Notice
from agentcli.agent.runtime import Turn, TurnStep
from agentcli.agent.turn import add_messages
from agentcli.agent.turn_log import add
from agentcli.conversation.entries import Result, User
from agentcli.llm import provider as llm
from agentcli.llm.messages import Text


class QueuedMessages(TurnStep):
    """Adds the person's messages that came meanwhile, and what subagents in the background report."""

    async def deliver(self, turn: Turn, reply: llm.Done) -> bool:
        if messages := turn.state.conversation.queue.take_steering():
            add_messages(turn, messages, from_queue=True)
        is_answer = not reply.message.tool_uses and not messages
        reports = await self._reports(turn, waits=is_answer and not turn.runtime.limits.asks)
        if reports:
            add(turn, *(User((Text(report),), is_reminder=True) for report in reports))
        return bool(messages or reports)

    async def _reports(self, turn: Turn, *, waits: bool) -> list[str]:
        """Return what subagents report; where no person is there, an answer `waits` for them."""
        if (agents := turn.runtime.calls.delegates.agents) is None:
            return []
        if waits:
            await agents.finished_one()
        return agents.take_reports()


class FolderInstructions(TurnStep):
    """Gives the model the instruction files of the folders that its calls went to."""

    def __init__(self, nested: NestedInstructions) -> None:
        self._nested = nested

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> None:
        calls, conversation = reply.message.tool_uses, turn.state.conversation
        found = await asyncio.to_thread(self._nested.found, calls, conversation)
        if note := found.note():
            turn.state.notes.append(note)
        for notice in found.notices:
            turn.emit(Notice(notice))
