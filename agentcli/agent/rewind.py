"""Goes back to an earlier prompt: it and all that followed leave the conversation and stay in the log."""

from __future__ import annotations

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Rewound, User
from agentcli.conversation.mentions import typed_blocks
from agentcli.errors import UsageError
from agentcli.llm.messages import Text


def prompts(conversation: Conversation) -> list[tuple[str, str]]:
    """The person's prompts on the path, oldest first: entry id, and the text as it was typed."""
    return [
        (entry.id, typed_text(entry.body))
        for entry in conversation.path
        if isinstance(entry.body, User) and not entry.body.is_reminder
    ]


def typed_text(prompt: User) -> str:
    """A prompt without the files that were attached for the names in it."""
    return "\n".join(block.text for block in typed_blocks(prompt.content) if isinstance(block, Text))


def going_back(conversation: Conversation, entry_id: str) -> tuple[str, Rewound]:
    """The prompt's text, and the entry that goes back to it. Raises `UsageError`."""
    found = next((text for id, text in prompts(conversation) if id == entry_id), None)
    if found is None:
        raise UsageError("That is no prompt of this conversation that could be gone back to.")
    return found, Rewound(entry_id)
