"""Reads the messages of MCP servers: repairs what the SDK would drop as a whole, and asks the person what they ask."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mcp_types as types
from mcp_types import jsonrpc_message_adapter as _sdk_reader  # by its own name: ours takes its place
from mcp_types import methods
from pydantic import ValidationError

from agentcli.extensions.mcp.tools import Parts
from agentcli.llm.messages import Base64Source, Document, Image, Text
from agentcli.tools.tool import Ask

Item = dict[str, Any]
Value = str | int | float | bool | list[str] | None
# By the method, the list that a result is about, and what stays of an item of it that is not valid as a whole.
_LISTS = {
    "tools/list": ("tools", ("name", "description", "inputSchema")),
    "prompts/list": ("prompts", ("name", "description", "arguments")),
    "tools/call": ("content", ("type", "text", "data", "mimeType", "uri", "name", "description", "resource")),
    "prompts/get": ("messages", ("role", "content")),
    "resources/read": ("contents", ("uri", "mimeType", "text", "blob")),
}
# The id of a reply that is no JSON, where it can be no other's: at the beginning, or at the very end.
_ID = re.compile(
    r'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+|"[^"\\]*")|"id"\s*:\s*(\d+|"[^"\\]*")\s*\}\s*\Z'
)
_UNREADABLE = "its reply cannot be read: "
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # what all providers take
_YES, _DONE, _NO, _SKIP = "Yes", "I have done it", "No", "Leave it out"
_LEFT = object()
_MAX_TRIES = 3  # for an answer that does not fit
_NUMBERS = {"integer": (int, "a whole number"), "number": (float, "a number")}


class MessageReader:
    """Takes the place of the SDK's `jsonrpc_message_adapter`."""

    def validate_json(self, data: str | bytes, *, by_name: bool | None = None) -> types.JSONRPCMessage:
        """Read one message, or the error with its id that a broken reply becomes. Raises `ValueError`."""
        try:
            return _sdk_reader.validate_json(data, by_name=by_name)
        except ValidationError as error:
            text = data.decode(errors="replace") if isinstance(data, bytes) else data
            try:
                whole = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-16", "surrogatepass")
                message = json.loads(whole.decode("utf-16", "replace"))
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
            case {"id": int() | str() as id, "error": {"code": int() as code, "message": text}} if text is not None:
                return _failure(id, code, str(text))
            case {"id": int() | str() as id, "error": given} if given is not None:
                return _failure(id, types.INTERNAL_ERROR, json.dumps(given))
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


# Results with odd items


def repair_result(method: str, version: str, result: Item, report: Callable[[str], None]) -> Item:
    """Return the result with odd items simplified, replaced by a text, or left out and reported; other faults stay."""

    def fault(items: Any = None) -> str:
        try:
            methods.parse_server_result(method, version, result if items is None else whole | {key: items})
        except ValidationError as error:
            return fault_of(error)
        except KeyError:  # the SDK knows no form of it in this version
            pass
        return ""

    key, needed = _LISTS.get(method, ("", ()))
    if not key or not fault():
        return result
    whole = _plain(result)
    items = whole.get(key, [])
    items = [{"type": "text", "text": items}] if isinstance(items, str) and key == "content" else items
    if not isinstance(items, list) or fault([]):
        return result
    kept = []
    for number, item in enumerate(items, 1):
        if (form := next((form for form in _forms(key, needed, item) if not fault([form])), None)) is not None:
            kept.append(form)
        else:
            name = item.get("name") if isinstance(item, dict) else None
            why = fault([item]).removeprefix(f"{key}.0.")
            report(f"{key.removesuffix('s')} {name or f'number {number}'} is left out: {why}")
    return whole | {key: kept}


def _plain(result: Item) -> Item:
    """Return a result without optional values of the wrong type; structured values that are no object become text."""
    structured = result.get("structuredContent")
    plain = {name: value for name, value in result.items() if name not in ("_meta", "structuredContent", "isError")}
    plain |= {"structuredContent": structured} if isinstance(structured, dict) else {}
    if "isError" in result:
        plain["isError"] = result["isError"] in (True, "true", 1)
    if structured is not None and not isinstance(structured, dict) and not result.get("content"):
        plain["content"] = [{"type": "text", "text": json.dumps(structured)}]
    return plain


def _forms(key: str, needed: Iterable[str], item: Any) -> list[Item]:
    """Return an item, and what can be made of it, the fullest first."""
    if not isinstance(item, dict):
        return [_note("of no type")] if key == "content" else []
    plain = {name: item[name] for name in needed if item.get(name) is not None}
    match key:
        case "tools":
            given = item.get("inputSchema")
            schema = {"inputSchema": {**(given if isinstance(given, dict) else {}), "type": "object"}}
            return [item | schema, plain | schema, {"name": item["name"]} | schema] if item.get("name") else []
        case "content":
            return [item, plain, _note(f"of the type {item.get('type')!r}")]
        case "messages":
            return [item, plain, plain | {"content": _note("that is no content")}]
        case _:
            return [item, plain]


