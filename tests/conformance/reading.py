"""Reads a provider's stream to its end and keeps everything that came."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentcli.llm.errors import ProviderError
from agentcli.llm.messages import Message, user_message
from agentcli.llm.provider import (
    Done,
    Provider,
    Request,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolSpec,
)

READ_FILE = ToolSpec(
    "read_file",
    "Reads a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
LIST_FILES = ToolSpec("list_files", "Lists the files of the project.", {"type": "object", "properties": {}})


def asking(*messages: Message | str, system: str = "You help with code.", **more: object) -> Request:
    """A request; strings are the person's."""
    said = tuple(user_message(item) if isinstance(item, str) else item for item in messages or ("Hello",))
    return Request(system=system, messages=said, **{"tools": (READ_FILE, LIST_FILES)} | more)  # type: ignore[arg-type]


@dataclass
class Heard:
    """The events of one stream, and the error that ended it."""

    events: list[StreamEvent] = field(default_factory=list)
    error: ProviderError | None = None

    @property
    def done(self) -> Done:
        if self.error is not None:
            raise self.error
        last = self.events[-1]
        assert isinstance(last, Done)
        return last

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))

    @property
    def thinking(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, ThinkingDelta))

    def arguments_of(self, id: str) -> str:
        return "".join(e.partial_json for e in self.events if isinstance(e, ToolCallDelta) and e.id == id)

    def of(self, kind: type) -> list[StreamEvent]:
        return [event for event in self.events if isinstance(event, kind)]


async def hear(provider: Provider, request: Request | None = None) -> Heard:
    heard = Heard()
    try:
        async for event in provider.stream(request or asking()):
            heard.events.append(event)
    except ProviderError as error:
        heard.error = error
    return heard
