"""Reads the messages of MCP servers: repairs those that the SDK would reject, and asks the person their questions."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
# By method: the list in its result, and the keys that are kept of an item that is not valid as a whole.
_LISTS = {
    "tools/list": ("tools", ("name", "description", "inputSchema")),
    "prompts/list": ("prompts", ("name", "description", "arguments")),
    "tools/call": ("content", ("type", "text", "data", "mimeType", "uri", "name", "description", "resource")),
    "prompts/get": ("messages", ("role", "content")),
    "resources/read": ("contents", ("uri", "mimeType", "text", "blob")),
}
# The id of a reply that is no JSON. At the beginning or at the very end it cannot be another object's.
_ID = re.compile(
    r'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+|"[^"\\]*")|"id"\s*:\s*(\d+|"[^"\\]*")\s*\}\s*\Z'
)
_UNREADABLE = "its reply cannot be read: "
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")  # which all providers take
_YES, _DONE, _NO, _SKIP = "Yes", "I have done it", "No", "Leave it out"
_CANCELLED = object()
_NUMBERS = {"integer": (int, "a whole number"), "number": (float, "a number")}


class MessageReader:
    """Replaces the SDK's `jsonrpc_message_adapter`: a reply that cannot be read becomes an error for its call."""

    def validate_json(self, data: str | bytes, *, by_name: bool | None = None) -> types.JSONRPCMessage:
        """Return a message; for a broken reply, an error with its id. Raises `ValueError`."""
        try:
            return _sdk_reader.validate_json(data, by_name=by_name)
        except ValidationError as error:
            text = data.decode(errors="replace") if isinstance(data, bytes) else data
            try:  # the SDK takes no lone surrogates: each one becomes U+FFFD
                encoded = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-16", "surrogatepass")
                message = json.loads(encoded.decode("utf-16", "replace"))
            except (ValueError, RecursionError) as problem:
                if '"method"' in text or '"jsonrpc"' not in text or (id := _ID.search(text)) is None:
                    raise error from problem
                return _failure(json.loads(id[1] or id[2]), types.PARSE_ERROR, f"{_UNREADABLE}{problem}")
        return _validate(message)


def _validate(message: Any) -> types.JSONRPCMessage:
    try:
        return _sdk_reader.validate_python(message, by_name=False)
    except ValidationError as error:
        match message:
            case {"method": _}:
                raise
            case {"id": int() | str() as id, "error": {"code": int() as code, "message": text}} if text is not None:
                return _failure(id, code, str(text))
            case {"id": int() | str() as id, "error": problem} if problem is not None:
                return _failure(id, types.INTERNAL_ERROR, json.dumps(problem))
            case {"id": int() | str() as id}:
                return _failure(id, types.PARSE_ERROR, f"{_UNREADABLE}{fault_of(error, 'result')}")
            case _:
                raise


def fault_of(error: ValidationError, about: str = "") -> str:
    """Return the place and the text of the first fault that is `about` a field, else of the first one."""
    faults = error.errors()
    fault = next((one for one in faults if about in map(str, one["loc"])), faults[0])
    return f"{'.'.join(map(str, fault['loc'][-4:]))}: {fault['msg']}"


def _failure(id: int | str, code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=id, error=types.ErrorData(code=code, message=message))


# Results with items that are not valid


def repair_result(method: str, version: str, result: Item, report: Callable[[str], None]) -> Item:
    """Return a result whose items are all valid, unless it has other faults.

    Items that are not valid are simplified, replaced by a text, or left out and reported.
    """

    def fault(items: Any = None) -> str:
        with suppress(KeyError):  # the SDK does not know the method in this version of the protocol
            try:
                methods.parse_server_result(method, version, result if items is None else whole | {key: items})
            except ValidationError as error:
                return fault_of(error)
        return ""

    key, needed = _LISTS.get(method, ("", ()))
    if not key or not fault():
        return result
    whole = _drop_malformed_options(result)
    items = whole.get(key, [])
    items = [{"type": "text", "text": items}] if isinstance(items, str) and key == "content" else items
    if not isinstance(items, list) or fault([]):
        return result
    valid = []
    for number, item in enumerate(items, 1):
        if (form := next((form for form in _forms(key, needed, item) if not fault([form])), None)) is not None:
            valid.append(form)
        else:
            name = item.get("name") if isinstance(item, dict) else None
            why = fault([item]).removeprefix(f"{key}.0.")
            report(f"{key.removesuffix('s')} {name or f'number {number}'} is left out: {why}")
    return whole | {key: valid}


