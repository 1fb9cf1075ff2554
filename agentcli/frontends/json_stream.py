"""Events out as JSON lines, and prompts and controls in the same way."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import msgspec

from agentcli.agent.events import (
    ApprovalRequested,
    Approve,
    Compaction,
    Done,
    EntryStored,
    Event,
    Interrupt,
    Notice,
    Prompt,
    ProviderSwitched,
    Retry,
    RunQueued,
    SetMode,
    SetModel,
    Steer,
    Steered,
    TextDelta,
    ThinkingDelta,
    TurnEnded,
    TurnFailed,
    TurnStarted,
)
from agentcli.agent.permissions import parse_mode
from agentcli.agent.result import INTERRUPTED_EXIT, ResultBuilder, exit_code
from agentcli.agent.result_object import to_json_line, usage_object
from agentcli.agent.session import Session
from agentcli.conversation.entries import Assistant, Entry, Result
from agentcli.errors import UserError
from agentcli.frontends.ending_jobs import ended_jobs, running_jobs
from agentcli.llm.messages import Block, Text
from agentcli.llm.wire.anthropic import block_from_wire, block_to_wire


class JsonStream:
    """Writes one object a line. `partial` adds the deltas as Messages-API stream events."""

    def __init__(self, session: Session, out: BinaryIO, *, partial: bool, fail_on_denial: bool) -> None:
        self._session = session
        self._out = out
        self._partial = partial
        self._fail_on_denial = fail_on_denial
        self._result = ResultBuilder(session)
        self._open_block = ""
        self._index = -1
        self._asked: set[str] = set()

    def write(self, value: dict[str, Any]) -> None:
        self._out.write(to_json_line(value))
        self._out.flush()

    def begin(self) -> None:
        session = self._session
        self.write(
            {
                "type": "system",
                "subtype": "init",
                "session_id": session.id,
                "model": session.state.model,
                "cwd": os.fsencode(session.runtime.calls.workspace.cwd).decode(errors="replace"),
                "tools": [tool.name for tool in session.runtime.calls.tools],
                "mcp_servers": [],
                "permission_mode": session.state.mode,
                "slash_commands": [],
                "skills": [],
            }
        )

    def show(self, event: Event) -> int | None:
        """Write what an event means; the exit code when it ends a prompt."""
        self._result.heed(event)
        if self._partial:
            self._show_partial(event)
        match event:
            case EntryStored(entry):
                self._entry(entry)
            case Retry(number, delay_s, error):
                self._system("retry", number=number, delay_ms=round(delay_s * 1000), error=error)
            case ProviderSwitched(before, after):
                self._system("provider_switch", **{"from": before, "to": after})
            case Compaction(before, after):
                self._system("compact_boundary", tokens_before=before, tokens_after=after)
            case Steered(skipped):
                self._system("steered", skipped=[call.id for call in skipped])
            case Notice(text):
                self._system("notice", text=text)
            case ApprovalRequested(id, call, title, reason, preview, rules, hunks, effects, can_try):
                self._asked.add(id)
                self._system(
                    "approval_requested",
                    id=id,
                    tool_name=call.name,
                    tool_input=call.input,
                    title=title,
                    reason=reason,
                    preview=preview,
                    rules=rules,
                    hunks=hunks,
                    effects=effects,
                    can_try=can_try,
                )
            case Done() | TurnFailed():
                self.write(self._result.build(event, fail_on_denial=self._fail_on_denial))
                self._result = ResultBuilder(self._session)
                return exit_code(event, denied=self._fail_on_denial and bool(self._session.runtime.calls.denials))
            case _:
                pass
        return None

    def tell(self, text: str) -> None:
        """A notice for the person, unless there is nothing to say."""
        if text:
            self.show(Notice(text))

    def deny_all(self) -> None:
        """Nobody can be asked any more: what waits for an answer is denied, and so is what would ask."""
        self._session.runtime.calls.ask = None
        for id in self._asked:
            self._session.submit(Approve(id, False, comment="(nobody can be asked any more)"))

    def _system(self, subtype: str, **fields: Any) -> None:
        self.write({"type": "system", "subtype": subtype, "session_id": self._session.id, **fields})

    def _entry(self, entry: Entry) -> None:
        match entry.body:
            case Assistant() as reply:
                message = {
                    "id": entry.id,
                    "type": "message",
                    "role": "assistant",
                    "model": reply.model,
                    "content": [block_to_wire(block) for block in reply.content],
                    "stop_reason": reply.stop_reason,
                    "usage": usage_object(reply.usage),
                }
                self._message("assistant", message)
            case Result() as result:
                self._message("user", {"role": "user", "content": [block_to_wire(result.result)]})
            case _:
                pass

    def _message(self, type: str, message: dict[str, Any]) -> None:
        self.write({"type": type, "message": message, "parent_tool_use_id": None, "session_id": self._session.id})

    def _show_partial(self, event: Event) -> None:
        """Deltas as the Messages API would stream them, blocks opened and closed around them."""
        match event:
            case TurnStarted():
                self._index = -1
                self._stream_event({"type": "message_start"})
            case TextDelta(text):
                self._delta("text", {"type": "text_delta", "text": text})
            case ThinkingDelta(text):
                self._delta("thinking", {"type": "thinking_delta", "thinking": text})
            case TurnEnded(_, stop_reason):
                self._close_block()
                self._stream_event({"type": "message_delta", "delta": {"stop_reason": stop_reason}})
                self._stream_event({"type": "message_stop"})
            case Done() | TurnFailed():
                self._close_block()
            case _:
                pass

    def _delta(self, kind: str, delta: dict[str, Any]) -> None:
        if self._open_block != kind:
            self._close_block()
            self._index += 1
            self._open_block = kind
            start = {"type": "content_block_start", "index": self._index, "content_block": {"type": kind, kind: ""}}
            self._stream_event(start)
        self._stream_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close_block(self) -> None:
        if self._open_block:
            self._open_block = ""
            self._stream_event({"type": "content_block_stop", "index": self._index})

    def _stream_event(self, event: dict[str, Any]) -> None:
        self.write({"type": "stream_event", "event": event, "session_id": self._session.id})


async def run_json_stream(
    session: Session,
    prompt: Sequence[Block],
    *,
    out: BinaryIO,
    input: BinaryIO | None,
    partial: bool,
    fail_on_denial: bool,
    leaving: asyncio.Event,
) -> int:
    """Answer `prompt`, then what comes from `input` until it ends; gives the last exit code.

    Once `leaving` is set, the end of the turn that is being interrupted is waited for and nothing else.
    """
    stream = JsonStream(session, out, partial=partial, fail_on_denial=fail_on_denial)
    events = session.subscribe()
    stream.begin()
    turns_before, ends = session.turns_begun, 0
    input_ended = asyncio.Event()
    if input is None:
        input_ended.set()

    def take(line: bytes | None) -> None:
        if line is None:
            input_ended.set()
            stream.deny_all()
        elif op := _op(line, stream):
            session.submit(op)

    if prompt:
        session.submit(Prompt(tuple(prompt)))
    if input is not None:
        _read_lines(input, take)
    code = 0
    signs = {asyncio.create_task(event.wait()) for event in (input_ended, leaving)}
    following: asyncio.Task[Event] | None = None
    while session.turns_begun - turns_before > ends or not (input_ended.is_set() or leaving.is_set()):
        following = following or asyncio.ensure_future(anext(events))
        await asyncio.wait({following, *(sign for sign in signs if not sign.done())}, return_when="FIRST_COMPLETED")
        if not following.done():
            continue
        event, following = following.result(), None
        is_last = input_ended.is_set() and session.turns_begun - turns_before == ends + 1
        if (is_last or leaving.is_set()) and isinstance(event, Done | TurnFailed):
            stream.tell(ended_jobs(running_jobs(session)))
        ended = stream.show(event)
        if ended is not None:
            code = ended
            ends += 1
            if leaving.is_set():
                break
            session.submit(RunQueued())  # nobody is there to say whether what waits after an interrupt still counts
    for task in (following, *signs):
        if task is not None:
            task.cancel()
    return INTERRUPTED_EXIT if leaving.is_set() else code


def _read_lines(input: BinaryIO, take: Callable[[bytes | None], None]) -> None:
    """Hand over lines from a thread: a pipe's readiness cannot be waited for on every platform."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in input:
            if line.strip():
                loop.call_soon_threadsafe(take, line)
        loop.call_soon_threadsafe(take, None)

    threading.Thread(target=read, name="agentcli-stdin", daemon=True).start()


