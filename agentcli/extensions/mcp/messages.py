"""Reads the messages of MCP servers, some of which the SDK would reject, and asks the person the servers' questions."""

import base64
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp_types import jsonrpc_message_adapter as _sdk_reader  # the original; `MessageReader` replaces it there
from pydantic import ValidationError

from agentcli.extensions.mcp.tools import Parts
from agentcli.llm.messages import Base64Source, Document, Image, Text
from agentcli.tools.tool import Ask

Value = str | int | float | bool | list[str] | None
_TOOL_KEYS = ("name", "title", "description")  # with `inputSchema`, all that agentcli reads of a tool
_YES, _DONE, _NO, _SKIP = "Yes", "Done", "No", "Skip"


class MessageReader:
    """Replaces the SDK's `jsonrpc_message_adapter`, which rejects texts that JavaScript has cut within a character."""

    def validate_json(self, data: str | bytes, *, by_name: bool | None = None) -> types.JSONRPCMessage:
        """Return a message; for an invalid reply, an error with its id, so that its call ends. Raises `ValueError`."""
        try:
            return _sdk_reader.validate_json(data, by_name=by_name)
        except ValidationError as error:
            try:
                text = _replace_lone_surrogates(data)
            except RecursionError:  # it is nested too deeply
                raise error from None
        try:
            return _sdk_reader.validate_json(text, by_name=by_name)
        except ValidationError as error:
            match json.loads(text):
                case {"id": int() | str() as id, **fields} if "method" not in fields:  # a reply
                    message = f"invalid reply: {fault_of(error)}: {text[:500]}"
                    return types.JSONRPCError(
                        jsonrpc="2.0", id=id, error=types.ErrorData(code=types.PARSE_ERROR, message=message)
                    )
            raise


def _replace_lone_surrogates(data: str | bytes) -> str:
    """Return a JSON text in which U+FFFD replaces each surrogate without its other half. Raises `ValueError`."""
    text = data.decode(errors="replace") if isinstance(data, bytes) else data
    text = json.dumps(json.loads(text), ensure_ascii=False)  # decodes escapes: `\ud83d\ude00` becomes 😀
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # a lone `\ud83d` becomes U+FFFD


def fault_of(error: ValidationError) -> str:
    """Describe the first fault by its place (the innermost four names) and its text: `result.tools.0.name: …`."""
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc'][-4:]))}: {fault['msg']}"


def simplify_result(method: str, result: dict[str, Any], *, is_modern: bool) -> dict[str, Any]:
    """Correct mistakes in a result that real servers make, and for which the SDK would reject the whole result.

    Tools keep only the keys that agentcli reads, and their schemas get the type that unions often lack. `content` may
    be missing next to structured content. In the older era, structured content that is not an object becomes text.
    """
    match method, result:
        case "tools/list", {"tools": list(tools)}:
            return result | {"tools": [_simplify_tool(tool) if isinstance(tool, dict) else tool for tool in tools]}
        case "tools/call", {"structuredContent": dict()}:
            return {"content": [], **result}
        case "tools/call", {"structuredContent": structured} if not is_modern:
            as_text = [{"type": "text", "text": json.dumps(structured)}] if structured is not None else []
            return result | {"content": result.get("content") or as_text, "structuredContent": None}
        case _:
            return result


def _simplify_tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("inputSchema")
    schema = {**(schema if isinstance(schema, dict) else {}), "type": "object"}
    return {key: tool[key] for key in _TOOL_KEYS if tool.get(key) is not None} | {"inputSchema": schema}


def parts_of(blocks: Iterable[types.ContentBlock]) -> Parts:
    """Return texts, images and PDFs as they are, and a line of text in place of anything else."""
    return tuple(map(_part, blocks))


