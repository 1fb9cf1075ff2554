"""Hooks around the requests of a turn: before the prompt is sent, after each reply, and before the turn ends."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from agentcli.agent.calls.model import fire
from agentcli.agent.hooks import EventName
from agentcli.agent.runtime import EarlyEnd, Turn, TurnStep
from agentcli.agent.turn_log import answer_open_calls, take_back_prompt
from agentcli.conversation.entries import Result, User, reminder
from agentcli.errors import UserError
from agentcli.llm import provider as llm

log = logging.getLogger(__name__)

MAX_STOPS = 5  # times that hooks let one turn go on
_STOPPED = "Not run: the turn was stopped."


class PromptHooks(TurnStep):
    """Lets hooks see the prompt before the model does. One that they refuse is taken back."""

    async def begin(self, turn: Turn) -> None:
        from_person = turn.runtime.calls.made_by is None
        if not turn.log.prompt_ids:
            return
        entries = [entry.body for entry in turn.state.conversation.path if entry.id in turn.log.prompt_ids]
        prompt = "\n".join(body.text for body in entries if isinstance(body, User))
        event: EventName = "UserPromptSubmit" if from_person else "SubagentStart"
        answer = await fire(turn.runtime.calls, event, prompt=prompt)
        if answer.context:
            turn.state.notes.append(reminder(answer.context))
        if (answer.blocks or answer.stops) and from_person:
            take_back_prompt(turn)
            raise UserError(f"A hook refused the message: {answer.reason or 'it gave no reason'} It was taken back.")


class ReplyHook(TurnStep):
    """Ends the turn where the program's `on_turn_end` says so."""

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        """Raises `UserError` for a hook that fails: a guard that fails must not let anything through."""
        provider, _, model = turn.state.model.last_used.partition("/")
        try:
            goes_on = await turn.runtime.hooks.on_turn_end(turn.round, reply.usage, model, provider)
        except Exception as error:  # a hook is foreign code: whatever it raises ends the turn and nothing else
            log.exception("on_turn_end failed")
            answer_open_calls(turn, _STOPPED)
            raise UserError(f"The on_turn_end hook failed: {error!r}") from error
        return None if goes_on else EarlyEnd("stopped", _STOPPED)


class StopHooks(TurnStep):
    """Has the turn go on where a hook wants that; its reason is a note for the model."""

    def __init__(self) -> None:
        self._count = 0

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        event: EventName = "Stop" if turn.runtime.calls.made_by is None else "SubagentStop"
        if self._count >= MAX_STOPS:
            return False
        answer = await fire(turn.runtime.calls, event, stop_hook_active=self._count > 0)
        if answer.stops or not answer.blocks:
            return False
        self._count += 1
        turn.state.notes.append(reminder(f"A hook does not let you end yet: {answer.reason}"))
        turn.answer.begin()
        return True
