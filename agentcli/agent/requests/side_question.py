"""Answers a side question: the conversation is its context, and keeps nothing of it but the price."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from agentcli.agent.accounting.budgets import most_tokens
from agentcli.agent.requests.paid_request import PaidRequest
from agentcli.agent.requests.repairs import without
from agentcli.agent.requests.request import build_request
from agentcli.conversation.entries import PaidReason
from agentcli.errors import UserError
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, Text, Usage, repair_messages

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
    provider, info = await runtime.models.resolve(state)
    prefix = runtime.prefix(info)  # the same bytes as the work's, so that its cache is used
    asked = Message("user", (Text(_PREAMBLE + question),))
    messages = repair_messages((*state.conversation.messages, asked))
    request = build_request(runtime, state, prefix, messages, max_tokens=min(MAX_ANSWER_TOKENS, info.max_output))
    name = f"{provider.name}/{provider.model}"
    request = without(request, state.refused.get(name, ()))

    def book(used: Usage, reason: PaidReason = "broken") -> None:
        session.paid(name, used, info.cost(used), reason, duration_ms=round(paid.duration_ms))

    paid = PaidRequest(
        provider=provider,
        info=info,
        budgets=state.budgets,
        policy=runtime.models.retry,
        most_prompt_tokens=partial(most_tokens, request, info),
        on_broken=book,
    )
    try:
        reply = await paid.reply(request, lambda event: None)
    except ProviderError as error:
        raise UserError(f"The question could not be answered: {error}") from error
    book(reply.usage, "aside")
    return reply.message.text.strip() or "(The model said nothing.)"
