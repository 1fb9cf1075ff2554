"""A question beside the work: the conversation is its context, and keeps nothing of it but the price."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from agentcli.errors import UserError
from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, Text, Usage
from agentcli.llm.provider import Done, Request, UsageUpdate
from agentcli.llm.refused_blocks import without
from agentcli.llm.retry import stream_with_retry
from agentcli.llm.transcript import doctor

if TYPE_CHECKING:
    from agentcli.agent.session import Session

LONGEST_ANSWER = 4_096  # tokens
_ASKED = (
    "<system-reminder>A question beside the work. Answer it in a few sentences from what you know; "
    "call no tool, change nothing.</system-reminder>\n"
)


async def ask_aside(session: Session, question: str) -> str:
    """The answer of the session's model. Works while a turn runs; calls it makes are not run. Raises `UserError`."""
    state, runtime = session.state, session.runtime
    provider, info = await runtime.resolve(state)
    prefix = runtime.prefix(info)  # the same bytes as the work's, so that its cache is used
    asked = Message("user", (Text(_ASKED + question),))
    request = Request(
        prefix.system,
        without(doctor((*state.conversation.messages, asked)), state.refused),
        prefix.tools,
        max_tokens=min(LONGEST_ANSWER, info.max_output),
        temperature=runtime.temperature,
        effort=state.effort or runtime.effort,
        earlier_messages=state.sent_messages,
    )
    reply, used = None, Usage()

    def book(*about_a_retry: object) -> None:
        nonlocal used
        if used != Usage():
            session.paid(f"{provider.name}/{provider.model}", used, info.cost(used))
        used = Usage()

    try:
        stream = stream_with_retry(provider, request, policy=runtime.retry, on_retry=book)
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, UsageUpdate | Done):
                    used = event.usage
                if isinstance(event, Done):
                    reply = event
    except ProviderError as error:
        raise UserError(f"The question could not be answered: {error}") from error
    finally:  # a broken answer was paid for too
        book()
    assert reply is not None, "a stream ends with Done"
    return reply.message.text.strip() or "(The model said nothing.)"