def _note(kind: str) -> Item:
    return {"type": "text", "text": f"[a part {kind}, which cannot be read]"}


def parts_of(blocks: Iterable[types.ContentBlock]) -> Parts:
    """Return text, images and PDFs as they are, and a line about anything else."""
    return tuple(map(_part, blocks))


def _part(block: types.ContentBlock) -> Text | Image | Document:
    match block:
        case types.TextContent():
            return Text(block.text)
        case types.ImageContent():
            return _media(block.data, block.mime_type, "an image")
        case types.AudioContent():
            return Text(f"[audio, {block.mime_type}, which cannot be shown]")
        case types.ResourceLink():
            about = " · ".join(part for part in (block.title or block.name, block.description, block.mime_type) if part)
            return Text(f"[resource {block.uri}: {about}]")
        case types.EmbeddedResource():
            return resource_part(block.resource)


def resource_part(contents: types.TextResourceContents | types.BlobResourceContents) -> Text | Image | Document:
    if isinstance(contents, types.TextResourceContents):
        return Text(contents.text)
    return _media(contents.blob, contents.mime_type or "", str(contents.uri))


def _media(data: str, mime_type: str, what: str) -> Text | Image | Document:
    try:
        base64.b64decode(data, validate=True)
    except binascii.Error:
        return Text(f"[{what} that is no base64]")
    if mime_type in _IMAGES:
        return Image(Base64Source(mime_type, data))
    if mime_type == "application/pdf":
        return Document(Base64Source(mime_type, data))
    return Text(f"[{what}, {mime_type or 'of an unknown type'}, which cannot be shown]")


# Questions


async def elicited(params: types.ElicitRequestParams, ask: Ask | None) -> types.ElicitResult:
    """Ask for the fields of a form one by one, or to open an address; declined where nobody can be asked."""
    if ask is None:
        return types.ElicitResult(action="decline")
    if isinstance(params, types.ElicitRequestURLParams):
        # The whole address is shown, and nothing opens it but the person.
        question = f"{params.message} Open this address in your browser: {params.url}"
        return _result(await ask(question, (_DONE, _NO)), _DONE)
    fields: dict[str, Any] = params.requested_schema.get("properties", {})
    if not fields:
        return _result(await ask(params.message, (_YES, _NO)), _YES, {})
    content: dict[str, Value] = {}
    for name, field in fields.items():
        about = (params.message, field.get("title") or name, field.get("description"))
        is_optional = name not in params.requested_schema.get("required", ())
        value = await _ask_field(" · ".join(str(part) for part in about if part), field, ask, is_optional=is_optional)
        if value is _LEFT:
            return types.ElicitResult(action="cancel")
        content |= {name: value} if value is not None else {}
    return types.ElicitResult(action="accept", content=content)


def _result(answer: str | None, accepting: str, content: dict[str, Value] | None = None) -> types.ElicitResult:
    if answer == accepting:
        return types.ElicitResult(action="accept", content=content)
    return types.ElicitResult(action="cancel" if answer is None else "decline")


async def _ask_field(about: str, field: Mapping[str, Any], ask: Ask, *, is_optional: bool) -> Any:
    """Return the value of a field, None if it is left out, `_LEFT` if the person leaves the form."""
    values, default = _values(field), field.get("default")
    proposed = [_SKIP if default is None else f"As it is: {default}"] if is_optional or default is not None else []
    problem = ""
    for _ in range(_MAX_TRIES):
        answer = await ask(f"{about}{problem}", [*values, *proposed])
        if answer is None:
            break
        if answer in proposed and answer not in values:
            return default
        try:
            return _read(answer.strip(), field.get("type"), values)
        except ValueError as error:
            problem = f" ({error})"
    return _LEFT


def _values(field: Mapping[str, Any]) -> dict[str, Value]:
    """Return the values of a closed list by their labels."""
    source = field.get("items", field) if field.get("type") == "array" else field
    if field.get("type") == "boolean":
        return {_YES: True, _NO: False}
    if choices := source.get("oneOf") or source.get("anyOf"):
        return {choice.get("title") or str(choice["const"]): choice["const"] for choice in choices if "const" in choice}
    names = source.get("enumNames") or source.get("enum", ())
    return dict(zip(map(str, names), source.get("enum", ()), strict=False))


def _read(answer: str, kind: Any, values: Mapping[str, Value]) -> Value:
    """Return the value that an answer means. Raises `ValueError` that says what would fit."""
    if kind == "array":
        return [str(values.get(part.strip(), part.strip())) for part in answer.split(",") if part.strip()]
    if values and answer not in values:
        raise ValueError(f"it is one of {', '.join(values)}")
    convert, what = (str, "") if values else _NUMBERS.get(kind, (str, ""))
    try:
        return values[answer] if values else convert(answer)
    except ValueError:
        raise ValueError(f"it is {what}") from None
