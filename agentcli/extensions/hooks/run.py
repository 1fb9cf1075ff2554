"""Reads which hooks there are, runs those of an event all at once, and combines their answers into one.

Calls and arguments have the names that other tools gave them.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from agentcli.agent.events import Emit, HookRan, Notice
from agentcli.agent.hooks import CallRecord, Decision, EventAnswer, EventName
from agentcli.agent.permissions.rule_text import ALIASES, parse_rule
from agentcli.errors import UsageError
from agentcli.extensions.program_pins import ProgramPins, refusal
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.settings.short_program import run_short_program
from agentcli.tools.tool import Ask

EVENTS: tuple[EventName, ...] = get_args(EventName)
EVENTS_ABOUT_DECISIONS = ("PreToolUse", "PermissionRequest")
TIMEOUT_S = 60.0
BLOCKS = 2  # the exit code
OnError = Literal["allow", "deny", "ask"]

# The field's names of tools by ours; one of a tool that it does not know stays as it is.
FIELD_NAMES = {ours: theirs for theirs, ours in ALIASES.items()} | {
    "file_edit": "Edit", "file_list": "Glob", "create_subagent": "Task", "todo": "TodoWrite", "jobs": "BashOutput",
}  # fmt: skip
# Our arguments by the field's, for each tool.
_ARGUMENTS: dict[str, dict[str, str]] = {
    **{tool: {"file_path": "path"} for tool in ("file_read", "file_write", "file_edit")},
    "bash": {"timeout": "timeout_ms", "run_in_background": "background"},
    "grep_search": {"-i": "ignore_case", "head_limit": "limit"},
    "todo": {"todos": "items"},
    "create_subagent": {"prompt": "task", "subagent_type": "agent"},
    "skill": {"skill": "name"},
}
_NOT_RUN = (126, 127)  # of a shell that could not run the command (POSIX XCU 2.8.2)
# Interpreters that do not find their script end with 2 or 1, and say so.
_NO_SCRIPT = re.compile(
    r"can't open file|cannot open|No such file or directory|not found|Cannot find module|Could not open input file|"
    r"Can't open perl script|Permission denied",
    re.IGNORECASE,
)
_PLAIN_CONTEXT = ("SessionStart", "UserPromptSubmit", "SubagentStart")  # whose plain output is told to the model
_BRACE = re.compile(r"^[ \t]*\{", re.MULTILINE)
_ANSWER_KEY = re.compile(r'"(?:hookSpecificOutput|permissionDecision|decision|continue|systemMessage)"')
_DECODER = json.JSONDecoder()
# The words of the field; one that defers leaves the decision to others.
_DECISIONS: dict[str, Decision] = {
    "": "", "allow": "allow", "approve": "allow", "ask": "ask", "deny": "deny", "block": "deny", "defer": "",
}  # fmt: skip
_STRENGTH: dict[Decision, int] = {"": 0, "allow": 1, "ask": 2, "deny": 3}


class HookSpec(Struct, frozen=True):
    """One command for one event, and calls of tools whose names match `matcher` and that meet the rule `condition`."""

    event: EventName
    command: str
    matcher: str = ""
    timeout_s: float = TIMEOUT_S
    on_error: OnError = "allow"
    condition: str = ""
    source: str = ""

    def is_for(self, subject: str, input: Mapping[str, Any] | None) -> bool:
        """Return True if the hook is for a tool, by any of its names, with such an input, or for an event's subject."""
        names = (subject, *(theirs for theirs, ours in ALIASES.items() if ours == subject))
        if self.matcher and not any(re.fullmatch(self.matcher, name) for name in names):
            return False
        if not self.condition:
            return True
        rule, keys = parse_rule(self.condition), ("command", "path", "url", "agent", "name")
        given = next((str(input[key]) for key in keys if key in input), "") if input else ""
        return rule.names(subject) and (not rule.pattern or fnmatchcase(given, rule.pattern))


