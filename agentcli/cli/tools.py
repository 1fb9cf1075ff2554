"""`agentcli tools`: what the model can do, and any of it by hand."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.events import CallError, Event, ToolFinished
from agentcli.agent.permissions import MODES, Mode, parse_mode
from agentcli.agent.state import AgentState
from agentcli.agent.tool_calls import CallRunner, run_call
from agentcli.app import Builder
from agentcli.cli.subcommands import AsJson, configuration, make_app, print_json, print_rows, run_app, wait_for
from agentcli.errors import UsageError
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.tools.summary import call_title

app = make_app("Look at the model's tools, or run them by hand.")


def run(arguments: list[str]) -> int:
    return run_app(app, "tools", arguments)


class Call(msgspec.Struct, frozen=True):
    """One line of input."""

    name: str
    input: dict[str, Any] = {}
    id: str = ""


@app.command("list")
def list_tools(json: AsJson = False) -> None:
    """Every tool: where it comes from, where it runs, what it can do, and its text for the model."""
    tools = list(_builder().tool_registry())
    if json:
        kept = ("name", "source", "mode", "effect")
        print_json([{k: getattr(t, k) for k in kept} | msgspec.to_builtins(t.spec()) for t in tools])
        return
    print_rows([(t.name, t.source, t.mode, t.effect, t.description.split("\n")[0]) for t in tools], empty="No tools.")


@app.command("run")
def run_tools(
    name: Annotated[str, typer.Argument(help="One tool; without it, calls are read from stdin.")] = "",
    input: Annotated[str, typer.Argument(help="Its arguments as JSON.")] = "{}",
    permission_mode: Annotated[str, typer.Option(help=f"One of {', '.join(MODES)}.")] = "default",
) -> None:
    """Run calls, one JSON object {"id","name","input"} a line, and write one result a line."""
    mode = parse_mode(permission_mode)
    code = wait_for(_run_calls(_one(name, input) if name else None, mode))
    raise typer.Exit(code)


def _one(name: str, input: str) -> Call:
    try:
        return Call(name, msgspec.json.decode(input, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise UsageError(f"The arguments are not a JSON object: {error}") from error


def _builder() -> Builder:
    return Builder(configuration(), store=MemorySessions())


async def _run_calls(single: Call | None, mode: Mode) -> int:
    builder = _builder()
    workspace = builder.workspace()
    runner = builder.call_runner(builder.tool_registry(), workspace)
    if runner.mask is not None:
        runner.mask.keeps_structured = True
    runner.ends_loops = False  # a script may ask the same as often as it likes
    bench = Bench(runner, AgentState("", mode, rules=builder.rules()))
    failed = False
    try:
        if single is not None:
            answer = await bench.answer(single)
            failed = bool(answer["is_error"])
            _write(answer)
        else:
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                if line.strip():
                    _write(await _answer_line(line, bench))
    finally:
        await workspace.sandbox.aclose()
        await builder.aclose()
    return int(failed)


async def _answer_line(line: bytes, bench: Bench) -> dict[str, Any]:
    try:
        return await bench.answer(msgspec.json.decode(line, type=Call))
    except msgspec.DecodeError as error:
        wrong = CallError("invalid_parameters", "invalid_parameters", f"Not a call: {error}", "")
        return _answer(Call(""), ToolFinished("", "", ToolResult("", wrong.message, is_error=True), 0.0, error=wrong))


@dataclass
class Bench:
    """Calls go the way they go in a conversation, but no model reads the results."""

    runner: CallRunner
    state: AgentState

    async def answer(self, call: Call) -> dict[str, Any]:
        ended: list[ToolFinished] = []

        def hear(event: Event) -> None:
            if isinstance(event, ToolFinished):
                ended.append(event)

        await run_call(self.runner, self.state, ToolUse(call.id, call.name, call.input), hear, {})
        return _answer(call, ended[-1])


def _answer(call: Call, ended: ToolFinished) -> dict[str, Any]:
    content = ended.result.content
    answer: dict[str, Any] = {
        "id": call.id,
        "is_error": ended.result.is_error,
        "content": content if isinstance(content, str) else [_shown(part) for part in content],
        "summary": f"{call_title(call.name, call.input)} · {ended.summary}".removesuffix(" · "),
        "duration_ms": ended.duration_ms,
        "structured": ended.structured,
    }
    if ended.error is not None:
        answer["error"] = ended.error
    if ended.retry_count:
        answer |= {"retry_count": ended.retry_count, "last_error": ended.last_error}
    return answer


def _shown(part: Any) -> Any:
    return {"type": "text", "text": part.text} if isinstance(part, Text) else msgspec.to_builtins(part)


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer, enc_hook=_plain) + b"\n")
    sys.stdout.buffer.flush()


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
