"""A place to judge commands from: workspace /ws, home /home/u, nothing on the disk looked at."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from pathlib import Path

from agentcli.safety.commands.records import CommandAnalysis, WorkspaceView, rules_by_segment
from agentcli.safety.commands.walk import analyse

_SECRET = re.compile(r"(^|/)(\.env(\.[^/]*)?|\.netrc|id_rsa|[^/]*\.(pem|key))$")


def is_readable(path: Path) -> bool:
    normal = posixpath.normpath("/" + str(path).lstrip("/"))
    return (normal == "/ws" or normal.startswith("/ws/")) and not _SECRET.search(normal)


WORKSPACE_VIEW = WorkspaceView(cwd=Path("/ws"), roots=(Path("/ws"),), home=Path("/home/u"), is_readable=is_readable)


def judged(command: str, workspace: WorkspaceView = WORKSPACE_VIEW) -> CommandAnalysis:
    return analyse(command, workspace=workspace)


def least_rules(analysis: CommandAnalysis) -> tuple[str, ...]:
    """Globs that cover the commands that are not harmless, narrowest first; none if no set of rules covers them all."""
    by_segment = rules_by_segment(analysis)
    longest = max(map(len, by_segment), default=0)
    ordered = [rules[at] for at in range(longest) for rules in by_segment if at < len(rules)]
    return tuple(dict.fromkeys(ordered))


def cases(name: str) -> list[str]:
    """The commands of a file beside this one, one a line; `↵` stands for a newline."""
    text = (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8")
    return [line.replace("↵", "\n") for line in text.splitlines()]


def with_verdicts(rows: Iterable[str]) -> list[tuple[str, str]]:
    """Split rows such as `ask: cat ../x` into the expected verdict and the command."""
    return [(verdict, command) for verdict, _, command in (row.partition(": ") for row in rows)]
