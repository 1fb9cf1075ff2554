"""`agentcli tools`: what the model can do, and any of it by hand."""

from __future__ import annotations

import asyncio
import codecs
import json
import secrets
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
import typer
from msgspec.structs import replace

from agentcli.agent.calls.model import Call, SessionCalls, TurnCalls
from agentcli.agent.calls.run import run_call
from agentcli.agent.events import CallError, Event, ToolFinished
from agentcli.agent.permissions.modes import MODES, Mode, parse_mode
from agentcli.agent.state import AgentState, ModelChoice
from agentcli.app import Builder
from agentcli.cli.options import text_of_argument, unshared_stdin
from agentcli.cli.output import print_table, warn
from agentcli.cli.subcommands.shared import (
    AsJson,
    Interrupted,
    configuration,
    make_app,
    print_json,
    until_signal,
    wait_for,
)
from agentcli.errors import UsageError
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm.messages import Text, ToolResult, ToolUse
from agentcli.tools.path_names import display_name, is_utf8
from agentcli.tools.registry import ToolRegistry
from agentcli.tools.summary import call_title

app = make_app("Look at the model's tools, or run them by hand.")


class ToolLine(msgspec.Struct, frozen=True):
    """One line of input."""

    name: str
    input: dict[str, Any] = {}
    id: str = ""


@app.command("list")
def list_tools(as_json: AsJson = False) -> None:
    """Every tool: where it comes from, where it runs, what it can do, and its text for the model."""
    tools = list(_builder().tool_registry())
    if as_json:
        kept = ("name", "source", "mode", "effect")
        print_json([{k: getattr(t, k) for k in kept} | msgspec.to_builtins(t.spec()) for t in tools])
        return
    rows = [(t.name, t.source, t.mode, t.effect, t.description.split("\n")[0]) for t in tools]
    print_table(("name", "source", "runs", "effect", "description"), rows, empty="No tools.")


@app.command("run")
def run_tools(
    name: Annotated[str, typer.Argument(help="One tool; without it, calls are read from stdin.")] = "",
    input: Annotated[str, typer.Argument(help="Its arguments as JSON.")] = "{}",
    permission_mode: Annotated[str, typer.Option(help=f"One of {', '.join(MODES)}.")] = "default",
) -> None:
    """Run calls, one JSON object {"id","name","input"} a line, and write one result a line."""
    mode = parse_mode(permission_mode)
    raise typer.Exit(wait_for(_run_calls(_one(name, input) if name else None, mode)))


def _one(name: str, input: str) -> ToolLine:
    try:
        if not is_utf8(input):  # bytes of a name, or of the locale's charset
            input = json.dumps(_with_text(json.loads(input)))
        return ToolLine(name, msgspec.json.decode(input, type=dict[str, Any]))
    except (msgspec.DecodeError, json.JSONDecodeError) as error:
        raise UsageError(f"The arguments are not a JSON object: {error}") from error


def _with_text(value: Any, key: str = "") -> Any:
    """The arguments with all strings as text: a path as the tools show it, others as `text_of_argument` reads them."""
    match value:
        case str():
            return display_name(value) if key in ("path", "cwd") else text_of_argument(value)
        case dict():
            return {text_of_argument(key): _with_text(one, key) for key, one in value.items()}
        case list():
            return [_with_text(one) for one in value]
        case _:
            return value


def _builder() -> Builder:
    return Builder(configuration(warns=True), store=MemorySessions(), on_notice=warn)


async def _run_calls(single: ToolLine | None, mode: Mode) -> int:
    builder = _builder()
    async with open_bench(builder, builder.tool_registry(), mode) as bench:
        services = bench.calls.services
        if services.mask is not None:
            services.mask.keeps_structured = ("file_read",)  # the raw text
        services.levels = replace(services.levels, gives_all=True)
        if (servers := builder.servers) is not None:
            bench.calls.delegates.servers = servers
            await servers.join(bench.calls)
        try:
            return await until_signal(_answer_calls(single, bench))
        except Interrupted as signal:
            return signal.exit_code


async def _answer_calls(single: ToolLine | None, bench: Bench) -> int:
    if single is not None:
        answer = await bench.answer(single)
        _write(answer)
        return int(answer["is_error"])
    input = unshared_stdin()
    line = (await _next_line(input)).removeprefix(codecs.BOM_UTF8)
    while line:
        if line.strip():
            _write(await _answer_line(line, bench))
        line = await _next_line(input)
    return 0


