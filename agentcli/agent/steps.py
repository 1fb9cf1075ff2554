"""Steps of a turn beside requests and calls: hooks, replies that are no answer yet, nudges, limits, claim checks."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentcli.agent.events import Retry
from agentcli.agent.hooks import EventName, fire
from agentcli.agent.turn_log import Turn, add, settled
from agentcli.conversation.entries import Entry, ResetAwaited, Result, User, reminder
from agentcli.conversation.evidence import Claim
from agentcli.conversation.file_changes import FilesChanged, real_path
from agentcli.errors import ToolError, UserError
from agentcli.llm import provider as llm
from agentcli.llm.block_edits import asks_for_change
from agentcli.llm.errors import ProviderError, RateLimit, ServerError
from agentcli.llm.retry import LONGEST_WAIT_S, clock_time
from agentcli.tools.sandbox import Files
from agentcli.tools.text.syntax import IS_INVALID

log = logging.getLogger(__name__)

COUNTDOWN_S = 60.0  # between two events that tell how long it still takes
MAX_STOPS = 5  # times that hooks let one turn go on
MAX_CONTINUATIONS = 3  # of a reply that was cut by length, in a row
NUDGE = "No file was changed yet. Write each changed function whole in a ```python block now."
# Every claim has one of these in it: the outcome of a check, what became of a file, or a name.
_MAY_CLAIM = re.compile(
    r"pass|fail|creat|wrote|written|generat|produc|sav|add|introduc|delet|remov|chang|modif|touch|edit|updat|fix|\bran\b|"
    r"execut|lint|buil|compil|clean|green|succe|happy|issue|error|exit|works|\bOK\b|[✅❌]|`[^`]+`|\w\.\w|file",
    re.IGNORECASE,
)
_MAX_FILE_BYTES = 10_000_000


# Hooks


async def run_prompt_hooks(turn: Turn) -> None:
    """Let hooks see the prompt before the model does. Raises `UserError` where one refuses it: it is taken back."""
    from_person = turn.runtime.calls.made_by is None
    if not turn.prompt_ids:
        return
    entries = [entry.body for entry in turn.state.conversation.path if entry.id in turn.prompt_ids]
    prompt = "\n".join(body.text for body in entries if isinstance(body, User))
    event: EventName = "UserPromptSubmit" if from_person else "SubagentStart"
    answer = await fire(turn.runtime.calls, event, prompt=prompt)
    if answer.context:
        turn.state.notes.append(reminder(answer.context))
    if (answer.blocks or answer.stops) and from_person:
        turn.is_refused_by_hook = True
        raise UserError(f"A hook refused the message: {answer.reason or 'it gave no reason'} It was taken back.")


async def run_stop_hooks(turn: Turn) -> bool:
    """Return True where a hook wants the turn to go on, with its reason as a note for the model."""
    event: EventName = "Stop" if turn.runtime.calls.made_by is None else "SubagentStop"
    if turn.stops >= MAX_STOPS:
        return False
    answer = await fire(turn.runtime.calls, event, stop_hook_active=turn.stops > 0)
    if answer.stops or not answer.blocks:
        return False
    turn.stops += 1
    turn.state.notes.append(reminder(f"A hook does not let you end yet: {answer.reason}"))
    return True


# Replies that are no answer yet


def continue_reply(turn: Turn, reply: llm.Done) -> bool:
    """Have a reply that is no answer yet go on, with a note that says how; False where it ends the turn."""
    is_empty = not reply.message.text.strip()
    if reply.stop_reason == "pause_turn":
        return True
    if turn.continuations >= MAX_CONTINUATIONS:
        return False
    if reply.lost_tool_call:
        turn.more_tokens = max(turn.more_tokens, 1) * 2
        note = "Your reply was cut off inside a tool call, which was not run. Make the call again, in smaller parts."
    elif reply.stop_reason in ("max_tokens", "model_context_window_exceeded"):
        note = "Your reply was cut off by its length limit. Go on exactly where it stopped."
    elif reply.stop_reason == "end_turn" and is_empty and turn.continuations == 0:
        note = "Go on: answer with what the results say." if turn.round > 1 else "Your reply was empty: answer now."
    else:
        return False
    turn.continuations += 1
    add(turn, reminder(note))
    return True


def require_answer(turn: Turn, reply: llm.Done) -> None:
    """Raises `ServerError` where a turn would end without a word: that is no success."""
    if reply.message.tool_uses or any(part.strip() for part in (*turn.said, *turn.answer)):
        return
    if reply.stop_reason == "max_tokens":
        raise ServerError(
            "The model reached the limit of its reply before it began to answer: its reasoning took all of it. "
            "Raise tokens.max_output, or lower the effort (--effort, /effort)."
        )
    raise ServerError("The model answered nothing, also when it was asked once more.")


def ask_for_schema(turn: Turn) -> bool:
    """Have an answer that does not fit the schema given once more; False if it fits, or was tried often enough."""
    schema = turn.runtime.answer_schema
    if schema is None or turn.tries_to_fit >= schema.most_tries:
        return False
    if not (problem := schema.problem("".join(turn.answer))):
        return False
    turn.tries_to_fit += 1
    turn.answer.clear()
    add(turn, reminder(schema.again(problem)))
    return True


# Nudges for small models


def nudge(turn: Turn) -> bool:
    """Have a small model go on, once, that was asked for a change and made none. Larger ones mean it."""
    if not turn.is_small:
        return False
    path = turn.state.conversation.path
    start = max((n for n, entry in enumerate(path) if _is_prompt(entry)), default=0)
    prompt, since = path[start].body, path[start + 1 :]
    note = reminder(NUDGE)
    was_nudged = any(isinstance(entry.body, User) and entry.body.text == note.text for entry in since)
    asks = isinstance(prompt, User) and asks_for_change(prompt.text)
    if not asks or was_nudged or any(map(_changes_files, since)):
        return False
    turn.answer.clear()
    add(turn, note)
    return True


def is_complete(turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
    """Return True if a small model answered with its calls, and all went well: another request only takes time."""
    went_well = not any(one.result.is_error or IS_INVALID in one.result.text for one in results)
    return turn.is_small and reply.stop_reason == "end_turn" and went_well


def _changes_files(entry: Entry) -> bool:
    match entry.body:
        case FilesChanged():
            return True
        case Result(result, name):
            return name in ("file_edit", "file_write") and not result.is_error
        case _:
            return False


def _is_prompt(entry: Entry) -> bool:
    return isinstance(entry.body, User) and not entry.body.is_reminder


# Usage limits that reset: waited for once a turn, and also after a restart


def has_distant_reset(error: Exception) -> bool:
    """True for a limit that names its end, too far away for a usual retry."""
    return isinstance(error, RateLimit) and (error.retry_after or 0.0) > LONGEST_WAIT_S


async def wait_for_reset(turn: Turn, error: ProviderError) -> bool:
    """Wait until the limit that `error` names resets; False where the turn is to end instead."""
    if not turn.runtime.limits.waits_for_reset or turn.has_waited or not has_distant_reset(error):
        return False
    await wait_until(turn, time.time() + (error.retry_after or 0.0))
    return True


async def wait_until(turn: Turn, resets_at: float) -> None:
    """Count down to a time. A later start of the program finds in the log that this is under way."""
    turn.has_waited, turn.state.awaits_reset = True, True
    try:
        add(turn, ResetAwaited(resets_at))
        await settled(turn)
        while (left := resets_at - time.time()) > 0:  # by the wall clock: the machine may sleep meanwhile
            turn.emit(Retry(1, left, f"The usage limit resets at {clock_time(resets_at)}."))
            await asyncio.sleep(min(left, COUNTDOWN_S))
        add(turn, ResetAwaited(0.0))
        await settled(turn)
    finally:
        turn.state.awaits_reset = False


# Claim checks


async def check_answer(answer: str, turn: Turn) -> tuple[Claim, ...]:
    """Return the claims of an answer, each with a verdict; the work is done in a thread."""
    if not _MAY_CLAIM.search(answer):
        return ()
    try:
        return await asyncio.to_thread(_check_claims, answer, list(turn.state.conversation.path), turn)
    except Exception:  # the answer stays valid when its check fails; nothing of it is verified then
        log.exception("the claims of an answer could not be checked")
        return (Claim("The claims of this answer could not be checked.", "unchecked", "unverified"),)


def _check_claims(answer: str, path: list[Entry], turn: Turn) -> tuple[Claim, ...]:
    # These take 40 ms to import, and only an answer that may claim something needs them.
    from agentcli.conversation.evidence.claims import find_claims
    from agentcli.conversation.evidence.verdicts import Record, check_claims

    services = turn.runtime.calls.services
    cwd, content_id = str(services.workspace.real_cwd), partial(_content_id, services.workspace.sandbox)
    record = Record(path, cwd, content_id, is_complete=services.checkpoints is not None)
    return tuple(check_claims(find_claims(answer), record))


def _content_id(files: Files, stored: str) -> str | None:
    """Return the id of what a file holds now, as snapshots give it; empty if it is gone, None if that is unknown."""
    try:
        path = files.validate_path(Path(real_path(stored)), "read")
        status = files.status(path)
        if status is None:
            return ""
        if status.kind != "file" or status.size > _MAX_FILE_BYTES:
            return None
        with files.read(path) as file:
            content = file.read()
    except (ToolError, OSError):
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
