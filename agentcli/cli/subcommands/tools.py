"""`agentcli tools` lists and runs the model's tools; `agentcli permissions` explains policy decisions on commands."""

import asyncio
import hashlib
import json
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from cachetools import TTLCache

from agentcli.agent.calls.model import Call, SessionCalls, TurnCalls
from agentcli.agent.calls.run import run_call
from agentcli.agent.events import CallError, ToolFinished
from agentcli.agent.permissions.call_effects import call_effects, command_effects
from agentcli.agent.permissions.decide import decide
from agentcli.agent.permissions.facts import CallFacts, find_facts
from agentcli.agent.permissions.matches import find_matches
from agentcli.agent.permissions.modes import MODES, Mode, PolicyDecision, parse_mode
from agentcli.agent.state import AgentState, ModelChoice
from agentcli.app import Builder
from agentcli.cli.options import decode_argument, unshared_stdin
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands import shared
from agentcli.errors import ToolError, UsageError
from agentcli.frontends.json_input import InputLines
from agentcli.frontends.printable import escape_hidden
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm.messages import ToolResult, ToolUse
from agentcli.safety.commands.records import CommandAnalysis, Effects, Segment
from agentcli.tools.observation import call_title
from agentcli.tools.tool import ToolRegistry
from agentcli.tools.workspace import display_name, is_utf8

MAX_ANSWERS, ANSWERS_S = 10_000, 3600  # answers kept for repeated calls, and for how long

tools_app = shared.make_app("List the model's tools, or run them yourself.")


class ToolCallLine(msgspec.Struct, frozen=True):
    name: str
    input: dict[str, Any] = {}
    id: str = ""


@tools_app.command("list")
def list_tools(as_json: shared.AsJson = False) -> None:
    """List all tools: where each comes from, where it runs, what it can do, and its text for the model."""
    tools = list(_builder().tool_registry())
    facts = [{"name": t.name, "source": t.source, "mode": t.mode, "effect": t.effect} for t in tools]
    shared.print_list(
        [fact | msgspec.to_builtins(tool.spec()) for fact, tool in zip(facts, tools, strict=True)],
        ("name", "source", "runs", "effect", "description"),
        [(*fact.values(), tool.description.split("\n")[0]) for fact, tool in zip(facts, tools, strict=True)],
        as_json=as_json,
        empty="No tools.",
    )


@tools_app.command("run")
def run_tools(
    name: Annotated[str, typer.Argument(help="The tool to run. Default: read calls from stdin.")] = "",
    input: Annotated[str, typer.Argument(help="Its arguments as JSON.")] = "{}",
    permission_mode: Annotated[str, typer.Option(help=f"One of {', '.join(MODES)}.")] = "default",
) -> None:
    """Run calls, one JSON object {"id","name","input"} a line, and write one result a line."""
    try:
        if not is_utf8(input):  # it contains bytes of a file's name, or of the locale's charset
            input = json.dumps(_as_utf8(json.loads(input)))
        call = ToolCallLine(name, msgspec.json.decode(input, type=dict[str, Any])) if name else None
    except (msgspec.DecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"The arguments are not a JSON object: {error}") from error
    raise typer.Exit(asyncio.run(_run_calls(call, parse_mode(permission_mode))))


def _as_utf8(value: Any, key: str = "") -> Any:
    """Replace the bytes in a JSON value that are not UTF-8: escape them in paths, else decode them by the locale."""
    match value:
        case str():
            return display_name(value) if key in ("path", "cwd") else decode_argument(value)
        case dict():
            return {decode_argument(name): _as_utf8(item, name) for name, item in value.items()}
        case list():
            return list(map(_as_utf8, value))
        case _:
            return value


def _builder() -> Builder:
    return Builder(shared.configuration(warns=True), store=MemorySessions(), on_notice=warn)


async def _run_calls(only_call: ToolCallLine | None, mode: Mode) -> int:
    """Run one call, or those on stdin if `only_call` is None, and return the exit code."""
    builder = _builder()
    async with open_bench(builder, builder.tool_registry(), mode) as bench:
        services = bench.calls.services
        services.mask.keeps_structured = ("file_read",)  # programs need the raw text of files
        services.levels = msgspec.structs.replace(services.levels, gives_all=True)  # nothing is cut
        if (servers := builder.servers) is not None:
            bench.calls.delegates.servers = servers
            await servers.update_tools(bench.calls)
        try:
            return await shared.until_signal(_answer_calls(only_call, bench))
        except shared.Interrupted as interrupted:
            return interrupted.exit_code


async def _answer_calls(only_call: ToolCallLine | None, bench: "Bench") -> int:
    if only_call is not None:
        answer = await bench.answer(only_call)
        _write_line(answer)
        return int(answer["is_error"])
    async for line in InputLines(unshared_stdin()):
        _write_line(await _answer_line(line, bench))
    return 0


