"""Runs the hooks of an event, all at once, and combines their answers into one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent.events import Emit, HookRan, Notice
from agentcli.agent.hooks import CallRecord, EventAnswer, EventName
from agentcli.extensions.hooks import specs
from agentcli.extensions.hooks.specs import HookSpec, ProcessEnd
from agentcli.extensions.program_pins import ProgramPins, refusal
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.settings.short_program import run_short_program
from agentcli.tools.tool import Ask

RunCommand = Callable[[str, bytes, float], Awaitable[ProcessEnd]]  # command, stdin, seconds

_MAX_OUTPUT_BYTES = 1_000_000  # of each stream
# Events whose hooks can refuse: one that may not run must not let through what it might have refused.
_REFUSING: frozenset[EventName] = frozenset(("PreToolUse", "UserPromptSubmit"))


@dataclass(kw_only=True)
class CommandHooks:
    """Implements `CallHooks` and `EventHooks`. `mask` hides secrets; `ask` asks about `programs` that changed."""

    specs: Sequence[HookSpec]
    run: RunCommand
    programs: ProgramPins
    session_id: str
    cwd: Path
    mode: Callable[[], str]
    publish: Emit = lambda event: None
    mask: Callable[[str], str] = lambda text: text
    ask: Ask | None = None
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _inputs: dict[str, dict[str, Any]] = field(default_factory=dict)  # of calls that run, by their ids

    def has(self, event: EventName) -> bool:
        return any(spec.event == event for spec in self.specs)

    async def fire(
        self,
        event: EventName,
        *,
        subject: str = "",
        agent_id: str = "main",
        own: dict[str, Any] | None = None,
        **fields: Any,
    ) -> EventAnswer:
        """Return the answer of all hooks of an event; matchers take the `subject`, conditions our `own` arguments."""
        meant = [spec for spec in self.specs if spec.event == event and spec.is_for(subject, own)]
        if not meant:
            return EventAnswer()
        about = {"agent_id": agent_id, "agent_type": agent_id.rpartition("-")[0]} if agent_id != "main" else {}
        session = {"session_id": self.session_id, "transcript_path": "", "cwd": str(self.cwd)}
        happened = {"hook_event_name": event, "permission_mode": self.mode()}
        data = msgspec.json.encode({**session, **happened, **about, **fields})
        once = {spec.command: spec for spec in reversed(meant)}
        runs = (self._answer_of(spec, data, subject, agent_id) for spec in reversed(once.values()))
        answer = specs.combined(await asyncio.gather(*runs))
        for notice in answer.notices:
            self.publish(Notice(notice, agent_id=agent_id))
        if answer.problem:
            self.publish(Notice(f"Hook {event}: {answer.problem}.", agent_id=agent_id))
        return msgspec.structs.replace(answer, reason=self.mask(answer.reason), context=self.mask(answer.context))

    async def _answer_of(self, spec: HookSpec, input: bytes, subject: str, agent_id: str) -> EventAnswer:
        user, ask = f"the {spec.event} hook `{spec.command}`", self.ask if self.mode() != "dontAsk" else None
        async with self._asking:  # several hooks may run the same file: the person is asked once
            why = await refusal(self.programs, spec.command, user, ask=ask, tell=self._tell)
        began = time.monotonic()
        if why:
            why += " The hook did not run. Check the change, then run `agentcli config trust` to trust the new version"
            answer = EventAnswer("deny" if spec.event in _REFUSING else "", why, problem=why)
        else:
            answer = specs.read_answer(spec, await self.run(spec.command, input, spec.timeout_s))
        result = (answer.decision, answer.reason, answer.problem, round((time.monotonic() - began) * 1000))
        self.publish(HookRan(spec.event, spec.command, subject, *result, agent_id=agent_id))
        return answer

    def _tell(self, text: str) -> None:
        self.publish(Notice(text))

    # Calls

    async def fire_about(
        self, event: EventName, call: ToolUse, input: dict[str, Any], *, agent_id: str = "main", **fields: Any
    ) -> EventAnswer:
        """Return the answer about a call, which is described under the field's names beside ours."""
        sent, name = specs.field_input(call.name, input, self.cwd), specs.FIELD_NAMES.get(call.name, call.name)
        about = {"tool_name": name, "tool_input": sent, "tool_use_id": call.id}
        answer = await self.fire(event, subject=call.name, agent_id=agent_id, own=input, **about, **fields)
        if answer.input is None:
            return answer
        return msgspec.structs.replace(answer, input=specs.own_input(call.name, answer.input, sent))

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> EventAnswer | None:
        self._inputs[record.id] = input
        if not self.has("PreToolUse"):
            return None
        use = ToolUse(record.id, record.tool, input)
        answer = await self.fire_about("PreToolUse", use, input, agent_id=record.caller)
        if answer.stops:
            answer = msgspec.structs.replace(answer, decision="deny")
        if answer.blocks:
            self._inputs.pop(record.id, None)
        return answer

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        input = self._inputs.pop(record.id, {})
        event: EventName = "PostToolUseFailure" if result.is_error else "PostToolUse"
        if not self.has(event):
            return None
        content = msgspec.to_builtins(result.content)
        fields: dict[str, Any] = {"error": content} if result.is_error else {"tool_response": {"content": content}}
        use = ToolUse(record.id, record.tool, input)
        answer = await self.fire_about(event, use, input, agent_id=record.caller, **fields)
        return "\n".join(filter(None, (answer.reason if answer.blocks else "", answer.context))) or None


async def run_hook(
    command: str, input: bytes, timeout_s: float, *, cwd: Path, environment: Mapping[str, str]
) -> ProcessEnd:
    """Run a command with `input`, unconfined; all that is left of its process group is killed in any case."""
    try:
        end = await run_short_program(
            ("/bin/sh", "-c", command),
            timeout_s=timeout_s,
            max_bytes=_MAX_OUTPUT_BYTES,
            environment=environment,
            cwd=cwd,
            stdin=input,
            ends_children=True,
        )
    except OSError as error:
        return ProcessEnd(None, failure=f"it could not be started ({error.strerror or error})")
    failure = f"it took longer than {timeout_s:g} s" if end.exit_code is None else ""
    return ProcessEnd(end.exit_code, end.stdout.decode(errors="replace"), end.stderr.decode(errors="replace"), failure)