def _op(line: bytes, stream: JsonStream) -> Any:
    """The operation a line asks for; a line that makes no sense is answered with an error object."""
    try:
        data = msgspec.json.decode(line)
        match data:
            case {"type": "user", "message": {"content": content}}:
                return Prompt(_blocks(content))
            case {"type": "control", "subtype": "interrupt"}:
                return Interrupt()
            case {"type": "control", "subtype": "steer", "message": {"content": content}}:
                return Steer(_blocks(content))
            case {"type": "control", "subtype": "set_permission_mode", "mode": str(mode)}:
                return SetMode(parse_mode(mode))
            case {"type": "control", "subtype": "set_model", "model": str(model)}:
                return SetModel(model)
            case {"type": "control", "subtype": "approve" | "deny" as answer, "id": str(id)}:
                fields = {key: data[key] for key in ("scope", "comment", "rule", "hunks") if key in data}
                return msgspec.convert({"id": id, "allowed": answer == "approve", "type": "approve", **fields}, Approve)
        raise ValueError("expected a user message or a control object")
    except (ValueError, UserError) as error:
        stream.write(
            {
                "type": "system",
                "subtype": "input_error",
                "error": f"{error}",
                "line": line.strip().decode(errors="replace")[:200],
            }
        )
        return None


def _blocks(content: Any) -> tuple[Block, ...]:
    given = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(given, list) or not given:
        raise ValueError("content is text or a list of blocks")
    blocks: list[Block] = []
    for block in given:
        match block:
            case {"type": "text", "text": str(text)}:
                blocks.append(Text(text))
            case {"type": "image" | "document"}:
                blocks.append(block_from_wire(block))
            case _:
                raise ValueError("a block of a user message is a text, an image or a document")
    return tuple(blocks)
