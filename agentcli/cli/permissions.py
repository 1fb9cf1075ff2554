"""`agentcli permissions`: what would happen to a command, and why."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.effects import effect_lines
from agentcli.agent.permissions import (
    MODES,
    Mode,
    Verdict,
    allowing_rules,
    analysis_of,
    judge,
    parse_mode,
    refusing_rule,
)
from agentcli.agent.rules import Rules
from agentcli.app import Builder
from agentcli.cli.output import tell
from agentcli.cli.subcommands import AsJson, configuration, make_app, print_json, run_app
from agentcli.errors import UsageError
from agentcli.frontends.printable import exposed
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.tools.shell.records import CommandAnalysis, Segment
from agentcli.tools.tool import Tool, Workspace

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
    """Whether a command would run, be asked about, or be refused: part by part, with the rule that decides.

    Also what it would read, write and delete, and which hosts it would talk to.
    """
    judging = Judging(permission_mode)
    if jsonl:
        for line in sys.stdin.buffer:
            if line.strip():
                sys.stdout.buffer.write(msgspec.json.encode(judging.explained(_command_of(line))) + b"\n")
        sys.stdout.buffer.flush()
    elif json:
        print_json(judging.explained(command))
    else:
        tell(judging.told(command))


def _command_of(line: bytes) -> str:
    try:
        return str(msgspec.json.decode(line, type=dict[str, Any])["command"])
    except (msgspec.DecodeError, KeyError) as error:
        raise UsageError(f'Not a line like {{"command": "ls"}}: {line[:200].decode(errors="replace")!r}.') from error


class Judging:
    """Commands as a session here would judge them, by their text: no sandbox is asked."""

    def __init__(self, permission_mode: str) -> None:
        config = configuration()
        builder = Builder(config, store=MemorySessions())
        self.mode: Mode = parse_mode(permission_mode or config.settings.permissions.mode)
        self.rules: Rules = builder.rules()
        self.bash: Tool = builder.tool_registry().get("bash")
        self.workspace: Workspace = builder.workspace(profile="danger-full-access")

    def _judged(self, command: str) -> tuple[Verdict, CommandAnalysis, Any]:
        arguments = self.bash.parse({"command": command})
        verdict = judge(self.bash, arguments, self.mode, self.rules, self.workspace)
        return verdict, analysis_of(arguments, self.workspace), arguments

    def explained(self, command: str) -> dict[str, Any]:
        verdict, analysis, arguments = self._judged(command)
        return {
            "command": command,
            "verdict": _VERDICTS[verdict.decision],
            "rule": verdict.reason,
            "segments": [self._segment(segment, arguments) for segment in analysis.segments],
            "effects": msgspec.to_builtins(analysis.effects),
        }

    def _segment(self, segment: Segment, arguments: Any) -> dict[str, Any]:
        alone = CommandAnalysis((segment,), segment.verdict, segment.reason, segment.effects)
        if segment.verdict == "catastrophic":
            decided, why = "block", segment.reason
        elif refusing := refusing_rule(self.bash, segment.text, alone, self.rules.deny, self.workspace):
            decided, why = "block", f"the rule {refusing} denies it"
        elif segment.verdict == "harmless":
            decided, why = "allow", segment.reason or "it only reads inside the workspace"
        elif granting := allowing_rules(self.bash, segment.text, alone, self.rules.allow, self.workspace):
            decided, why = "allow", f"the rule {granting[0]} allows it"
        else:
            decided, why = "ask", segment.reason
        effects = msgspec.to_builtins(segment.effects)
        return {"text": segment.text, "verdict": decided, "reason": why, "effects": effects}

    def told(self, command: str) -> str:
        verdict, analysis, arguments = self._judged(command)
        lines = [f"{_VERDICTS[verdict.decision]}: {verdict.reason}"]
        if len(analysis.segments) > 1:
            rows = [self._segment(segment, arguments) for segment in analysis.segments]
            lines += [f"  {row['verdict']:<5} {' '.join(row['text'].split())}  ({row['reason']})" for row in rows]
        lines += [f"  {line}" for line in effect_lines(analysis, self.workspace)]
        return "\n".join(map(exposed, lines))
