"""Runs the turn of a prompt: requests replies and runs their calls until the model has answered or a step ends it."""

import asyncio
import hashlib
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from agentcli.agent import turn_log
from agentcli.agent.accounting import Account, OverBudget
from agentcli.agent.calls.model import TurnCalls, fire
from agentcli.agent.calls.report import INTERRUPTED
from agentcli.agent.events import Done, DoneReason, Emit, Notice, TurnFailed, TurnStarted
from agentcli.agent.requests.attempts import blames_content
from agentcli.agent.requests.request import describe_error, request_reply
from agentcli.agent.runtime import AnswerText, Runtime, Spending, Turn
from agentcli.agent.state import AgentState
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Entry, Result, Retracted, User, reminder, system_path
from agentcli.conversation.evidence import Claim
from agentcli.conversation.mentions import unattached_files
from agentcli.errors import StorageError, ToolError, UserError
from agentcli.llm import errors as llm_errors
from agentcli.llm import provider as llm
from agentcli.llm.messages import Block, Text, ToolUse
from agentcli.llm.models import provider_display_name
from agentcli.patterns import lazy_pattern
from agentcli.tools.workspace import Workspace

log = logging.getLogger(__name__)
GO_ON = (
    "The connection dropped in the middle of your answer. Continue exactly where it stopped, even within a word. "
    "Do not repeat any of it, and do not mention this. If you had started a tool call, it did not run: "
    "make the call again."
)


async def run_turn(turn: Turn) -> Done | TurnFailed:
    """Answer a prompt, in as many requests and calls as it takes; emit and return the turn's last event.

    When cancelled, it keeps the text so far, adds a result to every open call, and emits the last event before it
    raises: `Done`, or `TurnFailed` if the interrupt has a reason.
    """
    try:
        end = await _answer(turn)
    except asyncio.CancelledError as cancelled:
        pending = turn.state.conversation.pending_calls
        turn_log.answer_open_calls(turn, INTERRUPTED, apart_from=pending.values())
        # Unanswered messages go back into the person's input if requests were failing, or if the person wants them back
        # and no steering message waits. If one waits, the next turn answers the prompt together with it.
        is_wanted_back = turn.log.returns_prompt and not turn.state.conversation.queue.steering
        if (turn.log.is_retrying or is_wanted_back) and turn.runtime.limits.is_interactive:
            turn_log.return_messages(turn)
        await turn_log.wait_until_stored_anyway(turn)
        why = str(cancelled.args[0]) if any(cancelled.args) else ""  # the `reason` of an `Interrupt`
        reason: DoneReason = "paused" if pending else "interrupted"
        turn.emit(failed_event(turn, why, is_retryable=True, kind="GivenUp") if why else done_event(turn, reason))
        raise
    turn.emit(end)
    return end


async def _answer(turn: Turn) -> Done | TurnFailed:
    """Answer the prompt, and return the last event, which the caller emits."""
    try:
        try:
            for step in turn.steps:
                await step.begin(turn)
            reason = await _run_rounds(turn)
        finally:
            for step in turn.steps:
                step.end(turn)
        await turn_log.wait_until_stored(turn)
    except (llm_errors.ProviderError, UserError) as error:
        return await handle_failure(turn, error)
    end = done_event(turn, reason)
    return replace(end, claims=await check_answer(end.text, turn)) if reason == "end_turn" else end


async def _run_rounds(turn: Turn) -> DoneReason:
    """Make requests and run their calls, until no step wants another request, or a step ends the turn."""
    if open_calls := turn.state.conversation.unstarted_calls:  # an earlier run of the program did not start them
        await _run_calls(turn, open_calls)
        if turn.calls.is_stopped:
            return "declined"
    if turn.state.conversation.pending_calls:
        return "paused"
    while True:
        for step in turn.steps:
            if (reason := await step.before_request(turn)) is not None:
                return reason
        turn.round += 1
        turn.emit(TurnStarted(turn.round))
        try:
            reply = await request_reply(turn)
        except (llm_errors.ProviderError, OverBudget) as error:
            if (reason := await _recover(turn, error)) is not None:
                return reason
            continue
        for step in turn.steps:
            if (ending := await step.before_calls(turn, reply)) is not None:
                turn_log.answer_open_calls(turn, ending.why)
                return ending.reason
        results: list[Result] = []
        if reply.message.tool_uses:
            turn.answer.begin()
            results = await _run_calls(turn, reply.message.tool_uses)
            if turn.state.conversation.pending_calls:
                return "paused"
            for step in turn.steps:
                if (reason := await step.after_calls(turn, reply, results)) is not None:
                    return reason
        if not await _is_request_due(turn, reply, results):
            return "max_tokens" if reply.stop_reason == "max_tokens" else "end_turn"


