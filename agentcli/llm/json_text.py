"""Reads and writes JSON as servers have it: lone surrogates, halves of them, and nesting without end."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec

from agentcli.llm.errors import ServerError

_decode = msgspec.json.Decoder().decode


def decode_json(data: bytes | str) -> Any:
    """One JSON value; a lone surrogate becomes U+FFFD, so that it can be printed and stored.

    Raises ValueError for anything that is not one JSON value (NaN and Infinity included).
    """
    try:
        return _decode(data)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    except msgspec.DecodeError as error:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if "\\ud" not in text.lower() and "�" not in text:
            raise ValueError(f"not JSON ({error}): {text[:80]!r}") from error
        try:
            return without_lone_surrogates(json.loads(text, parse_constant=_refuse_constant))
        except RecursionError:
            raise ValueError("JSON nested too deeply") from error


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


def encode_json(value: Any) -> bytes:
    """`value` as JSON; a lone surrogate, which UTF-8 cannot hold, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(without_lone_surrogates(value))


def without_lone_surrogates(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(_SURROGATE.sub("\ufffd", text)) if _SURROGATE.search(text) else value


_SURROGATE = re.compile("[\ud800-\udfff]")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