def _drop_malformed_options(result: Item) -> Item:
    """Drop the optional fields of a result that have the wrong type, and `_meta`, which nobody here reads.

    Structured content that is not an object becomes text.
    """
    structured = result.get("structuredContent")
    plain = {name: value for name, value in result.items() if name not in ("_meta", "structuredContent", "isError")}
    plain |= {"structuredContent": structured} if isinstance(structured, dict) else {}
    if "isError" in result:
        plain["isError"] = result["isError"] in (True, "true", 1)
    if structured is not None and not isinstance(structured, dict) and not result.get("content"):
        plain["content"] = [{"type": "text", "text": json.dumps(structured)}]
    return plain


def _forms(key: str, needed: Iterable[str], item: Any) -> list[Item]:
    """Return an item and simpler forms of it, the most complete first."""
    if not isinstance(item, dict):
        return [_note("of no type")] if key == "content" else []
    plain = {name: item[name] for name in needed if item.get(name) is not None}
    match key:
        case "tools":
            schema = item.get("inputSchema")
            schema = {"inputSchema": {**(schema if isinstance(schema, dict) else {}), "type": "object"}}
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
    """Return texts, images and PDFs as they are, and a line of text about anything else."""
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


async def elicit(params: types.ElicitRequestParams, ask: Ask | None) -> types.ElicitResult:
    """Ask the person for the fields of a form one by one, or to open an address; decline if nobody can be asked."""
    if ask is None:
        return types.ElicitResult(action="decline")
    if isinstance(params, types.ElicitRequestURLParams):
        # The whole address is shown, and only the person opens it.
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
        if value is _CANCELLED:
            return types.ElicitResult(action="cancel")
        content |= {name: value} if value is not None else {}
    return types.ElicitResult(action="accept", content=content)


def _result(answer: str | None, accepting: str, content: dict[str, Value] | None = None) -> types.ElicitResult:
    if answer == accepting:
        return types.ElicitResult(action="accept", content=content)
    return types.ElicitResult(action="cancel" if answer is None else "decline")


async def _ask_field(about: str, field: Mapping[str, Any], ask: Ask, *, is_optional: bool) -> Any:
    """Return the value of a field, None if it is left out, `_CANCELLED` if the person leaves the form."""
    values, default = _values(field), field.get("default")
    proposed = [_SKIP if default is None else f"As it is: {default}"] if is_optional or default is not None else []
    problem = ""
    for _ in range(3):  # until an answer fits
        answer = await ask(f"{about}{problem}", [*values, *proposed])
        if answer is None:
            break
        if answer in proposed and answer not in values:
            return default
        try:
            return _read(answer.strip(), field.get("type"), values)
        except ValueError as error:
            problem = f" ({error})"
    return _CANCELLED


def _values(field: Mapping[str, Any]) -> dict[str, Value]:
    source = field.get("items", field) if field.get("type") == "array" else field
    if field.get("type") == "boolean":
        return {_YES: True, _NO: False}
    if choices := source.get("oneOf") or source.get("anyOf"):
        return {choice.get("title") or str(choice["const"]): choice["const"] for choice in choices if "const" in choice}
    values = source.get("enum", ())
    return dict(zip(map(str, source.get("enumNames") or values), values, strict=False))


def _read(answer: str, kind: Any, values: Mapping[str, Value]) -> Value:
    """Return the value that an answer stands for. Raises `ValueError` that says which answers fit."""
    if kind == "array":
        return [str(values.get(part.strip(), part.strip())) for part in answer.split(",") if part.strip()]
    if values:
        if answer not in values:
            raise ValueError(f"it is one of {', '.join(values)}")
        return values[answer]
    convert, name = _NUMBERS.get(kind, (str, ""))
    try:
        value: Value = convert(answer)
        return value
    except ValueError:
        raise ValueError(f"it is {name}") from None
