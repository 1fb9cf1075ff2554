"""Converts a session's events and log entries to JSON objects."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentcli.agent import events
from agentcli.agent.result import NO_REQUIREMENTS, Requirements, ResultBuilder, to_json_line, usage_object
from agentcli.agent.session import Session
from agentcli.conversation import entries
from agentcli.frontends.hosts import CommandEnded
from agentcli.frontends.printable import escape_hidden
from agentcli.llm.messages import Message, Usage
from agentcli.llm.wire.anthropic import block_to_wire

MAX_ECHO_BYTES = 200  # of a rejected line, in the object that reports it


def write_line(value: dict[str, Any]) -> None:
    sys.stdout.buffer.write(to_json_line(value))
    sys.stdout.buffer.flush()


class JsonOutput:
    """Converts events to objects, and passes each to `write`; if it `streams`, also the deltas of replies."""

    def __init__(
        self,
        session: Session,
        write: Callable[[dict[str, Any]], None],
        *,
        streams: bool,
        requirements: Requirements = NO_REQUIREMENTS,
    ) -> None:
        self._session = session
        self.write = write
        self._streams = streams
        self._requirements = requirements
        self._result = ResultBuilder(session)
        self._is_in_message = False  # True between the start and the end of a streamed reply
        self._block_index, self._message_usage = 0, Usage()  # the newest block of that reply, and its usage so far
        self._parent_call_ids: dict[str, str] = {}  # by a subagent's id, the id of the call that started it

    def show(self, event: events.Event) -> None:
        """Write the objects of an event; a subagent's messages include the id of the call that started it."""
        is_main = event.agent_id == "main"
        agent = {} if is_main else {"agent_id": event.agent_id}
        if is_main:
            self._result.note(event)
            if self._streams:
                self._stream_reply(event)
        match event:
            case events.EntryStored(entry):
                parent_id = self._parent_call_ids.get(event.agent_id)
                if value := reply_or_result(entry, self._session.id, parent_id=parent_id):
                    self.write(value)
            case events.Notice(text):
                self._system("notice", text=text, **agent)
            case events.Question(id, title):  # before `QuestionEvent`, which also matches it
                texts: dict[str, Any] = {"question": title, "options": event.options}
                self._system("question", id=id, **texts, **_exposed_field(texts), **agent)
            case events.QuestionEvent():  # one object for all kinds of questions: some leave fields empty
                texts = _fields(event, ("title", "reason", "preview", "rules", "hunks", "effects"))
                others = _fields(event, ("id", "can_try", "opens", "kind", "changes"))
                about = {"tool_name": event.call.name, "tool_input": event.call.input}
                self._system("approval_requested", **about, **texts, **others, **_exposed_field(texts), **agent)
            case events.ApprovalSettled(id):
                self._system("approval_settled", id=id, **agent)
            case events.ClientToolRequested(calls):
                for call in calls:
                    self._system("client_tool_requested", id=call.id, tool_name=call.name, tool_input=call.input)
            case events.HookRan():
                names = ("command", "subject", "decision", "reason", "problem", "duration_ms", "agent_id")
                self._system("hook", hook_event=event.event, **_fields(event, names))
            case events.SubagentStarted(id, call_id, name, task, session_id, model):
                self._parent_call_ids[id] = call_id
                child = {"agent": name, "task": task, "agent_session_id": session_id, "model": model}
                self._system("subagent_started", agent_id=id, parent_tool_use_id=call_id, **child)
            case events.SubagentEnded(id, call_id, end, turns, usage, cost_usd):
                spent = {"num_turns": turns, "usage": usage_object(usage), "total_cost_usd": cost_usd}
                self._system("subagent_ended", agent_id=id, parent_tool_use_id=call_id, end=end, **spent)
            case _ if is_main:
                self._show_main_agent_event(event)

    def _show_main_agent_event(self, event: events.Event) -> None:
        match event:
            case events.Retry(number, delay_s, error, max_number):
                limit = {"max_retries": max_number} if max_number else {}
                self._system("retry", number=number, **limit, delay_ms=round(delay_s * 1000), error=error)
            case events.ProviderSwitched(before, after, reason):
                self._system("provider_switch", **{"from": before, "to": after, "reason": reason})
            case events.Compaction():
                self.write(_compact_boundary(self._session.id, event))
            case events.Steered(skipped):
                self._system("steered", skipped=[call.id for call in skipped])
            case events.Done() | events.TurnFailed():
                self.write(self._result.build(event, self._requirements))
                self._result = ResultBuilder(self._session)

    def command(self, ended: CommandEnded) -> None:
        self._system("command", command=ended.name, output=ended.output, is_error=ended.exit_code != 0)

    def command_result(self, ended: CommandEnded, started: float) -> None:
        """Write the result of a message that was a command; `started` is its start on the monotonic clock."""
        self.write(ResultBuilder(self._session, started).build(ended.end))

    def reject(self, line: bytes, error: str) -> None:
        self._system("input_error", error=error, line=line[:MAX_ECHO_BYTES].strip().decode(errors="replace"))

    def acknowledge(self, id: str | int, error: str = "") -> None:
        self._system("control", id=id, ok=not error, **({"error": error} if error else {}))

    def _system(self, subtype: str, **fields: Any) -> None:
        self.write(system_object(subtype, self._session.id, **fields))

    def _stream_reply(self, event: events.Event) -> None:
        """Write a reply while it arrives, as stream events of Anthropic's API; a message that is cut off is ended."""
        match event:
            case events.ReplyStarted(model):
                self._start_message(model)
            case events.BlockStarted(index, kind, id, name):
                block = {"id": id, "name": name, "input": {}} if kind == "tool_use" else {kind: ""}
                self._block_event("start", index, content_block={"type": kind, **block})
                self._block_index = index
            case events.TextDelta(text):
                self._block_event("delta", self._block_index, delta={"type": "text_delta", "text": text})
            case events.ThinkingDelta(text):
                self._block_event("delta", self._block_index, delta={"type": "thinking_delta", "thinking": text})
            case events.InputDelta(_, partial_json, index):
                self._block_event("delta", index, delta={"type": "input_json_delta", "partial_json": partial_json})
            case events.BlockEnded(index):
                self._block_event("stop", index)
            case events.UsageReported(usage):
                self._message_usage = usage
            case events.TurnEnded(_, stop_reason, model):
                if not self._is_in_message:  # an empty reply comes without `ReplyStarted`
                    self._start_message(model)
                self._end_message(stop_reason)
            case events.TurnStarted() | events.Done() | events.TurnFailed() if self._is_in_message:
                self._end_message(None)  # the reply was cut off

    def _start_message(self, model: str) -> None:
        if self._is_in_message:  # the reply was cut off, and the model was asked again
            self._end_message(None)
        self._is_in_message, self._message_usage = True, Usage()
        message: dict[str, Any] = {"id": f"msg_{os.urandom(12).hex()}", "type": "message", "role": "assistant"}
        message |= {"model": model, "content": [], "stop_reason": None, "stop_sequence": None}
        message |= {"usage": usage_object(self._message_usage)}
        self._stream_event({"type": "message_start", "message": message})

    def _end_message(self, stop_reason: str | None) -> None:
        self._is_in_message = False
        delta = {"stop_reason": stop_reason, "stop_sequence": None}
        self._stream_event({"type": "message_delta", "delta": delta, "usage": usage_object(self._message_usage)})
        self._stream_event({"type": "message_stop"})

    def _block_event(self, kind: str, index: int, **fields: Any) -> None:
        self._stream_event({"type": f"content_block_{kind}", "index": index, **fields})

    def _stream_event(self, event: dict[str, Any]) -> None:
        self.write({"type": "stream_event", "event": event, "session_id": self._session.id})


