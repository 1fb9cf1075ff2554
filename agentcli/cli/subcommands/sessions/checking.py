"""Checks and repairs the file the sessions are in."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from agentcli.cli.output import tell
from agentcli.cli.subcommands.shared import AsJson, configuration, print_json
from agentcli.infra.sessions.fsck import Report, check, repair

_MOST_TOLD = 50  # lines


def fsck(
    repairs: Annotated[bool, typer.Option("--repair", help="Make a sound file of what can be read.")] = False,
    json: AsJson = False,
) -> None:
    """Look for damage in the stored sessions; exits with 1 when there is some, and when a repair leaves some."""
    path = configuration().paths.sessions
    report = (repair if repairs else check)(path)
    if json:
        print_json({**msgspec.to_builtins(report), "healthy": report.is_healthy})
    else:
        _tell(report, repairs)
    raise typer.Exit(0 if report.is_healthy else 1)


def _tell(report: Report, repairs: bool) -> None:
    for fault in report.found[:_MOST_TOLD]:
        tell(fault.text)
    if len(report.found) > _MOST_TOLD:
        tell(f"… and {len(report.found) - _MOST_TOLD} more (--json has all).")
    if report.kept_as:
        tell(f"Repaired: {report.path} is a new file; the one of before is kept as {report.kept_as}.")
        for fault in report.left:
            tell(f"Still there: {fault.text}")
    elif report.is_healthy:
        tell(f"{report.path} is sound.")
    elif repairs:
        tell(f"Nothing could be made better. Move {report.path} away to begin a new one, or put a copy in its place.")
    else:
        tell("agentcli sessions fsck --repair makes a new file of what can be read, and keeps this one.")
