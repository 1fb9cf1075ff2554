"""Has a small model do what it only talks about: make the change it describes, and run what it has changed."""

from __future__ import annotations

import re

from agentcli.agent.turn_log import Turn, add
from agentcli.conversation.entries import Entry, Result, User, reminder
from agentcli.conversation.file_changes import FilesChanged

_ASKS_FOR_CHANGE = re.compile(
    r"\b(?:add|change|convert|correct|create|delete|fix|implement|insert|make|mend|move|refactor|remove|rename|replace|"
    r"rewrite|update|write)\b",
    re.IGNORECASE,
)
_IS_QUESTION = re.compile(
    r"^\s*(?:can|could|would) you (?:explain|tell|say)|^\s*(?:how|what|where|which|who|why|when)\b", re.IGNORECASE
)
CHANGE = "No file was changed yet. Make the change now: call file_write, or file_edit with text copied from the file."
TEST = "Run the tests with bash now (such as python3 -m unittest), and mend what fails."


async def urges(turn: Turn) -> bool:
    """Whether a small model is to go on though it has answered: once to make the change that the prompt asks for, and
    once to run what it has changed. Larger ones know when they are done.
    """
    _, info = await turn.runtime.resolve(turn.state)
    if not info.small:
        return False
    path = turn.state.conversation.path
    start = max((n for n, entry in enumerate(path) if _is_prompt(entry)), default=0)
    prompt, since = path[start].body, path[start + 1 :]
    told = {entry.body.text for entry in since if isinstance(entry.body, User)}
    note = ""
    if not any(map(_changes_files, since)):
        asks = (
            isinstance(prompt, User) and _ASKS_FOR_CHANGE.search(prompt.text) and not _IS_QUESTION.search(prompt.text)
        )
        note = CHANGE if asks else ""
    elif not any(isinstance(entry.body, Result) and entry.body.name == "bash" for entry in since):
        note = TEST
    body = reminder(note)
    if not note or body.text in told:
        return False
    turn.answer.clear()
    add(turn, body)
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
