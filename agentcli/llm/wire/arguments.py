"""Reads a call's arguments as real models write them: JSON, nearly JSON, or JSON inside a string."""

from __future__ import annotations

import ast
import json
import re
import warnings
from typing import Any

from json_repair import repair_json

from agentcli.llm.json_text import without_lone_surrogates

LONGEST_REPAIR = 4_096  # characters; repairing a cut 6 KB string took 21 ms, a missing brace in 12 KB 34 ms

_FENCE = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_TRAILING_COMMA = re.compile(r",(\s*[}\]])")


def parse_arguments(text: str, *, was_cut: bool = False) -> dict[str, Any] | None:
    """The arguments as an object, or None when they cannot be read as one.

    A call that was cut is never repaired, whether by length or inside a string (some servers call that "stop"): what
    is missing would be guessed.
    """
    if not text.strip():
        return {}
    value = _strict(text)
    if value is None and not was_cut:
        value = _lenient(text)
    if isinstance(value, str):  # encoded twice
        value = _strict(value)
    return without_lone_surrogates(value) if isinstance(value, dict) else None


def _strict(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None


def _lenient(text: str) -> Any:
    if fenced := _FENCE.match(text):
        text = fenced.group(1)
    for candidate in (text, _TRAILING_COMMA.sub(r"\1", text)):
        try:
            return json.loads(candidate, strict=False, parse_constant=lambda name: None)  # raw newlines in strings
        except (ValueError, RecursionError):
            continue
    try:  # Python's own notation: single quotes, True, None
        with warnings.catch_warnings(action="ignore"):  # of escapes like \d, which would reach the terminal
            value = ast.literal_eval(text.strip())
        if isinstance(value, dict):
            return json.loads(json.dumps(value, allow_nan=False))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        pass
    if len(text) > LONGEST_REPAIR or _ends_inside_a_string(text):
        return None
    try:
        return repair_json(text, return_objects=True)
    except (ValueError, RecursionError):
        return None


def _ends_inside_a_string(text: str) -> bool:
    return re.sub(r"\\.", "", text, flags=re.DOTALL).count('"') % 2 == 1


_CALL_MARKS = (
    re.compile(r"<tool_call>\s*(\{.*?\})\s*(?:</tool_call>|\Z)", re.DOTALL),
    re.compile(r"\[TOOL_CALLS\]\s*(\[.*\]|\{.*\})", re.DOTALL),
    re.compile(r"```\w*\s*(\{.*?\})\s*```", re.DOTALL),
    re.compile(r"\A\s*(\{.*\})\s*\Z", re.DOTALL),
)


def calls_in_text(text: str, names: frozenset[str]) -> list[tuple[str, dict[str, Any]]]:
    """Calls of known tools that a model wrote as plain text: `<tool_call>`, `[TOOL_CALLS]`, a fenced or bare object."""
    for mark in _CALL_MARKS:
        found = []
        for written in mark.findall(text):
            value = _strict(written)
            if value is None:
                value = _lenient(written)
            for call in value if isinstance(value, list) else [value]:
                if isinstance(call, dict) and isinstance(call.get("name"), str) and call["name"] in names:
                    arguments = call.get("arguments", call.get("parameters", {}))
                    if isinstance(arguments, str):
                        arguments = parse_arguments(arguments)
                    if isinstance(arguments, dict):
                        found.append((call["name"], without_lone_surrogates(arguments)))
        if found:
            return found
    return []
