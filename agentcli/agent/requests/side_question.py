"""Answers a side question: the conversation is its context, and keeps nothing of it but the price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentcli.agent.requests.paid_request import PaidRequest, Target
from agentcli.agent.requests.repairs import without
from agentcli.agent.requests.request import build_request
from agentcli.conversation.entries import PaidReason
from agentcli.errors import UserError
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, Text, Usage
from agentcli.llm.transcript import doctor

if TYPE_CHECKING:
    from agentcli.agent.session import Session

MAX_ANSWER_TOKENS = 4_096
_PREAMBLE = (
    "<system-reminder>A question beside the work. Answer it in a few sentences from what you know; "
    "call no tool, change nothing.</system-reminder>\n"
)


async def answer_side_question(session: Session, question: str) -> str:
    """Return the model's answer, also while a turn runs. Calls it makes are not run. Raises `UserError`."""
    state, runtime = session.state, session.runtime
    target = Target(*await runtime.models.resolve(state))
    info = target.info
    prefix = runtime.prefix(info)  # the same bytes as the work's, so that its cache is used
    asked = Message("user", (Text(_PREAMBLE + question),))
    messages = doctor((*state.conversation.messages, asked))
    request = build_request(runtime, state, prefix, messages, max_tokens=min(MAX_ANSWER_TOKENS, info.max_output))
    request = without(request, state.model.rejected.get(target.name, ()))

    def book(used: Usage, reason: PaidReason = "broken") -> None:
        session.paid(target.name, used, info.cost(used), reason, duration_ms=paid.attempt.duration_ms)

    paid = PaidRequest(target=target, budgets=state.budgets, policy=runtime.models.retry, on_broken=book)
    try:
        reply = await paid.reply(request)
    except ProviderError as error:
        raise UserError(f"The question could not be answered: {error}") from error
    book(reply.usage, "aside")
    return reply.message.text.strip() or "(The model said nothing.)"
