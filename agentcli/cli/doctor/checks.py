"""Runs the checks of the doctor, those of one room after another, and tells what they found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from agentcli.cli.doctor import exports, folders, machine, models, project, settings, terminal
from agentcli.cli.doctor.finding import Check, Finding, Said, Status, Subject, ok, problem
from agentcli.cli.subcommands.shared import configuration
from agentcli.errors import AgentcliError, ConfigError
from agentcli.settings.keys import KeptKeys
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder, find_paths
from agentcli.settings.structs import Settings

MARKS: dict[Status, str] = {"ok": "✓", "warning": "!", "problem": "✗"}
ROOMS = (
    machine.CHECKS,
    folders.CHECKS,
    settings.CHECKS,
    models.CHECKS,
    project.CHECKS,
    exports.CHECKS,
    terminal.CHECKS,
)
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
    """Every finding of every check, in order; a check that finds nothing is `ok`.

    Where settings or the state folder cannot be read one check tells so, and those that need them are left out.
    """
    closed = [models.CHECKS] if subject.unread is not None else []
    closed += [] if subject.can_look else [folders.CHECKS]
    for room in ROOMS:
        for name, check in room.items():
            if room not in closed or check is folders.state:
                yield from _findings(name, check, subject)


def _findings(name: str, check: Check, subject: Subject) -> list[Finding]:
    said: list[Said] = []
    try:
        said.extend(check(subject))  # what it says before it fails stays
    except (AgentcliError, OSError, ImportError) as error:
        said.append(problem(str(error), "Mend that first: the rest of it could not be looked at."))
    return [Finding(name, *one) for one in said or [ok("")]]


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
