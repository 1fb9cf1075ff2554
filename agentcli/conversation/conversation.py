"""The conversation of a session: its entries as a tree, and the messages of its next request."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from agentcli.conversation.entries import (
    Assistant,
    Body,
    CallAllowed,
    CallAsked,
    CallDenied,
    CallKept,
    CallTried,
    Compaction,
    Entry,
    Pinned,
    Queued,
    Result,
    Retracted,
    Rewound,
    User,
)
from agentcli.conversation.size import RequestSize
from agentcli.llm.messages import (
    Block,
    Message,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    is_valid,
    repair_messages,
    without_empty_text,
)

MAX_OLD_ARGUMENT_CHARS = 100  # of a text among the arguments of a call that a compaction has shortened

Content = tuple[Block, ...]


class Queue:
    """The messages that wait: `steering` for the next request, `follow_ups` for a turn of their own."""

    def __init__(self, follow_ups: Iterable[Content] = ()) -> None:
        self.steering: deque[Content] = deque()
        self.follow_ups: deque[Content] = deque(follow_ups)

    def entry(self) -> Queued:
        """Return the whole queue as an entry, to be stored in one transaction with a message that leaves it."""
        return Queued(tuple(self.steering), tuple(self.follow_ups))

    def remove(self, position: int | None = None) -> bool:
        """Remove the message at a position, or the newest, and return False if there is none.

        Positions count the steering messages first.
        """
        steering = len(self.steering)
        if position is None:
            position = steering + len(self.follow_ups) - 1
        queue, at = (self.steering, position) if position < steering else (self.follow_ups, position - steering)
        if not 0 <= at < len(queue):
            return False
        del queue[at]
        return True

    def take_steering(self) -> list[Content]:
        messages, self.steering = list(self.steering), deque()
        return messages


class Conversation:
    """All entries of a session in the order they were stored, and the current branch of them.

    `path` leads from the root to the newest entry, without entries that were retracted. `open_calls` are the calls on
    it that have no result, by id, oldest first. The person was asked about the calls in `unanswered` and has not
    answered yet. The calls in `tried` ran as dry runs, and `kept` has the names of the changes that were applied.

    An entry is added in constant time. Rewinding and compacting derive the messages anew.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self.path: list[Entry] = []
        self.open_calls: dict[str, ToolUse] = {}
        self.unanswered: set[str] = set()
        self.tried: set[str] = set()
        self.kept: dict[str, tuple[str, ...]] = {}
        self.last_reply: Entry | None = None
        self.size = RequestSize(self)
        self._messages: list[Message] = []
        self._valid = 0  # number of messages that are known to be valid
        self.add(*entries)
        newest = (entry.body for entry in reversed(self.entries) if isinstance(entry.body, Queued))
        queued = next(newest, Queued())
        self.queue = Queue((*queued.steering, *queued.follow_ups))  # in the order they would have been delivered

    def add(self, *entries: Entry) -> None:
        """Append entries whose ids and parents come from a log."""
        for entry in entries:
            self._place(entry)
            self.entries.append(entry)

    def parent_of(self, entry_id: str) -> str | None:
        """Return the id of the entry before an entry of the path; None for the first. Raises `KeyError`."""
        if (position := self._find(entry_id, -1)) < 0:
            raise KeyError(entry_id)
        return self.path[position - 1].id if position else None

    @property
    def request_entries(self) -> list[Entry]:
        """The entries of a request: the path, or the newest compaction on it, what that kept, and what follows."""
        newest = (n for n in range(len(self.path) - 1, -1, -1) if isinstance(self.path[n].body, Compaction))
        at = next(newest, None)
        if at is None:
            return list(self.path)
        return [*apply_compaction(self.path[:at], self.path[at]), *self.path[at + 1 :]]

    @property
    def pins(self) -> list[str]:
        facts: list[str] = []
        for entry in self.path:
            if isinstance(entry.body, Pinned):
                text = entry.body.text
                facts = [fact for fact in facts if fact != text] + ([] if entry.body.is_removed else [text])
        return facts

    @property
    def asked_again(self) -> tuple[ToolUse, ...]:
        """The calls to ask about again: from the first unanswered one on, because none of these has begun."""
        calls, waiting = list(self.open_calls.values()), self.unanswered - self.tried  # dry runs were discarded
        first = next((n for n, call in enumerate(calls) if call.id in waiting), len(calls))
        return tuple(calls[first:])

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages of the next request; neighbouring messages of the user are joined."""
        return tuple(self._messages)

    def valid_messages(self) -> tuple[Message, ...]:
        """Return the messages, repaired if a provider would refuse them. Only new messages are checked."""
        messages = self.messages
        if not is_valid(messages, start=self._valid):
            return repair_messages(messages)
        self._valid = max(0, len(messages) - 1)  # the last one may still grow
        return messages

    def _place(self, entry: Entry) -> None:
        """Put an entry at the end of the path; it begins a branch if its parent is not the head."""
        body = entry.body
        if isinstance(body, Rewound):
            self._set_path(self.path[: self._find(body.before, len(self.path))])
        elif entry.parent_id is not None and self.path and entry.parent_id != self.path[-1].id:
            self._branch_off(entry.parent_id)
        if isinstance(body, Retracted):
            start = self._find(next(iter(body.ids), ""), len(self.path))
            self._set_path(self.path[:start] + [other for other in self.path[start:] if other.id not in body.ids])
        self.path.append(entry)
        if isinstance(body, Compaction):
            self._rebuild()
        else:
            self._note_calls(entry)
            _add_message(self._messages, body)

    def _branch_off(self, parent_id: str) -> None:
        """Continue from an entry of the path or of another branch; from the head if there is no such entry."""
        if (on_path := self._find(parent_id, -1)) >= 0:
            self._set_path(self.path[: on_path + 1])
            return
        branch: list[Entry] = []
        next_id: str | None = parent_id
        for entry in reversed(self.entries):  # parents come before their children
            if entry.id == next_id:
                branch.append(entry)
                next_id = entry.parent_id
        if branch:
            retracted = {id for entry in branch if isinstance(entry.body, Retracted) for id in entry.body.ids}
            self._set_path([entry for entry in reversed(branch) if entry.id not in retracted])

    def _find(self, entry_id: str, otherwise: int) -> int:
        # The newest position counts, because ids of results come from models and may be used again.
        found = (n for n in range(len(self.path) - 1, -1, -1) if self.path[n].id == entry_id)
        return next(found, otherwise)

    def _set_path(self, path: list[Entry]) -> None:
        if path != self.path:
            self.path = path
            self._rebuild()

    def _rebuild(self) -> None:
        self.open_calls, self.unanswered, self.tried, self.kept, self.last_reply = {}, set(), set(), {}, None
        for entry in self.path:
            self._note_calls(entry)
        self._messages, self._valid = messages_of(self.request_entries), 0

    def _note_calls(self, entry: Entry) -> None:
        match entry.body:
            case Assistant(content):
                self.last_reply = entry
                self.open_calls |= {block.id: block for block in content if isinstance(block, ToolUse)}
            case Result(result):
                self.open_calls.pop(result.tool_use_id, None)
                self.unanswered.discard(result.tool_use_id)
                self.tried.discard(result.tool_use_id)
                self.kept.pop(result.tool_use_id, None)
            case CallAsked(id):
                self.unanswered.add(id)
            case CallTried(id):
                self.tried.add(id)
            case CallKept(id, names):
                self.kept[id] = names
            case CallAllowed(id) | CallDenied(id):
                self.unanswered.discard(id)
                self.tried.discard(id)


def apply_compaction(path: Sequence[Entry], compaction: Entry) -> list[Entry]:
    """Return a compaction and the entries before it that it keeps."""
    body = compaction.body
    assert isinstance(body, Compaction)
    first = next((n for n, entry in enumerate(path) if entry.id == body.first_kept), len(path))
    remaining = (entry for entry in path[first:] if not isinstance(entry.body, Compaction))
    return [compaction, *(_as_compacted(entry, body.stubs) for entry in remaining)]


def messages_of(entries: Iterable[Entry]) -> list[Message]:
    messages: list[Message] = []
    for entry in entries:
        _add_message(messages, entry.body)
    return messages


def _add_message(messages: list[Message], body: Body) -> None:
    if (message := _message(body)) is None:
        return
    if messages and messages[-1].role == message.role == "user":
        content = messages[-1].content + message.content  # results come first, as the Messages API wants it
        messages[-1] = Message("user", tuple(sorted(content, key=lambda block: not isinstance(block, ToolResult))))
    else:
        messages.append(message)


def _message(body: Body) -> Message | None:
    match body:
        case User(content) | Assistant(content):
            content = without_empty_text(content)
            return Message("user" if isinstance(body, User) else "assistant", content) if content else None
        case Compaction(carried):
            return Message("user", (Text(carried),)) if carried.strip() else None
        case Result(result):
            return Message("user", (result,))
        case _:
            return None


def _as_compacted(entry: Entry, stubs: dict[str, str]) -> Entry:
    """Return the entry with a stub in place of its content, or without thinking that is bound to earlier entries."""
    stub, body = stubs.get(entry.id), entry.body
    match body:
        case User() if stub is not None:
            shown: Body = User((Text(stub),), body.is_reminder)
        case Result(result) if stub is not None:
            shown = replace(body, result=ToolResult(result.tool_use_id, stub, result.is_error))
        case Assistant(content) if stub is not None:
            calls = (replace(block, input=_shortened(block.input)) for block in content if isinstance(block, ToolUse))
            shown = replace(body, content=(Text(stub), *calls))
        case Assistant(content):
            shown = replace(body, content=tuple(block for block in content if not _is_signed_thinking(block)))
        case _:
            return entry
    return replace(entry, body=shown)


def _is_signed_thinking(block: Block) -> bool:
    return isinstance(block, RedactedThinking) or (isinstance(block, Thinking) and block.signature is not None)


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and (more := len(value) - MAX_OLD_ARGUMENT_CHARS) > 0:
        return f"{value[:MAX_OLD_ARGUMENT_CHARS]}… [+{more:,} characters]"
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list) else value
