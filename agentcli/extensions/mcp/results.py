"""Takes the results of a server item by item, so that an odd one costs nothing but itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mcp_types import methods
from pydantic import ValidationError

from agentcli.extensions.mcp.messages import fault_of

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