async def _run_calls(turn: Turn, calls: Sequence[ToolUse]) -> list[Result]:
    from agentcli.agent.calls.run import run_calls  # a thread imports it while the model writes its first call

    return await run_calls(turn.calls, calls)


async def _recover(turn: Turn, error: llm_errors.ProviderError | OverBudget) -> DoneReason | None:
    """Return the reason to end the turn, or None for another request. Raises the error if no step handles it."""
    for step in turn.steps:
        if outcome := await step.recover(turn, error):
            return None if outcome is True else outcome  # True asks for another request
    raise error


async def _is_request_due(turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
    """Deliver the steps' messages for the model; return True if there were any, or a step wants another request."""
    if any([await step.deliver(turn, reply) for step in turn.steps]):  # a list, so that every step delivers
        turn.answer.begin()  # messages end the current answer; otherwise the next reply may continue it
        return True
    for step in turn.steps:
        if await step.after_reply(turn, reply, results):
            return True
    return False


def begin_turn(
    state: AgentState, runtime: Runtime, prompts: Sequence[Sequence[Block]], emit: Emit, *, from_queue: bool = False
) -> Turn:
    """Add prompts to the conversation, without waiting, and return their turn. `from_queue`: they were in the queue."""
    turn = _new_turn(state, runtime, emit)
    turn_log.answer_open_calls(turn)
    for step in turn.steps:
        step.start(turn, is_resumed=False)
    if not from_queue:  # a prompt that is sent again, because it got no answer, replaces the earlier one
        unanswered = turn_log.unanswered_messages(state.conversation).items()
        if repeated := tuple(id for id, message in unanswered if message in prompts):
            turn_log.add(turn, Retracted(repeated))
    turn_log.add_reminders(turn)
    turn.log.prompt_ids = add_messages(turn, prompts, from_queue=from_queue)
    turn.log.entry_ids = list(turn.log.prompt_ids)
    return turn


def resume_turn(state: AgentState, runtime: Runtime, emit: Emit, *, if_unanswered: bool = False) -> Turn | None:
    """Return a turn that continues where the conversation was cut short; None if it was not.

    The turn continues with calls that wait for approval, or with an answer that broke off; with `if_unanswered`, also
    with a prompt that has no answer yet, unless the client still owes results. Calls that may have begun do not run
    again; their results say what is known about them.
    """
    conversation = state.conversation
    pending = conversation.pending_calls
    has_unstarted_calls = bool(conversation.unstarted_calls)  # they wait for the person's approval
    unfinished = "" if has_unstarted_calls else partial_answer(conversation)
    has_lost_reply = if_unanswered and is_unanswered(conversation) and not pending
    if not (has_unstarted_calls or unfinished or has_lost_reply):
        return None
    turn = _new_turn(state, runtime, emit)
    if unfinished:
        turn.answer = AnswerText(parts=[unfinished], is_partial=True)  # the model's next text continues it
        turn_log.add_reminders(turn)
        turn_log.add(turn, reminder(GO_ON))
        return turn
    for step in turn.steps:
        step.start(turn, is_resumed=True)
    turn_log.answer_open_calls(turn, apart_from=(*conversation.unstarted_calls, *pending.values()))
    return turn


def _new_turn(state: AgentState, runtime: Runtime, emit: Emit) -> Turn:
    """Return a turn with budgets and steps of its own, whose calls store their entries in the log."""
    state.remember_mode()  # after plan mode, the session returns to the newest mode in which a turn ran
    budgets = state.budgets.within(Account("turn", runtime.limits.budgets))
    turn = Turn(
        state=state,
        runtime=runtime,
        calls=TurnCalls(session=runtime.calls, state=state, emit=emit, budgets=budgets),
        steps=[make() for make in runtime.steps],
        spending=Spending(budgets=budgets),
    )
    turn.calls.store = partial(turn_log.add_and_track, turn)
    turn.calls.commit = partial(turn_log.wait_until_stored, turn)
    return turn


def add_messages(turn: Turn, messages: Sequence[Sequence[Block]], *, from_queue: bool) -> list[str]:
    """Add the person's messages, and return the ids of their entries."""
    bodies: list[Body] = [User(tuple(message)) for message in messages]
    turn.runtime.calls.history.forget_results()  # a message may ask for calls that had the same result before
    for notice in (notice for message in messages for notice in unattached_files(message)):
        turn.emit(Notice(notice))
    if not from_queue:
        return [entry.id for entry in turn_log.add(turn, *bodies)]
    *messages_added, _queue = turn_log.add(turn, *bodies, turn.state.conversation.queue.entry())
    turn.emit(turn_log.queue_event(turn.state))
    return [entry.id for entry in messages_added]


def is_unanswered(conversation: Conversation, *, counts_reminders: bool = True) -> bool:
    """Return True if a call is open, or the newest result, message or (if they count) reminder has no reply yet."""
    bodies = (entry.body for entry in reversed(conversation.path))
    if not counts_reminders:
        bodies = (body for body in bodies if not (isinstance(body, User) and body.is_reminder))
    newest = next((body for body in bodies if isinstance(body, User | Assistant | Result)), None)
    return isinstance(newest, User | Result) or bool(conversation.open_calls)


def partial_answer(conversation: Conversation) -> str:
    """Return the text of an answer that broke off at the end of the conversation; empty if there is none."""
    parts: list[str] = []
    for entry in reversed(conversation.path):
        match entry.body:
            case Assistant(content=content, stop_reason="interrupted"):
                parts.append("".join(block.text for block in content if isinstance(block, Text)))
            case Assistant() | Result() | User(is_reminder=False):
                break  # a broken-off answer has only interrupted replies and reminders
    return "".join(reversed(parts))


def broke_off(turn: Turn, error: Exception) -> bool:
    """Return True if the error broke off an answer within its text, so that it can be continued."""
    return turn.answer.is_partial and isinstance(error, llm_errors.ProviderError) and error.is_retryable


def has_distant_reset(error: Exception) -> bool:
    """Return True for a usage limit whose reset is known, but too far away for an ordinary retry."""
    return isinstance(error, llm_errors.RateLimit) and (error.retry_after or 0.0) > llm.MAX_WAIT_S


async def handle_failure(turn: Turn, error: llm_errors.ProviderError | UserError) -> TurnFailed:
    """Return the event of a failure. Entries that the provider would reject again are taken back.

    After a provider's error, a person gets unanswered messages back in the input. Without a person, a prompt that would
    fail again is removed.
    """
    can_be_continued, is_from_provider = broke_off(turn, error), isinstance(error, llm_errors.ProviderError)
    removal_notice = ""
    is_first_request = turn.round == 1 and bool(turn.log.prompt_ids)
    # `type(...) is`: the subclasses have other causes. If text was shown, the request was accepted.
    if type(error) is llm_errors.BadRequest and blames_content(error) and not error.shown:
        removal_notice = turn_log.take_back_rejected(turn)
    elif turn.runtime.limits.is_interactive and is_from_provider and not turn.answer.is_partial:
        turn_log.return_messages(turn)  # the person has them in the input again
    elif is_first_request and isinstance(error, llm_errors.AuthError | llm_errors.ContextOverflow):
        turn_log.take_back_prompt(turn)  # sending the same request again would fail again
        removal_notice = turn_log.PROMPT_REMOVED
    is_retryable = isinstance(error, llm_errors.ProviderError) and error.is_retryable
    await fire(turn.runtime.calls, "StopFailure", error=str(error))
    try:
        await turn.runtime.hooks.on_error(str(error), is_retryable)
    except Exception:  # a hook is foreign code, and a second error would hide the first
        log.debug("on_error failed", exc_info=True)
    try:
        await turn_log.wait_until_stored(turn)
    except StorageError as unstored:  # more important to the person than the first error
        error = unstored
    sentences = [_describe(turn, error), *([] if can_be_continued else _next_steps(turn, error)), removal_notice]
    text = " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in sentences if part)
    return failed_event(turn, text, is_retryable, type(error).__name__, broke_off=can_be_continued)


def failed_event(turn: Turn, text: str, is_retryable: bool, kind: str, *, broke_off: bool = False) -> TurnFailed:
    """Return the last event of a turn that failed with an error of the class `kind`."""
    return TurnFailed(
        text,
        is_retryable,
        kind,
        turns=turn.round,  # the event's `turns` are requests to the model
        usage=turn.spending.usage,
        cost_usd=turn.spending.cost_usd,
        denials=tuple(turn.calls.denials),
        broke_off=broke_off,
    )


def _describe(turn: Turn, error: llm_errors.ProviderError | UserError) -> str:
    """Return an error's text, with the provider's name if a person reads it, or if it says too little without."""
    provider, own_text = provider_display_name(turn.state.model.name.partition("/")[0]), str(error)
    if isinstance(error, llm_errors.Overloaded) and own_text.lower().strip(" .!") in _ONLY_OVERLOADED:
        error.args = (f"{provider} is overloaded",)  # for `describe_error`, which adds details to this text
    if isinstance(error, llm_errors.ModelNotFound) and own_text.startswith("model: "):  # Anthropic's whole message
        error.args = (own_text.replace("model: ", f"{provider} has no model ", 1),)
    text = describe_error(error)
    needs_name = turn.runtime.limits.is_interactive and isinstance(error, llm_errors.ProviderError)
    return f"{provider}: {text}" if needs_name and provider.lower() not in text.lower() else text


def _next_steps(turn: Turn, error: Exception) -> list[str]:
    limits, steps = turn.runtime.limits, []
    if has_distant_reset(error) and not limits.waits_for_reset:
        steps.append("To wait for the reset and continue by itself: agentcli config set limits.wait_for_reset true.")
    if isinstance(error, llm_errors.ProviderError) and error.is_retryable:
        now, later = "Press Enter to retry, or /model to switch.", "Try again later, or choose another model with -m."
        steps.append(now if limits.is_interactive else later)
    elif isinstance(error, llm_errors.AuthError) and limits.is_interactive:
        provider = turn.state.model.name.partition("/")[0]
        steps.append(f"Set a key with /login {provider}, or choose another model with /model, then press Enter.")
    else:
        advice = _ADVICE.get(type(error), "")
        steps.append(advice.replace("-m or /model", "/model") if limits.is_interactive else advice)
    return steps


_ONLY_OVERLOADED = ("", "overloaded", "overloaded_error")  # texts of servers that say no more
# Sentences on what to do next, for errors whose text does not say it.
_ADVICE: dict[type[Exception], str] = {
    llm_errors.AuthError: "Check the key with agentcli models check, or set one with agentcli login.",
    llm_errors.BadRequest: "If this happens again, use /rewind to remove earlier messages, or /model to switch models.",
    llm_errors.ModelNotFound: "Choose another model with -m or /model. To list known models: agentcli models list.",
    llm_errors.ContextOverflow: "Shorten the prompt, start a new session, or use a model with a larger window.",
    llm_errors.BillingError: "Add credit to the account, or choose another provider with -m or /model.",
}


def done_event(turn: Turn, reason: DoneReason) -> Done:
    """Return the last event of a turn, with the answer; without an answer, with the texts that came before calls."""
    text = turn.answer.text.strip() or "\n\n".join(part for part in turn.answer.earlier if part.strip())
    return Done(
        text,
        turn.round,
        turn.spending.usage,
        reason,
        cost_usd=turn.spending.cost_usd,
        denials=tuple(turn.calls.denials),
        pending=tuple(turn.state.conversation.pending_calls.values()),
    )


# Words of which every claim contains at least one: about a check's outcome, a change of a file, or a name.
_MAY_CLAIM = lazy_pattern(
    r"pass|fail|creat|wrote|written|generat|produc|sav|add|introduc|delet|remov|chang|modif|touch|edit|updat|fix|\bran\b|"
    r"execut|lint|buil|compil|clean|green|succe|happy|issue|error|exit|works|\bOK\b|[✅❌]|`[^`]+`|\w\.\w|file",
    re.IGNORECASE,
)
_MAX_FILE_BYTES = 10_000_000  # larger files are not compared with the log


async def check_answer(answer: str, turn: Turn) -> tuple[Claim, ...]:
    """Return the claims of an answer, each with a verdict from the log."""
    if not _MAY_CLAIM.search(answer):
        return ()
    try:
        return await asyncio.to_thread(_check_claims, answer, list(turn.state.conversation.path), turn)
    except Exception:  # the answer is still valid if its check fails, but none of its claims is verified
        log.exception("the claims of an answer could not be checked")
        return (Claim("Could not check the claims of this answer.", "unchecked", "unverified"),)


def _check_claims(answer: str, path: list[Entry], turn: Turn) -> tuple[Claim, ...]:
    # Imported late, because it takes 40 ms and most answers need no check.
    from agentcli.conversation.evidence.claims import find_claims
    from agentcli.conversation.evidence.verdicts import ActivityRecord, check_claims

    workspace = turn.runtime.calls.workspace
    cwd, content_id = str(workspace.real_cwd), partial(_content_id, workspace)
    # Without checkpoints, the log lacks the changes made by commands.
    record = ActivityRecord(path, cwd, content_id, is_complete=turn.runtime.calls.recording.checkpoints is not None)
    return tuple(check_claims(find_claims(answer), record))


def _content_id(workspace: Workspace, stored_path: str) -> str | None:
    """Return the id of a file's content, to compare with those in the log; "" if it is gone, None if it is unknown."""
    try:
        status = workspace.look(Path(system_path(stored_path)))
        if status.is_usable and not status.is_there:
            return ""
        if not status.is_usable or status.kind != "file" or status.size > _MAX_FILE_BYTES:
            return None
        with workspace.sandbox.read(status.real) as file:
            content = file.read()
    except (ToolError, OSError):
        return None
    # Snapshots, and so the log, use git's ids for blobs.
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
