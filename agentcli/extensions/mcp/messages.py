"""Reads a server's messages as the SDK does, and repairs what the SDK would drop as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import mcp_types as types
from mcp_types import jsonrpc_message_adapter as _sdk_reader  # by its own name: ours takes its place
from mcp_types import methods
from pydantic import ValidationError

Item = dict[str, Any]
# The list that a result is about, by the method.
_LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "tools/call": "content",
    "prompts/get": "messages",
    "resources/read": "contents",
}
# What stays of an item that is not valid as a whole.
_NEEDED = {
    "tools": ("name", "description", "inputSchema"),
    "prompts": ("name", "description", "arguments"),
    "content": ("type", "text", "data", "mimeType", "uri", "name", "description", "resource"),
    "messages": ("role", "content"),
    "contents": ("uri", "mimeType", "text", "blob"),
}

_SURROGATE = re.compile("[\ud800-\udfff]")
# The id of a reply that is no JSON, where it can be no other's: at the beginning, or at the very end.
_ID = re.compile(
    r'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+|"[^"\\]*")|"id"\s*:\s*(\d+|"[^"\\]*")\s*\}\s*\Z'
)
_UNREADABLE = "its reply cannot be read: "


class MessageReader:
    """Takes the place of the SDK's `jsonrpc_message_adapter`."""

    def validate_json(self, data: str | bytes, *, by_name: bool | None = None) -> types.JSONRPCMessage:
        """Read one message; a reply that is none becomes an error with its id, so that its request ends at once.

        A lone surrogate, which is half of a character, is read as U+FFFD. Raises `ValueError` for all else.
        """
        try:
            return _sdk_reader.validate_json(data, by_name=by_name)
        except ValidationError as error:
            text = data.decode(errors="replace") if isinstance(data, bytes) else data
            try:
                message = _whole_characters(json.loads(text))
            except (ValueError, RecursionError) as broken:
                if '"method"' in text or '"jsonrpc"' not in text or (found := _ID.search(text)) is None:
                    raise error from broken
                return _failure(json.loads(found[1] or found[2]), types.PARSE_ERROR, f"{_UNREADABLE}{broken}")
        return _message(message)


def _message(message: Any) -> types.JSONRPCMessage:
    try:
        return _sdk_reader.validate_python(message, by_name=False)
    except ValidationError as error:
        match message:
            case {"method": _}:
                raise
            case {"id": int() | str() as id, "error": {"code": int() as code, "message": said}} if said is not None:
                return _failure(id, code, str(said))
            case {"id": int() | str() as id, "error": told} if told is not None:
                return _failure(id, types.INTERNAL_ERROR, json.dumps(told))
            case {"id": int() | str() as id}:
                return _failure(id, types.PARSE_ERROR, f"{_UNREADABLE}{fault_of(error, 'result')}")
            case _:
                raise


def fault_of(error: ValidationError, about: str = "") -> str:
    """Say where the first fault is that is `about` a field, else the first one."""
    faults = error.errors()
    fault = next((one for one in faults if about in map(str, one["loc"])), faults[0])
    return f"{'.'.join(map(str, fault['loc'][-4:]))}: {fault['msg']}"


def _failure(id: int | str, code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=id, error=types.ErrorData(code=code, message=message))


def _whole_characters(value: Any) -> Any:
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case list():
            return [_whole_characters(item) for item in value]
        case dict():
            return {_SURROGATE.sub("\ufffd", key): _whole_characters(item) for key, item in value.items()}
        case _:
            return value


def repair_result(method: str, version: str, result: Item, report: Callable[[str], None]) -> Item:
    """The result with its odd items made simpler, replaced by a text, or left out, which is reported with the name.

    A result whose fault is elsewhere stays as it is.
    """
    key = _LISTS.get(method)
    if key is None or _is_valid(method, version, result):
        return result
    whole = _plain(result)
    items = whole.get(key, [])
    items = [{"type": "text", "text": items}] if isinstance(items, str) and key == "content" else items
    if not isinstance(items, list) or not _is_valid(method, version, whole | {key: []}):
        return result
    kept = []
    for number, item in enumerate(items, 1):
        for form in _forms(key, item):
            if _is_valid(method, version, whole | {key: [form]}):
                kept.append(form)
                break
        else:
            name = item.get("name") if isinstance(item, dict) else None
            why = _fault(method, version, whole | {key: [item]}).removeprefix(f"{key}.0.")
            report(f"{key.removesuffix('s')} {name or f'number {number}'} is left out: {why}")
    return whole | {key: kept}


def _plain(result: Item) -> Item:
    """A result without values of a wrong kind that it need not have; a structured value of any kind is told as text."""
    structured = result.get("structuredContent")
    plain = {name: value for name, value in result.items() if name not in ("_meta", "structuredContent", "isError")}
    plain |= {"structuredContent": structured} if isinstance(structured, dict) else {}
    if "isError" in result:
        plain["isError"] = result["isError"] in (True, "true", 1)
    if structured is not None and not isinstance(structured, dict) and not result.get("content"):
        plain["content"] = [{"type": "text", "text": json.dumps(structured)}]
    return plain


def _forms(key: str, item: Any) -> list[Item]:
    """An item, and what can be made of it, the fullest first."""
    if not isinstance(item, dict):
        return [_note("of no type")] if key == "content" else []
    plain = {name: item[name] for name in _NEEDED[key] if item.get(name) is not None}
    match key:
        case "tools":
            given = item.get("inputSchema")
            plain["inputSchema"] = {**(given if isinstance(given, dict) else {}), "type": "object"}
            full = item | {"inputSchema": plain["inputSchema"]}
            named = {"name": item.get("name"), "inputSchema": plain["inputSchema"]}
            return [full, plain, named] if item.get("name") else []
        case "content":
            return [item, plain, _note(f"of the type {item.get('type')!r}")]
        case "messages":
            return [item, plain, plain | {"content": _note("that is no content")}]
        case _:
            return [item, plain]


def _note(kind: str) -> Item:
    return {"type": "text", "text": f"[a part {kind}, which cannot be read]"}


def _is_valid(method: str, version: str, result: Item) -> bool:
    return not _fault(method, version, result)


def _fault(method: str, version: str, result: Item) -> str:
    try:
        methods.parse_server_result(method, version, result)
    except ValidationError as error:
        return fault_of(error)
    except KeyError:  # the SDK knows no form of it in this version
        pass
    return ""
