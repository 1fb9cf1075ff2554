"""Names calls so that every API takes them: each has an id of its own, and no letters that are refused.

A result that fits two calls would answer the wrong one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable

from agentcli.llm.messages import Message

LONGEST_NAME = 64

_REFUSED_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


def plain_id(id: str, longest: int = 64) -> str:
    """A call's id as it is where an API takes it, else a hash of it, the same every time."""
    if 0 < len(id) <= longest and not _REFUSED_IN_NAMES.search(id):
        return id
    return "call_" + hashlib.sha256(id.encode()).hexdigest()[:24]


def plain_name(name: str) -> str:
    """A tool's name as it is where an API takes it. Models also call tools that nobody has, under any name."""
    return _REFUSED_IN_NAMES.sub("_", name)[:LONGEST_NAME] or "unknown"


class CallIds:
    """The ids of one reply's calls. The server's own are kept where no other call has them.

    Some servers give none, one to several calls, or count from zero in every reply.
    """

    def __init__(self, earlier: Iterable[Message] = (), *, prefix: str = "") -> None:
        self._earlier = earlier
        self._taken: set[str] | None = None  # looked up for the first call: most replies have none
        self._prefix = prefix or f"call_{secrets.token_hex(6)}_"
        self._count = 0

    def take(self, id: str = "") -> str:
        """`id`, or one made up where that is empty or taken."""
        if self._taken is None:
            self._taken = {use.id for message in self._earlier for use in message.tool_uses}
        number = self._count = self._count + 1
        while not id.strip() or id in self._taken:
            id = f"{self._prefix}{number}"
            number += 1
        self._taken.add(id)
        return id
