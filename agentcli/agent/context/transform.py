"""Keeps the messages of a program's own agent loop within a window, with the same compaction as sessions."""

import inspect
from collections.abc import Awaitable, Callable
from itertools import count
from math import inf

from cachetools import TTLCache

from agentcli.agent.context.compaction import Basis, Compactor, Summaries, TextCache, message_tokens
from agentcli.agent.runtime import ContextTransform
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Result, User, entry_now
from agentcli.llm.messages import Message, Text, ToolResult
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Prefix, Provider
from agentcli.settings.structs import CompactionSettings

_WRITES_FROM = 0.8  # share of the threshold at which summaries are begun, so that they are ready in time
# Shared by all transforms, because a program may create one for each request. 1,000 summaries are kept for a day.
_SUMMARIES: TextCache = TTLCache(1_000, 86_400)


def create_context_transform(
    resolve_provider: Callable[[], Provider | Awaitable[Provider]] | None = None,
    max_context_tokens: int = 32_768,
    threshold_ratio: float = 0.80,
) -> ContextTransform:
    """Return a function from messages to messages that compacts them once they fill `threshold_ratio` of the window.

    `resolve_provider` returns the model that writes summaries; without it none are written. Create one function for
    each conversation: until the window is full again, it keeps what it returned earlier, byte for byte.
    """
    settings = CompactionSettings(
        at=threshold_ratio,
        warn_at=_WRITES_FROM * threshold_ratio,
        min_messages=0,
        cooldown=0,
        enable_llm_summarization=resolve_provider is not None,
        summary_usd_per_hour=inf,
    )
    model = ModelInfo("", "", window=max_context_tokens)

    async def writer(may_be_small: bool) -> tuple[Provider, ModelInfo]:
        assert resolve_provider is not None, "summaries are switched off without a provider"
        resolved = resolve_provider()
        provider = await resolved if inspect.isawaitable(resolved) else resolved
        return provider, getattr(provider, "info", ModelInfo(provider.model, provider.name))

    # A program's own loop has no costs to record, and no reminders at a session's start.
    summaries = Summaries(settings=settings, choose_writer=writer, paid=lambda *request: None, cache=_SUMMARIES)
    compactor = Compactor(settings=settings, first_reminders=lambda info: (), summaries=summaries)
    followed = _TrackedConversation()

    async def transform(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        conversation = followed.with_messages(messages)
        used = message_tokens(conversation.messages, model)
        if used >= settings.warn_at * max_context_tokens:
            prefix, emit = Prefix("", ()), lambda event: None
            # Below the threshold, `compact_if_due` only begins to write summaries, and returns None.
            compaction = await compactor.compact_if_due(conversation, model, prefix, used=used, emit=emit)
            if compaction is not None:  # the summaries that it lacks are written for the next one
                compactor.write_ahead(Basis(conversation=conversation, model=model, prefix=prefix, used=used), emit)
                followed.add(compaction)  # `conversation` belongs to `followed`, so it changes, too
        followed.sent = conversation.valid_messages()
        return followed.sent

    return transform


class _TrackedConversation:
    """A conversation, reconstructed from the messages of successive requests, with its compactions."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.conversation = Conversation()
        self._received: tuple[Message, ...] = ()  # the newest messages that the program passed in
        self.sent: tuple[Message, ...] = ()  # the newest messages that it got back
        self._names: dict[str, str] = {}  # tools' names, by the ids of their calls
        self._ids = count()  # of entries

    def with_messages(self, messages: tuple[Message, ...]) -> Conversation:
        """Add the messages that follow the last received or `sent` ones; others begin a new conversation."""
        known = next((old for old in (self._received, self.sent) if messages[: len(old)] == old), None)
        if known is None:
            self._begin()  # the messages are those of another conversation, or were edited
        for message in messages[len(known or ()) :]:
            self._add_message(message)
        self._received = messages
        return self.conversation

    def _add_message(self, message: Message) -> None:
        """Add the entries that a session would store for the message: a reply, or results and a prompt or reminder."""
        if message.role == "assistant":
            self._names |= {use.id: use.name for use in message.tool_uses}
            self.add(Assistant(content=message.content, provider="", model=""))
            return
        others = []
        for block in message.content:
            if isinstance(block, ToolResult):
                self.add(Result(result=block, name=self._names.get(block.tool_use_id, "")), id=block.tool_use_id)
            else:
                others.append(block)
        if others:
            is_reminder = all(isinstance(b, Text) and b.text.startswith("<system-reminder>") for b in others)
            self.add(User(tuple(others), is_reminder))

    def add(self, body: Body, *, id: str = "") -> None:
        path = self.conversation.path
        self.conversation.add(entry_now(id or f"m{next(self._ids)}", path[-1].id if path else None, body))
