"""`agentcli tools`: what the model can do, and any of it by hand."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.permissions import MODES, Rules, judge, parse_mode, parse_rule
from agentcli.app import Builder
from agentcli.cli.subcommands import AsJson, configuration, make_app, print_json, print_rows, run_app, wait_for
from agentcli.errors import ToolError, UsageError
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.llm.messages import Text
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.summary import call_title
from agentcli.tools.tool import ToolContext, ToolOutput, Workspace

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
    """Every tool: where it comes from, what it can do, and its text for the model."""
    tools = list(_builder().tool_registry())
    if json:
        print_json(
            [{"name": t.name, "source": t.source, "effect": t.effect, **msgspec.to_builtins(t.spec())} for t in tools]
        )
        return
    print_rows([(t.name, t.source, t.effect, t.description.split("\n")[0]) for t in tools], empty="No tools.")


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


async def _run_calls(single: Call | None, mode: Any) -> int:
    builder = _builder()
    registry, workspace = builder.tool_registry(), builder.workspace()
    settings = builder.config.settings.permissions
    rules = Rules([parse_rule(text) for text in settings.allow], [parse_rule(text) for text in settings.deny])
    failed = False
    try:
        if single is not None:
            answer = await _run_one(single, registry, workspace, mode, rules)
            failed = bool(answer["is_error"])
            _write(answer)
        else:
            while line := await asyncio.to_thread(sys.stdin.buffer.readline):
                if line.strip():
                    _write(await _run_line(line, registry, workspace, mode, rules))
    finally:
        await workspace.sandbox.aclose()
        await builder.aclose()
    return int(failed)


async def _run_line(
    line: bytes, registry: ToolRegistry, workspace: Workspace, mode: Any, rules: Rules
) -> dict[str, Any]:
    try:
        call = msgspec.json.decode(line, type=Call)
    except msgspec.DecodeError as error:
        wrong = ToolError(f"Not a call: {error}", kind="invalid_parameters")
        return _answer(Call(""), _failure(wrong), 0.0, wrong)
    return await _run_one(call, registry, workspace, mode, rules)


async def _run_one(call: Call, registry: ToolRegistry, workspace: Workspace, mode: Any, rules: Rules) -> dict[str, Any]:
    started = time.perf_counter()
    error: ToolError | None = None
    try:
        tool = registry.get(call.name)
        arguments = tool.parse(call.input)
        verdict = judge(tool, arguments, mode, rules, workspace)
        if verdict.decision != "allow":
            raise ToolError(f"Denied: {verdict.reason}.", kind="permission_denied")
        output = await tool.run(arguments, ToolContext(workspace, call.id))
    except ToolError as raised:
        error, output = raised, _failure(raised)
    return _answer(call, output, round((time.perf_counter() - started) * 1000, 1), error)


def _failure(error: ToolError) -> ToolOutput:
    return ToolOutput(str(error), is_error=True)


def _answer(call: Call, output: ToolOutput, duration_ms: float, error: ToolError | None) -> dict[str, Any]:
    content = output.content if isinstance(output.content, str) else [_shown(part) for part in output.content]
    summary = f"{call_title(call.name, call.input)} · {output.summary}".removesuffix(" · ")
    answer: dict[str, Any] = {
        "id": call.id,
        "is_error": output.is_error,
        "content": content,
        "summary": summary,
        "duration_ms": duration_ms,
        "structured": output.structured,
    }
    if error is not None:
        answer["error"] = {"kind": error.kind, "code": error.code, "message": str(error)}
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
