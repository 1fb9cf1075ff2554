"""`agentcli hooks` shows which commands run at which events, and what they answer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.events import HookRan
from agentcli.agent.interfaces import EventAnswer
from agentcli.agent.permissions.rules import ALIASES
from agentcli.cli.output import warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_answer
from agentcli.errors import UsageError, did_you_mean
from agentcli.extensions.hooks.config import Hooks
from agentcli.extensions.hooks.run import EVENTS
from agentcli.llm.messages import ToolUse

app = make_app("Show which commands run at which events, and try them.")
_ABOUT_CALLS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "PermissionDenied")


@app.command("list")
def list_hooks(json: AsJson = False) -> None:
    """List the hooks that count here: yours, then those of the project where it is trusted."""
    specs = Hooks(configuration(), is_bare=False, on_notice=warn).specs
    keys = ("event", "matcher", "command", "timeout", "onError", "if", "source")
    rows = [
        (spec.event, spec.matcher or "*", spec.command, spec.timeout_s, spec.on_error, spec.condition, spec.source)
        for spec in specs
    ]
    lines = [f"{spec.event:<18} {spec.matcher or '*':<16} {spec.command}  ({spec.source})" for spec in specs]
    text = "\n".join(lines) or "No hook is set: see docs/hooks.md."
    print_answer([dict(zip(keys, row, strict=True)) for row in rows], text, as_json=json)


@app.command("test")
def try_hooks(
    event: Annotated[str, typer.Argument(help=f"One of {', '.join(EVENTS)}.")],
    tool: Annotated[str, typer.Option(help="The tool that a call is of.")] = "bash",
    input: Annotated[str, typer.Option(help="Its arguments, or the fields of another event, as JSON.")] = "{}",
    json: AsJson = False,
) -> None:
    """Run the hooks of an event now, and show what each of them answers and what follows from all of it."""
    if event not in EVENTS:
        raise UsageError(f"There is no event {event!r}{did_you_mean(event, EVENTS)}; there is {', '.join(EVENTS)}.")
    try:
        fields = msgspec.json.decode(input, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"--input is no JSON object: {error}.") from error
    runs: list[HookRan] = []
    answer = EventAnswer()
    if hooks := Hooks(configuration(), is_bare=False, on_notice=warn).of_session("test", lambda: "default"):
        hooks.session.publish = lambda event: runs.append(event) if isinstance(event, HookRan) else None
        use = ToolUse("test", ALIASES.get(tool, tool), fields)
        is_about_call = event in _ABOUT_CALLS
        answer = asyncio.run(hooks.fire_about(event, use, fields) if is_about_call else hooks.fire(event, **fields))
    lines = []
    for run in runs:
        parts = " · ".join(filter(None, (run.decision or "says nothing", run.reason, run.problem)))
        lines.append(f"{run.command}: {parts} ({run.duration_ms} ms)")
    lines = lines or ["No hook is for that."]
    if answer.input is not None:
        lines.append(f"The arguments become {msgspec.json.encode(answer.input).decode()}")
    if answer.context:
        lines.append(f"The model is told: {answer.context}")
    data = {"ran": list(map(msgspec.to_builtins, runs)), "answer": msgspec.to_builtins(answer)}
    print_answer(data, "\n".join(lines), as_json=json)
