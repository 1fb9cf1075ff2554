"""What a session is called in lists."""

from __future__ import annotations

from collections.abc import Iterable

from agentcli.conversation.entries import Entry, User

LONGEST_TITLE = 80


def title_of(entries: Iterable[Entry]) -> str:
    """The first line of the first prompt."""
    for entry in entries:
        if isinstance(entry.body, User) and not entry.body.is_reminder:
            line = next((line for line in entry.body.text.splitlines() if line.strip()), "")
            return line.strip()[:LONGEST_TITLE]
    return ""
