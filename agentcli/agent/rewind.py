"""Goes back to an earlier point: what followed leaves the conversation and stays in the log."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Entry, HeadMoved, Labelled, Rewound, User
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


class Point(Struct, frozen=True):
    """A place in the conversation to go back to.

    It is before a `prompt`, at a `label`, or at the end of a `branch` that was left. `text` is what it is called.
    """

    entry_id: str
    kind: Literal["prompt", "label", "branch"]
    text: str


def points(conversation: Conversation) -> list[Point]:
    """The prompts of the path, newest first, then labels, then the ends of other branches."""
    found = [Point(id, "prompt", text) for id, text in reversed(prompts(conversation))]
    labels = {entry.body.name: entry for entry in conversation.entries if isinstance(entry.body, Labelled)}
    found += [Point(entry.id, "label", name) for name, entry in reversed(labels.items())]
    return found + [Point(entry.id, "branch", text) for entry, text in reversed(_other_branches(conversation))]


def _other_branches(conversation: Conversation) -> list[tuple[Entry, str]]:
    """The last entries of branches on which something was said, each with the newest prompt of the branch."""
    parents = {entry.parent_id for entry in conversation.entries}
    on_path = {entry.id for entry in conversation.path}
    said: dict[str, str] = {}  # the newest prompt up to an entry, of those that are on no path now
    found = []
    for entry in conversation.entries:
        newest = said.get(entry.parent_id or "", "")
        if isinstance(entry.body, User) and not entry.body.is_reminder:
            newest = typed_text(entry.body)
        if entry.id in on_path:
            continue
        if newest:
            said[entry.id] = newest
        if newest and entry.id not in parents:
            found.append((entry, newest))
    return found


def going_back(conversation: Conversation, entry_id: str) -> tuple[str, Rewound | HeadMoved]:
    """The text of the prompt that is gone back before, else an empty one, and the entry that goes there.

    Raises `UsageError` for what is no point of the conversation.
    """
    found = next((point for point in points(conversation) if point.entry_id == entry_id), None)
    if found is None:
        raise UsageError("That is no point of this conversation that could be gone back to.")
    return (found.text, Rewound(entry_id)) if found.kind == "prompt" else ("", HeadMoved(entry_id))
