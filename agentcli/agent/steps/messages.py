"""Steps that add to a prompt: queued messages, reports of subagents, instructions of folders, notes of hooks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path

from agentcli.agent.calls.model import fire
from agentcli.agent.events import Notice
from agentcli.agent.hooks import EventName
from agentcli.agent.runtime import EarlyEnd, Turn, TurnStep
from agentcli.agent.turn import add_messages
from agentcli.agent.turn_log import add, answer_open_calls, take_back_prompt
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Result, User, reminder
from agentcli.conversation.instructions import InstructionReader, Instructions, instruction_paths, nested_instructions
from agentcli.errors import UserError
from agentcli.llm import provider as llm
from agentcli.llm.messages import Text, ToolUse
from agentcli.tools.workspace import parse_name

log = logging.getLogger(__name__)
MAX_STOPS = 5  # times that hooks let one turn go on
_STOPPED = "Not run: the turn was stopped."
_FILES = ("file_read", "file_write", "file_edit")
_FOLDERS = ("file_list", "grep_search")


class QueuedMessages(TurnStep):
    """Adds the messages that the person has sent meanwhile, and the reports of subagents in the background."""

    async def deliver(self, turn: Turn, reply: llm.Done) -> bool:
        if messages := turn.state.conversation.queue.take_steering():
            add_messages(turn, messages, from_queue=True)
        is_answer = not reply.message.tool_uses and not messages
        reports = await self._reports(turn, waits=is_answer and not turn.runtime.limits.asks)
        if reports:
            add(turn, *(User((Text(report),), is_reminder=True) for report in reports))
        return bool(messages or reports)

    async def _reports(self, turn: Turn, *, waits: bool) -> list[str]:
        """Return the reports of subagents; with `waits`, once at least one of those that run has ended."""
        if (agents := turn.runtime.calls.delegates.agents) is None:
            return []
        if waits:
            await agents.finished_one()
        return agents.take_reports()


class FolderInstructions(TurnStep):
    """Adds the instruction files of the folders that the model's calls went to."""

    def __init__(self, nested: NestedInstructions) -> None:
        self._nested = nested

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> None:
        calls, conversation = reply.message.tool_uses, turn.state.conversation
        found = await asyncio.to_thread(self._nested.found, calls, conversation)
        if note := found.note():
            turn.state.notes.append(note)
        for notice in found.notices:
            turn.emit(Notice(notice))


class PromptHooks(TurnStep):
    """Shows the prompt to hooks before the model. A prompt that they refuse is taken back."""

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
    """Ends the turn where the hook `on_turn_end` returns False."""

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        """Raise `UserError` for a hook that fails, because a guard that fails must not let anything through."""
        provider, _, model = turn.state.model.last_used.partition("/")
        try:
            continues = await turn.runtime.hooks.on_turn_end(turn.round, reply.usage, model, provider)
        except Exception as error:  # a hook is foreign code: any error of it ends only the turn
            log.exception("on_turn_end failed")
            answer_open_calls(turn, _STOPPED)
            raise UserError(f"The on_turn_end hook failed: {error!r}") from error
        return None if continues else EarlyEnd("stopped", _STOPPED)


class StopHooks(TurnStep):
    """Continues the turn where a hook asks for that; its reason is a note for the model."""

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


@dataclass
class NestedInstructions:
    """Finds the instruction files of folders below the working directory; `root` is the project's folder.

    The conversation tells which of them the model has, also after a resume.
    """

    cwd: Path
    root: Path
    home: Path | None
    _visited: set[Path] = field(default_factory=set)

    def found(self, calls: Sequence[ToolUse], conversation: Conversation) -> Instructions:
        """Return the files of the folders that these calls are the first to touch."""
        folders = {folder for call in calls for folder in self._touched(call)} - self._visited
        if not folders:
            return Instructions()
        self._visited |= folders
        known = instruction_paths(entry.body for entry in conversation.request_entries)
        return nested_instructions(folders, self.cwd, self.root, known, home=self.home)

    def read_again(self, conversation: Conversation, current_text: str) -> Instructions:
        """Read the files of the model again, except those that are in the text `current_text`."""
        reader = InstructionReader(root=self.root, home=self.home)
        for path in instruction_paths(entry.body for entry in conversation.request_entries):
            if f'<instructions path="{path}">' not in current_text:
                reader.read(Path(path), self.root)
        return reader.collect()

    def _touched(self, call: ToolUse) -> Iterator[Path]:
        name = call.input.get("cwd" if call.name == "bash" else "path")
        if not isinstance(name, str) or "\0" in (name := parse_name(name)):
            return
        path = Path(normpath(self.cwd / name))
        if call.name in _FILES:
            path = path.parent
        elif call.name not in (*_FOLDERS, "bash"):
            return
        if path != self.cwd and path.is_relative_to(self.cwd):
            yield path
