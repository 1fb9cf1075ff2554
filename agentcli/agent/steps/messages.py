"""Steps that add messages for the model, or ask for another request after a reply."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os.path import normpath
from pathlib import Path

from msgspec import Struct, field, structs

from agentcli.agent.calls.model import fire
from agentcli.agent.events import Notice, PlanApproval
from agentcli.agent.interfaces import EventName
from agentcli.agent.loop import add_messages
from agentcli.agent.ops import Approve
from agentcli.agent.result import AnswerSchema
from agentcli.agent.runtime import EarlyEnd, Guardrails, Turn, TurnStep
from agentcli.agent.steps.limits import BudgetLimit, RepeatLimit, ResetWait, RoundLimit
from agentcli.agent.turn_log import add, answer_open_calls, take_back_prompt
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry, FilesChanged, PlanAccepted, Result, User, reminder
from agentcli.conversation.instructions import InstructionReader, Instructions, instruction_paths, nested_instructions
from agentcli.conversation.rule_files import RuleFileFinder
from agentcli.errors import UserError
from agentcli.llm import provider as llm
from agentcli.llm.errors import ServerError
from agentcli.llm.messages import Text, ToolUse
from agentcli.patterns import lazy_pattern
from agentcli.tools.workspace import parse_name

log = logging.getLogger(__name__)
MAX_STOPS = 5  # times that hooks may keep one turn from ending
_STOPPED = "Not run: a hook stopped this turn."
_FILES = ("file_read", "file_write", "file_edit")
_FOLDERS = ("file_list", "grep_search")


class QueuedMessages(TurnStep):
    """Adds the steering messages that the person has sent, and the reports of background subagents."""

    async def deliver(self, turn: Turn, reply: llm.Done) -> bool:
        if messages := turn.state.conversation.queue.take_steering():
            add_messages(turn, messages, from_queue=True)
        if (agents := turn.runtime.calls.delegates.subagents) is None:
            return bool(messages)
        if not (messages or reply.message.tool_uses or turn.runtime.limits.is_interactive):
            # The turn would end here, and without a person there is no later turn that could deliver the reports.
            await agents.wait_for_report()
        if reports := agents.take_reports():
            add(turn, *(User((Text(report),), is_reminder=True) for report in reports))
        return bool(messages or reports)


class PromptHooks(TurnStep):
    """Lets guardrails and hooks check the prompt before the model reads it. A rejected prompt is taken back."""

    async def begin(self, turn: Turn) -> None:
        if not turn.log.prompt_ids:  # the turn continues an earlier one, whose prompt was checked then
            return
        from_person, guards = turn.runtime.calls.parent_call is None, turn.runtime.hooks
        path, ids = turn.state.conversation.path, turn.log.prompt_ids
        # Searched backwards, because the prompt is near the end of a path that may be long.
        start = next(n for n in range(len(path) - 1, -1, -1) if path[n].id == ids[0])
        messages = (entry.body for entry in path[start:] if entry.id in ids)
        prompt = "\n".join(message.text for message in messages if isinstance(message, User))
        if from_person and isinstance(guards, Guardrails) and (why := await guards.check_prompt(prompt)):
            take_back_prompt(turn)
            raise UserError(f"A guardrail rejected your message, which was removed: {why}")
        answer = await fire(turn.runtime.calls, "UserPromptSubmit" if from_person else "SubagentStart", prompt=prompt)
        if answer.context:
            turn.state.notes.append(reminder(answer.context))
        if (answer.blocks or answer.stops) and from_person:
            take_back_prompt(turn)
            raise UserError(f"A hook denied your message, which was removed: {answer.reason or 'no reason given.'}")


class ReplyHook(TurnStep):
    """Ends the turn if the hook `on_turn_end` returns False."""

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        """Call the hook. Raises `UserError` if it fails, because a failing guard must not let anything pass."""
        provider, _, model = turn.state.model.last_used.partition("/")
        try:
            continues = await turn.runtime.hooks.on_turn_end(turn.round, reply.usage, model, provider)
        except Exception as error:  # a hook is foreign code: whatever it raises ends only the turn
            log.exception("on_turn_end failed")
            answer_open_calls(turn, _STOPPED)
            raise UserError(f"The on_turn_end hook failed: {error!r}") from error
        return None if continues else EarlyEnd("stopped", _STOPPED)


class StopHooks(TurnStep):
    """Continues the turn if a guardrail or a hook does not let it end; a reminder tells the model the reason."""

    _count = 0  # times that a hook continued the turn
    _rejections = 0  # times that a guardrail rejected an answer

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        """Return True for another answer if a guardrail or a hook objects to this one.

        Raises `UserError` if a guardrail has no retries left.
        """
        from_person, guards = turn.runtime.calls.parent_call is None, turn.runtime.hooks
        event: EventName = "Stop" if from_person else "SubagentStop"
        if from_person and isinstance(guards, Guardrails) and (why := await guards.check_answer(turn.answer.text)):
            if self._rejections >= guards.max_retries:
                raise UserError(f"A guardrail rejected the answer: {why}")
            self._rejections += 1
            note = f"Your answer was rejected: {why} Write another one."
        elif self._count < MAX_STOPS:
            answer = await fire(
                turn.runtime.calls, event, stop_hook_active=self._count > 0, last_assistant_message=turn.answer.text
            )
            if answer.stops or not answer.blocks:
                return False
            self._count += 1
            note = f"A hook does not let you stop yet: {answer.reason}"
        else:
            return False
        turn.state.notes.append(reminder(note))
        turn.answer.begin()
        return True


class NestedInstructions(Struct):
    """Finds the instruction files of folders below the working directory, and the rules for the files of calls.

    The files that the model already has are those in the conversation, which stays true after a resume.
    """

    cwd: Path
    finder: RuleFileFinder
    _visited: set[Path] = field(default_factory=set)  # folders and files that earlier calls used

    async def find(self, calls: Sequence[ToolUse], conversation: Conversation) -> Instructions:
        """Return the instruction files for the folders and files that no call has used before these."""
        used = (path_and_kind for call in calls for path_and_kind in self._used_paths(call))
        new = {(path, is_file) for path, is_file in used if path not in self._visited}
        files = sorted(path for path, is_file in new if is_file)
        folders = {path.parent if is_file else path for path, is_file in new} - self._visited
        if not folders and not any(rule for file in files for rule in self.finder.rule_files_for(file)):
            return Instructions()
        self._visited |= folders | {path for path, _ in new}
        known = instruction_paths(entry.body for entry in conversation.request_entries)  # the model has these
        return await asyncio.to_thread(nested_instructions, folders, files, self.cwd, finder=self.finder, known=known)

    def read_again(self, conversation: Conversation, current_text: str) -> Instructions:
        """Read again the instruction files in the conversation, except those that `current_text` contains."""
        reader = InstructionReader(finder=self.finder)
        for path in instruction_paths(entry.body for entry in conversation.request_entries):
            if f'<instructions path="{path}">' not in current_text:
                reader.read(Path(path), self.finder.root)
        return reader.collect()

    def _used_paths(self, call: ToolUse) -> Iterator[tuple[Path, bool]]:
        """Yield the path that a call uses, if it is in the project, and True for a file, False for a folder."""
        name = call.input.get("cwd" if call.name == "bash" else "path")
        if not isinstance(name, str) or "\0" in (name := parse_name(name)):  # such a call will fail
            return
        path = Path(normpath(self.cwd / name))
        if call.name in (*_FILES, *_FOLDERS, "bash") and path.is_relative_to(self.finder.root):
            yield path, call.name in _FILES


class FolderInstructions(TurnStep):
    """Adds the instruction files for the folders and files that the model's calls used."""

    def __init__(self, nested: NestedInstructions) -> None:
        self._nested = nested

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> None:
        found = await self._nested.find(reply.message.tool_uses, turn.state.conversation)
        if note := found.to_reminder():
            turn.state.notes.append(note)
        for notice in found.notices:
            turn.emit(Notice(notice))


