"""Says what a call would do, in words a person can judge at a glance."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from msgspec import Struct

from agentcli.agent.permissions.decide import CHANGES_A_FILE, Verdict
from agentcli.agent.permissions.facts import WHY, CallFacts, Kind, Need, look_at_real
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis
from agentcli.tools.tool import Tool, Workspace

MOST_SHOWN = 6
OUTSIDE = "runs OUTSIDE the sandbox: it can read, change and send anything you can"

# Reasons to ask that say no more than the effects do.
_BEYOND = re.compile("acts beyond the workspace$|reaches other machines$|fetches what it runs$")
_TOLD = re.compile(r"is not known to only read$|^it writes |may hold secrets|is outside the workspace")
# Run what they read; where that comes from a host it is a script from there.
_INTERPRETERS = frozenset("sh bash dash zsh ksh fish python python3 perl ruby node php".split())


class CallEffects(Struct, frozen=True):
    """`lines` say what a call would do, the weightiest first; `grave` are those a person must not overlook."""

    lines: tuple[str, ...]
    grave: tuple[str, ...] = ()


def call_effects(judged: CallFacts, verdict: Verdict) -> CallEffects:
    """The effects of a call, then why it asks, where that says more. Blocks: it looks at the disk."""
    if judged.command is not None:
        return _of_command(judged, judged.command, verdict)
    if judged.tool.effect in ("read", "edit"):
        return _of_file_tool(judged, verdict)
    return CallEffects((verdict.reason,))


def effect_lines(analysis: CommandAnalysis, needs: Sequence[Need], workspace: Workspace) -> tuple[str, ...]:
    """`deletes docs, build`, `reaches example.org`, `writes build/app.js`; what cannot be told is said once."""
    return _effects_of_analysis(analysis, needs, workspace).lines


def _of_command(judged: CallFacts, analysis: CommandAnalysis, verdict: Verdict) -> CallEffects:
    told = _effects_of_analysis(analysis, verdict.needs, judged.workspace)
    told = CallEffects((*told.lines, *_circumstances(judged)), told.grave)
    if getattr(judged.arguments, "unconfined", False):
        return CallEffects((OUTSIDE, *told.lines), (OUTSIDE, *told.grave))
    is_told = verdict.reason == analysis.reason and _TOLD.search(analysis.reason)
    is_by_host = analysis.effects.hosts and _BEYOND.search(verdict.reason)
    return told if is_told or is_by_host else CallEffects((*told.lines, verdict.reason), told.grave)


def _circumstances(judged: CallFacts) -> list[str]:
    """Return where a command runs and that it stays, where its text does not show it."""
    workspace, given = judged.workspace, judged.arguments
    folder = getattr(given, "cwd", None) or (workspace.shell_cwd and workspace.shown(workspace.shell_cwd))
    lines = [f"runs in {folder}"] if folder and folder != "." else []
    return [*lines, "goes on in the background"] if getattr(given, "background", False) else lines


def _of_file_tool(judged: CallFacts, verdict: Verdict) -> CallEffects:
    tool, targets = judged.tool, judged.targets
    lines = {_said_of_file(target.kind, tool): target.kind for target in targets if target.kind != "plain"}
    grave = tuple(line for line, kind in lines.items() if kind != "outside" or tool.effect == "edit")
    is_told = verdict.reason in (CHANGES_A_FILE, *(target.why for target in targets))
    return CallEffects((*lines, *(() if is_told else (verdict.reason,))), grave)


def _said_of_file(kind: Kind, tool: Tool) -> str:
    if kind == "outside":
        return "writes outside the project" if tool.effect == "edit" else "outside the project"
    return WHY[kind]


def _effects_of_analysis(analysis: CommandAnalysis, needs: Sequence[Need], workspace: Workspace) -> CallEffects:
    effects = analysis.effects
    opened = {str(need.path) for need in needs}
    hosts, programs = _known(effects.hosts), [_program(program) for program in effects.runs]
    is_opaque = all(UNKNOWN in things for things in (effects.reads, effects.writes, effects.deletes, effects.hosts))
    is_script = bool(hosts) and is_opaque and any(name in _INTERPRETERS for name in programs)
    grave = [
        _row("deletes", [*_paths(effects.deletes, workspace), *_found(analysis)]),
        _row("runs a script from" if is_script else "reaches", hosts),
        *_opened(needs, workspace),
    ]
    plain = [_row("writes", _paths((path for path in effects.writes if path not in opened), workspace))]
    if is_opaque and not is_script:
        is_all = not any((*grave, *plain))
        runs = f"{_row('runs', programs)}: what it does" if is_all else "what else it does"
        plain.append(f"{runs} cannot be told")
    elif not is_opaque and (hidden := _hidden(analysis)):
        (grave if UNKNOWN in (*effects.deletes, *effects.hosts) else plain).append(hidden)
    if not any((*grave, *plain)):
        outside = [path for path in _known(effects.reads) if _kind(Path(path), workspace) == "outside"]
        reads = _row("reads outside the project:" if outside else "reads", _paths(outside or effects.reads, workspace))
        plain = [reads or _row("runs", programs)]
    return CallEffects(tuple(filter(None, (*grave, *plain))), tuple(filter(None, grave)))


def _opened(needs: Sequence[Need], workspace: Workspace) -> list[str]:
    """Return the lines about files for which the sandbox is opened."""
    outside: list[str] = []
    others: list[str] = []
    for need in needs:
        shown = workspace.shown(need.path)
        kind = look_at_real(need.path, need.access, workspace).kind
        if kind in ("outside", "plain"):
            outside.append(shown)
        else:
            others.append(f"{need.access}s {shown}, which {WHY[kind]}")
    return [_row("writes outside the project:", outside), *others]


def _hidden(analysis: CommandAnalysis) -> str:
    """Return the line about the effects of a command that only the shell knows, where the others are known."""
    effects = analysis.effects
    verbs = [verb for verb, paths in (("deletes", effects.deletes), ("writes", effects.writes)) if UNKNOWN in paths]
    parts = [f"{' and '.join(verbs)} files"] if verbs else []
    if UNKNOWN in effects.hosts:
        parts.append("reaches hosts")
    return f"{' and '.join(parts)} that cannot be told" if parts else ""


def _found(analysis: CommandAnalysis) -> list[str]:
    words = [segment.words or ("",) for segment in analysis.segments]
    return ["what find finds"] if any(first == "find" and "-delete" in rest for first, *rest in words) else []


def _kind(path: Path, workspace: Workspace) -> Kind:
    return look_at_real(path, "read", workspace).kind


def _row(verb: str, things: Sequence[str]) -> str:
    things = list(dict.fromkeys(things))
    more = f" and {len(things) - MOST_SHOWN} more" if len(things) > MOST_SHOWN else ""
    return f"{verb} {', '.join(things[:MOST_SHOWN])}{more}" if things else ""


def _known(things: Iterable[str]) -> list[str]:
    return [thing for thing in things if thing != UNKNOWN]


def _paths(paths: Iterable[str], workspace: Workspace) -> list[str]:
    shown = [workspace.shown(Path(os.path.normpath(path))) for path in _known(paths)]
    return ["this folder" if path == "." else path for path in shown]


def _program(program: str) -> str:
    return "something" if program == UNKNOWN else PurePath(program).name
