"""Takes the client's results of calls that a paused turn has left to it, in whatever process that was."""

from collections.abc import Sequence

from agentcli.agent.calls.model import Call, TurnCalls
from agentcli.agent.calls.run import run_call
from agentcli.agent.ops import ClientResult, GoOn
from agentcli.agent.session import Session
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import CallsHandedOver, Result
from agentcli.errors import UsageError
from agentcli.llm.messages import ToolUse
from agentcli.llm.provider import ToolSpec
from agentcli.tools.tool import ToolOutput


def pending_uses(conversation: Conversation, results: Sequence[ClientResult]) -> list[ToolUse]:
    """Return the calls that these are the results of. Raises `UsageError` for one that waits for none."""
    pending, uses = dict(conversation.pending_calls), []
    answered = {entry.body.result.tool_use_id for entry in conversation.path if isinstance(entry.body, Result)}
    for result in results:
        if result.id not in pending:
            is_known = result.id in answered or result.id in conversation.pending_calls
            why = f"The call {result.id!r} has a result already" if is_known else f"There is no call {result.id!r}"
            raise UsageError(f"{why}; waiting for a result: {', '.join(pending) or 'none'}.")
        uses.append(pending.pop(result.id))
    return uses


async def store_results(session: Session, results: Sequence[ClientResult], tools: Sequence[ToolSpec] = ()) -> bool:
    """Store results of the client, and return True if no call waits any more, so that `GoOn` continues the turn.

    The client's tools are offered again: those that it had when the turn was paused, and the new ones in `tools`.
    Raises `UserError` for a result that no call waits for; then nothing is stored.
    """
    conversation, calls = session.state.conversation, session.runtime.calls
    async with calls.delegates.client.receiving:
        await session.idle()  # the turn may be about to pause
        turn = TurnCalls(session=calls, state=session.state, emit=session.publish)
        received = [Call(use, turn) for use in pending_uses(conversation, results)]
        session.offer_tools(tools)
        handed_over = [body for entry in conversation.path if isinstance(body := entry.body, CallsHandedOver)]
        known = session.next_tools or calls.tools
        session.offer_tools([spec for spec in handed_over[-1].tools if spec.name not in known])
        for call, result in zip(received, results, strict=True):
            output = ToolOutput(result.content, result.structured, is_error=result.is_error)
            await run_call(call, output)
        pending_uses(conversation, results)  # a prompt may have come meanwhile, which answers calls as not run
        await session.append(*(call.report.result for call in received if call.report.result is not None))
    return not conversation.pending_calls


async def continue_with(session: Session, result: ClientResult) -> None:
    """Store a result, and continue the turn if no call waits any more. Raises `UserError` as `store_results` does."""
    if await store_results(session, (result,)):
        session.submit(GoOn(is_killed=True))
