"""Brings entries that an older agentcli stored up to today's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCHEMA_VERSION = 3

Step = Callable[[dict[str, Any]], dict[str, Any]]


def _results_name_their_call(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 notes which version of a tool ran, for whom and in which mode."""
    if body.get("kind") != "tool_result":
        return body
    return {**body, "tool_version": "1", "caller": "main", "mode": ""}


def _each_event_is_a_kind(body: dict[str, Any]) -> dict[str, Any]:
    """Version 3 has a kind for each event, and a compaction where version 2 had a summary."""
    data = body.get("data", {})
    match body.get("kind"), body.get("event"):
        case "summary", _:
            return {"kind": "compaction", "carried": body.get("text", "")}
        case "tool_log", "started":
            return {"kind": "calls_started", "ids": data.get("ids", [])}
        case "system_event", "retracted" if "since" in data:
            return {"kind": "rewound", "before": data["since"]}
        case "system_event", ("aside" | "refused") as reason:
            return {"kind": "paid", "reason": reason, "model": "", **data}
        case "system_event", event:
            return {"kind": event, **data}
        case _:
            return body


# From each version to the next.
STEPS: dict[int, Step] = {1: _results_name_their_call, 2: _each_event_is_a_kind}


def readable_from(version: int) -> bool:
    """True if conversations that an agentcli of that schema version stored can be read by this one."""
    return version == SCHEMA_VERSION or version in STEPS


def upgraded(body: dict[str, Any], version: int) -> dict[str, Any]:
    """A stored body in today's form. Raises `ValueError` for a version that no step leads on from."""
    while version != SCHEMA_VERSION:
        if version > SCHEMA_VERSION:
            raise ValueError(f"it was written by a newer agentcli (schema {version}, this one knows {SCHEMA_VERSION})")
        if version not in STEPS:
            raise ValueError(f"nothing is known of schema {version}")
        body = STEPS[version](body)
        version += 1
    return body
