"""The records of a conversation, and what of them a model sees.

A log only grows. `user`, `assistant`, `tool_result` and `summary` reach the model; `context_note`, `system_event`,
`tool_log` and `unreadable` never do. What was taken back stays in the log and is named by a `retracted` event.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from agentcli.conversation.schema import SCHEMA_VERSION, brought_up
from agentcli.llm.messages import Block, Message, StopReason, Text, ToolResult, ToolUse, Usage, without_empty_text


class User(msgspec.Struct, frozen=True, tag_field="kind", tag="user", omit_defaults=True):
    """What a person said; with `is_reminder` what agentcli itself tells the model."""

    content: tuple[Block, ...]
    is_reminder: bool = False

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.content if isinstance(block, Text))


class Assistant(msgspec.Struct, frozen=True, tag_field="kind", tag="assistant", omit_defaults=True):
    """One reply. `cost_usd` is None where the model's price is not known."""

    content: tuple[Block, ...]
    provider: str
    model: str
    usage: Usage = Usage()
    stop_reason: StopReason = "end_turn"
    cost_usd: float | None = None


class Result(msgspec.Struct, frozen=True, tag_field="kind", tag="tool_result", omit_defaults=True):
    """What came of a call; `structured` is for programs, `summary` one line for the person.

    `retry_count` tries failed before, the last of them with `last_error`. `caller` is who asked for the call, `mode`
    the permission mode it was judged by, `answer` what the person said where the call asked.
    """

    result: ToolResult
    name: str
    summary: str = ""
    duration_ms: float = 0.0
    structured: Any = None
    error_kind: str = ""
    retry_count: int = 0
    last_error: str = ""
    tool_version: str = "1"
    caller: str = "main"
    mode: str = ""
    answer: str = ""


class Summary(msgspec.Struct, frozen=True, tag_field="kind", tag="summary"):
    """Stands for everything before it."""

    text: str


class ContextNote(msgspec.Struct, frozen=True, tag_field="kind", tag="context_note"):
    """Something the person's side knows and the model is not told."""

    text: str


class SystemEvent(msgspec.Struct, frozen=True, tag_field="kind", tag="system_event", omit_defaults=True):
    """What happened to the session.

    `retracted` (data: ids, or since), `provider_switched`, `queue` (steering, follow_ups), and what was paid for and
    left no reply (model, usage, cost_usd): `refused`, `aside` (a question beside the work, a try that broke off).
    """

    event: str
    data: dict[str, Any] = {}


class ToolLog(msgspec.Struct, frozen=True, tag_field="kind", tag="tool_log", omit_defaults=True):
    """What a call went through: `started` (data: ids), `denied`, `asked`."""

    event: str
    data: dict[str, Any] = {}


class Unreadable(msgspec.Struct, frozen=True, tag_field="kind", tag="unreadable"):
    """Stands for a stored entry that cannot be read; it is never stored itself."""

    error: str


Body = User | Assistant | Result | Summary | ContextNote | SystemEvent | ToolLog | Unreadable


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record. `parent_id` is the entry before it on its branch, `time` seconds since 1970 (UTC).

    A result's `id` is its call's id; all others are UUIDv7.
    """

    id: str
    parent_id: str | None
    time: float
    body: Body
    schema_version: int = SCHEMA_VERSION


def reminder(text: str) -> User:
    """A note for the model, in a user's place because that is where it can be appended."""
    return User((Text(f"<system-reminder>{text}</system-reminder>"),), is_reminder=True)


def entry_now(id: str, parent_id: str | None, body: Body) -> Entry:
    return Entry(id, parent_id, time.time(), body)


