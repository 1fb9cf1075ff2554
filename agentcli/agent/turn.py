"""Begins and ends turns: with a prompt or where an earlier turn was cut short, and with an answer or a failure."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from agentcli.agent.accounting.budgets import Account
from agentcli.agent.calls.model import TurnCalls, fire
from agentcli.agent.events import Done, DoneReason, Emit, Notice, TurnFailed
from agentcli.agent.requests.repairs import blames_content
from agentcli.agent.requests.request import add_notes, describe_error
from agentcli.agent.runtime import AnswerText, Runtime, Spending, Turn
from agentcli.agent.state import AgentState
from agentcli.agent.turn_log import (
    add,
    add_and_track,
    answer_open_calls,
    queue_changed,
    settled,
    take_back_prompt,
    take_back_refused,
)
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Entry, Result, User, reminder
from agentcli.conversation.evidence import Claim
from agentcli.conversation.file_changes import real_path
from agentcli.conversation.mentions import unattached_files
from agentcli.errors import StorageError, ToolError, UserError
from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    BillingError,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    ProviderError,
    RateLimit,
)
from agentcli.llm.messages import Block, Text
from agentcli.llm.models import provider_display_name
from agentcli.llm.provider import MAX_WAIT_S
from agentcli.tools.workspace import Workspace

log = logging.getLogger(__name__)

GO_ON = (
    "The connection broke in the middle of your answer. Go on exactly where it stopped, within a word if need be: "
    "repeat nothing of it, and say nothing about this. If it had begun a tool call, nothing of that has run: "
    "make the call again."
)


def begin_turn(
    state: AgentState, runtime: Runtime, prompts: Sequence[Sequence[Block]], emit: Emit, *, from_queue: bool = False
) -> Turn:
    """Add a prompt to the conversation, without waiting; with `from_queue` it leaves the queue in one transaction."""
    turn = _new_turn(state, runtime, emit)
    answer_open_calls(turn)
    for step in turn.steps:
        step.start(turn, is_resumed=False)
    add_notes(turn)
    turn.log.prompt_ids = add_messages(turn, prompts, from_queue=from_queue)
    turn.log.entry_ids = list(turn.log.prompt_ids)
    return turn


def resume_turn(state: AgentState, runtime: Runtime, emit: Emit, *, is_killed: bool = False) -> Turn | None:
    """Return a turn that continues where the conversation was cut short; None where nothing was cut.

    It continues at a question that waits for its answer, or in an answer that broke off; with `is_killed` also where
    the model has not answered yet. Calls that may have begun get a result that says so.
    """
    conversation = state.conversation
    half = "" if conversation.asked_again else half_answer(conversation)
    if not (conversation.asked_again or half or (is_killed and is_unanswered(conversation))):
        return None
    turn = _new_turn(state, runtime, emit)
    if half:
        turn.answer = AnswerText(parts=[half], is_half=True)  # the rest joins it
        add_notes(turn)
        add(turn, reminder(GO_ON))
        return turn
    for step in turn.steps:
        step.start(turn, is_resumed=True)
    answer_open_calls(turn, apart_from=conversation.asked_again)
    return turn


def _new_turn(state: AgentState, runtime: Runtime, emit: Emit) -> Turn:
    state.remember_mode()
    budgets = state.budgets.within(Account("turn", runtime.limits.budgets))
    turn = Turn(
        state=state,
        runtime=runtime,
        calls=TurnCalls(session=runtime.calls, state=state, emit=emit, budgets=budgets),
        steps=[make() for make in runtime.steps],
        spending=Spending(budgets=budgets),
    )
    turn.calls.store, turn.calls.commit = partial(add_and_track, turn), partial(settled, turn)
    return turn


def add_messages(turn: Turn, messages: Sequence[Sequence[Block]], *, from_queue: bool) -> list[str]:
    """Add the person's messages, and return the ids of their entries."""
    bodies: list[Body] = [User(tuple(message)) for message in messages]
    turn.runtime.calls.history.forget_results()
    for notice in (notice for message in messages for notice in unattached_files(message)):
        turn.emit(Notice(notice))
    if not from_queue:
        return [entry.id for entry in add(turn, *bodies)]
    entries = add(turn, *bodies, turn.state.conversation.queue.entry())
    turn.emit(queue_changed(turn.state))
    return [entry.id for entry in entries[:-1]]


def is_unanswered(conversation: Conversation) -> bool:
    """Return True if the model has not answered a prompt, a call or a result yet."""
    bodies = (entry.body for entry in reversed(conversation.path))
    newest = next((body for body in bodies if isinstance(body, User | Assistant | Result)), None)
    return isinstance(newest, User | Result) or bool(conversation.open_calls)


def half_answer(conversation: Conversation) -> str:
    """Return the text of the answer that broke off at the end of the conversation; empty where none did."""
    parts: list[str] = []
    for entry in reversed(conversation.path):
        match entry.body:
            case Assistant(content, stop_reason="interrupted"):
                parts.append("".join(block.text for block in content if isinstance(block, Text)))
            case Assistant() | Result() | User(is_reminder=False):
                break
    return "".join(reversed(parts))


# The end of a turn


def broke_off(turn: Turn, error: Exception) -> bool:
    """Return True if an answer broke off in its text and can be continued."""
    return turn.answer.is_half and isinstance(error, ProviderError) and error.is_retryable


