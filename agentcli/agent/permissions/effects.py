"""Says what a call would do, in words a person can judge at a glance."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from msgspec import Struct

from agentcli.agent.permissions.decide import CHANGES_A_FILE, Verdict
from agentcli.agent.permissions.facts import CallFacts
from agentcli.safety.commands.records import UNKNOWN, CommandAnalysis, known
from agentcli.safety.paths.judge import WHY

MAX_SHOWN = 6
OUTSIDE = "runs OUTSIDE the sandbox: it can read, change and send anything you can"

# Reasons to ask that say no more than the effects do.
_BEYOND = "acts beyond the workspace$|reaches other machines$|fetches what it runs$"
_TOLD = "is not known to only read$|^it writes |may hold secrets|is outside the workspace"
# Run what they read; where that comes from a host it is a script from there.
_INTERPRETERS = frozenset("sh bash dash zsh ksh fish python python3 perl ruby node php".split())


class CallEffects(Struct, frozen=True):
    """`lines` say what a call would do, the weightiest first; `grave` are those a person must not overlook."""

    lines: tuple[str, ...]
    grave: tuple[str, ...] = ()


def call_effects(facts: CallFacts, verdict: Verdict) -> CallEffects:
    """The effects of a call, then why it asks, where that says more."""
    if facts.command is not None:
        return _of_command(facts, facts.command, verdict)
    if facts.tool.effect in ("read", "edit"):
        return _of_file_tool(facts, verdict)
    return CallEffects((verdict.reason,))


def _of_file_tool(facts: CallFacts, verdict: Verdict) -> CallEffects:
    is_edit = facts.tool.effect == "edit"
    said = WHY | {"outside": "writes outside the project" if is_edit else "outside the project"}
    kinds = dict.fromkeys(path.kind for path in facts.files if path.kind != "plain")
    grave = tuple(said[kind] for kind in kinds if kind != "outside" or is_edit)
    is_told = verdict.reason in (CHANGES_A_FILE, *(path.why for path in facts.files))
    return CallEffects((*(said[kind] for kind in kinds), *(() if is_told else (verdict.reason,))), grave)


def _of_command(facts: CallFacts, command: CommandAnalysis, verdict: Verdict) -> CallEffects:
    told, workspace, given = command_effects(facts, command), facts.workspace, facts.arguments
    folder = getattr(given, "cwd", None) or (workspace.shell_cwd and workspace.shown(workspace.shell_cwd))
    where = [f"runs in {folder}"] if folder and folder != "." else []
    where += ["goes on in the background"] if getattr(given, "background", False) else []
    lines, grave = (*told.lines, *where), told.grave
    if getattr(given, "unconfined", False):
        return CallEffects((OUTSIDE, *lines), (OUTSIDE, *grave))
    is_told = verdict.reason == command.reason and re.search(_TOLD, command.reason)
    is_by_host = command.effects.hosts and re.search(_BEYOND, verdict.reason)
    return CallEffects(lines if is_told or is_by_host else (*lines, verdict.reason), grave)


def command_effects(facts: CallFacts, command: CommandAnalysis) -> CallEffects:
    """`deletes docs, build`, `reaches example.org`, `writes build/app.js`; what cannot be told is said once."""
    effects, needs, shown = command.effects, facts.needs, facts.paths.shown
    hosts, programs = known(effects.hosts), [_program(program) for program in effects.runs]
    is_opaque = all(UNKNOWN in things for things in (effects.reads, effects.writes, effects.deletes, effects.hosts))
    is_script = bool(hosts) and is_opaque and any(name in _INTERPRETERS for name in programs)
    deletes_found = any(
        segment.words and segment.words[0] == "find" and "-delete" in segment.words for segment in command.segments
    )
    opened = {str(need.real) for need in needs}
    grave = [
        _row("deletes", [*shown(effects.deletes), *(["what find finds"] if deletes_found else [])]),
        _row("runs a script from" if is_script else "reaches", hosts),
        _row("writes outside the project:", shown(tuple(str(n.real) for n in needs if n.kind == "outside"))),
        *(f"{n.access}s {shown((str(n.real),))[0]}, which {WHY[n.kind]}" for n in needs if n.kind != "outside"),
    ]
    plain = [_row("writes", shown(tuple(path for path in effects.writes if path not in opened)))]
    if is_opaque and not is_script:
        runs = "what else it does" if any((*grave, *plain)) else f"{_row('runs', programs)}: what it does"
        plain.append(f"{runs} cannot be told")
    elif not is_opaque and (hidden := _hidden(command)):
        (grave if UNKNOWN in (*effects.deletes, *effects.hosts) else plain).append(hidden)
    if not any((*grave, *plain)):
        read = facts.paths.find_each(effects.reads, "read")
        outside = tuple(path.given for path in read if path.kind == "outside")
        reads = _row("reads outside the project:" if outside else "reads", shown(outside or effects.reads))
        plain = [reads or _row("runs", programs)]
    return CallEffects(tuple(filter(None, (*grave, *plain))), tuple(filter(None, grave)))


def _hidden(command: CommandAnalysis) -> str:
    """Return the line about the effects of a command that only the shell knows, where the others are known."""
    effects = command.effects
    verbs = [verb for verb, paths in (("deletes", effects.deletes), ("writes", effects.writes)) if UNKNOWN in paths]
    parts = [f"{' and '.join(verbs)} files"] if verbs else []
    if UNKNOWN in effects.hosts:
        parts.append("reaches hosts")
    return f"{' and '.join(parts)} that cannot be told" if parts else ""


def _row(verb: str, things: Iterable[str]) -> str:
    things = list(dict.fromkeys(things))
    more = f" and {len(things) - MAX_SHOWN} more" if len(things) > MAX_SHOWN else ""
    return f"{verb} {', '.join(things[:MAX_SHOWN])}{more}" if things else ""


def _program(program: str) -> str:
    return "something" if program == UNKNOWN else PurePath(program).name
