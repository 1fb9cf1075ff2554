"""The stored form of entries: rows of a log, packed conversations, and the upgrade of what older versions stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentcli.conversation.entries import SCHEMA_VERSION, Body, Entry, Unreadable
from agentcli.errors import StorageError

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


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Body)


def to_record(entry: Entry) -> dict[str, Any]:
    """The entry as a row: kind, ids, time, version and the body as JSON text."""
    body = _encode(entry.body).decode()
    return {
        "id": entry.id,
        "parent_id": entry.parent_id,
        "time": entry.time,
        "kind": entry.body.__struct_config__.tag,
        "schema_version": entry.schema_version,
        "body": body,
    }


def from_record(record: dict[str, Any]) -> Entry:
    """The entry of a row, in today's form. Raises `ValueError` for one that cannot be read."""
    version = record["schema_version"]
    try:
        if version == SCHEMA_VERSION:
            body = _decoder.decode(record["body"])
        else:
            body = msgspec.convert(upgraded(msgspec.json.decode(record["body"], type=dict[str, Any]), version), Body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"entry {record['id']} cannot be read: {error}") from error
    return Entry(record["id"], record["parent_id"], record["time"], body)


def as_readable(record: dict[str, Any]) -> Entry:
    """The entry of a row; one that cannot be read says why and keeps its text, so that the others can be used."""
    try:
        return from_record(record)
    except ValueError as error:
        stored = record["body"]
        text = stored.decode(errors="replace") if isinstance(stored, bytes) else str(stored)
        return Entry(record["id"], record["parent_id"], record["time"], Unreadable(str(error), text))


class PackedConversation(msgspec.Struct, frozen=True):
    """A whole conversation as JSON that a caller keeps. `records` are rows as the session store has them."""

    schema_version: int
    records: list[dict[str, Any]]
    user_id: str = ""


def packed(entries: Sequence[Entry], *, user_id: str = "") -> bytes:
    return msgspec.json.encode(PackedConversation(SCHEMA_VERSION, [to_record(entry) for entry in entries], user_id))


def unpacked(data: bytes) -> tuple[list[Entry], str]:
    """The entries, in today's form, and whose they are. Raises `StorageError` for bytes that are no conversation."""
    try:
        found = msgspec.json.decode(data, type=PackedConversation)
        return [from_record(record) for record in found.records], found.user_id
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise StorageError(f"The stored conversation cannot be read: {error}.") from error
