"""Wire formats as pure functions, tested on recorded bytes: a request to its JSON body, stream events to ours."""

from typing import Any

from agentcli.llm.provider import StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta


class ArrivingBlock:
    """A block of a reply that is still arriving. `start` holds the fields it began with, `id` is the id of a call."""

    def __init__(self, start: dict[str, Any], id: str = "") -> None:
        self.start, self.id, self.kind = start, id, str(start.get("type") or "")
        self.parts: list[str] = []  # pieces of its text, thinking or arguments
        self.is_whole = False  # True once the server has ended it

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, text: str, out: list[StreamEvent]) -> None:
        """Add a piece of text and append its event. An empty text or another kind of block has no event."""
        if not text:
            return
        self.parts.append(text)
        match self.kind:
            case "text" | "message":
                out.append(TextDelta(text))
            case "thinking" | "reasoning":
                out.append(ThinkingDelta(text))
            case "tool_use" | "function_call":
                out.append(ToolCallDelta(self.id, text))
