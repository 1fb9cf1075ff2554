"""`agentcli permissions`: what would happen to a command, and why."""

from __future__ import annotations

import codecs
import sys
from functools import cached_property
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.permissions.approvals import command_effects
from agentcli.agent.permissions.decide import Verdict, decide
from agentcli.agent.permissions.facts import CallFacts, find_facts
from agentcli.agent.permissions.modes import MODES, Mode, parse_mode
from agentcli.agent.permissions.rules import Rules, find_matches
from agentcli.app import Builder
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json
from agentcli.errors import ToolError, UsageError
from agentcli.frontends.printable import exposed
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.safety.commands.records import CommandAnalysis, Effects, Segment
from agentcli.tools.command import Profile
from agentcli.tools.tool import Tool, Workspace

app = make_app("Look at permissions.")

_VERDICTS = {"allow": "allow", "dry_run": "try", "ask": "ask", "deny": "block"}


@app.callback()
def _group() -> None:
    """With one command only, typer would make it the whole app."""


@app.command()
def explain(
    command: Annotated[str, typer.Argument(help="A shell command; it is judged, never run.")] = "",
    permission_mode: Annotated[str, typer.Option(help=f"One of {', '.join(MODES)}.")] = "",
    json: AsJson = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help='Read {"command"} lines, write a verdict for each.')] = False,
) -> None:
    """Show if a command would run, be asked about or refused, part by part with the rule, and what it would touch."""
    if not (jsonl or command.strip()):
        raise UsageError('There is no command to explain: agentcli permissions explain "git push".')
    judging = Judging(permission_mode)
    if jsonl:
        for number, line in enumerate(sys.stdin.buffer):
            line = line if number else line.removeprefix(codecs.BOM_UTF8)
            if line.strip():
                sys.stdout.buffer.write(msgspec.json.encode(_answer(line, judging)) + b"\n")
                sys.stdout.buffer.flush()
    elif json:
        print_json(judging.explained(command))
    else:
        echo(judging.text(command))


class CommandLine(msgspec.Struct, frozen=True):
    """One line of input."""

    command: str


def _answer(line: bytes, judging: Judging) -> dict[str, Any]:
    """Return the verdict for a line; one that cannot be judged is not allowed, and has an `error` beside the rest."""
    command = ""
    try:
        command = msgspec.json.decode(line, type=CommandLine).command
        return judging.explained(command)
    except (ValueError, RecursionError, ToolError) as error:
        why = str(error) if command else f'Not a line like {{"command": "ls"}}: {error}.'
        effects = msgspec.to_builtins(Effects())
        return {"command": command, "verdict": "ask", "rule": "", "segments": [], "effects": effects, "error": why}


class Judging:
    """Judges commands as a session here would. The sandbox is asked only about dry runs and in the mode `auto`."""

    def __init__(self, permission_mode: str) -> None:
        config = configuration(warns=True)
        builder = Builder(config, store=MemorySessions(), on_notice=warn)
        self.mode: Mode = parse_mode(permission_mode or config.settings.permissions.mode)
        self.rules: Rules = builder.rules()
        self.bash: Tool = builder.tool_registry().get("bash")
        profile: Profile | None = None if self.mode == "auto" else "danger-full-access"
        self.workspace: Workspace = builder.workspace(self.rules, profile=profile)
        self._builder = builder
        self._tries: bool = config.settings.permissions.tries

    @cached_property
    def _can_dry_run(self) -> bool:
        return self._tries and not self._builder.workspace(self.rules).facts.dry_run_problem

    def _judged(self, command: str) -> tuple[Verdict, CallFacts, CommandAnalysis]:
        facts = find_facts(self.bash, self.bash.parse({"command": command}), self.workspace)
        analysis = facts.command
        assert analysis is not None
        if analysis.verdict == "try":
            facts = msgspec.structs.replace(facts, dry_run="always" if self._can_dry_run else "never")
        return decide(facts, self.mode, self.rules), facts, analysis

    def explained(self, command: str) -> dict[str, Any]:
        verdict, facts, analysis = self._judged(command)
        return {
            "command": command,
            "verdict": _VERDICTS[verdict.decision],
            "rule": verdict.reason,
            "segments": [self._segment(segment, facts, analysis.problem) for segment in analysis.segments],
            "effects": msgspec.to_builtins(analysis.effects),
        }

    def _segment(self, segment: Segment, facts: CallFacts, problem: str) -> dict[str, Any]:
        whole = CommandAnalysis((segment,), segment.verdict, segment.reason, segment.effects, problem)
        given = self.bash.parse({"command": segment.text})
        found = find_matches(msgspec.structs.replace(facts, arguments=given, command=whole), self.rules)
        if segment.verdict == "block":
            decided, why = "block", segment.reason
        elif found.deny is not None:
            decided, why = "block", f"{found.deny.phrase} denies it"
        elif segment.verdict == "allow":
            decided, why = "allow", segment.reason or "it only reads inside the workspace"
        elif found.allow:
            decided, why = "allow", f"the rule {found.allow[0]} allows it"
        else:
            is_tried = segment.verdict == "try" and self._can_dry_run and not found.why_not
            decided = "try" if is_tried else "ask"
            why = found.why_not or segment.reason
        effects = msgspec.to_builtins(segment.effects)
        return {"text": segment.text, "verdict": decided, "reason": why, "effects": effects}

    def text(self, command: str) -> str:
        verdict, facts, analysis = self._judged(command)
        lines = [f"{_VERDICTS[verdict.decision]}: {verdict.reason}"]
        if len(analysis.segments) > 1:
            rows = [self._segment(segment, facts, analysis.problem) for segment in analysis.segments]
            lines += [f"  {row['verdict']:<5} {' '.join(row['text'].split())}  ({row['reason']})" for row in rows]
        lines += [f"  {line}" for line in command_effects(facts, analysis).lines]
        return "\n".join(map(exposed, lines))
