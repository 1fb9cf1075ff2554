"""Has a small model make the change that it only describes."""

from __future__ import annotations

from agentcli.agent.turn_log import Turn, add
from agentcli.conversation.entries import Entry, Result, User, reminder
from agentcli.conversation.file_changes import FilesChanged
from agentcli.llm.block_edits import asks_for_change

NOTE = "No file was changed yet. Call file_edit now, or write the whole changed function as a ```python block."


def urges(turn: Turn) -> bool:
    """Whether a small model is to go on, once, as it was asked for a change and made none. Larger ones mean it."""
    if not turn.is_small:
        return False
    path = turn.state.conversation.path
    start = max((n for n, entry in enumerate(path) if _is_prompt(entry)), default=0)
    prompt, since = path[start].body, path[start + 1 :]
    note = reminder(NOTE)
    was_urged = any(isinstance(entry.body, User) and entry.body.text == note.text for entry in since)
    asks = isinstance(prompt, User) and asks_for_change(prompt.text)
    if not asks or was_urged or any(map(_changes_files, since)):
        return False
    turn.answer.clear()
    add(turn, note)
    return True


def _changes_files(entry: Entry) -> bool:
    match entry.body:
        case FilesChanged():
            return True
        case Result(result, name):
            return name in ("file_edit", "file_write") and not result.is_error
        case _:
            return False


def _is_prompt(entry: Entry) -> bool:
    return isinstance(entry.body, User) and not entry.body.is_reminder