def _part(block: types.ContentBlock) -> Text | Image | Document:
    match block:
        case types.TextContent():
            return Text(block.text)
        case types.ImageContent():
            return _media(block.data, block.mime_type, "an image")
        case types.AudioContent():
            return Text(f"[audio, {block.mime_type}: not supported]")
        case types.ResourceLink():
            about = " · ".join(part for part in (block.title or block.name, block.description, block.mime_type) if part)
            return Text(f"[resource {block.uri}: {about}]")
        case types.EmbeddedResource():
            return resource_part(block.resource)


def resource_part(contents: types.TextResourceContents | types.BlobResourceContents) -> Text | Image | Document:
    if isinstance(contents, types.TextResourceContents):
        return Text(contents.text)
    return _media(contents.blob, contents.mime_type or "", str(contents.uri))


def _media(data: str, mime_type: str, name: str) -> Text | Image | Document:
    """Return an image or a PDF in base64; a line of text with its `name` if it is invalid or no model could read it."""
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        return Text(f"[{name}: invalid base64]")
    match mime_type:
        case "image/png" | "image/jpeg" | "image/gif" | "image/webp":  # all providers take these
            return Image(Base64Source(mime_type, data))
        case "application/pdf":
            return Document(Base64Source(mime_type, data))
        case _:
            return Text(f"[{name}, {mime_type or 'of an unknown type'}: not supported]")


async def elicit(params: types.ElicitRequestParams, ask: Ask | None) -> types.ElicitResult:
    """Ask the person for the fields of a form one by one, or to open an address; decline if nobody can be asked."""
    if ask is None:
        return types.ElicitResult(action="decline")
    if isinstance(params, types.ElicitRequestURLParams):
        # The whole address is shown, and only the person opens it.
        question = f"{params.message} Open this address in your browser: {params.url}"
        return _consent(await ask(question, (_DONE, _NO)))
    schema = params.requested_schema
    if not schema.get("properties"):
        return _consent(await ask(params.message, (_YES, _NO)), {})
    content: dict[str, Value] = {}
    for name, field in schema["properties"].items():
        texts = (params.message, field.get("title") or name, field.get("description"))
        choices, default = _choices(field), field.get("default")
        skip = _SKIP if default is None else f"Keep the default: {default}"
        can_skip = default is not None or name not in schema.get("required", ())
        answer = await ask(" · ".join(str(text) for text in texts if text), [*choices, *([skip] if can_skip else ())])
        if answer is None:
            return types.ElicitResult(action="cancel")
        if not (can_skip and answer == skip):
            content[name] = _field_value(answer.strip(), field.get("type"), choices)
        elif default is not None:
            content[name] = default
    return types.ElicitResult(action="accept", content=content)


def _consent(answer: str | None, content: dict[str, Value] | None = None) -> types.ElicitResult:
    if answer in (_YES, _DONE):
        return types.ElicitResult(action="accept", content=content)
    return types.ElicitResult(action="cancel" if answer is None else "decline")


def _choices(field: Mapping[str, Any]) -> dict[str, Value]:
    """Return the values that a field may have, by the texts that the person chooses from; {} for free text."""
    if field.get("type") == "boolean":
        return {_YES: True, _NO: False}
    items = field.get("items", field) if field.get("type") == "array" else field
    # Choices with titles come in `oneOf`, or for an array in `anyOf`.
    if titled := items.get("oneOf") or items.get("anyOf"):
        return {choice.get("title") or str(choice["const"]): choice["const"] for choice in titled if "const" in choice}
    return {str(value): value for value in items.get("enum", ())}


def _field_value(answer: str, kind: Any, choices: Mapping[str, Value]) -> Value:
    """Return an answer as a value of the JSON Schema type `kind`; as text if it does not have that type's form."""
    if kind == "array":  # the person types several values, with commas between them
        return [str(choices.get(part.strip(), part.strip())) for part in answer.split(",") if part.strip()]
    if kind in ("integer", "number") and not choices:
        with suppress(ValueError):  # the server rejects what is not a number
            return int(answer) if kind == "integer" else float(answer)
    return choices.get(answer, answer)
