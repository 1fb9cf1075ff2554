"""Packs a whole conversation into bytes that a caller keeps where they like, and reads them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentcli.conversation.entries import Entry, from_record, to_record
from agentcli.conversation.schema import SCHEMA_VERSION
from agentcli.errors import StorageError


class Packed(msgspec.Struct, frozen=True):
    """The form of the bytes, as JSON. `records` are rows as the session store has them."""

    schema_version: int
    records: list[dict[str, Any]]
    user_id: str = ""


def packed(entries: Sequence[Entry], *, user_id: str = "") -> bytes:
    return msgspec.json.encode(Packed(SCHEMA_VERSION, [to_record(entry) for entry in entries], user_id))


def unpacked(data: bytes) -> tuple[list[Entry], str]:
    """The entries, in today's form, and whose they are. Raises `StorageError` for bytes that are no conversation."""
    try:
        found = msgspec.json.decode(data, type=Packed)
        return [from_record(record) for record in found.records], found.user_id
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise StorageError(f"The stored conversation cannot be read: {error}.") from error
