"""Steps for the limits of a turn: its rounds, its budgets, the provider's usage limit, and repeated calls."""

import asyncio
import time
from collections.abc import Sequence

from agentcli.agent.accounting import OverBudget
from agentcli.agent.events import DoneReason, LimitQuestion, Notice, Retry
from agentcli.agent.loop import GO_ON, broke_off, has_distant_reset
from agentcli.agent.ops import Approve
from agentcli.agent.requests.request import describe_error
from agentcli.agent.runtime import EarlyEnd, Turn, TurnStep
from agentcli.agent.state import awaited_reset
from agentcli.agent.turn_log import PROMPT_REMOVED, add, queue_event, take_back_prompt, wait_until_stored
from agentcli.conversation.entries import ResetAwaited, Result, reminder
from agentcli.errors import LoopError
from agentcli.llm import provider as llm
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Text

COUNTDOWN_S = 60.0  # between two events of the countdown


class RoundLimit(TurnStep):
    """Asks the person at the limit of rounds for as many again. Within the limit, it continues broken-off answers."""

    _extra_rounds = 0  # that the person has allowed beyond the limit of the settings
    _continued = 0  # answers that broke off and were continued

    async def before_request(self, turn: Turn) -> DoneReason | None:
        may_continue = self._has_rounds(turn) or await self._allow_more(turn)
        return None if may_continue else "max_turns"

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        if not reply.message.tool_uses or self._has_rounds(turn) or await self._allow_more(turn):
            return None
        return EarlyEnd("max_turns", f"Not run: the limit of {turn.round} rounds was reached.")

    async def recover(self, turn: Turn, error: ProviderError | OverBudget) -> bool:
        """Continue a broken-off answer with a reminder that asks for the rest."""
        can_continue = self._has_rounds(turn) and self._continued < turn.runtime.limits.max_breaks
        if not (broke_off(turn, error) and can_continue):
            return False
        self._continued += 1
        turn.emit(Notice(f"The answer broke off. {describe_error(error).rstrip('.')}. Continuing where it stopped."))
        add(turn, reminder(GO_ON))
        return True

    def _has_rounds(self, turn: Turn) -> bool:
        return turn.round < turn.runtime.limits.max_turns + self._extra_rounds

    async def _allow_more(self, turn: Turn) -> bool:
        more = turn.runtime.limits.max_turns
        title, limit = f"{turn.round} rounds done. Allow {more} more?", f"limits.max_turns = {more} (--max-turns)"
        is_allowed = await _ask_to_continue(turn, f"limit_{turn.round}", title, f"The limit is {limit}.")
        self._extra_rounds += more if is_allowed else 0
        return is_allowed


class BudgetLimit(TurnStep):
    """Keeps requests and calls within the budgets. When one is used up, the person may allow as much again."""

    async def recover(self, turn: Turn, error: ProviderError | OverBudget) -> bool | DoneReason:
        if not isinstance(error, OverBudget):
            return False
        turn.round -= 1  # the request was not sent, so it does not count
        if await self._allow_more(turn, error):
            return True
        turn.emit(Notice(str(error)))
        if turn.round == 0 and turn.log.prompt_ids:
            take_back_prompt(turn)
            turn.emit(Notice(PROMPT_REMOVED))
        return "max_budget"

    async def before_calls(self, turn: Turn, reply: llm.Done) -> EarlyEnd | None:
        calls, budgets = len(reply.message.tool_uses), turn.spending.budgets
        while calls:  # several budgets may be too small, and the person raises them one by one
            try:
                budgets.check()
                budgets.begin_calls(calls)
                break
            except OverBudget as over:
                if not await self._allow_more(turn, over):
                    turn.emit(Notice(str(over)))
                    return EarlyEnd("max_budget", "Not run: the budget is used up.")
        return None

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> None:
        # Subagents charge their own time.
        duration_ms = sum(result.duration_ms for result in results if result.name != "create_subagent")
        turn.spending.budgets.charge({"seconds": duration_ms / 1000})

    async def _allow_more(self, turn: Turn, over: OverBudget) -> bool:
        title, reason = f"{over} Raise it to {over.more}?", f"The limit is {over.setting}."
        if is_allowed := await _ask_to_continue(turn, over.id, title, reason):
            over.allow_more()
        return is_allowed


async def _ask_to_continue(turn: Turn, id: str, title: str, reason: str) -> bool:
    """Ask the person if the turn may continue; the comment of a no is queued as the next message."""
    ask, queue = turn.runtime.calls.ask, turn.state.conversation.queue
    if not turn.runtime.limits.is_interactive or ask is None:
        return False
    answer = await ask(LimitQuestion(id, title, reason=reason), None)
    if not isinstance(answer, Approve):
        return False
    if not answer.allowed and answer.comment:
        queue.steering.append((Text(answer.comment),))
        add(turn, queue.entry())
        turn.emit(queue_event(turn.state))
    return answer.allowed


class RepeatLimit(TurnStep):
    """Ends a turn that the person stopped with a no, or in which the model makes the same call again and again."""

    async def after_calls(self, turn: Turn, reply: llm.Done, results: Sequence[Result]) -> DoneReason | None:
        """End a stopped turn; ask if the model may repeat its call. Raises `LoopError` if nobody can be asked."""
        if turn.calls.is_stopped:
            return "declined"
        history = turn.runtime.calls.history
        if not history.looping:
            return None
        if not turn.runtime.limits.is_interactive or turn.runtime.calls.ask is None:
            raise LoopError(f"Stopped: the model keeps making the same call with the same result: {history.looping}.")
        title = f"The model keeps making the same call ({history.looping}). Let it continue?"
        is_allowed = await _ask_to_continue(turn, f"loop_{turn.round}", title, "The result was the same each time.")
        history.forget_results()
        return None if is_allowed else "declined"


class ResetWait(TurnStep):
    """Waits, at most once a turn, until the provider's usage limit resets. The wait continues after a restart."""

    _has_waited = False

    async def begin(self, turn: Turn) -> None:
        """Continue the wait of an earlier run of the program."""
        if resets_at := awaited_reset(turn.state.conversation):
            await self._wait_until(turn, resets_at)

    async def recover(self, turn: Turn, error: ProviderError | OverBudget) -> bool:
        if not turn.runtime.limits.waits_for_reset or self._has_waited or not has_distant_reset(error):
            return False
        await self._wait_until(turn, time.time() + (getattr(error, "retry_after", None) or 0.0))
        turn.round -= 1  # the failed request does not count as a round
        return True

    async def _wait_until(self, turn: Turn, resets_at: float) -> None:
        """Wait until a Unix time, with a countdown. A later start of the program finds the wait in the log."""
        self._has_waited = True
        add(turn, ResetAwaited(resets_at))
        await wait_until_stored(turn)
        while (remaining_s := resets_at - time.time()) > 0:  # the wall clock also advances while the machine sleeps
            turn.emit(Retry(1, remaining_s, f"The usage limit resets at {llm.clock_time(resets_at)}."))
            await asyncio.sleep(min(remaining_s, COUNTDOWN_S))
        add(turn, ResetAwaited(0.0))  # the wait is over
        await wait_until_stored(turn)
