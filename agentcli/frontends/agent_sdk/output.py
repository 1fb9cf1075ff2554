"""Writes a session's events as Claude Code does, with its tool names, its fields and its result subtypes."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent import events
from agentcli.agent.result import Requirements
from agentcli.agent.session import Session
from agentcli.extensions.claude_code_names import CLAUDE_CODE_NAMES, claude_code_call
from agentcli.extensions.hooks.spec import HookSpec
from agentcli.frontends.agent_sdk.callbacks import ControlChannel, PermissionBridge
from agentcli.frontends.agent_sdk.transcripts import mirror_object
from agentcli.frontends.json_output import JsonOutput, entry_object
from agentcli.version import __version__

# Names that differ, ours -> Claude Code's: an MCP server's status, a result's subtype, fields of usage.
STATUSES = {"connecting": "pending", "idle": "pending", "changed": "connected"}
VERSION = f"{__version__} (agentcli)"  # the value of the field `claude_code_version`
_SUBTYPES = {
    "interrupted": "error_during_execution", "error_permission": "error_during_execution",
    "error_evidence": "error_during_execution", "error_schema": "error_max_structured_output_retries",
}  # fmt: skip
_USAGE = {  # here theirs -> ours
    "inputTokens": "input_tokens", "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens", "cacheCreationInputTokens": "cache_creation_input_tokens",
}  # fmt: skip


class ControlClient(msgspec.Struct, frozen=True, kw_only=True):
    """The program at the other end, and its choices."""

    channel: ControlChannel
    first_id: str  # of its first request
    hooks: tuple[HookSpec, ...]  # run by the program
    answers_questions: bool  # with `can_use_tool`
    replays_prompts: bool  # it wants its own prompts back
    shows_hooks: bool  # it wants an object for each hook that ran
    reads_state: bool  # it wants objects about changes between running and idle
    transcripts: Path | None  # the folder of its own session store, if it has one


class ClaudeCodeOutput(JsonOutput):
    """Converts events to Claude Code's objects. Each turn begins with `init`, and the program answers questions."""

    # Set by `ControlDialogue` once this object exists.
    questions: PermissionBridge
    init: Callable[[], dict[str, Any]]
    is_idle: Callable[[], bool]

    def __init__(self, session: Session, client: ControlClient, *, streams: bool, requirements: Requirements) -> None:
        super().__init__(session, self._write_translated, streams=streams, requirements=requirements)
        self._channel, self._client = client.channel, client
        self._entry_id = ""  # the entry being shown
        self._spent_usd = 0.0  # by all turns so far
        self._streamed_calls: dict[int, tuple[str, list[str]]] = {}  # block index -> name, pieces of its arguments

    def show(self, event: events.Event) -> None:
        match event:
            case events.TurnStarted(1, agent_id="main"):  # the first request of a turn
                self.write(self.init())
            case events.QuestionEvent():
                self.questions.ask(event)
                return
            case events.ApprovalSettled():
                self.questions.withdraw_settled()
                return
            case events.EntryStored(entry):
                self._entry_id = entry.id
                if self._client.transcripts is not None and event.agent_id == "main":  # the program stores them, too
                    self._channel.write(mirror_object(entry, self._session.id, self._client.transcripts))
                if self._client.replays_prompts and entry.is_prompt and event.agent_id == "main":
                    self.write({**(entry_object(entry, self._session.id) or {}), "isReplay": True})
        super().show(event)

    def report_state(self, state: str) -> None:
        if self._client.reads_state:
            kind = {"type": "system", "subtype": "session_state_changed"}
            self.write(kind | {"session_id": self._session.id, "state": state, "sdk_host_only": True})

    def acknowledge(self, id: str | int, error: str = "") -> None:
        if error:
            self._channel.respond_with_error(str(id), error)
        else:
            self._channel.respond(str(id), still_queued=[], mode=self._session.state.mode)

    def _write_translated(self, value: dict[str, Any]) -> None:
        for translated in self._translated(value):
            self._channel.write(translated if "uuid" in translated else {**translated, "uuid": str(uuid.uuid4())})

    def _translated(self, value: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield Claude Code's objects for one of ours. Fields for which we have no value get a usual one."""
        match value:
            case {"type": "assistant" | "user", "message": message}:
                content = [self._translated_block(block) for block in message["content"]]
                yield value | {"message": message | {"content": content}, "uuid": self._entry_id}
            case {"type": "stream_event", "event": event}:
                yield from ({**value, "event": one, "parent_tool_use_id": None} for one in self._stream_events(event))
            case {"type": "result"}:
                self.questions.withdraw_settled()  # an interrupt settles questions without an event
                if self.is_idle():
                    self.report_state("idle")
                yield self._result_object(value)
            case {"subtype": "init", "tools": tools, "mcp_servers": servers, "permission_mode": mode}:
                yield value | {
                    "tools": list(dict.fromkeys(CLAUDE_CODE_NAMES.get(name, name) for name in tools)),
                    "mcp_servers": [one | {"status": STATUSES.get(one["status"], one["status"])} for one in servers],
                    "permissionMode": mode,
                    "apiKeySource": "none",
                    "output_style": "default",
                    "plugins": [],
                    "claude_code_version": VERSION,
                }
            case {"subtype": "subagent_started", "task": task, "agent": agent}:
                fields = {"description": task, "prompt": task, "subagent_type": agent, "task_type": "local_agent"}
                yield _system("task_started", value, **_task_ids(value), **fields)
            case {"subtype": "subagent_ended", "end": end, "usage": usage, "num_turns": rounds}:
                spent = {"total_tokens": sum(usage.values()), "tool_uses": rounds, "duration_ms": 0}
                status = end if end in ("failed", "stopped") else "completed"
                fields = {"status": status, "output_file": "", "summary": end, "usage": spent}
                yield _system("task_notification", value, **_task_ids(value), **fields)
            case {"subtype": "compact_boundary", "trigger": trigger, "tokens_before": before, "tokens_after": after}:
                kind = "manual" if trigger == "manual" else "auto"
                yield value | {"compact_metadata": {"trigger": kind, "pre_tokens": before, "post_tokens": after}}
            case {"subtype": "retry", "number": number, "delay_ms": delay_ms, "error": error}:
                retry = {"attempt": number, "max_retries": value.get("max_retries", number), "retry_delay_ms": delay_ms}
                yield _system("api_retry", value, error_status=None, error=error, **retry)
            case {"subtype": "notice", "text": text}:
                yield _system("informational", value, content=text, level="notice")
            case {"subtype": "hook", "command": command, "problem": problem} if self._client.shows_hooks:
                hook = {"hook_id": command, "hook_name": command, "hook_event": value["hook_event"]}
                output = {"output": value["reason"], "stdout": "", "stderr": problem}
                yield _system("hook_response", value, **hook, **output, outcome="error" if problem else "success")
            case {"subtype": "hook" | "command"}:
                return  # the program did not ask for hooks; a command's output is in its result
            case _:
                yield value

    def _translated_call(self, value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return an object whose call, in the fields `name` and `input`, has Claude Code's names."""
        name, input = f"{prefix}name", f"{prefix}input"
        call = claude_code_call(value[name], value[input], self._session.snapshot().workspace.cwd)
        return value | dict(zip((name, input), call, strict=True))

    def _translated_block(self, block: dict[str, Any]) -> dict[str, Any]:
        if block["type"] == "tool_use":
            return self._translated_call(block)
        return {"signature": "", **block} if block["type"] == "thinking" else block

    def _stream_events(self, event: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield a stream event. Arguments of a call are held until its end, because their names must be translated."""
        match event:
            case {"type": "content_block_start", "index": index, "content_block": {"type": "tool_use"} as block}:
                self._streamed_calls[index] = block["name"], []
                name = CLAUDE_CODE_NAMES.get(block["name"], block["name"])
                yield {**event, "content_block": {**block, "name": name}}
            case {"type": "content_block_delta", "index": index, "delta": {"partial_json": text}}:
                _, parts = self._streamed_calls[index]
                parts.append(text)
            case {"type": "content_block_stop", "index": index} if index in self._streamed_calls:
                name, parts = self._streamed_calls.pop(index)
                text = "".join(parts)
                with suppress(msgspec.DecodeError):  # the model's JSON is not valid: pass it on as it is
                    input = msgspec.json.decode(text or "{}", type=dict[str, Any])
                    text = msgspec.json.encode(self._translated_call({"name": name, "input": input})["input"]).decode()
                delta = {"type": "input_json_delta", "partial_json": text}
                yield {"type": "content_block_delta", "index": index, "delta": delta}
                yield event
            case _:
                yield event

    def _result_object(self, value: dict[str, Any]) -> dict[str, Any]:
        self._spent_usd += value["total_cost_usd"] or 0.0
        subtype, denials = value["subtype"], value["permission_denials"]
        result = value | {
            "subtype": _SUBTYPES.get(subtype, subtype),
            "stop_reason": value["terminal_reason"] if subtype == "success" else None,
            "total_cost_usd": self._spent_usd,
            "modelUsage": {name: self._model_usage(name, usage) for name, usage in value["model_usage"].items()},
            "permission_denials": [self._translated_call(one, "tool_") for one in denials],
        }
        return result if subtype == "success" else result | {"errors": [value["result"] or subtype]}

    def _model_usage(self, name: str, usage: Mapping[str, Any]) -> dict[str, Any]:
        info = self._session.runtime.models.info(name)
        return {
            **{theirs: usage[ours] for theirs, ours in _USAGE.items()},
            "costUSD": usage["cost_usd"] or 0.0,
            "contextWindow": info.window,
            "maxOutputTokens": info.max_output,
            "webSearchRequests": 0,
        }


def _system(subtype: str, value: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": subtype, "session_id": value["session_id"], **fields}


def _task_ids(value: Mapping[str, Any]) -> dict[str, Any]:
    return {"task_id": value["agent_id"], "tool_use_id": value["parent_tool_use_id"]}
