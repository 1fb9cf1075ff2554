"""The form of the `result` object, without what only a session knows."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from agentcli.llm.messages import Usage


def result_object(subtype: str, text: str, *, session_id: str = "", reason: str = "") -> dict[str, Any]:
    """A run that asked no model. Durations are milliseconds, costs USD (null where unknown)."""
    return {
        "type": "result",
        "subtype": subtype,
        "is_error": subtype != "success",
        "result": text,
        "structured_output": None,
        "session_id": session_id,
        "num_turns": 0,
        "duration_ms": 0,
        "duration_api_ms": 0,
        "total_cost_usd": 0.0,
        "usage": usage_object(Usage()),
        "model_usage": {},
        "permission_denials": [],
        "claims": [],
        "terminal_reason": reason or subtype,
        "uuid": _uuid4(),
    }


def usage_object(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": usage.cache_creation_input_tokens,
        "cache_read_input_tokens": usage.cache_read_input_tokens,
    }


def to_json_line(value: Any) -> bytes:
    """One line of UTF-8; a line separator inside a string never splits it, since only \\n ends a line."""
    return msgspec.json.encode(value) + b"\n"


def _uuid4() -> str:
    """RFC 9562 §5.4. Ours because a signal handler may need it, which must not import."""
    random = int.from_bytes(os.urandom(16))
    digits = f"{random & ~(0xF << 76) & ~(0b11 << 62) | 4 << 76 | 0b10 << 62:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
