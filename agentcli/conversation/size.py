"""The size of the next request: the provider's count of an earlier one, and an estimate of what was added."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from agentcli.conversation.entries import Assistant, Body, Compaction, Entry, Result, User
from agentcli.llm.messages import Opaque, RedactedThinking, Text, Thinking
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import ToolSpec
from agentcli.llm.tokens import (
    BYTES_PER_TOKEN,
    SAFETY,
    TOKENS_PER_MESSAGE,
    Calibration,
    Size,
    prefix_size,
    sent_back,
    size_of,
)

MESSAGE = Size(int(TOKENS_PER_MESSAGE * BYTES_PER_TOKEN))
MAX_DOUBT = 0.1  # share of tokens that may not have been sent, in a count that a factor is learned from


class ProviderCount(NamedTuple):
    """A provider's count of a reply and all before it.

    `size` is our size of the same texts. `doubtful` tokens are reasoning, which later requests may not send.
    """

    tokens: int
    size: Size
    doubtful: int


class _Entries(Protocol):
    """A conversation, which cannot be imported here because it has a `RequestSize`."""

    path: list[Entry]

    @property
    def request_entries(self) -> list[Entry]: ...


class RequestSize:
    """The size of a conversation's next request. Only new entries are measured; each reply improves the estimate."""

    def __init__(self, conversation: _Entries) -> None:
        self.calibration = Calibration()
        self._conversation = conversation
        self._learned: set[str] = set()  # ids of replies
        self._prefix: tuple[str, tuple[ToolSpec, ...], Size] = ("", (), Size())
        self._model: ModelInfo | None = None
        self._start_anew()

    def tokens(self, system: str, tools: tuple[ToolSpec, ...], model: ModelInfo) -> int:
        """Return the tokens of the next request to a model.

        They are its provider's newest count since a compaction, and an estimate of what was added.
        """
        if (system, tools) != self._prefix[:2]:
            self._prefix = (system, tools, prefix_size(system, tools))
        if self._model != model:  # other thinking and other images are sent to it
            self._start_anew()
        self._model, name = model, model.name
        self._follow(self._conversation, model)
        counted = self._counted.get(name, ProviderCount(0, Size(), 0))
        added = self._now.minus(counted.size)
        if not model.takes_images:  # a short text replaces them
            added = added._replace(media=0)
        return max(0, counted.tokens + self.calibration.tokens(name, added, model.token_factor * SAFETY))

    def now(self) -> int:
        """Return the tokens for the model and the prefix of the last call of `tokens`; 0 without one."""
        return self.tokens(*self._prefix[:2], self._model) if self._model else 0

    def _start_anew(self) -> None:
        self._followed = 0  # number of entries of the path that were measured
        self._newest: Entry | None = None
        self._entries = Size()
        self._counted: dict[str, ProviderCount] = {}

    @property
    def _now(self) -> Size:
        return self._entries.plus(self._prefix[2])

    def _follow(self, conversation: _Entries, model: ModelInfo) -> None:
        """Add the sizes of new entries as `model` is sent them; of all entries if the path changed or was compacted."""
        path = conversation.path
        is_same = self._followed <= len(path) and (not self._followed or path[self._followed - 1] is self._newest)
        new = path[self._followed :]
        if not is_same or any(isinstance(entry.body, Compaction) for entry in new):
            self._start_anew()
            first = next((n for n in range(len(path), 0, -1) if isinstance(path[n - 1].body, Compaction)), 0)
            new = path[first:]
            entries = conversation.request_entries
            for entry in entries[: len(entries) - len(new)]:
                self._entries = self._entries.plus(_size(entry.body, model))
        for entry in new:
            self._add(entry, model)
        self._followed, self._newest = len(path), path[-1] if path else None

    def _add(self, entry: Entry, model: ModelInfo) -> None:
        body, before = entry.body, self._now
        self._entries = self._entries.plus(_size(body, model))
        if not isinstance(body, Assistant) or not body.usage.prompt_tokens or body.is_estimated:
            return
        name, usage = f"{body.provider}/{body.model}", body.usage
        if entry.id not in self._learned:
            self._learned.add(entry.id)
            self._learn(name, usage.prompt_tokens, before)
        sent = sent_back(body.content, model)
        reasoning = [block for block in sent if isinstance(block, Thinking | RedactedThinking | Opaque)]
        is_partly_sent = len(sent) < len(body.content) and not reasoning and not usage.reasoning_tokens
        if body.stop_reason == "interrupted" or is_partly_sent:  # the tokens of the text that is kept were not counted
            self._counted[name] = ProviderCount(usage.prompt_tokens, before, 0)
            return
        unseen = 0 if reasoning else usage.reasoning_tokens
        doubtful = max(usage.reasoning_tokens - unseen, int(size_of(reasoning, model.name).bytes / BYTES_PER_TOKEN))
        self._counted[name] = ProviderCount(usage.context_tokens - unseen, self._now, doubtful)

    def _learn(self, name: str, prompt_tokens: int, size: Size) -> None:
        # The factor is learned from what was added since the last count. Images would blur it.
        before = self._counted.get(name, ProviderCount(0, Size(), 0))
        added = size.minus(before.size)
        if not added.media and before.doubtful <= MAX_DOUBT * added.bytes / BYTES_PER_TOKEN:
            self.calibration.learn(name, added, prompt_tokens - before.tokens)


def _size(body: Body, model: ModelInfo) -> Size:
    match body:
        case User(content) | Assistant(content):
            size = size_of(sent_back(content, model), model.name)
        case Result(result):
            size = size_of([result], model.name)
        case Compaction(carried):
            size = size_of([Text(carried)], model.name)
        case _:
            return Size()
    return size.plus(MESSAGE)