MAX_CONTINUATIONS = 3  # of incomplete replies in one turn
NUDGE = "You have not changed any files yet. Write each function you change, in full, in a ```python block."
_HEADING = lazy_pattern(r"^#{1,4}[ \t].*\bplan\b", re.IGNORECASE | re.MULTILINE)
_ACCEPTED = "The user approved your plan. Carry it out now. Track its steps with todo."
_CHANGED = "The user changed your plan to the following and approved it. Carry it out now.\n"


class CallsPending(TurnStep):
    """Asks for another request after calls, unless a small model ended its turn with them and all of them succeeded."""

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        is_answered = turn.state.model.is_small and reply.stop_reason == "end_turn"
        if is_answered and results:
            from agentcli.tools.builtin.files import INVALID_NOTE

            # Writing a file that is not valid code is not a success either.
            is_answered = not any(call.result.is_error or INVALID_NOTE in call.result.text for call in results)
        # A small model's answer came with its calls, so another request would only take time.
        return bool(reply.message.tool_uses) and not is_answered


class ContinuedReply(TurnStep):
    """Continues a reply that is not a complete answer, with a reminder of what is missing."""

    _count = 0  # continuations in this turn
    _length_factor = 1  # for the maximum length of replies, doubled when one was cut inside a call

    def shape(self, request: llm.Request) -> llm.Request:
        return structs.replace(request, max_tokens=request.max_tokens * self._length_factor)

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        is_empty = not reply.message.text.strip()
        if reply.stop_reason == "pause_turn":  # the provider paused a long reply; resending the request continues it
            return True
        if self._count >= MAX_CONTINUATIONS:
            return False
        if reply.lost_tool_call:
            self._length_factor *= 2
            note = (
                "Your reply was cut off inside a tool call, so the call did not run. Make it again, in smaller parts."
            )
        elif reply.stop_reason in ("max_tokens", "model_context_window_exceeded"):
            note = "Your reply was cut off by its length limit. Continue exactly where it stopped."
        elif reply.stop_reason == "end_turn" and is_empty and self._count == 0:  # `RequiredAnswer` ends a second one
            note = "Continue: answer based on the results." if turn.round > 1 else "Your reply was empty. Answer now."
        else:
            return False
        self._count += 1
        add(turn, reminder(note))
        return True


