"""Reads a session's log as turns that can be played again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec

from agentcli.conversation.entries import Assistant, CallAllowed, CallAsked, CallDenied, CallTried, Entry, Result, User
from agentcli.conversation.file_changes import FileChange, FilesChanged, FilesRestored
from agentcli.conversation.turns import calls_in, is_prompt
from agentcli.llm.messages import ToolUse

# Their results are a matter of the network, of other programs, of people, or of time: the recorded ones are used.
_NOT_AGAIN = frozenset("web_fetch web_search create_subagent ask_user memory jobs".split())
_SOME_HUNKS = re.compile(r"\d+ of \d+ hunks")


class Recorded:
    """One turn: a prompt at the place `start` of the log, and what follows it up to `end`."""

    def __init__(self, number: int, start: int, entries: Sequence[Entry]) -> None:
        self.number = number
        self.start = start
        self.entries = entries

    @property
    def prompt(self) -> User:
        body = self.entries[0].body
        assert isinstance(body, User)
        return body

    @cached_property
    def replies(self) -> list[tuple[int, Assistant]]:
        """The replies, each with its place in the log."""
        return [(self.start + n, e.body) for n, e in enumerate(self.entries) if isinstance(e.body, Assistant)]

    @cached_property
    def calls(self) -> dict[str, ToolUse]:
        return {use.id: use for _, reply in self.replies for use in calls_in(reply)}

    @cached_property
    def results(self) -> dict[str, Result]:
        return {e.body.result.tool_use_id: e.body for e in self.entries if isinstance(e.body, Result)}

    @property
    def mode(self) -> str:
        """The permission mode of its calls; empty where none tells."""
        return next((result.mode for result in self.results.values() if result.mode), "")

    @property
    def asked(self) -> bool:
        return any(isinstance(entry.body, CallAsked) for entry in self.entries)

    def answers(self, id: str) -> list[bool]:
        """What the person said to the questions about a call, in order."""
        said, is_asked = [], False
        for entry in self.entries:
            match entry.body:
                case CallAsked(asked) if asked == id:
                    is_asked = True
                case (CallAllowed(about) | CallDenied(about)) as answer if about == id and is_asked:
                    said.append(isinstance(answer, CallAllowed))
                    is_asked = False
                case _:
                    pass
        return said

    def was_tried(self, id: str) -> bool:
        return any(isinstance(entry.body, CallTried) and entry.body.id == id for entry in self.entries)

    def fate(self, id: str) -> str:
        """How a call is dealt with: `again`, `recorded` (its result is used), `denied`, `skipped` (it did not run)."""
        use, result = self.calls[id], self.results.get(id)
        if result is None or is_not_run(result):
            return "skipped"
        if result.error_kind == "permission_denied":
            return "denied"
        structured = result.structured if isinstance(result.structured, dict) else {}
        is_partial = _SOME_HUNKS.search(result.answer) or structured.get("kept_hunks")
        is_apart = use.input.get("background") or use.input.get("unconfined")
        is_foreign = use.name in _NOT_AGAIN or use.name.startswith("mcp__")
        return "recorded" if is_partial or is_apart or is_foreign else "again"

    def refusal(self, id: str) -> str:
        """What the model was told of a call that was denied, without the kind of the error before it."""
        told = self.results[id].result.text
        return told.partition(": ")[2] or told

    def changes(self, call_id: str = "") -> Iterator[FileChange]:
        """What its calls, or one of them, did to files, in order."""
        for entry in self.entries:
            if isinstance(entry.body, FilesChanged) and call_id in ("", entry.body.id):
                yield from entry.body.changes


def is_not_run(result: Result) -> bool:
    """True for a call that was refused before it began, or that an interrupt ended."""
    return result.summary == "interrupted" or (result.result.is_error and not result.error_kind and not result.mode)


def turns_of(entries: Sequence[Entry]) -> list[Recorded]:
    """The turns in the order of the log, also those that were taken back. A message that steers begins one."""
    starts = [place for place, entry in enumerate(entries) if is_prompt(entry)]
    ends = [*starts[1:], len(entries)]
    turns = zip(starts, ends, strict=True)
    return [Recorded(number, start, entries[start:end]) for number, (start, end) in enumerate(turns, 1)]


def between(entries: Sequence[Entry], turn: Recorded) -> list[FileChange]:
    """What the person had taken back, or done again, since the turn before."""
    found: list[FileChange] = []
    for entry in reversed(entries[: turn.start]):
        if is_prompt(entry):
            break
        if isinstance(entry.body, FilesRestored):
            found[:0] = entry.body.changes
    return found


def with_paths(value: Any, before: str, after: str) -> Any:
    """A value for JSON with one folder's path in place of another's."""
    text = msgspec.json.encode(value).decode()
    inside = [msgspec.json.encode(path).decode()[1:-1] for path in (before, after)]
    return msgspec.json.decode(re.sub(rf"{re.escape(inside[0])}(?![\w.-])", lambda _: inside[1], text))
