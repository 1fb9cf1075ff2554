"""`agentcli hooks`: shows which commands run at which events, and what they answer."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.events import HookRan
from agentcli.agent.hooks import EventAnswer
from agentcli.agent.permissions.rule_text import ALIASES
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json
from agentcli.errors import UsageError, did_you_mean
from agentcli.extensions.hooks.config import Hooks
from agentcli.extensions.hooks.run import EVENTS
from agentcli.llm.messages import ToolUse

app = make_app("Show which commands run at which events, and try them.")
_ABOUT_CALLS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "PermissionDenied")


@app.command("list")
def list_hooks(json: AsJson = False) -> None:
    """List the hooks that count here: yours, then those of the project where it is trusted."""
    keys = ("event", "matcher", "command", "timeout", "onError", "if", "source")
    rows = [
        dict(zip(keys, (event, matcher or "*", command, *others), strict=True))
        for event, command, matcher, *others in map(
            msgspec.structs.astuple, Hooks(configuration(), is_bare=False, tell=warn).specs
        )
    ]
    if json:
        print_json(rows)
        return
    for row in rows:
        echo(f"{row['event']:<18} {row['matcher']:<16} {row['command']}  ({row['source']})")
    if not rows:
        echo("No hook is set: see docs/hooks.md.")


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
        given = msgspec.json.decode(input, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise UsageError(f"--input is no JSON object: {error}.") from error
    ran: list[HookRan] = []
    said = EventAnswer()
    if (hooks := Hooks(configuration(), is_bare=False, tell=warn).of_session("test", lambda: "default")) is not None:
        hooks.publish = lambda one: ran.append(one) if isinstance(one, HookRan) else None
        use = ToolUse("test", ALIASES.get(tool, tool), given)
        fired = hooks.fire_about(event, use, given) if event in _ABOUT_CALLS else hooks.fire(event, **given)
        said = asyncio.run(fired)
    if json:
        print_json({"ran": [msgspec.to_builtins(one) for one in ran], "answer": msgspec.to_builtins(said)})
        return
    for one in ran:
        told = " · ".join(part for part in (one.decision or "says nothing", one.reason, one.problem) if part)
        echo(f"{one.command}: {told} ({one.duration_ms} ms)")
    if not ran:
        echo("No hook is for that.")
    if said.input is not None:
        echo(f"The arguments become {msgspec.json.encode(said.input).decode()}")
    if said.context:
        echo(f"The model is told: {said.context}")
