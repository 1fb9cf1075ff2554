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


def packed(entries: Sequence[Entry]) -> bytes:
    return msgspec.json.encode(Packed(SCHEMA_VERSION, [to_record(entry) for entry in entries]))


def unpacked(data: bytes) -> list[Entry]:
    """The entries, in today's form. Raises `StorageError` for bytes that are no conversation."""
    try:
        return [from_record(record) for record in msgspec.json.decode(data, type=Packed).records]
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise StorageError(f"The stored conversation cannot be read: {error}.") from error
