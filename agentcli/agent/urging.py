"""Has a small model make the change that it only describes, and end where it has."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.agent.turn_log import Turn, add
from agentcli.conversation.entries import Entry, Result, User, reminder
from agentcli.conversation.file_changes import FilesChanged
from agentcli.llm import provider as llm
from agentcli.llm.block_edits import asks_for_change
from agentcli.tools.text.syntax import IS_INVALID

NOTE = "No file was changed yet. Write each changed function whole in a ```python block now."


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


def has_said_all(turn: Turn, reply: llm.Done, results: Sequence[Result]) -> bool:
    """Whether a small model's answer came with its calls, and all went well: a further request would only take time."""
    went_well = not any(one.result.is_error or IS_INVALID in one.result.text for one in results)
    return turn.is_small and reply.stop_reason == "end_turn" and went_well


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
