"""Reads which hooks there are and what they answer, in the names that other tools gave calls and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct

from agentcli.agent.hooks import Decision, EventName, Said
from agentcli.agent.permissions.rules import ALIASES, parse_rule
from agentcli.errors import UsageError

# The name of a tool where the field has several.
_MAIN = {
    "file_edit": "Edit", "file_list": "Glob", "create_subagent": "Task", "todo": "TodoWrite", "jobs": "BashOutput",
}  # fmt: skip
_FIELD_NAMES = {ours: theirs for theirs, ours in ALIASES.items()} | _MAIN
# Our arguments by the field's, for each tool.
_KEYS: dict[str, dict[str, str]] = {
    "file_read": {"file_path": "path"},
    "file_write": {"file_path": "path"},
    "file_edit": {"file_path": "path"},
    "bash": {"timeout": "timeout_ms", "run_in_background": "background"},
    "grep_search": {"-i": "ignore_case", "head_limit": "limit"},
    "todo": {"todos": "items"},
    "create_subagent": {"prompt": "task", "subagent_type": "agent"},
    "skill": {"skill": "name"},
}


def field_name(tool: str) -> str:
    """`Edit` for file_edit; a tool that the field does not know keeps its name."""
    return _FIELD_NAMES.get(tool, tool)


def names_of(tool: str) -> tuple[str, ...]:
    """All names that a matcher may use for a tool."""
    return (tool, *(theirs for theirs, ours in ALIASES.items() if ours == tool))


def field_input(tool: str, input: Mapping[str, Any], cwd: Path) -> dict[str, Any]:
    """The arguments under the field's names beside ours; the path of a file is absolute, as there."""
    shown = dict(input)
    for theirs, ours in _KEYS.get(tool, {}).items():
        if ours in input:
            value = input[ours]
            shown[theirs] = str(cwd / value) if theirs == "file_path" and isinstance(value, str) else value
    return shown


