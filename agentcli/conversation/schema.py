"""How entries that an older agentcli stored become entries of today."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SCHEMA_VERSION = 2

Step = Callable[[dict[str, Any]], dict[str, Any]]


def _results_name_their_call(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 says which version of a tool ran, for whom and in which mode: before, all ran for the main agent."""
    if body.get("kind") != "tool_result":
        return body
    return {**body, "tool_version": "1", "caller": "main", "mode": ""}


# From each version to the next; a version that is not here cannot be read.
STEPS: dict[int, Step] = {1: _results_name_their_call}


def brought_up(body: dict[str, Any], version: int) -> dict[str, Any]:
    """A stored body in today's form. Raises `ValueError` for a version that no step leads on from."""
    while version != SCHEMA_VERSION:
        if version > SCHEMA_VERSION:
            raise ValueError(f"it was written by a newer agentcli (schema {version}, this one knows {SCHEMA_VERSION})")
        if version not in STEPS:
            raise ValueError(f"nothing is known of schema {version}")
        body = STEPS[version](body)
        version += 1
    return body
