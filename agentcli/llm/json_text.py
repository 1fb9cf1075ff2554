"""Reads and writes JSON with the faults that servers send: lone surrogates and nesting without end."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode


def decode_json(data: bytes | str) -> Any:
    """Return one JSON value with U+FFFD for each lone surrogate. Raises `ValueError`, also for NaN and Infinity."""
    try:
        return _decode(data)
    except RecursionError as error:
        raise ValueError("JSON nested too deeply") from error
    except msgspec.DecodeError as error:
        text = data if isinstance(data, str) else data.decode(errors="replace")
        if "\\ud" not in text.lower() and "�" not in text:
            raise ValueError(f"not JSON ({error}): {text[:80]!r}") from error
        try:
            # int raises ValueError for NaN and Infinity.
            return without_lone_surrogates(json.loads(text, parse_constant=int))
        except RecursionError:
            raise ValueError("JSON nested too deeply") from error


def encode_json(value: Any) -> bytes:
    """Return `value` as JSON; a lone surrogate, which UTF-8 cannot hold, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(without_lone_surrogates(value))


def without_lone_surrogates(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    return json.loads(_SURROGATE.sub("\ufffd", text)) if _SURROGATE.search(text) else value


_SURROGATE = re.compile("[\ud800-\udfff]")
