"""Runs the checks of the doctor, those of one room after another, and tells what they found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from agentcli.cli.doctor import folders, machine, models, project, settings, terminal
from agentcli.cli.doctor.finding import Finding, Status, Subject
from agentcli.cli.subcommands.shared import configuration
from agentcli.config import Config
from agentcli.errors import AgentcliError, ConfigError
from agentcli.kept_keys import KeptKeys
from agentcli.paths import current_folder, find_paths
from agentcli.settings import Settings

MARKS: dict[Status, str] = {"ok": "✓", "warning": "!", "problem": "✗"}
ROOMS = (machine.CHECKS, folders.CHECKS, settings.CHECKS, models.CHECKS, project.CHECKS, terminal.CHECKS)
_INDENT = 16  # columns of a mark and a name


def subject_here() -> Subject:
    """What a session here would have; the defaults where its settings cannot be read."""
    try:
        return Subject(configuration())
    except ConfigError as error:
        paths = find_paths(os.environ.get("AGENTCLI_HOME"))
        kept = KeptKeys(paths.credentials)
        return Subject(Config(Settings(), paths, current_folder(), dict(os.environ), kept_keys=kept), error)


def examine(subject: Subject) -> Iterator[Finding]:
    """Every finding of every check, in order; a check that finds nothing is `ok`."""
    for room in ROOMS:
        if room is models.CHECKS and subject.unread is not None:
            continue
        for name, check in room.items():
            found = False
            try:
                for status, message, mend in check(subject):
                    found = True
                    yield Finding(name, status, message, mend)
            except (AgentcliError, OSError, ImportError) as error:
                found = True
                yield Finding(name, "problem", str(error), "Mend that first: it could not be looked at.")
            if not found:
                yield Finding(name, "ok")


def lines(found: Sequence[Finding]) -> list[str]:
    """In columns for a person; checks that found nothing are counted at the end."""
    told = [f"{MARKS[one.status]} {one.check:<12}  {shown(one, _INDENT)}" for one in found if one.message]
    return [*told, quiet(found)]


def quiet(found: Sequence[Finding]) -> str:
    """How many checks found nothing that is worth a line."""
    return f"{sum(not one.message for one in found)} more checks found nothing."


def shown(finding: Finding, indent: int = 0) -> str:
    """What was found and below it the mend."""
    text = finding.message + (f"\n→ {finding.mend}" if finding.mend else "")
    return text.replace("\n", "\n" + " " * indent)