def own_input(tool: str, updated: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that a hook gave in place of those it was sent, under our names."""
    given = dict(updated)
    for theirs, ours in _KEYS.get(tool, {}).items():
        value = given.pop(theirs, None)
        if value is not None and (ours not in given or (value != sent.get(theirs) and given[ours] == sent.get(ours))):
            given[ours] = value
    return given


TIME_LIMIT_S = 60.0

EVENTS: tuple[EventName, ...] = get_args(EventName)
OnError = Literal["allow", "deny", "ask"]


class HookSpec(Struct, frozen=True):
    """One command for one event. `matcher` is a regular expression over the names of tools; empty means all.

    `condition` is a permission rule that the call has to meet, too. `on_error` says what counts where the command
    cannot be run to its end. `source` is the file it stands in.
    """

    event: EventName
    command: str
    matcher: str = ""
    timeout_s: float = TIME_LIMIT_S
    on_error: OnError = "allow"
    condition: str = ""
    source: str = ""

    def is_for(self, subject: str, input: Mapping[str, Any] | None) -> bool:
        """Whether it is for a tool, by any of its names, and for that input; for other events what they are about."""
        names = names_of(subject)
        if self.matcher and not any(re.fullmatch(self.matcher, name) for name in names):
            return False
        return not self.condition or _meets(self.condition, subject, input or {})


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
                spec = _read(event, "" if matcher == "*" else matcher, hook, source)
                if isinstance(spec, HookSpec):
                    yield spec
                else:
                    problems.append(f"{source}: hooks.{event}: {spec}.")


def _read(event: EventName, matcher: str, hook: Any, source: str) -> HookSpec | str:
    """The hook, or why it is left out."""
    if not isinstance(hook, Mapping) or not isinstance(hook.get("command"), str) or not hook["command"].strip():
        return "a hook without a command is left out"
    if (kind := hook.get("type", "command")) != "command":
        return f"a hook of the type {kind!r} is left out, only commands are run"
    timeout, on_error = hook.get("timeout", TIME_LIMIT_S), hook.get("onError", hook.get("on_error", "allow"))
    if not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout <= 0:
        return f"timeout {timeout!r} is no number of seconds"
    if on_error not in get_args(OnError):
        return f"onError {on_error!r} is none of {', '.join(get_args(OnError))}"
    try:
        re.compile(matcher)
        condition = str(hook.get("if") or "")
        if condition:
            parse_rule(condition)
    except (re.error, UsageError) as error:
        return f"it is left out ({error})"
    return HookSpec(event, hook["command"], matcher, float(timeout), on_error, condition, source)


def _meets(condition: str, tool: str, input: Mapping[str, Any]) -> bool:
    rule = parse_rule(condition)
    if not rule.names(tool):
        return False
    given = next((str(input[key]) for key in ("command", "path", "url", "agent", "name") if key in input), "")
    return not rule.pattern or fnmatchcase(given, rule.pattern)


BLOCKS = 2  # the exit code
_NOT_RUN = (126, 127)  # of a shell that could not run the command (POSIX XCU 2.8.2)
# Interpreters that do not find their script end with 2 or 1, and say so.
_NO_SCRIPT = re.compile(
    r"can't open file|cannot open|No such file or directory|not found|Cannot find module|Could not open input file|"
    r"Can't open perl script|Permission denied",
    re.IGNORECASE,
)
_PLAIN_CONTEXT = ("SessionStart", "UserPromptSubmit", "SubagentStart")  # whose plain output is told to the model
_ABOUT_CALLS = ("PreToolUse", "PermissionRequest")
_BRACE = re.compile(r"^[ \t]*\{", re.MULTILINE)
_ANSWER_KEY = re.compile(r'"(?:hookSpecificOutput|permissionDecision|decision|continue|systemMessage)"')
_DECODER = json.JSONDecoder()
# The words of the field; one that defers leaves the decision to others.
_DECISIONS: dict[str, Decision] = {
    "": "", "allow": "allow", "approve": "allow", "ask": "ask", "deny": "deny", "block": "deny", "defer": "",
}  # fmt: skip
_REFUSALS = ("deny", "block", "ask")
_STRENGTH: dict[Decision, int] = {"": 0, "allow": 1, "ask": 2, "deny": 3}


class Ended(Struct, frozen=True):
    """How a hook's process ended; `failure` says why it did not run to its end."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""
    failure: str = ""
    seconds: float = 0.0


def combined(all: Sequence[Said]) -> Said:
    """Several answers as one: a deny wins over an ask, an ask over an allow, of equals the first."""
    strongest = max(all, key=lambda said: _STRENGTH[said.decision], default=Said())
    inputs = [said.input for said in all if said.input is not None]
    return Said(
        strongest.decision,
        strongest.reason,
        inputs[-1] if inputs else None,
        "\n".join(said.context for said in all if said.context),
        tuple(notice for said in all for notice in said.notices),
        stops=any(said.stops for said in all),
        problem="; ".join(said.problem for said in all if said.problem),
    )


def read_answer(spec: HookSpec, ended: Ended) -> Said:
    """The answer of one hook."""
    if why := _not_started(ended):
        return _failed(spec, why)
    if ended.exit_code == BLOCKS:
        return Said("deny", ended.stderr.strip() or ended.stdout.strip() or f"The hook `{spec.command}` refused this.")
    if ended.exit_code:
        told = ended.stderr.strip().splitlines()[:1] or [""]
        return Said(problem=f"`{spec.command}` ended with {ended.exit_code}: {told[0]}".rstrip(": "))
    return _read_output(spec, ended.stdout.strip().removeprefix("\ufeff"))


def _read_output(spec: HookSpec, text: str) -> Said:
    """The answer of a hook that ended with 0: the JSON objects that begin a line, else plain text."""
    takes_text = spec.event in _PLAIN_CONTEXT  # which may hold JSON, or code that looks like it
    answers: list[Said] = []
    broken: Said | None = None
    position = 0
    if spec.event in _ABOUT_CALLS and (bare := _bare_answers(spec, text)):
        return combined(bare)
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
            said = _read_json(spec, answer)
            if broken is None or said.blocks:  # it may be a part of what is broken
                answers.append(said)
    if answers or broken is not None:
        return combined([*answers, *([broken] if broken is not None else ())])
    if spec.event in _ABOUT_CALLS and _ANSWER_KEY.search(text):
        return _failed(spec, "its answer does not begin a line")
    return Said(context=text if takes_text else "")


def _bare_answers(spec: HookSpec, text: str) -> list[Said]:
    """The answers of a hook that prints a list of them, or nothing but its decision."""
    if text.strip('"') in _REFUSALS:
        return [_read_json(spec, {"decision": text.strip('"')})]
    if not text.startswith("["):
        return []
    try:
        listed = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return []
    return [_read_json(spec, answer) for answer in listed if isinstance(answer, dict)]


def _not_started(ended: Ended) -> str:
    """Why a hook has decided nothing; empty for one that ran."""
    if ended.failure or ended.exit_code is None:
        return ended.failure or "it was ended"
    is_missing = ended.exit_code in (1, BLOCKS) and not ended.stdout.strip() and _NO_SCRIPT.search(ended.stderr)
    if ended.exit_code in _NOT_RUN or is_missing:
        return f"it could not be started ({' '.join(ended.stderr.split())[:200]})"
    return ""


def _failed(spec: HookSpec, why: str) -> Said:
    problem = f"`{spec.command}`: {why}"
    if spec.on_error == "allow":
        return Said(problem=problem)
    return Said(spec.on_error, f"A hook that has to be asked failed: {problem}", problem=problem)


def _read_json(spec: HookSpec, answer: dict[str, Any]) -> Said:
    own = answer.get("hookSpecificOutput")
    own = {} if own is None else own
    if not isinstance(own, dict):
        return _failed(spec, "its hookSpecificOutput is no object")
    inner = own.get("decision")  # an object for PermissionRequest
    behaviour = inner if isinstance(inner, dict) else {}
    inner = behaviour.get("behavior") if behaviour else inner
    decision: Decision = ""
    for word in (own.get("permissionDecision"), answer.get("permissionDecision"), inner, answer.get("decision")):
        found = _DECISIONS.get(word or "") if isinstance(word or "", str) else None
        if found is None:
            return _undecided(spec, word)
        decision = max(decision, found, key=_STRENGTH.__getitem__)
    reasons = (own.get("permissionDecisionReason"), behaviour.get("message"), answer.get("reason"), own.get("reason"))
    reason = next(filter(None, reasons), "")
    stops = str(answer.get("continue")).lower() in ("false", "0", "no")
    updated = own.get("updatedInput", behaviour.get("updatedInput"))
    notice = answer.get("systemMessage")
    return Said(
        decision,
        str(answer.get("stopReason") or reason) if stops else str(reason),
        updated if isinstance(updated, dict) else None,
        str(own.get("additionalContext") or ""),
        (str(notice),) if notice else (),
        stops=stops,
    )


def _undecided(spec: HookSpec, word: object) -> Said:
    """The answer of a hook whose decision is no known word: what it was asked about is not let through unseen."""
    why = f"it decided {word!r}, which is none of allow, ask and deny"
    if spec.event not in _ABOUT_CALLS:
        return _failed(spec, why)
    problem = f"`{spec.command}`: {why}"
    return Said("deny", f"A hook's answer was not understood, so the call is denied: {problem}", problem=problem)