class ProcessEnd(Struct, frozen=True):
    """The end of a hook's process; `failure` says why it did not run to its end."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    failure: str = ""


# Settings


def read_hooks(table: Any, source: str, problems: list[str]) -> Iterator[HookSpec]:
    """The hooks of a `hooks` table; `problems` gets a sentence on each part that cannot be used."""
    if not isinstance(table, Mapping):
        problems.append(f"{source}: hooks is no table of events.")
        return
    for event, groups in table.items():
        if event not in EVENTS:
            problems.append(f"{source}: hooks.{event} is left out: no such event is known.")
            continue
        for group in groups if isinstance(groups, list | tuple) else [groups]:
            if not isinstance(group, Mapping):
                problems.append(f"{source}: hooks.{event} holds something that is no table.")
                continue
            matcher = str(group.get("matcher") or "")
            for hook in group.get("hooks") or [group]:
                try:
                    yield _hook(event, "" if matcher == "*" else matcher, hook, source)
                except (ValueError, UsageError) as error:
                    problems.append(f"{source}: hooks.{event}: {error}.")


def _hook(event: EventName, matcher: str, hook: Any, source: str) -> HookSpec:
    """Return a hook of the settings. Raises `ValueError` or `UsageError` that says why it is left out."""
    if not isinstance(hook, Mapping) or not isinstance(hook.get("command"), str) or not hook["command"].strip():
        raise ValueError("a hook without a command is left out")
    if (kind := hook.get("type", "command")) != "command":
        raise ValueError(f"a hook of the type {kind!r} is left out, only commands are run")
    timeout, on_error = hook.get("timeout", TIMEOUT_S), hook.get("onError", hook.get("on_error", "allow"))
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0:
        raise ValueError(f"timeout {timeout!r} is no number of seconds")
    if on_error not in get_args(OnError):
        raise ValueError(f"onError {on_error!r} is none of {', '.join(get_args(OnError))}")
    try:
        re.compile(matcher)
        if condition := str(hook.get("if") or ""):
            parse_rule(condition)
    except (re.error, UsageError) as error:
        raise ValueError(f"it is left out ({error})") from error
    return HookSpec(event, hook["command"], matcher, float(timeout), on_error, condition=condition, source=source)


# Names of the field


def field_input(tool: str, input: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """The arguments under the field's names beside ours; the path of a file is absolute, as there."""
    shown = dict(input)
    for theirs, ours in _ARGUMENTS.get(tool, {}).items():
        if ours in input:
            value = input[ours]
            shown[theirs] = str(cwd / value) if theirs == "file_path" and isinstance(value, str) else value
    return shown


