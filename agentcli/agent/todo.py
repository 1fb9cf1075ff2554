"""The model's list of what is to be done, as its calls in the conversation left it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentcli.conversation.entries import Entry, Result
from agentcli.tools.builtin.arguments import TodoItem


def todo_items(path: Sequence[Entry]) -> tuple[TodoItem, ...]:
    """The items of the newest list; none where there is no list."""
    for entry in reversed(path):
        body = entry.body
        if isinstance(body, Result) and body.name == "todo" and not body.result.is_error and body.structured:
            try:
                return msgspec.convert(body.structured["items"], tuple[TodoItem, ...])
            except (msgspec.ValidationError, TypeError, KeyError):
                return ()  # an older or a newer version's
    return ()
