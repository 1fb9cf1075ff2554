"""Going back to a prompt: it and what came of it leave the conversation, and stay in the log."""

from __future__ import annotations

from collections.abc import Iterable

from agentcli.agent.state import AgentState
from agentcli.conversation.entries import Entry, SystemEvent, User, kept, to_messages
from agentcli.conversation.mentions import typed_blocks
from agentcli.errors import UsageError
from agentcli.llm.messages import Text


def prompts(entries: Iterable[Entry]) -> list[tuple[str, str]]:
    """The person's prompts that were not taken back, oldest first: entry id and text as it was typed."""
    return [
        (entry.id, typed_text(entry.body))
        for entry in kept(entries)
        if isinstance(entry.body, User) and not entry.body.is_reminder
    ]


def typed_text(prompt: User) -> str:
    """A prompt without the files that were attached for the names in it."""
    return "\n".join(block.text for block in typed_blocks(prompt.content) if isinstance(block, Text))


def going_back(state: AgentState, entry_id: str) -> tuple[str, SystemEvent]:
    """The prompt's text, and the entry that takes it and all after it back. Raises `UsageError`."""
    found = next((text for id, text in prompts(state.entries) if id == entry_id), None)
    if found is None:
        raise UsageError("That is no prompt of this conversation that could be gone back to.")
    return found, SystemEvent("retracted", {"since": entry_id})


def forget_request(state: AgentState) -> None:
    """The newest request held more than there is now: a cache written for it begins with what is left."""
    state.sent_messages = min(state.sent_messages, len(to_messages(state.entries)))