def own_input(tool: str, updated: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a hook gave in place of those it was sent, under our names."""
    given = dict(updated)
    for theirs, ours in _ARGUMENTS.get(tool, {}).items():
        value = given.pop(theirs, None)
        if value is not None and (ours not in given or (value != sent.get(theirs) and given[ours] == sent.get(ours))):
            given[ours] = value
    return given


# Answers


def combined(answers: Sequence[EventAnswer]) -> EventAnswer:
    """Several answers as one: a deny wins over an ask, an ask over an allow, of equals the first."""
    strongest = max(answers, key=lambda answer: _STRENGTH[answer.decision], default=EventAnswer())
    inputs = [answer.input for answer in answers if answer.input is not None]
    return EventAnswer(
        strongest.decision,
        strongest.reason,
        inputs[-1] if inputs else None,
        "\n".join(answer.context for answer in answers if answer.context),
        stops=any(answer.stops for answer in answers),
        notices=tuple(notice for answer in answers for notice in answer.notices),
        problem="; ".join(answer.problem for answer in answers if answer.problem),
    )


def read_answer(spec: HookSpec, end: ProcessEnd) -> EventAnswer:
    """The answer of one hook."""
    if why := _start_failure(end):
        return _failed(spec, why)
    if end.exit_code == BLOCKS:
        reason = end.stderr.strip() or end.stdout.strip() or f"The hook `{spec.command}` refused this."
        return EventAnswer("deny", reason)
    if end.exit_code:
        first = next(iter(end.stderr.strip().splitlines()), "")
        return EventAnswer(problem=f"`{spec.command}` ended with {end.exit_code}: {first}".rstrip(": "))
    return _read_output(spec, end.stdout.strip().removeprefix("\ufeff"))


def _start_failure(end: ProcessEnd) -> str:
    """Return why a hook has decided nothing; empty for one that ran."""
    if end.failure or end.exit_code is None:
        return end.failure or "it was ended"
    is_missing = end.exit_code in (1, BLOCKS) and not end.stdout.strip() and _NO_SCRIPT.search(end.stderr)
    is_started = end.exit_code not in _NOT_RUN and not is_missing
    return "" if is_started else f"it could not be started ({' '.join(end.stderr.split())[:200]})"


def _read_output(spec: HookSpec, text: str) -> EventAnswer:
    """The answer of a hook that ended with 0: the JSON objects that begin a line, else plain text."""
    takes_text = spec.event in _PLAIN_CONTEXT  # which may hold JSON, or code that looks like it
    if spec.event in EVENTS_ABOUT_DECISIONS and (bare := _bare_answers(spec, text)):
        return combined(bare)
    answers: list[EventAnswer] = []
    broken: EventAnswer | None = None
    position = 0
    while found := _BRACE.search(text, position):
        start = found.end() - 1
        try:
            answer, position = _DECODER.raw_decode(text, start)
            if rest := text[position:].partition("\n")[0].strip():
                raise ValueError(f"{rest[:40]!r} follows it")
        except (ValueError, RecursionError) as error:
            if takes_text and start > 0 and not _ANSWER_KEY.search(text, start):
                break
            broken = broken or _failed(spec, f"its answer is no JSON ({error})")
            position = start + len(text[start:].partition("\n")[0])
            continue
        if start == 0 or any(_ANSWER_KEY.fullmatch(f'"{key}"') for key in answer):
            read = _read_json(spec, answer)
            if broken is None or read.blocks:  # it may be a part of what is broken
                answers.append(read)
    if answers or broken is not None:
        return combined([*answers, *([broken] if broken is not None else ())])
    if spec.event in EVENTS_ABOUT_DECISIONS and _ANSWER_KEY.search(text):
        return _failed(spec, "its answer does not begin a line")
    return EventAnswer(context=text if takes_text else "")


def _bare_answers(spec: HookSpec, text: str) -> list[EventAnswer]:
    """The answers of a hook that prints a list of them, or nothing but its decision."""
    if (word := text.strip('"')) in ("deny", "block", "ask"):
        return [_read_json(spec, {"decision": word})]
    try:
        listed = _DECODER.decode(text) if text.startswith("[") else []
    except (ValueError, RecursionError):
        return []
    return [_read_json(spec, answer) for answer in listed if isinstance(answer, dict)]


def _read_json(spec: HookSpec, answer: dict[str, Any]) -> EventAnswer:
    own = {} if (own := answer.get("hookSpecificOutput")) is None else own
    if not isinstance(own, dict):
        return _failed(spec, "its hookSpecificOutput is no object")
    inner = own.get("decision")  # an object for PermissionRequest
    behaviour = inner if isinstance(inner, dict) else {}
    inner = behaviour.get("behavior") if behaviour else inner
    decision: Decision = ""
    for word in (own.get("permissionDecision"), answer.get("permissionDecision"), inner, answer.get("decision")):
        found = _DECISIONS.get(word or "") if isinstance(word or "", str) else None
        if found is None:  # a call that it was asked about is not let through unseen
            why = f"it decided {word!r}, which is none of allow, ask and deny"
            return _failed(spec, why, "deny" if spec.event in EVENTS_ABOUT_DECISIONS else spec.on_error)
        decision = max(decision, found, key=_STRENGTH.__getitem__)
    reasons = (own.get("permissionDecisionReason"), behaviour.get("message"), answer.get("reason"), own.get("reason"))
    reason = next(filter(None, reasons), "")
    stops = str(answer.get("continue")).lower() in ("false", "0", "no")
    updated = own.get("updatedInput", behaviour.get("updatedInput"))
    notice = answer.get("systemMessage")
    return EventAnswer(
        decision,
        str(answer.get("stopReason") or reason) if stops else str(reason),
        updated if isinstance(updated, dict) else None,
        str(own.get("additionalContext") or ""),
        stops=stops,
        notices=(str(notice),) if notice else (),
    )


def _failed(spec: HookSpec, why: str, decision: OnError | None = None) -> EventAnswer:
    """Return the answer for a hook that failed: `decision`, else what its `onError` says."""
    problem = f"`{spec.command}`: {why}"
    if (decision := decision or spec.on_error) == "allow":
        return EventAnswer(problem=problem)
    return EventAnswer(decision, f"A hook whose answer is required failed: {problem}", problem=problem)


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
        answer = combined(await asyncio.gather(*runs))
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
            answer = read_answer(spec, await self.run(spec.command, input, spec.timeout_s))
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
        sent, name = field_input(call.name, input, self.cwd), FIELD_NAMES.get(call.name, call.name)
        about = {"tool_name": name, "tool_input": sent, "tool_use_id": call.id}
        answer = await self.fire(event, subject=call.name, agent_id=agent_id, own=input, **about, **fields)
        if answer.input is None:
            return answer
        return msgspec.structs.replace(answer, input=own_input(call.name, answer.input, sent))

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