class PlanReview(TurnStep):
    """Asks about the plan in an answer of plan mode, and continues the turn with the person's answer."""

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        """Ask if the plan is to be carried out; return True if the turn continues. A no without a comment ends it."""
        state, calls = turn.state, turn.runtime.calls
        plan, is_subagent = turn.answer.text.strip(), calls.parent_call is not None
        if state.mode != "plan" or calls.ask is None or is_subagent or not _HEADING.search(plan):
            return False
        id, title = f"plan_{turn.round}", "Carry out this plan?"
        answer = await calls.ask(PlanApproval(id, title, preview=plan, next_mode=state.mode_before_plan), None)
        if not isinstance(answer, Approve):
            return False
        comment = answer.comment.strip()
        if answer.allowed:  # with a comment: that is the plan as the person changed it
            add(turn, PlanAccepted(comment or plan), reminder(f"{_CHANGED}{comment}" if comment else _ACCEPTED))
        elif comment:
            add(turn, User((Text(comment),)))
        else:
            return False
        turn.answer.begin()  # the plan is not part of the final answer
        return True


class FittingAnswer(TurnStep):
    """Asks for an answer that fits a schema, and for another one if it does not."""

    def __init__(self, schema: AnswerSchema) -> None:
        self._schema = schema
        self._count = 0  # answers that did not fit

    async def begin(self, turn: Turn) -> None:
        turn.state.notes.append(reminder(self._schema.request))

    def shape(self, request: llm.Request) -> llm.Request:
        return structs.replace(request, answer_schema=self._schema.schema)

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        problem = self._schema.problem(turn.answer.text) if self._count < self._schema.max_tries else ""
        if problem:
            self._count += 1
            turn.answer.parts.clear()  # the next reply replaces it
            why = f"Your answer does not match the JSON Schema: {problem}."
            add(turn, reminder(f"{why} Answer again with the JSON value and nothing else."))
        return bool(problem)


class SmallModelNudge(TurnStep):
    """Nudges a small model, once per prompt, if it was asked for a change but only described it."""

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        if not turn.state.model.is_small:  # large models stop when they are done
            return False
        from agentcli.llm.block_edits import asks_for_change

        path = turn.state.conversation.path
        newest = max((n for n, entry in enumerate(path) if entry.is_prompt), default=0)
        prompt, since_prompt = path[newest].body, path[newest + 1 :]
        nudge = reminder(NUDGE)
        was_nudged = any(isinstance(entry.body, User) and entry.body.text == nudge.text for entry in since_prompt)
        wants_change = isinstance(prompt, User) and asks_for_change(prompt.text)
        if not wants_change or was_nudged or any(map(_changes_files, since_prompt)):
            return False
        turn.answer.parts.clear()  # a description of the change is not the answer
        add(turn, nudge)
        return True


def _changes_files(entry: Entry) -> bool:
    body = entry.body
    is_edit = isinstance(body, Result) and body.name in ("file_edit", "file_write") and not body.result.is_error
    return is_edit or isinstance(body, FilesChanged)


class RequiredAnswer(TurnStep):
    """Fails a turn that would end without any text, because that is not a success."""

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        has_text = any(part.strip() for part in (*turn.answer.earlier, *turn.answer.parts))
        if reply.message.tool_uses or has_text:
            return False
        if reply.stop_reason == "max_tokens":
            raise ServerError(
                "The model used its whole output limit for reasoning and did not answer. "
                "Raise tokens.max_output, or lower the effort (--effort, /effort)."
            )
        raise ServerError("The model returned an empty answer twice.")


_NO_SCHEMA = TurnStep  # does nothing; it keeps the place of `FittingAnswer` among the steps


def set_answer_schema(steps: list[Callable[[], TurnStep]], schema: AnswerSchema | None) -> None:
    """Require answers in the turns that begin from now on to fit a schema; None lifts the requirement."""
    place = next(n for n, step in enumerate(steps) if getattr(step, "func", step) in (_NO_SCHEMA, FittingAnswer))
    steps[place] = _NO_SCHEMA if schema is None else partial(FittingAnswer, schema)


def usual_steps(*, nested: NestedInstructions | None = None) -> list[Callable[[], TurnStep]]:
    """Return the factories of a turn's steps, in order; features append theirs. `nested` adds `FolderInstructions`."""
    return [
        PromptHooks,
        ResetWait,
        ReplyHook,
        BudgetLimit,
        RoundLimit,
        *([partial(FolderInstructions, nested)] if nested is not None else []),
        RepeatLimit,
        QueuedMessages,
        CallsPending,
        ContinuedReply,
        PlanReview,
        _NO_SCHEMA,
        SmallModelNudge,
        RequiredAnswer,
        StopHooks,
    ]
