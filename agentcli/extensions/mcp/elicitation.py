"""Asks the person what an MCP server wants to know: the fields of a form one by one, or to open an address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types

from agentcli.tools.tool import Ask

Value = str | int | float | bool | list[str] | None

_YES, _DONE, _DECLINE, _SKIP = "Yes", "I have done it", "No", "Leave it out"
_MAX_TRIES = 3  # for an answer that does not fit


class _NotAnsweredError(Exception):
    """The person has left the form."""


async def elicited(params: types.ElicitRequestParams, ask: Ask | None) -> types.ElicitResult:
    """The person's answer; declined where nobody can be asked."""
    if ask is None:
        return types.ElicitResult(action="decline")
    if isinstance(params, types.ElicitRequestURLParams):
        # The whole address is shown, and nothing opens it but the person.
        question = f"{params.message} Open this address in your browser: {params.url}"
        return _result(await ask(question, (_DONE, _DECLINE)), _DONE)
    fields: dict[str, Any] = params.requested_schema.get("properties", {})
    if not fields:
        return _result(await ask(params.message, (_YES, _DECLINE)), _YES, {})
    required = params.requested_schema.get("required", ())
    content: dict[str, Value] = {}
    try:
        for name, field in fields.items():
            value = await _field(params.message, name, field, ask, is_required=name in required)
            if value is not None:
                content[name] = value
    except _NotAnsweredError:
        return types.ElicitResult(action="cancel")
    return types.ElicitResult(action="accept", content=content)


def _result(answer: str | None, accepting: str, content: dict[str, Value] | None = None) -> types.ElicitResult:
    if answer == accepting:
        return types.ElicitResult(action="accept", content=content)
    return types.ElicitResult(action="cancel" if answer is None else "decline")


async def _field(message: str, name: str, field: Mapping[str, Any], ask: Ask, *, is_required: bool) -> Value:
    """The value of one field; None for one that is left out. Raises `_NotAnsweredError`."""
    values = _values(field)
    default = field.get("default")
    shown = " · ".join(str(part) for part in (message, field.get("title") or name, field.get("description")) if part)
    options = [*values, *([] if is_required and default is None else [_as_default(default)])]
    problem = ""
    for _ in range(_MAX_TRIES):
        answer = await ask(f"{shown}{problem}", options)
        if answer is None:
            raise _NotAnsweredError
        if answer == _as_default(default) and answer not in values:
            return default
        try:
            return _read(answer.strip(), field, values)
        except ValueError as error:
            problem = f" ({error})"
    raise _NotAnsweredError


def _as_default(default: Any) -> str:
    return _SKIP if default is None else f"As it is: {default}"


def _values(field: Mapping[str, Any]) -> dict[str, Value]:
    """The values of a closed list by their labels."""
    source = field.get("items", field) if field.get("type") == "array" else field
    if field.get("type") == "boolean":
        return {_YES: True, _DECLINE: False}
    if choices := source.get("oneOf") or source.get("anyOf"):
        return {choice.get("title") or str(choice["const"]): choice["const"] for choice in choices if "const" in choice}
    names = source.get("enumNames") or source.get("enum", ())
    return dict(zip(map(str, names), source.get("enum", ()), strict=False))


def _read(answer: str, field: Mapping[str, Any], values: Mapping[str, Value]) -> Value:
    """Raises `ValueError` that says what would fit."""
    match field.get("type"):
        case "array":
            chosen = [values.get(part.strip(), part.strip()) for part in answer.split(",") if part.strip()]
            return [str(one) for one in chosen]
        case _ if values:
            if answer not in values:
                raise ValueError(f"it is one of {', '.join(values)}")
            return values[answer]
        case "integer" | "number" as kind:
            try:
                return int(answer) if kind == "integer" else float(answer)
            except ValueError:
                raise ValueError(f"it is {'a whole number' if kind == 'integer' else 'a number'}") from None
        case _:
            return answer
