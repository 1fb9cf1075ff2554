"""The last event of a turn: its answer, or why it failed and what to do about that."""

from __future__ import annotations

from msgspec.structs import replace

from agentcli.agent import turn_log as log
from agentcli.agent.calls.model import fire
from agentcli.agent.events import Done, DoneReason, TurnFailed
from agentcli.agent.requests.repairs import blames_content
from agentcli.agent.requests.request import describe_error
from agentcli.agent.runtime import Turn
from agentcli.agent.steps.limits import broke_off, has_distant_reset
from agentcli.agent.turn_start import is_unanswered
from agentcli.errors import StorageError, UserError
from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    BillingError,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    ProviderError,
)
from agentcli.llm.models import provider_display_name


async def failure(turn: Turn, error: ProviderError | UserError) -> TurnFailed:
    """Return the event of a failure. A prompt that the provider would refuse again and again is taken back."""
    is_half = broke_off(turn, error)
    taken_back = ""
    if type(error) is BadRequest and blames_content(error) and not error.shown:
        taken_back = log.take_back_refused(turn)
    elif isinstance(error, AuthError | ContextOverflow) and turn.round == 1 and turn.log.prompt_ids:
        log.take_back_prompt(turn)
        taken_back = "The message was taken back."
    is_retryable = isinstance(error, ProviderError) and error.is_retryable
    await fire(turn.runtime.calls, "StopFailure", error=str(error))
    await log.run_error_hook(turn.runtime, str(error), is_retryable=is_retryable)
    try:
        await log.settled(turn)
    except StorageError as unstored:
        error = unstored
    said = [_overload(turn, error) or describe_error(error), _ADVICE.get(type(error), ""), taken_back]
    if is_retryable and not is_half:
        said += _next_steps(turn, error)
    text = " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in said if part)
    return failed(turn, text, is_retryable, type(error).__name__, broke_off=is_half)


def failed(turn: Turn, text: str, is_retryable: bool, kind: str, *, broke_off: bool = False) -> TurnFailed:
    end = TurnFailed(text, is_retryable, kind, turn.round, turn.spending.usage)
    return replace(end, cost_usd=turn.spending.cost_usd, denials=tuple(turn.calls.denials), broke_off=broke_off)


def _overload(turn: Turn, error: Exception) -> str:
    """Say who is overloaded, where the server gives no more than that word. Empty for other failures."""
    is_bare = str(error).lower().strip(" .!") in ("", "overloaded", "overloaded_error")
    if not isinstance(error, Overloaded) or not is_bare:
        return ""
    error.args = (f"{provider_display_name(turn.state.model.partition('/')[0])} is overloaded",)
    return describe_error(error)


def _next_steps(turn: Turn, error: Exception) -> list[str]:
    """Say what to do about a failure that passes."""
    said = []
    if has_distant_reset(error) and not turn.runtime.limits.waits_for_reset:
        said.append("With limits.wait_for_reset = true it waits, and goes on by itself.")
    if not turn.runtime.limits.asks:
        return [*said, "Try again later, or choose another model with -m."]
    way = "Press Enter to retry, or /model to switch." if is_unanswered(turn.state.conversation) else ""
    return [*said, way]


# What to do next, where the provider's own words do not say it.
_ADVICE: dict[type[Exception], str] = {
    AuthError: "Check the provider's key (agentcli models check).",
    BadRequest: "If it stays so, /rewind takes earlier messages back, and /model chooses another model.",
    ModelNotFound: "Choose another with -m or /model; agentcli models list shows those that are known.",
    ContextOverflow: "Shorten the prompt, begin a new conversation, or use a model with a larger window.",
    BillingError: "Top up the account, or use another provider with -m or /model.",
}


def done(turn: Turn, reason: DoneReason) -> Done:
    """Return the answer; where the turn ended before there was one, what was said on the way."""
    text = turn.answer.text.strip() or "\n\n".join(part for part in turn.answer.earlier if part.strip())
    end = Done(text, turn.round, turn.spending.usage, reason)
    return replace(end, cost_usd=turn.spending.cost_usd, denials=tuple(turn.calls.denials))