async def _answer_line(line: bytes, bench: "Bench") -> dict[str, Any]:
    """Run the call in a line and return its result, which is an error for a line that is not a valid call."""
    try:
        call = msgspec.json.decode(line, type=ToolCallLine)
    except (ValueError, RecursionError) as error:
        example = '{"id": "1", "name": "file_read", "input": {"path": "a.py"}}'
        message = f"Not a valid call: {error}. Write a line like {example}"
        id = _id_in(line)  # with it the program knows which call failed
        call_error = CallError("invalid_parameters", "invalid_parameters", message, id)
        finished = ToolFinished(id, "", ToolResult(id, message, is_error=True), 0.0, error=call_error)
        return _result_object(ToolCallLine("", id=id), finished)
    return await bench.answer(call)


def _id_in(line: bytes) -> str:
    """Return the id in a JSON object that is not a valid call; empty if there is no usable id."""
    with suppress(ValueError, RecursionError):
        match msgspec.json.decode(line):
            case {"id": str() as id}:
                return id
    return ""


class Bench(NamedTuple):
    """Runs tool calls as in a conversation, but for a program instead of a model."""

    calls: SessionCalls
    state: AgentState
    answers: TTLCache[bytes, dict[str, Any]]  # to idempotent calls, which run only once; by the hash of the call

    async def answer(self, call: ToolCallLine) -> dict[str, Any]:
        """Run a call and return its result. A call with an id may be sent again if its answer was lost."""
        key = hashlib.sha256(msgspec.json.encode(call, order="deterministic")).digest()
        if call.id and (earlier_answer := self.answers.get(key)) is not None:
            return earlier_answer
        use = ToolUse(call.id or f"call_{secrets.token_hex(6)}", call.name, call.input)
        tool_call = Call(use, TurnCalls(session=self.calls, state=self.state, emit=lambda event: None))
        await run_call(tool_call)
        answer = _result_object(call, tool_call.report.finished)
        # The summary contains arguments of the call, which are not masked yet.
        answer["summary"] = self.calls.services.mask.text(answer["summary"])
        if call.id and not answer["is_error"] and self.calls.tools.get(call.name).is_idempotent:
            self.answers[key] = answer
        return answer


@asynccontextmanager
async def open_bench(builder: Builder, tools: ToolRegistry, mode: Mode) -> AsyncIterator["Bench"]:
    """Yield a bench with the rules and workspace that a session here would have; at the end, close the builder too."""
    rules = builder.rules()
    workspace = builder.workspace(rules)
    calls = builder.session_calls(tools, workspace)
    calls.history.ends_loops = False  # unlike a model, a program may repeat a call as often as it likes
    try:
        state = AgentState(model=ModelChoice(name=""), mode=mode, rules=rules)
        yield Bench(calls, state, TTLCache(MAX_ANSWERS, ANSWERS_S))
    finally:
        await workspace.sandbox.aclose()
        await builder.aclose()


def _result_object(call: ToolCallLine, finished: ToolFinished) -> dict[str, Any]:
    content = finished.result.content
    answer: dict[str, Any] = {
        "id": call.id,
        "is_error": finished.result.is_error,
        "content": content if isinstance(content, str) else msgspec.to_builtins(content),
        "summary": f"{call_title(call.name, call.input)} · {finished.summary}".removesuffix(" · "),
        "duration_ms": finished.duration_ms,
        "structured": finished.structured,
    }
    if finished.error is not None:
        answer["error"] = msgspec.structs.replace(finished.error, call_id=call.id)
    if finished.retry_count:
        answer |= {"retry_count": finished.retry_count, "last_error": finished.last_error}
    return answer


def _write_line(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer, enc_hook=str) + b"\n")
    sys.stdout.buffer.flush()


permissions_app = shared.make_app("Explain permissions.")

_VERDICTS = {"allow": "allow", "dry_run": "try", "ask": "ask", "deny": "block"}  # the names in the output


@permissions_app.callback()
def _group() -> None:
    """Keep `explain` a subcommand: typer would turn an app with a single command into that command."""


@permissions_app.command()
def explain(
    command: Annotated[str, typer.Argument(help="A shell command, which is not run.")] = "",
    permission_mode: Annotated[str, typer.Option(help=f"One of {', '.join(MODES)}.")] = "",
    json: shared.AsJson = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help='Read {"command"} lines, write verdicts.')] = False,
) -> None:
    """Show if a command would run, need approval or be denied, with the rule for each part and its effects."""
    if not (jsonl or command.strip()):
        raise UsageError('There is no command to explain. Add one: agentcli permissions explain "git push"')
    explainer = CommandExplainer(permission_mode)
    if jsonl:
        for line in sys.stdin.buffer:
            if line.strip():
                _write_line(_explain_line(line, explainer))
    elif json:
        shared.print_json(explainer.explain(command))
    else:
        echo(explainer.text(command))


