"""Publishes a provider's stream as events in which every block of the reply has a start and an end."""

from __future__ import annotations

from agentcli.agent import events
from agentcli.llm import provider as llm
from agentcli.llm.provider import Provider


class ReplyBlocks:
    """The blocks of one reply, numbered in the order they start; neighbouring deltas of one kind are one block."""

    def __init__(self, provider: Provider, emit: events.Emit) -> None:
        self._emit = emit
        self._source = events.ReplyStarted(provider.model, provider.name)
        self._count = 0
        self._open: events.BlockKind | None = None  # text or thinking; calls may be open beside one another
        self._calls: dict[str, int] = {}

    def feed(self, event: llm.StreamEvent) -> None:
        """Publish what an event of the provider's stream adds to the reply."""
        if isinstance(event, llm.TextDelta):  # most of all events
            if self._open != "text":
                self._start("text")
            self._emit(events.TextDelta(event.text))
            return
        match event:
            case llm.ThinkingDelta(text):
                if self._open != "thinking":
                    self._start("thinking")
                self._emit(events.ThinkingDelta(text))
            case llm.ToolCallStarted(id, name):
                self._calls[id] = self._start("tool_use", id, name)
            case llm.ToolCallDelta(id, partial_json):
                self._emit(events.InputDelta(id, partial_json, self._calls.get(id, self._count - 1)))
            case llm.ToolCallEnded(id) if id in self._calls:
                self._emit(events.BlockEnded(self._calls.pop(id)))

    def _start(self, kind: events.BlockKind, id: str = "", name: str = "") -> int:
        if self._count == 0:
            self._emit(self._source)
        self._end_text()
        index, self._count = self._count, self._count + 1
        self._open = kind
        self._emit(events.BlockStarted(index, kind, id, name))
        return index

    def _end_text(self) -> None:
        if self._open in ("text", "thinking"):
            self._emit(events.BlockEnded(self._count - 1))
        self._open = None

    def end(self) -> None:
        """Publish the ends of the blocks that are open, also where the stream broke off."""
        self._end_text()
        for index in self._calls.values():
            self._emit(events.BlockEnded(index))
        self._calls.clear()
