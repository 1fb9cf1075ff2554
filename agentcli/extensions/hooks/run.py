"""Runs all of an event's hooks at once and combines their answers. They also get other agents' tool names."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from agentcli.agent.events import Emit, HookRan, Notice
from agentcli.agent.interfaces import CallRecord, Decision, EventAnswer, EventHooks, EventName
from agentcli.agent.session import Session
from agentcli.conversation.entries import reminder
from agentcli.extensions.claude_code_names import CLAUDE_CODE_NAMES, input_with_both_names, own_input
from agentcli.extensions.hooks.spec import HookSpec, OnError
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.tools.tool import Ask

EVENTS_ABOUT_DECISIONS = ("PreToolUse", "PermissionRequest")
DENY_EXIT_CODE = 2  # the exit code by which a hook denies

# Messages of interpreters that cannot open their script. They exit with 2, which would otherwise deny, or with 1.
_SCRIPT_NOT_OPENED = re.compile(
    r"can't open file|cannot open|No such file or directory|not found|Cannot find module|Could not open input file|"
    r"Can't open perl script|Permission denied",
    re.IGNORECASE,
)
_PLAIN_TEXT_EVENTS = ("SessionStart", "UserPromptSubmit", "SubagentStart")  # the model reads plain output for these
_BRACE = re.compile(r"^[ \t]*\{", re.MULTILINE)  # an object at the beginning of a line
# Keys that distinguish a hook's answer from other JSON.
_ANSWER_KEY = re.compile(r'"(?:hookSpecificOutput|permissionDecision|decision|continue|systemMessage)"')
_DECODER = json.JSONDecoder()
# The words that hooks use, and the decision that each means: `defer` leaves it to others.
_DECISIONS: dict[str, Decision] = {
    "": "", "allow": "allow", "approve": "allow", "ask": "ask", "deny": "deny", "block": "deny", "defer": "",
}  # fmt: skip
_STRENGTH: dict[Decision, int] = {"": 0, "allow": 1, "ask": 2, "deny": 3}


def combine_answers(answers: Sequence[EventAnswer]) -> EventAnswer:
    """Combine answers: deny overrides ask, ask overrides allow, and the first of equal decisions gives the reason."""
    strongest = max(answers, key=lambda answer: _STRENGTH[answer.decision], default=EventAnswer())
    return EventAnswer(
        decision=strongest.decision,
        reason=strongest.reason,
        input=next((answer.input for answer in reversed(answers) if answer.input is not None), None),  # the last change
        context="\n".join(answer.context for answer in answers if answer.context),
        stops=any(answer.stops for answer in answers),
        notices=tuple(notice for answer in answers for notice in answer.notices),
        problem="; ".join(answer.problem for answer in answers if answer.problem),
    )


def answer_of_command(spec: HookSpec, exit_code: int, stdout: str, stderr: str) -> EventAnswer:
    """Return the answer of a command that has ended."""
    is_command_missing = exit_code in (126, 127)  # a shell could not find or run it (POSIX XCU 2.8.2)
    is_script_missing = exit_code in (1, DENY_EXIT_CODE) and not stdout and _SCRIPT_NOT_OPENED.search(stderr)
    if is_command_missing or is_script_missing:
        return failure_answer(spec, f"could not start it ({' '.join(stderr.split())[:200]})")
    if exit_code == DENY_EXIT_CODE:
        return EventAnswer("deny", stderr or stdout or f"The hook `{spec.title}` denied this.")
    if exit_code:
        first_line = stderr.partition("\n")[0]
        return EventAnswer(problem=f"`{spec.title}` exited with {exit_code}: {first_line}".rstrip(": "))
    return parse_output(spec, stdout.removeprefix("\ufeff"))  # some programs write a byte order mark


def parse_output(spec: HookSpec, text: str) -> EventAnswer:
    """Return the answer of a hook that succeeded: the JSON objects at the beginning of lines, or else plain text.

    An object after other text is an answer only if it has a key of answers, because programs that the hook runs may
    print JSON, too. An object that cannot be read may have been a denial, so it counts as a failure of the hook, unless
    it can be a part of the plain text.
    """
    takes_text = spec.event in _PLAIN_TEXT_EVENTS  # such text may contain JSON that is no answer
    if spec.event in EVENTS_ABOUT_DECISIONS and (bare := _bare_answers(spec, text)):
        return combine_answers(bare)
    answers: list[EventAnswer] = []
    failures: list[EventAnswer] = []  # for objects that cannot be read: they may have been denials
    for start, found in _objects_in(text):
        if isinstance(found, Exception):
            if takes_text and start > 0 and not _ANSWER_KEY.search(text, start):
                break  # the rest is text without an answer
            failures.append(failure_answer(spec, f"its answer is not valid JSON ({found})"))
        elif start == 0 or any(_ANSWER_KEY.fullmatch(f'"{key}"') for key in found):  # else JSON of another program
            answer = answer_in_object(spec, found)
            if not failures or answer.blocks:  # after an unreadable object only a denial is trusted
                answers.append(answer)
    if answers or failures:
        return combine_answers([*answers, *failures[:1]])  # one report is enough
    if spec.event in EVENTS_ABOUT_DECISIONS and _ANSWER_KEY.search(text):
        return failure_answer(spec, "its answer does not start on a new line")
    return EventAnswer(context=text if takes_text else "")


def _objects_in(text: str) -> Iterator[tuple[int, dict[str, Any] | Exception]]:
    """Yield the position and value of each JSON object at the beginning of a line; the error if it is not valid."""
    position = 0
    while brace := _BRACE.search(text, position):
        start = brace.end() - 1
        try:
            found, position = _DECODER.raw_decode(text, start)
            if rest_of_line := text[position:].partition("\n")[0].strip():
                raise ValueError(f"{rest_of_line[:40]!r} follows it")
            yield start, found
        except (ValueError, RecursionError) as error:
            position = start + len(text[start:].partition("\n")[0])  # the next line may begin another object
            yield start, error


def _bare_answers(spec: HookSpec, text: str) -> list[EventAnswer]:
    """Return the answers of a hook that prints a list of them, or nothing but `deny`, `block` or `ask`."""
    if (word := text.strip('"')) in ("deny", "block", "ask"):  # `allow` must be said in an object
        return [answer_in_object(spec, {"decision": word})]
    try:
        listed = _DECODER.decode(text) if text.startswith("[") else []
    except (ValueError, RecursionError):
        return []
    return [answer_in_object(spec, answer) for answer in listed if isinstance(answer, dict)]


def answer_in_object(spec: HookSpec, answer: dict[str, Any]) -> EventAnswer:
    """Return the answer in a JSON object. If it contains several decisions, the strictest applies."""
    specific = {} if answer.get("hookSpecificOutput") is None else answer["hookSpecificOutput"]
    if not isinstance(specific, dict):
        return failure_answer(spec, "its hookSpecificOutput is not an object")
    own_decision = specific.get("decision")  # for PermissionRequest an object: {"behavior": "deny", "message": "…"}
    behaviour = own_decision if isinstance(own_decision, dict) else {"behavior": own_decision}
    words = (specific.get("permissionDecision"), answer.get("permissionDecision"), answer.get("decision"))
    decision: Decision = ""
    for word in filter(None, (*words, behaviour.get("behavior"))):  # null and false decide nothing
        found = _DECISIONS.get(word) if isinstance(word, str) else None
        if found is None:  # an unknown word must not let an event pass that hooks decide about
            decision = "deny" if spec.event in EVENTS_ABOUT_DECISIONS else spec.on_error
            return failure_answer(spec, f"its decision {word!r} is not allow, ask or deny", decision)
        decision = max(decision, found, key=_STRENGTH.__getitem__)
    reason = (
        specific.get("permissionDecisionReason")
        or behaviour.get("message")
        or answer.get("reason")
        or specific.get("reason")
        or ""
    )
    stops = str(answer.get("continue")).lower() in ("false", "0", "no")  # shell scripts often write it as text
    if stops:
        reason = answer.get("stopReason") or reason
    updated = specific.get("updatedInput", behaviour.get("updatedInput"))
    notice = answer.get("systemMessage")
    return EventAnswer(
        decision=decision,
        reason=str(reason),
        input=updated if isinstance(updated, dict) else None,
        context=str(specific.get("additionalContext") or ""),
        stops=stops,
        notices=(str(notice),) if notice else (),
    )


def failure_answer(spec: HookSpec, why: str, decision: OnError | None = None) -> EventAnswer:
    """Return the answer for a hook that failed: `decision`, or else the one that its `onError` sets."""
    problem, decision = f"`{spec.title}`: {why}", decision or spec.on_error
    if decision == "allow":
        return EventAnswer(problem=problem)
    return EventAnswer(decision, f"A required hook failed: {problem}", problem=problem)


# Events that are denied if one of their hooks cannot be run, because that hook might have denied them.
FAIL_CLOSED_EVENTS: frozenset[EventName] = frozenset(("PreToolUse", "UserPromptSubmit"))
# The name of the subagents that hooks of type `agent` start. Their own events start no more of these subagents.
HOOK_AGENT = "hook-agent"


class HookContext(msgspec.Struct, kw_only=True):
    """The parts of a session that its hooks need. `ask` asks about programs that changed since they were trusted.

    `transcript` returns the path of a file with the conversation. Without a `session` only hooks that are commands or
    HTTP requests can run.
    """

    id: str
    mode: Callable[[], str]
    publish: Emit = lambda event: None
    mask: Callable[[str], str] = lambda text: text
    ask: Ask | None = None
    transcript: Callable[[], str] = lambda: ""
    session: Session | None = None


class RunningHooks(msgspec.Struct, kw_only=True):
    """Runs the hooks of a session and combines their answers. Implements `CallHooks` and `EventHooks`."""

    specs: Sequence[HookSpec]
    context: HookContext
    cwd: Path
    _inputs: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)  # arguments of running calls by call id

    def has(self, event: EventName) -> bool:
        return any(spec.event == event for spec in self.specs)

    async def fire(
        self, event: EventName, *, call: ToolUse | None = None, subject: str = "", agent_id: str = "main", **fields: Any
    ) -> EventAnswer:
        """Run all hooks of an event and return their combined answer.

        Hooks get the `fields`, and the arguments of a `call` under our names and those of other agents. Matchers are
        compared with the tool's name; for an event that is not about a call, with the `subject`.
        """
        arguments: dict[str, Any] = {}  # the call's, under our names and those of other agents
        if call is not None:
            subject, arguments = call.name, self.input_for_hooks(call.name, call.input)
            name = CLAUDE_CODE_NAMES.get(call.name, call.name)
            fields |= {"tool_name": name, "tool_input": arguments, "tool_use_id": call.id}
        matching = [spec for spec in self.specs if spec.is_for(event, subject, call.input if call else {})]
        if agent_id.startswith(HOOK_AGENT):
            matching = [spec for spec in matching if spec.handler["type"] != "agent"]
        if not matching:
            return EventAnswer()
        context = self.context
        common = {"session_id": context.id, "transcript_path": context.transcript(), "cwd": str(self.cwd)}
        if agent_id != "main":  # a subagent, such as `explore-2`
            common |= {"agent_id": agent_id, "agent_type": agent_id.rpartition("-")[0]}
        input = msgspec.json.encode({**common, "hook_event_name": event, "permission_mode": context.mode(), **fields})
        distinct: dict[str | bytes, HookSpec] = {}
        for spec in matching:  # hooks with the same command, and equal hooks of other kinds, run only once
            distinct.setdefault(spec.expanded_command or msgspec.json.encode(spec.handler), spec)
        runs = [self._run_and_report(spec, input, subject, agent_id) for spec in distinct.values()]
        answer = combine_answers(await asyncio.gather(*runs))
        problem = (f"Hook {event}: {answer.problem}.",) if answer.problem else ()
        for notice in (*answer.notices, *problem):
            context.publish(Notice(notice, agent_id=agent_id))
        if call is not None and answer.input is not None:  # changed arguments, perhaps under Claude Code's names
            answer = msgspec.structs.replace(answer, input=own_input(call.name, answer.input, arguments))
        return msgspec.structs.replace(answer, reason=context.mask(answer.reason), context=context.mask(answer.context))

    async def _run_and_report(self, spec: HookSpec, input: bytes, subject: str, agent_id: str) -> EventAnswer:
        began = time.monotonic()
        answer = await self.run(spec, input)
        took_ms = round((time.monotonic() - began) * 1000)
        ran = HookRan(
            spec.event, spec.title, subject, answer.decision, answer.reason, answer.problem, took_ms, agent_id=agent_id
        )
        self.context.publish(ran)
        return answer

    async def run(self, spec: HookSpec, input: bytes) -> EventAnswer:
        """Run one hook on its input, a JSON object."""
        raise NotImplementedError

    def input_for_hooks(self, tool: str, input: Mapping[str, Any]) -> dict[str, Any]:
        return input_with_both_names(tool, input, self.cwd)

    async def before_call(self, record: CallRecord, input: dict[str, Any]) -> EventAnswer | None:
        self._inputs[record.id] = input
        if not self.has("PreToolUse"):
            return None
        answer = await self.fire("PreToolUse", call=ToolUse(record.id, record.tool, input), agent_id=record.caller)
        if answer.stops:  # it ends the turn, so the call must not run either
            answer = msgspec.structs.replace(answer, decision="deny")
        if answer.blocks:  # then `after_call` is not called
            self._inputs.pop(record.id, None)
        return answer

    async def after_call(self, record: CallRecord, result: ToolResult) -> str | None:
        input = self._inputs.pop(record.id, {})
        event: EventName = "PostToolUseFailure" if result.is_error else "PostToolUse"
        if not self.has(event):
            return None
        content, call = msgspec.to_builtins(result.content), ToolUse(record.id, record.tool, input)
        fields: dict[str, Any] = {"error": content} if result.is_error else {"tool_response": {"content": content}}
        answer = await self.fire(event, call=call, agent_id=record.caller, **fields)
        objection = answer.reason if answer.blocks else ""
        return "\n".join(filter(None, (objection, answer.context))) or None


class JoinedHooks(msgspec.Struct):
    """Fires events for several hooks. Implements `EventHooks`."""

    hooks: Sequence[EventHooks]

    async def fire(self, event: EventName, **fields: Any) -> EventAnswer:
        return combine_answers([await each.fire(event, **fields) for each in self.hooks])


async def attach_hooks(session: Session, hooks: RunningHooks) -> None:
    """Run hooks around the calls and at the events of a session from now on, and fire `SessionStart`."""
    services, delegates = session.runtime.calls.services, session.runtime.calls.delegates
    hooks.context.publish, hooks.context.session = session.publish, session
    hooks.context.mask = services.mask.text
    services.hooks = (*services.hooks, hooks)
    delegates.events = JoinedHooks((delegates.events, hooks)) if delegates.events else hooks
    source = "resume" if session.state.conversation.entries else "startup"
    answer = await hooks.fire("SessionStart", subject=source, source=source)
    if answer.context:
        session.state.notes.append(reminder(answer.context))