class CommandLine(msgspec.Struct, frozen=True):
    command: str


def _explain_line(line: bytes, explainer: "CommandExplainer") -> dict[str, Any]:
    """Return the verdict on a line. A line that cannot be read gets the verdict `ask`, and an `error`."""
    command = ""  # until the line has been read
    try:
        command = msgspec.json.decode(line, type=CommandLine).command
        return explainer.explain(command)
    except (ValueError, RecursionError, ToolError) as error:
        why = str(error) if command else f'Not a valid line: {error}. Write a line like {{"command": "ls"}}.'
        effects = msgspec.to_builtins(Effects())
        return {"command": command, "verdict": "ask", "rule": "", "segments": [], "effects": effects, "error": why}


class CommandExplainer:
    """Explains the policy decisions that a session here would make on commands."""

    def __init__(self, permission_mode: str) -> None:
        self._builder = _builder()
        self._mode: Mode = parse_mode(permission_mode or self._builder.config.settings.permissions.mode)
        self._rules = self._builder.rules()
        self._bash = self._builder.tool_registry().get("bash")
        self._workspace = self._builder.workspace(self._rules)

    @cached_property
    def _can_dry_run(self) -> bool:
        return self._builder.config.settings.permissions.tries and not self._workspace.facts.dry_run_problem

    def _decide(self, command: str) -> tuple[PolicyDecision, CallFacts, CommandAnalysis]:
        """Return the decision on a command, and the facts and the analysis that it is based on. Raises `ToolError`."""
        facts = find_facts(self._bash, self._bash.parse({"command": command}), self._workspace)
        analysis = facts.command
        assert analysis is not None  # the tool is bash
        if analysis.verdict == "try":
            facts = msgspec.structs.replace(facts, dry_run="always" if self._can_dry_run else "never")
        return decide(facts, self._mode, self._rules), facts, analysis

    def explain(self, command: str) -> dict[str, Any]:
        """Return the object that `permissions explain --json` prints. Raises `ToolError`."""
        decision, facts, analysis = self._decide(command)
        return {
            "command": command,
            "verdict": _VERDICTS[decision.outcome],
            "rule": decision.reason,
            "segments": [self._explain_segment(segment, facts, analysis.problem) for segment in analysis.segments],
            "effects": msgspec.to_builtins(analysis.effects),
        }

    def _explain_segment(self, segment: Segment, facts: CallFacts, problem: str) -> dict[str, Any]:
        """Return the verdict on a segment as if it were the whole command, but with the whole command's `problem`."""
        analysis = CommandAnalysis(
            segments=(segment,),
            verdict=segment.verdict,
            reason=segment.reason,
            effects=segment.effects,
            problem=problem,
        )
        arguments = self._bash.parse({"command": segment.text})
        matches = find_matches(msgspec.structs.replace(facts, arguments=arguments, command=analysis), self._rules)
        # In order of precedence: blocks, deny rules, ask rules. A segment that only reads needs no allow rule.
        if segment.verdict == "block":
            verdict, reason = "block", segment.reason
        elif matches.deny is not None:
            verdict, reason = "block", f"{matches.deny.phrase} denies it"
        elif matches.ask is not None:
            verdict, reason = "ask", f"{matches.ask.phrase} requires approval"
        elif segment.verdict == "allow":
            verdict, reason = "allow", segment.reason or "it only reads inside the workspace"
        elif matches.allow:
            verdict, reason = "allow", f"the rule {matches.allow[0]} allows it"
        else:  # `why_not_allowed`: an allow rule covers the segment but cannot allow it, so the person is asked
            is_dry_run = segment.verdict == "try" and self._can_dry_run and not matches.why_not_allowed
            verdict, reason = "try" if is_dry_run else "ask", matches.why_not_allowed or segment.reason
        effects = msgspec.to_builtins(segment.effects)
        return {"text": segment.text, "verdict": verdict, "reason": reason, "effects": effects}

    def text(self, command: str) -> str:
        """Return the verdict for a person, line by line: the decision, the verdicts on the parts, and the effects."""
        decision, facts, analysis = self._decide(command)
        lines = [f"{_VERDICTS[decision.outcome]}: {decision.reason}"]
        if len(analysis.segments) > 1:
            rows = [self._explain_segment(segment, facts, analysis.problem) for segment in analysis.segments]
            lines += [f"  {row['verdict']:<5} {' '.join(row['text'].split())}  ({row['reason']})" for row in rows]
        # Only `call_effects` warns of leaving the sandbox. Else it would repeat the reason, which the first line has.
        effects = call_effects(facts, decision) if decision.runs_outside else command_effects(facts, analysis)
        lines += [f"  {line}" for line in effects.lines]
        return "\n".join(map(escape_hidden, lines))
