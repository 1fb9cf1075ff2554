"""Takes a streamed body apart as it comes: server-sent events, or JSON lines."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import Any

from agentcli.llm.errors import ConnectionFailed, ServerError
from agentcli.llm.json_text import decode_json

LONGEST_LINE = 16 * 1024 * 1024  # bytes of a line, or of a whole event, that are kept while its end is awaited


class LineParser:
    """Bytes in, the lines out that hold something (NDJSON), without a byte order mark; looks at each byte once."""

    _end = b"\n"

    def __init__(self) -> None:
        self._kept = bytearray()
        self._at_start = True

    def feed(self, chunk: bytes) -> list[str | bytes]:
        """Return the items that are whole now. Raises `ServerError` when one grows beyond `LONGEST_LINE`."""
        if self._at_start:
            chunk = self._take() + chunk
            if len(chunk) < len(BOM_UTF8) and BOM_UTF8.startswith(chunk):
                self._kept += chunk
                return []
            self._at_start = False
            chunk = chunk.removeprefix(BOM_UTF8)
        if self._kept:
            seam = self._kept[1 - len(self._end) :] if len(self._end) > 1 else b""  # an end may be cut
            if self._end not in chunk and self._end not in seam + chunk[: len(seam)]:
                self._kept += chunk
                if len(self._kept) > LONGEST_LINE:
                    raise ServerError(
                        f"The server sent {LONGEST_LINE >> 20} MB without the end of a line: is the base_url right?",
                        is_retryable=False,
                    )
                return []
            chunk = self._take() + chunk
        *parts, rest = chunk.split(self._end)
        self._kept += rest
        return [item for part in parts if (item := self._read(part))]

    def close(self) -> list[str | bytes]:
        """Return what the end of the body completes. Raises `ConnectionFailed` in the middle of an item."""
        if not (item := self._read(self._take())):
            return []
        try:
            if item != "[DONE]":
                decode_json(item)
        except ValueError as error:
            raise ConnectionFailed("The stream ended in the middle of an event.") from error
        return [item]

    def _read(self, part: bytes) -> str | bytes:
        return part.strip()

    def _take(self) -> bytes:
        kept = bytes(self._kept)
        self._kept.clear()
        return kept


class SseParser(LineParser):
    """Bytes in, the data of events out, after the event stream section of the WHATWG HTML standard.

    Unlike there, the end of the body also ends an event, and one without data is none.
    """

    _end = b"\n\n"
    _after_cr = False

    def feed(self, chunk: bytes) -> list[str | bytes]:
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return super().feed(chunk)

    def _read(self, part: bytes) -> str:
        data = []
        for line in part.decode(errors="replace").split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                data.append(value)
            elif field == "error" and value.startswith("{"):  # llama.cpp before 2025-08
                data.append(value if value.startswith('{"error"') else f'{{"error":{value}}}')
        return "\n".join(data).strip()


class JsonItems:
    """Decodes the JSON values of one stream; a surrogate pair that two of them halve comes whole with the second."""

    def __init__(self) -> None:
        self._half = ""

    def decode(self, data: bytes | str) -> Any:
        """Raises `ServerError` for what is not one JSON value."""
        try:
            is_plain = "\\u" not in data if isinstance(data, str) else b"\\u" not in data
            return decode_json(data if is_plain else self._joined(data))
        except ValueError as error:
            raise ServerError(f"The server sent a broken event: {error}") from error

    def _joined(self, data: bytes | str) -> str:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if self._half and (begun := _LOW_FIRST.sub(lambda quote: quote[0] + self._half, text)) != text:
            text, self._half = begun, ""
        if found := _HIGH_LAST.search(text):
            text, self._half = _HIGH_LAST.sub(lambda end: end[1], text), found[2]
        return text


_LOW_FIRST = re.compile(r'(?<!\\)"(?=\\u[dD][c-fC-F])')
_HIGH_LAST = re.compile(r'(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2})(?=")')