def _fields(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _exposed_field(texts: Mapping[str, str | tuple[str, ...]]) -> dict[str, Any]:
    """Return the field `exposed`: the texts that contain hidden characters, with these made visible."""
    visible = {
        key: escape_hidden(text) if isinstance(text, str) else tuple(map(escape_hidden, text))
        for key, text in texts.items()
    }
    differing = {key: text for key, text in visible.items() if text != texts[key]}
    return {"exposed": differing} if differing else {}


def init_object(session: Session, slash_commands: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return the object that begins a session's output, with `more` fields."""
    shown, calls = session.snapshot(), session.runtime.calls
    servers = calls.delegates.servers
    return system_object(
        "init",
        session.id,
        model=shown.model,
        cwd=os.fsencode(shown.workspace.cwd).decode(errors="replace"),
        tools=[tool.name for tool in calls.tools],
        mcp_servers=[] if servers is None else servers.listing(),
        permission_mode=shown.mode,
        slash_commands=slash_commands,
        **more,
    )


def reply_or_result(entry: entries.Entry, session_id: str, *, parent_id: str | None = None) -> dict[str, Any] | None:
    """Return the object of a reply, result or skill, or None; `parent_id` is the call that started the subagent."""
    match entry.body:
        case entries.Assistant() as reply:
            message: dict[str, Any] = {"id": entry.id, "type": "message", "role": "assistant", "model": reply.model}
            message["content"] = [block_to_wire(block) for block in reply.content]
            message |= {"stop_reason": reply.stop_reason, "usage": usage_object(reply.usage)}
            return _message("assistant", message, session_id, parent_id)
        case entries.Result() as result:
            return _message("user", {"role": "user", "content": [block_to_wire(result.result)]}, session_id, parent_id)
        case entries.SkillActivated(id, skill, by):
            return system_object("skill", session_id, id=id, skill=skill.name, by=by, active=True)
        case entries.SkillEnded(id):
            return system_object("skill", session_id, id=id, active=False)
        case _:
            return None


def entry_object(entry: entries.Entry, session_id: str) -> dict[str, Any] | None:
    """Return the object of an entry that changed the conversation, or None. All but replies have an `entry_id`."""
    match entry.body:
        case entries.User(content, is_reminder=False):
            message = {"role": "user", "content": [block_to_wire(block) for block in content]}
            return _message("user", message, session_id, None) | {"entry_id": entry.id}
        case entries.Compaction() as done:
            return _compact_boundary(session_id, done) | {"entry_id": entry.id}
        case entries.ProviderSwitch(before, after, reason):
            switch = {"from": before, "to": after, "reason": reason}
            return system_object("provider_switch", session_id, **switch, entry_id=entry.id)
        case entries.Rewound(before):  # the conversation continues from before that entry
            return system_object("rewound", session_id, before=before, entry_id=entry.id)
        case entries.HeadMoved(to):  # the conversation continues after that entry
            return system_object("rewound", session_id, after=to, entry_id=entry.id)
        case entries.Retracted(ids):
            return system_object("retracted", session_id, ids=ids, entry_id=entry.id)
        case entries.Result():
            value = reply_or_result(entry, session_id)
            return value | {"entry_id": entry.id} if value else None
        case _:
            return reply_or_result(entry, session_id)


def wire_messages(messages: Iterable[Message]) -> list[dict[str, Any]]:
    return [{"role": message.role, "content": list(map(block_to_wire, message.content))} for message in messages]


def _compact_boundary(session_id: str, done: events.Compaction | entries.Compaction) -> dict[str, Any]:
    fields = _fields(done, ("strategy", "trigger", "tokens_before", "tokens_after", "cost_usd"))
    return system_object("compact_boundary", session_id, **fields)


def system_object(subtype: str, session_id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": subtype, "session_id": session_id, **fields}


def _message(type: str, message: dict[str, Any], session_id: str, parent_id: str | None) -> dict[str, Any]:
    return {"type": type, "message": message, "parent_tool_use_id": parent_id, "session_id": session_id}
