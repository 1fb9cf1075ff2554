"""Fires events at the hooks of a session, and makes one answer of theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent.calls.record import CallRecord
from agentcli.agent.events import Emit, HookRan, Notice
from agentcli.agent.hooks import Decision, EventName, HookAnswer, Said
from agentcli.agent.program_trust import REFUSE, RUN, ProgramTrust, changed_sentence
from agentcli.errors import ConfigError
from agentcli.extensions.hooks.specs import (
    Ended,
    HookSpec,
    combined,
    field_input,
    field_name,
    own_input,
    read_answer,
)
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.settings.short_program import run_short_program
from agentcli.tools.tool import Ask

RunCommand = Callable[[str, bytes, float], Awaitable[Ended]]  # command, stdin, seconds


# Events whose hooks can refuse: one that may not run must not let through what it might have refused.
_REFUSING: frozenset[EventName] = frozenset(("PreToolUse", "UserPromptSubmit"))


class CommandHooks:
    """Implements `CallHooks` and `EventHooks` for one session. `mask` hides secrets in what the model is told.

    `ask` puts a question to the person: whether `programs` that changed may run.
    """

    def __init__(
        self,
        specs: Sequence[HookSpec],
        run: RunCommand,
        programs: ProgramTrust,
        *,
        session_id: str,
        cwd: Path,
        mode: Callable[[], str],
    ) -> None:
        self.specs = tuple(specs)
        self.publish: Emit = lambda event: None
        self.mask: Callable[[str], str] = lambda text: text
        self.ask: Ask | None = None
        self._run = run
        self._programs = programs
        self._asking = asyncio.Lock()
        self._session_id = session_id
        self.cwd = cwd
        self._mode = mode
        self._inputs: dict[str, dict[str, Any]] = {}  # of calls that run, by their ids

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
    ) -> Said:
        """The answer of all hooks of an event; matchers look at the `subject`, conditions at our `own` arguments."""
        meant = [spec for spec in self.specs if spec.event == event and spec.is_for(subject, own)]
        if not meant:
            return Said()
        given = {
            "session_id": self._session_id,
            "transcript_path": "",
            "cwd": str(self.cwd),
            "hook_event_name": event,
            "permission_mode": self._mode(),
            **({"agent_id": agent_id, "agent_type": agent_id.rpartition("-")[0]} if agent_id != "main" else {}),
            **fields,
        }
        input = msgspec.json.encode(given)
        once = {spec.command: spec for spec in reversed(meant)}
        said = await asyncio.gather(*(self._one(spec, input, subject, agent_id) for spec in reversed(once.values())))
        answer = combined(said)
        for notice in answer.notices:
            self.publish(Notice(notice, agent_id=agent_id))
        if answer.problem:
            self.publish(Notice(f"Hook {event}: {answer.problem}.", agent_id=agent_id))
        return msgspec.structs.replace(answer, reason=self.mask(answer.reason), context=self.mask(answer.context))

    async def _one(self, spec: HookSpec, input: bytes, subject: str, agent_id: str) -> Said:
        if refusal := await self._program_refusal(spec):
            decision: Decision = "deny" if spec.event in _REFUSING else ""
            said = Said(decision, refusal, problem=refusal)
            self.publish(HookRan(spec.event, spec.command, subject, decision, refusal, refusal, 0, agent_id=agent_id))
            return said
        began = time.monotonic()
        said = read_answer(spec, await self._run(spec.command, input, spec.timeout_s))
        took = round((time.monotonic() - began) * 1000)
        told = (said.decision, said.reason, said.problem, took)
        self.publish(HookRan(spec.event, spec.command, subject, *told, agent_id=agent_id))
        return said

    async def _program_refusal(self, spec: HookSpec) -> str:
        """Ask about files of the workspace that the hook runs and that changed. Returns why it is not to run."""
        async with self._asking:  # several hooks may run the same file: the person is asked once
            # Once more after each answer: what was accepted is what there was when the question was asked.
            while changed := await asyncio.to_thread(self._programs.changed, spec.command):
                told = changed_sentence(changed, f"the {spec.event} hook `{spec.command}`")
                ask = self.ask if self._mode() != "dontAsk" else None
                if ask is None or await ask(told, (RUN, REFUSE)) != RUN:
                    return (
                        f"{told} The hook did not run. Check the change, then run `agentcli config trust` to trust the "
                        "new version"
                    )
                try:
                    self._programs.accept(spec.command)
                except ConfigError as error:  # it is trusted until the session ends
                    self.publish(Notice(str(error)))
            return ""

    # Calls

    async def fire_about(
        self, event: EventName, call: ToolUse, input: dict[str, Any], *, agent_id: str = "main", **fields: Any
    ) -> Said:
        """The answer about a call, which is told under the field's names beside ours."""
        sent = field_input(call.name, input, self.cwd)
        told = {"tool_name": field_name(call.name), "tool_input": sent, "tool_use_id": call.id}
        said = await self.fire(event, subject=call.name, agent_id=agent_id, own=input, **told, **fields)
        if said.input is None:
            return said
        return msgspec.structs.replace(said, input=own_input(call.name, said.input, sent))

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> HookAnswer | None:
        self._inputs[record.id] = input
        if not self.has("PreToolUse"):
            return None
        said = await self.fire_about("PreToolUse", _use(record, input), input, agent_id=record.caller)
        if said.blocks or said.stops:
            self._inputs.pop(record.id, None)
        decision = "deny" if said.stops else said.decision
        return HookAnswer(decision, said.reason, said.input, said.context, stops=said.stops)

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        input = self._inputs.pop(record.id, {})
        event: EventName = "PostToolUseFailure" if result.is_error else "PostToolUse"
        if not self.has(event):
            return None
        content = result.content if isinstance(result.content, str) else msgspec.to_builtins(result.content)
        answered: dict[str, Any] = {"error": content} if result.is_error else {"tool_response": {"content": content}}
        said = await self.fire_about(event, _use(record, input), input, agent_id=record.caller, **answered)
        parts = [said.reason if said.blocks else "", said.context]
        return "\n".join(part for part in parts if part) or None


def _use(record: CallRecord, input: dict[str, Any]) -> ToolUse:
    return ToolUse(record.id, record.tool, input)


_MAX_OUTPUT_BYTES = 1_000_000  # of each stream


async def run_hook(command: str, input: bytes, *, cwd: Path, environment: Mapping[str, str], timeout_s: float) -> Ended:
    """Run a command with `input`; all that is left of its group is killed in any case."""
    began = time.monotonic()
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
        return Ended(None, failure=f"it could not be started ({error.strerror or error})")
    failure = f"it took longer than {timeout_s:g} s" if end.exit_code is None else ""
    out, err = (stream.decode(errors="replace") for stream in (end.stdout, end.stderr))
    return Ended(end.exit_code, out, err, failure, time.monotonic() - began)