async def _next_line(input: BinaryIO) -> bytes:
    """Return a line of stdin, empty at its end. Raises `UsageError`."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes | OSError] = loop.create_future()

    def settle(line: bytes | OSError) -> None:
        if not came.done():
            came.set_result(line)

    def read() -> None:
        line: bytes | OSError
        try:
            line = input.readline()
        except OSError as error:
            line = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, line)

    # In a thread that nothing waits for: one of the executor would hold up an interrupted program.
    threading.Thread(target=read, name="agentcli-stdin", daemon=True).start()
    if isinstance(line := await came, OSError):
        raise UsageError(f"Stdin could not be read: {line.strerror}.") from line
    return line


_EXAMPLE = '{"id": "1", "name": "file_read", "input": {"path": "a.py"}}'


async def _answer_line(line: bytes, bench: Bench) -> dict[str, Any]:
    try:
        call = msgspec.json.decode(line, type=ToolLine)
    except (ValueError, RecursionError) as error:
        id, message = _id_in(line), f"Not a call: {_problem(line, error)}. A call is a line like {_EXAMPLE}"
        wrong = CallError("invalid_parameters", "invalid_parameters", message, id)
        return _answer(ToolLine("", id=id), ToolFinished(id, "", ToolResult(id, message, True), 0.0, error=wrong))
    return await bench.answer(call)


def _id_in(line: bytes) -> str:
    """Return the id of what is no call, also in bytes that are no UTF-8; empty where none could be given back."""
    try:
        match json.loads(line.decode(errors="replace")):
            case {"id": str() as id} if is_utf8(id):
                return id
    except (ValueError, RecursionError):
        pass
    return ""


def _problem(line: bytes, error: Exception) -> str:
    if not isinstance(error, msgspec.ValidationError):
        half = ", perhaps because of half a surrogate pair" if rb"\ud" in line.lower() else ""
        return f"it cannot be read as JSON ({error}){half}"
    said, _, path = str(error).replace("`", "").partition(" - at $.")
    said = said[:1].lower() + said[1:]
    return f"{path}: {said}" if path else said


class Bench(NamedTuple):
    """Runs calls as in a conversation, but no model reads the results. A call with an id is run only once."""

    calls: SessionCalls
    state: AgentState

    async def answer(self, call: ToolLine) -> dict[str, Any]:
        events: list[Event] = []
        use = ToolUse(call.id or f"call_{secrets.token_hex(6)}", call.name, call.input)
        await run_call(Call(use, TurnCalls(session=self.calls, state=self.state, emit=events.append)))
        answer = _answer(call, next(event for event in reversed(events) if isinstance(event, ToolFinished)))
        if (mask := self.calls.services.mask) is not None:  # the title has what the call was given
            answer["summary"] = mask.text(answer["summary"])
        return answer


@asynccontextmanager
async def open_bench(builder: Builder, tools: ToolRegistry, mode: Mode) -> AsyncIterator[Bench]:
    """Yield a bench with the rules and the workspace of a session here; closes it and the builder."""
    rules = builder.rules()
    workspace = builder.workspace(rules)
    calls = builder.session_calls(tools, workspace)
    calls.history.ends_loops = False  # a program may ask the same as often as it likes
    try:
        yield Bench(calls, AgentState(model=ModelChoice(name=""), mode=mode, rules=rules))
    finally:
        await workspace.sandbox.aclose()
        await builder.aclose()


def _answer(call: ToolLine, ended: ToolFinished) -> dict[str, Any]:
    content = ended.result.content
    answer: dict[str, Any] = {
        "id": call.id,
        "is_error": ended.result.is_error,
        "content": content if isinstance(content, str) else list(map(_shown, content)),
        "summary": f"{call_title(call.name, call.input)} · {ended.summary}".removesuffix(" · "),
        "duration_ms": ended.duration_ms,
        "structured": ended.structured,
    }
    if ended.error is not None:
        answer["error"] = msgspec.structs.replace(ended.error, call_id=call.id)
    if ended.retry_count:
        answer |= {"retry_count": ended.retry_count, "last_error": ended.last_error}
    return answer


def _shown(part: Any) -> Any:
    return {"type": "text", "text": part.text} if isinstance(part, Text) else msgspec.to_builtins(part)


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer, enc_hook=str) + b"\n")
    sys.stdout.buffer.flush()
