"""`agentcli permissions`: what would happen to a command, and why."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.permissions import MODES, Rules, judge, parse_mode, parse_rule
from agentcli.app import Builder
from agentcli.cli.subcommands import AsJson, configuration, make_app, print_json, run_app
from agentcli.infra.sessions.memory import MemorySessions

app = make_app("Look at permissions.")

_VERDICTS = {"allow": "allow", "ask": "ask", "deny": "block"}


def run(arguments: list[str]) -> int:
    return run_app(app, "permissions", arguments)


@app.callback()
def _group() -> None:
    """With one command only, typer would make it the whole app."""


@app.command()
def explain(
    command: Annotated[str, typer.Argument(help="A shell command; it is judged, never run.")] = "",
    permission_mode: Annotated[str, typer.Option(help=f"One of {', '.join(MODES)}.")] = "",
    json: AsJson = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help='Read {"command"} lines from stdin, write a verdict a line.')
    ] = False,
) -> None:
    """Whether a command would run, be asked about, or be refused."""
    config = configuration()
    builder = Builder(config, store=MemorySessions())
    settings = config.settings.permissions
    mode = parse_mode(permission_mode or settings.mode)
    rules = Rules([parse_rule(text) for text in settings.allow], [parse_rule(text) for text in settings.deny])
    bash, workspace = builder.tool_registry().get("bash"), builder.workspace()

    def verdict(text: str) -> dict[str, Any]:
        found = judge(bash, bash.parse({"command": text}), mode, rules, workspace)
        decided = _VERDICTS[found.decision]
        return {"command": text, "verdict": decided, "rule": found.reason, "segments": [], "effects": {}}

    if jsonl:
        for line in sys.stdin.buffer:
            if line.strip():
                row = msgspec.json.decode(line)
                sys.stdout.buffer.write(msgspec.json.encode(verdict(str(row["command"]))) + b"\n")
        sys.stdout.buffer.flush()
    elif json:
        print_json(verdict(command))
    else:
        told = verdict(command)
        print(f"{told['verdict']}: {told['rule']}")
