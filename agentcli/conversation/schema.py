"""Converts entries to and from their stored form: rows of a log, packed conversations, and rows of older versions."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from agentcli.conversation.entries import SCHEMA_VERSION, Body, Entry, Unreadable
from agentcli.errors import StorageError


def _upgrade_1_to_2(body: dict[str, Any]) -> dict[str, Any]:
    """Version 2 records which version of a tool ran, for which agent and in which mode."""
    is_result = body.get("kind") == "tool_result"
    return {**body, "tool_version": "1", "caller": "main", "mode": ""} if is_result else body


def _upgrade_2_to_3(body: dict[str, Any]) -> dict[str, Any]:
    """Version 3 has a kind for each event, and a compaction in place of a summary."""
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


UPGRADES = {1: _upgrade_1_to_2, 2: _upgrade_2_to_3}  # by the version from which they start


def readable_from(version: int) -> bool:
    """Return True if stored conversations of a schema version can be read, for programs that keep them themselves."""
    return version == SCHEMA_VERSION or version in UPGRADES


def upgrade(body: dict[str, Any], version: int) -> dict[str, Any]:
    """Return a stored body in the current form. Raises `ValueError` for a version that cannot be upgraded."""
    if version > SCHEMA_VERSION:
        raise ValueError(f"it was written by a newer agentcli (schema {version}, this one knows {SCHEMA_VERSION})")
    if not readable_from(version):
        raise ValueError(f"nothing is known of schema {version}")
    for older in range(version, SCHEMA_VERSION):
        body = UPGRADES[older](body)
    return body


@cache
def _body_decoder() -> msgspec.json.Decoder[Body]:
    return msgspec.json.Decoder(Body)  # created on first use, because it takes 0.5 ms


def to_record(entry: Entry) -> dict[str, Any]:
    """Return the entry as a row: kind, ids, time, version and the body as JSON text."""
    return {
        "id": entry.id,
        "parent_id": entry.parent_id,
        "time": entry.time,
        "kind": entry.body.__struct_config__.tag,
        "schema_version": entry.schema_version,
        "body": msgspec.json.encode(entry.body).decode(),
    }


def from_record(record: dict[str, Any]) -> Entry:
    """Return the entry of a row, in the current form. Raises `ValueError` if it cannot be read."""
    stored, version = record["body"], record["schema_version"]
    try:
        if version == SCHEMA_VERSION:
            body = _body_decoder().decode(stored)
        else:
            body = msgspec.convert(upgrade(msgspec.json.decode(stored, type=dict[str, Any]), version), Body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"entry {record['id']} cannot be read: {error}") from error
    return Entry(record["id"], record["parent_id"], record["time"], body)


def as_readable(record: dict[str, Any]) -> Entry:
    """Return the entry of a row; a row that cannot be read becomes an `Unreadable` entry with the stored text."""
    try:
        return from_record(record)
    except ValueError as error:
        stored = record["body"]
        text = stored.decode(errors="replace") if isinstance(stored, bytes) else str(stored)
        return Entry(record["id"], record["parent_id"], record["time"], Unreadable(str(error), text))


class PackedConversation(msgspec.Struct, frozen=True):
    """A whole conversation as JSON for a caller to store. `records` are rows as in the session store."""

    schema_version: int
    records: list[dict[str, Any]]
    user_id: str = ""


def pack_conversation(entries: Sequence[Entry], *, user_id: str = "") -> bytes:
    return msgspec.json.encode(PackedConversation(SCHEMA_VERSION, [to_record(entry) for entry in entries], user_id))


def unpack_conversation(data: bytes) -> tuple[list[Entry], str]:
    """Return the entries, in the current form, and their user's id. Raises `StorageError` if they cannot be read."""
    try:
        found = msgspec.json.decode(data, type=PackedConversation)
        return [from_record(record) for record in found.records], found.user_id
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise StorageError(f"The stored conversation cannot be read: {error}.") from error