def has_distant_reset(error: Exception) -> bool:
    """Return True for a usage limit that names its end, which is too far away for a usual retry."""
    return isinstance(error, RateLimit) and (error.retry_after or 0.0) > MAX_WAIT_S


async def failure(turn: Turn, error: ProviderError | UserError) -> TurnFailed:
    """Return the event of a failure. A prompt that the provider would reject again and again is taken back."""
    is_half = broke_off(turn, error)
    taken_back = ""
    if type(error) is BadRequest and blames_content(error) and not error.shown:
        taken_back = take_back_refused(turn)
    elif isinstance(error, AuthError | ContextOverflow) and turn.round == 1 and turn.log.prompt_ids:
        take_back_prompt(turn)
        taken_back = "The message was taken back."
    is_retryable = isinstance(error, ProviderError) and error.is_retryable
    await fire(turn.runtime.calls, "StopFailure", error=str(error))
    try:
        await turn.runtime.hooks.on_error(str(error), is_retryable)
    except Exception:  # a hook is foreign code, and a second error would hide the first
        log.debug("on_error failed", exc_info=True)
    try:
        await settled(turn)
    except StorageError as unstored:
        error = unstored
    sentences = [_describe_overload(turn, error) or describe_error(error), _ADVICE.get(type(error), ""), taken_back]
    if is_retryable and not is_half:
        sentences += _next_steps(turn, error)
    text = " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in sentences if part)
    return failed(turn, text, is_retryable, type(error).__name__, broke_off=is_half)


def failed(turn: Turn, text: str, is_retryable: bool, kind: str, *, broke_off: bool = False) -> TurnFailed:
    spending, denials = turn.spending, tuple(turn.calls.denials)
    return TurnFailed(
        text,
        is_retryable,
        kind,
        turns=turn.round,
        usage=spending.usage,
        cost_usd=spending.cost_usd,
        denials=denials,
        broke_off=broke_off,
    )


def _describe_overload(turn: Turn, error: Exception) -> str:
    """Name the provider that is overloaded, where its server sends no more than that word; empty for other errors."""
    is_bare = str(error).lower().strip(" .!") in ("", "overloaded", "overloaded_error")
    if not isinstance(error, Overloaded) or not is_bare:
        return ""
    error.args = (f"{provider_display_name(turn.state.model.name.partition('/')[0])} is overloaded",)
    return describe_error(error)


def _next_steps(turn: Turn, error: Exception) -> list[str]:
    """Return sentences that say what to do about a failure that passes."""
    steps = []
    if has_distant_reset(error) and not turn.runtime.limits.waits_for_reset:
        steps.append("With limits.wait_for_reset = true it waits, and goes on by itself.")
    if not turn.runtime.limits.asks:
        steps.append("Try again later, or choose another model with -m.")
    elif is_unanswered(turn.state.conversation):
        steps.append("Press Enter to retry, or /model to switch.")
    return steps


# What to do next, where the provider's own words do not say it.
_ADVICE: dict[type[Exception], str] = {
    AuthError: "Check the provider's key (agentcli models check).",
    BadRequest: "If it stays so, /rewind takes earlier messages back, and /model chooses another model.",
    ModelNotFound: "Choose another with -m or /model; agentcli models list shows those that are known.",
    ContextOverflow: "Shorten the prompt, begin a new conversation, or use a model with a larger window.",
    BillingError: "Top up the account, or use another provider with -m or /model.",
}


def done(turn: Turn, reason: DoneReason) -> Done:
    """Return the answer; where the turn ended before there was one, the texts that came before calls."""
    text = turn.answer.text.strip() or "\n\n".join(part for part in turn.answer.earlier if part.strip())
    spending, denials = turn.spending, tuple(turn.calls.denials)
    return Done(text, turn.round, spending.usage, reason, spending.cost_usd, denials=denials)


# The claims of an answer

# Every claim contains one of these: the outcome of a check, a change of a file, or a name.
_MAY_CLAIM = re.compile(
    r"pass|fail|creat|wrote|written|generat|produc|sav|add|introduc|delet|remov|chang|modif|touch|edit|updat|fix|\bran\b|"
    r"execut|lint|buil|compil|clean|green|succe|happy|issue|error|exit|works|\bOK\b|[✅❌]|`[^`]+`|\w\.\w|file",
    re.IGNORECASE,
)
_MAX_FILE_BYTES = 10_000_000


async def check_answer(answer: str, turn: Turn) -> tuple[Claim, ...]:
    """Return the claims of an answer, each with a verdict from the log. A thread does the work."""
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

    workspace = turn.runtime.calls.workspace
    cwd, content_id = str(workspace.real_cwd), partial(_content_id, workspace)
    record = Record(path, cwd, content_id, is_complete=turn.runtime.calls.recording.checkpoints is not None)
    return tuple(check_claims(find_claims(answer), record))


def _content_id(workspace: Workspace, stored: str) -> str | None:
    """Return the id that snapshots give to a file's content; empty if the file is gone, None if that is unknown."""
    try:
        status = workspace.look(Path(real_path(stored)))
        if not status.is_usable:
            return None
        if not status.is_there:
            return ""
        if status.kind != "file" or status.size > _MAX_FILE_BYTES:
            return None
        with workspace.sandbox.read(status.real) as file:
            content = file.read()
    except (ToolError, OSError):
        return None
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
