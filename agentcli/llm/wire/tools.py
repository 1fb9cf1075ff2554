"""Tool definitions as other programs send them, in either API's form."""

from __future__ import annotations

from typing import Any

import msgspec

from agentcli.llm.provider import ToolSpec


def tool_from_wire(data: dict[str, Any]) -> ToolSpec:
    """A tool in the Messages API's form (`input_schema`) or in that of Chat Completions (`function`, `parameters`).

    Raises `ValueError` naming the field for anything else.
    """
    function = data.get("function") if data.get("type") == "function" else None
    if isinstance(function, dict):
        data = {**function, "input_schema": function.get("parameters")}
    plain = {
        "name": data.get("name"),
        "description": data.get("description") or "",
        "input_schema": data.get("input_schema") or {"type": "object"},
    }
    try:
        return msgspec.convert(plain, ToolSpec)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a tool: {error}") from error
