"""What a call would do, in lines a person can judge at a glance."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentcli.agent.permissions import Verdict, analysis_of
from agentcli.tools.shell.records import UNKNOWN, CommandAnalysis
from agentcli.tools.tool import Tool, Workspace

MOST_SHOWN = 6


def effects_told(tool: Tool, arguments: Any, verdict: Verdict, workspace: Workspace) -> tuple[str, ...]:
    """`writes build/app.js, dist/`, `deletes …`, `network example.org`, `opens ~/.netrc`; none for an edit."""
    if tool.effect != "command":
        return tuple(f"opens {need.path} to {need.access}" for need in verdict.needs)
    told = effect_lines(analysis_of(arguments, workspace), workspace)
    if getattr(arguments, "unconfined", False):
        told = ("runs OUTSIDE the sandbox: it can read, change and send anything you can", *told)
    opened = [f"opens {workspace.shown(need.path)} to {need.access}" for need in verdict.needs]
    return (*told, *opened)


def effect_lines(analysis: CommandAnalysis, workspace: Workspace) -> tuple[str, ...]:
    effects = analysis.effects
    touched = (effects.reads, effects.writes, effects.deletes, effects.hosts)
    if all(things == (UNKNOWN,) for things in touched):
        programs = _listed([_program(program) for program in effects.runs])
        return (f"runs {programs}: what that touches cannot be told",)
    rows = (
        ("reads", [_path(path, workspace) for path in effects.reads]),
        ("writes", [_path(path, workspace) for path in effects.writes]),
        ("deletes", [_path(path, workspace) for path in effects.deletes]),
        ("network", [_host(host) for host in effects.hosts]),
        ("runs", [_program(program) for program in effects.runs]),
    )
    return tuple(f"{verb} {_listed(things)}" for verb, things in rows if things)


def _path(path: str, workspace: Workspace) -> str:
    return "files that cannot be told" if path == UNKNOWN else workspace.shown(Path(os.path.normpath(path)))


def _host(host: str) -> str:
    return "hosts that cannot be told" if host == UNKNOWN else host


def _program(program: str) -> str:
    return "something that cannot be told" if program == UNKNOWN else program


def _listed(things: list[str]) -> str:
    things = list(dict.fromkeys(things))
    more = f" and {len(things) - MOST_SHOWN} more" if len(things) > MOST_SHOWN else ""
    return ", ".join(things[:MOST_SHOWN]) + more
