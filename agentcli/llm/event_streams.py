"""Takes a streamed body apart as it comes: server-sent events, or JSON lines."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import Any, Protocol

from msgspec import Struct

from agentcli.llm.errors import ConnectionFailed, ServerError
from agentcli.llm.json_text import decode_json

LONGEST_LINE = 16 * 1024 * 1024  # bytes of a line, or of a whole event, that are kept while its end is awaited


class Parser(Protocol):
    """Takes a body apart as it comes; raises `ProviderError` for one that cannot be read on."""

    def feed(self, chunk: bytes) -> list[Any]: ...

    def close(self) -> list[Any]:
        """Return what the end of the body completes. Raises `ConnectionFailed` in the middle of an item."""
        ...


class ServerSentEvent(Struct, frozen=True, gc=False):
    data: str
    event: str = "message"
    id: str = ""


class SseParser:
    """Bytes in, events out, after the event stream section of the WHATWG HTML standard.

    Lines end at CR, LF or CRLF and nowhere else. Unlike there, `close` gives a last event that has no empty line.
    """

    def __init__(self) -> None:
        self._rest = _Rest()
        self._after_cr = False
        self._last_id = ""
        self.retry_ms: int | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[ServerSentEvent] = []
        for block in self._rest.split(chunk, b"\n\n"):
            event = self._event(block)
            if event is not None:
                events.append(event)
        return events

    def close(self) -> list[ServerSentEvent]:
        block = self._rest.take()
        if not any(line and not line.startswith(b":") for line in block.split(b"\n")):
            return []
        event = self._event(block)
        if event is None or not (event.data == "[DONE]" or _is_json(event.data)):
            raise ConnectionFailed("The stream ended in the middle of an event.")
        return [event]

    def _event(self, block: bytes) -> ServerSentEvent | None:
        name, data = "", []
        for line in block.decode(errors="replace").split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "error" and value.startswith("{"):  # llama.cpp before 2025-08
                data.append(value if value.startswith('{"error"') else f'{{"error":{value}}}')
            elif field == "event":
                name = value
            elif field == "id" and "\0" not in value:
                self._last_id = value
            elif field == "retry" and value.isascii() and value.isdigit():
                self.retry_ms = int(value)
        if not data:
            return None
        return ServerSentEvent("\n".join(data), name or "message", self._last_id)


class LineParser:
    """Bytes in, the lines out that hold something (NDJSON). `close` gives a last line that has no end."""

    def __init__(self) -> None:
        self._rest = _Rest()

    def feed(self, chunk: bytes) -> list[bytes]:
        return [line for line in self._rest.split(chunk, b"\n") if line.strip()]

    def close(self) -> list[bytes]:
        rest = self._rest.take()
        if rest.strip() and not _is_json(rest):
            raise ConnectionFailed("The stream ended in the middle of a line.")
        return [rest] if rest.strip() else []


class JsonItems:
    """Decodes the JSON values of one stream; a surrogate pair that two of them halve comes whole with the second."""

    def __init__(self) -> None:
        self._half = ""

    def decode(self, data: bytes | str) -> Any:
        """Raises `ServerError` for what is not one JSON value."""
        try:
            return self._decode(data)
        except ValueError as error:
            raise ServerError(f"The server sent a broken event: {error}") from error

    def _decode(self, data: bytes | str) -> Any:
        mark = "\\u" if isinstance(data, str) else b"\\u"
        if mark not in data:  # type: ignore[operator]  # both are of one type
            return decode_json(data)
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if self._half and (begun := _LOW_FIRST.sub(lambda quote: quote[0] + self._half, text)) != text:
            text, self._half = begun, ""
        if found := _HIGH_LAST.search(text):
            text, self._half = _HIGH_LAST.sub(lambda end: end[1], text), found[2]
        return decode_json(text)


_LOW_FIRST = re.compile(r'(?<!\\)"(?=\\u[dD][c-fC-F])')
_HIGH_LAST = re.compile(r'(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2})(?=")')


class _Rest:
    """Holds the bytes after the last end mark, and looks at each byte once, however many pieces they come in.

    A byte order mark at the beginning is left out.
    """

    def __init__(self) -> None:
        self._kept = bytearray()
        self._at_start = True

    def split(self, chunk: bytes, mark: bytes) -> list[bytes]:
        """The parts that `mark` ends. Raises `ServerError` when one grows beyond `LONGEST_LINE`."""
        if self._at_start:
            chunk = self.take() + chunk
            if len(chunk) < len(BOM_UTF8) and BOM_UTF8.startswith(chunk):
                self._kept += chunk
                return []
            self._at_start = False
            chunk = chunk.removeprefix(BOM_UTF8)
        if self._kept:
            seam = self._kept[1 - len(mark) :] if len(mark) > 1 else b""  # a mark may be cut
            if mark not in chunk and mark not in seam + chunk[: len(seam)]:
                self._kept += chunk
                if len(self._kept) > LONGEST_LINE:
                    raise ServerError(
                        f"The server sent {LONGEST_LINE >> 20} MB without the end of a line: is the base_url right?",
                        is_retryable=False,
                    )
                return []
            chunk = self.take() + chunk
        *parts, rest = chunk.split(mark)
        if rest:
            self._kept += rest
        return parts

    def take(self) -> bytes:
        kept = bytes(self._kept)
        self._kept.clear()
        return kept


def _is_json(data: bytes | str) -> bool:
    try:
        decode_json(data)
    except ValueError:
        return False
    return True
