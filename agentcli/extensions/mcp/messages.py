"""Reads a server's messages as the SDK does, and makes errors of replies that the SDK could only drop."""

from __future__ import annotations

import json
import re
from typing import Any

import mcp_types as types
from mcp_types import jsonrpc_message_adapter as _sdk_reader  # by its own name: ours takes its place
from pydantic import ValidationError

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