def kept(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that were not taken back. A `retracted` event names them by `ids`, or all from the entry `since` on.

    Ids of results are a model's and may come again, so only what stands behind the first one named is meant.
    """
    kept: list[Entry] = []
    for entry in entries:
        if isinstance(entry.body, SystemEvent) and entry.body.event == "retracted":
            _take_back(kept, entry.body.data.get("ids", ()), entry.body.data.get("since", ""))
        kept.append(entry)
    return kept


def _take_back(kept: list[Entry], ids: Sequence[str], since: str) -> None:
    first = since or next(iter(ids), "")
    start = next((n for n in range(len(kept) - 1, -1, -1) if kept[n].id == first), len(kept))
    kept[start:] = [entry for entry in kept[start:] if _stays(entry.body) or not (since or entry.id in ids)]


def _stays(body: Body) -> bool:
    """Whether an entry tells what happened to the session, which no taking back undoes."""
    return isinstance(body, SystemEvent)


def retracted_ids(entries: Sequence[Entry]) -> frozenset[str]:
    """Ids of the entries that were taken back."""
    return frozenset(entry.id for entry in entries) - {entry.id for entry in kept(entries)}


def to_messages(entries: Sequence[Entry]) -> tuple[Message, ...]:
    """What a request holds: the newest summary and all after it, neighbours of one role joined.

    Results come first in their message, as the Messages API wants; replies that said nothing are left out.
    """
    messages: list[Message] = []
    for entry in since_summary(entries):
        if (message := _message(entry.body)) is None:
            continue
        last = messages[-1] if messages else None
        if last is not None and last.role == message.role == "user":
            messages[-1] = Message("user", _results_first(last.content + message.content))
        else:
            messages.append(message)
    return tuple(messages)


def from_messages(messages: Iterable[Message], *, provider: str, model: str) -> list[Body]:
    """The bodies of a conversation that came from elsewhere; `to_messages` over them gives its messages back.

    `provider` and `model` are noted as the source of its replies.
    """
    bodies: list[Body] = []
    names: dict[str, str] = {}
    for message in messages:
        if message.role == "assistant":
            names |= {use.id: use.name for use in message.tool_uses}
            stop_reason: StopReason = "tool_use" if message.tool_uses else "end_turn"
            bodies.append(Assistant(message.content, provider, model, stop_reason=stop_reason))
            continue
        results = [block for block in message.content if isinstance(block, ToolResult)]
        bodies += [Result(result, names.get(result.tool_use_id, "")) for result in results]
        if rest := tuple(block for block in message.content if not isinstance(block, ToolResult)):
            bodies.append(User(rest))
    return bodies


def since_summary(entries: Iterable[Entry]) -> list[Entry]:
    """The entries a request is made of: the newest summary and all after it, without what was taken back."""
    remaining = kept(entries)
    newest = (n for n in range(len(remaining) - 1, -1, -1) if isinstance(remaining[n].body, Summary))
    return remaining[next(newest, 0) :]


def _message(body: Body) -> Message | None:
    match body:
        case User():
            content = without_empty_text(body.content)
            return Message("user", content) if content else None
        case Summary():
            return Message("user", (Text(body.text),))
        case Result():
            return Message("user", (body.result,))
        case Assistant():
            content = without_empty_text(body.content)
            return Message("assistant", content) if content else None
        case _:
            return None


def _results_first(content: tuple[Block, ...]) -> tuple[Block, ...]:
    results = tuple(block for block in content if isinstance(block, ToolResult))
    return results + tuple(block for block in content if not isinstance(block, ToolResult)) if results else content


def open_calls(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Ids of the calls that have no result after them, in order; a model may use an id twice."""
    waiting: dict[str, None] = {}
    for entry in kept(entries):
        if isinstance(entry.body, Assistant):
            waiting |= {block.id: None for block in entry.body.content if isinstance(block, ToolUse)}
        elif isinstance(entry.body, Result):
            waiting.pop(entry.body.result.tool_use_id, None)
    return tuple(waiting)


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Body)


def to_record(entry: Entry) -> dict[str, Any]:
    """The entry as a row: kind, ids, time, version and the body as JSON text."""
    body = _encode(entry.body).decode()
    return {
        "id": entry.id,
        "parent_id": entry.parent_id,
        "time": entry.time,
        "kind": entry.body.__struct_config__.tag,
        "schema_version": entry.schema_version,
        "body": body,
    }


def from_record(record: dict[str, Any]) -> Entry:
    """The entry of a row, in today's form. Raises `ValueError` for one that cannot be read."""
    version = record["schema_version"]
    try:
        if version == SCHEMA_VERSION:
            body = _decoder.decode(record["body"])
        else:
            body = msgspec.convert(brought_up(msgspec.json.decode(record["body"], type=dict[str, Any]), version), Body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"entry {record['id']} cannot be read: {error}") from error
    return Entry(record["id"], record["parent_id"], record["time"], body)


def as_readable(record: dict[str, Any]) -> Entry:
    """The entry of a row; one that cannot be read says why, so that the others can be."""
    try:
        return from_record(record)
    except ValueError as error:
        return Entry(record["id"], record["parent_id"], record["time"], Unreadable(str(error)))
