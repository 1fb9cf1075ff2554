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
    """Return a function that a program applies to the messages of each request, to keep them within the window.

    Once they fill `threshold_ratio` of the window, a digest replaces older ones among the messages that it returns.
    `resolve_provider` returns the model that writes summaries; without it none are written. Create one function for
    each conversation: until the window is full again, it keeps what it returned earlier, byte for byte.
    """
    settings = CompactionSettings(
        at=threshold_ratio,
        warn_at=_WRITES_FROM * threshold_ratio,
        min_messages=0,  # compact even a short conversation,
        cooldown=0,  # and soon after another compaction
        enable_llm_summarization=resolve_provider is not None,
        summary_usd_per_hour=inf,
    )
    model = ModelInfo("", "", window=max_context_tokens)

    async def choose_writer(may_be_small: bool) -> tuple[Provider, ModelInfo]:
        assert resolve_provider is not None, "summaries are switched off without a provider"
        resolved = resolve_provider()
        provider = await resolved if inspect.isawaitable(resolved) else resolved
        return provider, getattr(provider, "info", ModelInfo(provider.model, provider.name))

    # There is no session: no log for the costs, no first reminders, no system text or tools, and nobody to notify.
    summaries = Summaries(settings=settings, choose_writer=choose_writer, paid=lambda *request: None, cache=_SUMMARIES)
    compactor = Compactor(settings=settings, first_reminders=lambda info: (), summaries=summaries)
    prefix, emit = Prefix("", ()), lambda event: None
    tracked = _TrackedConversation()

    async def transform(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        conversation = tracked.with_messages(messages)
        used = message_tokens(conversation.messages, model)
        if used >= settings.warn_at * max_context_tokens:
            # Below the threshold, `compact_if_due` only begins to write summaries, and returns None.
            compaction = await compactor.compact_if_due(conversation, model, prefix, used=used, emit=emit)
            if compaction is not None:
                # Begin to write the summaries that this compaction lacks, for the next one.
                compactor.write_ahead(Basis(conversation=conversation, model=model, prefix=prefix, used=used), emit)
                tracked.add(compaction)  # this compacts `conversation`
        tracked.sent = conversation.valid_messages()
        return tracked.sent

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
