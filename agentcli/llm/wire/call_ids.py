"""Gives every call of a conversation an id of its own: a result that fits two calls would answer the wrong one."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from agentcli.llm.messages import Message


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
