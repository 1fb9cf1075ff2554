"""Takes secrets out of what a call says and gives, before anybody sees or stores it."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.llm.messages import Text
from agentcli.tools.tool import Content, ToolOutput

if TYPE_CHECKING:
    from agentcli.safety.secrets.masking import Masker, StreamMask
    from agentcli.safety.secrets.rules import Secret


class Mask:
    """The mask of a session; `make` gives the masker of some values at the first output: importing it takes 20 ms."""

    def __init__(self, make: Callable[[frozenset[str]], Masker], *, keeps_structured: Collection[str] = ()) -> None:
        self._make = make
        self._values: frozenset[str] = frozenset()
        self._masker: Masker | None = None
        self._lock = threading.Lock()  # what is exported is masked in a thread
        self.keeps_structured = keeps_structured

    @property
    def _mask(self) -> Masker:
        with self._lock:
            if self._masker is None:
                self._masker = self._make(self._values)
            return self._masker

    def know(self, values: frozenset[str]) -> None:
        """Masks these from now on, and no others."""
        with self._lock:
            if values != self._values:
                self._values, self._masker = values, None

    def knowing(self, values: frozenset[str]) -> Mask:
        """The same for other values."""
        if values == self._values:
            return self
        mask = Mask(self._make, keeps_structured=self.keeps_structured)
        mask.know(values)
        return mask

    def stream(self) -> StreamMask:
        """For output that comes in pieces."""
        return self._mask.stream()

    def text(self, text: str) -> str:
        return self._mask.mask(text)

    def output(self, output: ToolOutput, *, tool: str) -> ToolOutput:
        return msgspec.structs.replace(
            output,
            content=self._content(output.content),
            summary=self.text(output.summary),
            structured=output.structured if tool in self.keeps_structured else self.value(output.structured)[0],
        )

    def _content(self, content: Content | None) -> Content | None:
        if content is None or isinstance(content, str):
            return content if content is None else self.text(content)
        return tuple(Text(self.text(part.text)) if isinstance(part, Text) else part for part in content)

    def value(self, value: Any) -> tuple[Any, int]:
        """A value for JSON, in plain values, and the number of places that are masked in it."""
        with contextlib.suppress(TypeError, ValueError):  # what is not for JSON is left as it is
            value = msgspec.to_builtins(value)
        # All texts are looked at together: a key may be in several, and one look costs least.
        texts = _texts_in(value)
        found = self._mask.secrets("\n".join(texts))
        return (_replaced(value, _masked(texts, found)) if found else value), len(found)

    def written(self, value: Any) -> tuple[Any, int]:
        """As `value`, for what leaves as a document: also what only the name before it gives away."""
        value, count = self.value(value)
        text = msgspec.json.encode(value).decode()
        named = {}
        for one in self._mask.secrets(text):
            secret = max(text[one.start : one.end].split('"'), key=len)
            with contextlib.suppress(msgspec.DecodeError):  # cut within an escape
                named[msgspec.json.decode(f'"{secret}"')] = f"[masked: {one.rule}]"
        masked = {old: _replace_each(old, named) for old in _texts_in(value)} if named else {}
        changed = {old: new for old, new in masked.items() if new != old}
        return (_replaced(value, changed) if changed else value), count + len(changed)


def _replace_each(text: str, named: Mapping[str, str]) -> str:
    for secret, mask in named.items():
        text = text.replace(secret, mask)
    return text


def _texts_in(value: Any) -> list[str]:
    """Every text in it, in order, of equal neighbours one; of rows one column after the other: lines stay together."""
    texts: list[str] = [""]
    waiting = [value]  # calls would take three times as long
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if item != texts[-1]:
                texts.append(item)
        elif isinstance(item, dict):
            waiting.extend(reversed(item.values()))
        elif isinstance(item, list | tuple):
            waiting.extend(reversed(_columns(item)))
        elif isinstance(item, msgspec.Struct):
            waiting.append(msgspec.structs.asdict(item))
    return texts


def _columns(rows: Sequence[Any]) -> Sequence[Any]:
    if not rows or not all(isinstance(row, dict) for row in rows):
        return rows
    names = dict.fromkeys(chain.from_iterable(rows))
    return [row[name] for name in names for row in rows if name in row]


def _masked(texts: Iterable[str], found: Sequence[Secret]) -> dict[str, str]:
    """Mask the texts in which something was found; between each two of them is a line end."""
    masked: dict[str, str] = {}
    begin, waiting = 0, deque(found)
    for text in texts:
        end = begin + len(text)
        pieces: list[str] = []
        position = begin
        while waiting and waiting[0].end <= begin:
            waiting.popleft()
        while waiting and waiting[0].start < end:
            secret = waiting[0]
            pieces += (text[position - begin : max(secret.start, begin) - begin], f"[masked: {secret.rule}]")
            position = min(secret.end, end)
            if secret.end > end:
                break
            waiting.popleft()
        if pieces and text:
            masked[text] = "".join((*pieces, text[position - begin :]))
        begin = end + 1
    return masked


def _replaced(value: Any, masked: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(item, masked) for key, item in value.items()}
    if isinstance(value, msgspec.Struct):
        return _replaced(msgspec.structs.asdict(value), masked)
    if isinstance(value, list | tuple):
        return [_replaced(item, masked) for item in value]
    return masked.get(value, value) if isinstance(value, str) else value
