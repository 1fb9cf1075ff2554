"""Takes secrets out of what a call says and gives, before anybody sees or stores it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.llm.messages import Text
from agentcli.tools.tool import Content, ToolOutput

if TYPE_CHECKING:
    from agentcli.tools.secrets.masking import Masker, StreamMask


class Mask:
    """Of one session; `make` gives the masker at the first output: importing it takes 20 ms.

    `keeps_structured` leaves the part for programs as it is, for callers that are the person's own scripts.
    """

    def __init__(self, make: Callable[[], Masker], *, keeps_structured: bool = False) -> None:
        self._make = make
        self._masker: Masker | None = None
        self.keeps_structured = keeps_structured

    @property
    def _mask(self) -> Masker:
        if self._masker is None:
            self._masker = self._make()
        return self._masker

    def stream(self) -> StreamMask:
        """For output that comes in pieces."""
        return self._mask.stream()

    def text(self, text: str) -> str:
        return self._mask.mask(text)

    def output(self, output: ToolOutput) -> ToolOutput:
        return msgspec.structs.replace(
            output,
            content=self._content(output.content),
            summary=self.text(output.summary),
            structured=output.structured if self.keeps_structured else self._structured(output.structured),
        )

    def _content(self, content: Content | None) -> Content | None:
        if content is None or isinstance(content, str):
            return content if content is None else self.text(content)
        return tuple(Text(self.text(part.text)) if isinstance(part, Text) else part for part in content)

    def _structured(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {key: self._structured(item) for key, item in value.items()}
            case list() | tuple():
                return [self._structured(item) for item in value]
            case msgspec.Struct():
                return self._structured(msgspec.to_builtins(value))
            case _:
                return value
