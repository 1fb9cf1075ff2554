"""Steps after replies that do not end a turn: with calls, cut or empty, with a plan, or without the asked change."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import structs

from agentcli.agent.events import PlanApproval
from agentcli.agent.ops import Approve
from agentcli.agent.result import AnswerSchema
from agentcli.agent.runtime import Turn, TurnStep
from agentcli.agent.turn_log import add
from agentcli.conversation.entries import Entry, PlanAccepted, Result, User, reminder
from agentcli.conversation.file_changes import FilesChanged
from agentcli.llm import provider as llm
from agentcli.llm.block_edits import asks_for_change
from agentcli.llm.errors import ServerError
from agentcli.llm.messages import Text
from agentcli.tools.builtin.files import IS_INVALID

MAX_CONTINUATIONS = 3  # of a reply that was cut by length, in a row
NUDGE = "No file was changed yet. Write each changed function whole in a ```python block now."
_HEADING = re.compile(r"^#{1,4}[ \t].*\bplan\b", re.IGNORECASE | re.MULTILINE)
_ACCEPTED = "The user has accepted your plan: carry it out now. Keep a list of its steps with todo."
_CHANGED = "The user has changed your plan to the following, and accepted it: carry it out now.\n"


class CallsPending(TurnStep):
    """Asks for another request after calls, unless a small model ended its turn with them and all succeeded."""

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        is_answered = turn.state.model.is_small and reply.stop_reason == "end_turn"
        if is_answered and not any(one.result.is_error or IS_INVALID in one.result.text for one in results):
            return False
        return bool(reply.message.tool_uses)


class ContinuedReply(TurnStep):
    """Continues a reply that is no answer yet, with a note that says how."""

    def __init__(self) -> None:
        self._count = 0
        self._length = 1  # a factor of the reply's length, doubled when a reply was cut inside a call

    def shape(self, request: llm.Request) -> llm.Request:
        return structs.replace(request, max_tokens=request.max_tokens * self._length)

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        is_empty = not reply.message.text.strip()
        if reply.stop_reason == "pause_turn":
            return True
        if self._count >= MAX_CONTINUATIONS:
            return False
        if reply.lost_tool_call:
            self._length *= 2
            note = (
                "Your reply was cut off inside a tool call, which was not run. Make the call again, in smaller parts."
            )
        elif reply.stop_reason in ("max_tokens", "model_context_window_exceeded"):
            note = "Your reply was cut off by its length limit. Go on exactly where it stopped."
        elif reply.stop_reason == "end_turn" and is_empty and self._count == 0:
            note = "Go on: answer with what the results say." if turn.round > 1 else "Your reply was empty: answer now."
        else:
            return False
        self._count += 1
        add(turn, reminder(note))
        return True


class PlanReview(TurnStep):
    """Asks about the plan in an answer of plan mode; the turn continues with the person's answer."""

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


class FittingAnswer(TurnStep):
    """Asks for an answer that fits a schema, and again for one that does not."""

    def __init__(self, schema: AnswerSchema) -> None:
        self._schema = schema
        self._count = 0

    async def begin(self, turn: Turn) -> None:
        turn.state.notes.append(reminder(self._schema.request))

    def shape(self, request: llm.Request) -> llm.Request:
        return structs.replace(request, answer_schema=self._schema.schema)

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        problem = self._schema.problem(turn.answer.text) if self._count < self._schema.most_tries else ""
        if problem:
            self._count += 1
            turn.answer.parts.clear()
            add(turn, reminder(self._schema.again(problem)))
        return bool(problem)


class SmallModelNudge(TurnStep):
    """Nudges a small model, once a prompt, that was asked for a change and only described it.

    Large models stop because they are done; small ones often stop after an explanation.
    """

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        if not turn.state.model.is_small:
            return False
        path = turn.state.conversation.path
        start = max((n for n, entry in enumerate(path) if entry.is_prompt), default=0)
        prompt, since = path[start].body, path[start + 1 :]
        note = reminder(NUDGE)
        was_nudged = any(isinstance(entry.body, User) and entry.body.text == note.text for entry in since)
        asks = isinstance(prompt, User) and asks_for_change(prompt.text)
        if not asks or was_nudged or any(map(_changes_files, since)):
            return False
        turn.answer.parts.clear()
        add(turn, note)
        return True


def _changes_files(entry: Entry) -> bool:
    match entry.body:
        case FilesChanged():
            return True
        case Result(result, name):
            return name in ("file_edit", "file_write") and not result.is_error
        case _:
            return False


class RequiredAnswer(TurnStep):
    """Fails a turn that would end without a word, which is no success."""

    async def after_reply(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
        """Raise `ServerError` for such a turn."""
        if reply.message.tool_uses or any(part.strip() for part in (*turn.answer.earlier, *turn.answer.parts)):
            return False
        if reply.stop_reason == "max_tokens":
            raise ServerError(
                "The model reached the limit of its reply before it began to answer: its reasoning took all of it. "
                "Raise tokens.max_output, or lower the effort (--effort, /effort)."
            )
        raise ServerError("The model answered nothing, also when it was asked once more.")
