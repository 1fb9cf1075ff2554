"""Asks before a command that could read the workspace's secret files, where no confinement hides them from it.

Once a session: a yes is about the files, and so counts for later commands too. A rule that means a file, such as
Read(.env), is a yes beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentcli.agent.permissions.decide import Verdict, decide
from agentcli.agent.permissions.judge import Judged
from agentcli.agent.permissions.modes import Mode
from agentcli.agent.permissions.rules import Rules
from agentcli.agent.permissions.targets import ground_of, is_covered, look_at_real
from agentcli.safety.commands.records import CommandAnalysis, Segment
from agentcli.tools.tool import Workspace

_MOST_SHOWN = 3
_WILD = re.compile(r"[*?\[{]")


def decide_with_exposure(judged: Judged, mode: Mode, rules: Rules) -> Verdict:
    """The decision, or one that asks about the secret files in `exposes` as well."""
    verdict, workspace = decide(judged, mode, rules), judged.workspace
    if judged.tool.effect != "command" or verdict.decision == "deny" or mode == "bypassPermissions":
        return verdict
    found = workspace.sandbox.exposed_secrets("read-only" if verdict.only_reads else None)
    exposed = [path for path in found if path not in workspace.exposed and not _is_meant(path, rules, workspace)]
    command = judged.command
    if not exposed or (verdict.only_reads and command is not None and not _may_read(command, exposed)):
        return verdict
    shown = [workspace.shown(path) for path in exposed]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    why = (
        f"this sandbox cannot hide {', '.join(shown[:_MOST_SHOWN])}{more} from commands"
        f" (to allow it always: the rule Read({shown[0]}))"
    )
    return msgspec.structs.replace(
        verdict,
        decision="deny" if mode == "dontAsk" else "ask",
        reason=f"{verdict.reason}; {why}" if verdict.decision == "ask" else why,
        exposes=tuple(exposed),
    )


def _is_meant(path: Path, rules: Rules, workspace: Workspace) -> bool:
    target, ground = look_at_real(path, "read", workspace), ground_of(workspace)
    return any(rule.names("file_read") and rule.pattern and is_covered(rule, target, ground) for rule in rules.allow)


def _may_read(analysis: CommandAnalysis, secrets: Sequence[Path]) -> bool:
    return any(_segment_may_read(segment, secrets) for segment in analysis.segments)


def _segment_may_read(segment: Segment, secrets: Sequence[Path]) -> bool:
    """False for a command that shows no contents, and for one whose every path is known and holds none of them."""
    from agentcli.safety.commands.programs import showing  # with the judge, which is imported for the first command

    words = segment.words
    if words and showing.shows_names_only(words):
        return False
    if not segment.effects.reads:
        return not (words and showing.filters_input(words))
    if words and not showing.names_what_it_reads(words):
        return True
    places = [_above_globs(path) for path in segment.effects.reads]
    return any(secret.is_relative_to(place) for secret in secrets for place in places)


def _above_globs(path: str) -> Path:
    found = _WILD.search(path)
    return Path(path[: found.start()].rpartition("/")[0] or "/") if found else Path(path)
