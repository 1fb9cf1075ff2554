"""Ids that sort by time: UUIDv7 (RFC 9562 §5.7), since `uuid_utils` takes 8 ms and Python has it only from 3.14."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from agentcli.conversation.entries import Body, Result
from agentcli.errors import StorageError


class _Clock:
    last = 0  # milliseconds since 1970, which never stand still nor go back


def new_id() -> str:
    """A UUIDv7 that is greater than every one this process made before."""
    random, _Clock.last = int.from_bytes(os.urandom(10)), max(_Clock.last + 1, time.time_ns() // 1_000_000)
    value = _Clock.last << 80 | 0x7 << 76 | (random >> 62 & 0xFFF) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def entry_id(body: Body) -> str:
    """A result's id is its call's id; every other entry gets a new one."""
    return body.result.tool_use_id if isinstance(body, Result) else new_id()


def position_of(wanted: str | None, ids: Sequence[str]) -> int:
    """Return the newest position of the one id that begins with `wanted` (None: the last). Raises `StorageError`."""
    if wanted is None:
        return len(ids) - 1
    found = {id for id in ids if id.startswith(wanted)} if wanted not in ids else {wanted}
    if len(found) != 1:
        count = "Several entries begin" if found else "No entry begins"
        raise StorageError(f"{count} with {wanted!r}: agentcli sessions show ID --json has the id of each.")
    return len(ids) - 1 - ids[::-1].index(found.pop())
