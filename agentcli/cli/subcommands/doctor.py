"""`agentcli doctor`: finds what is wrong with this installation, and says how to mend it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

import msgspec
import typer

from agentcli.cli import doctor as checks
from agentcli.cli.doctor import Check, Result, Status, Subject
from agentcli.cli.output import echo
from agentcli.cli.subcommands.shared import AsJson, configuration, print_json, single_command
from agentcli.errors import AgentcliError, ConfigError
from agentcli.settings.keys import KeptKeys
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder, find_paths
from agentcli.settings.structs import Settings

MARKS: dict[Status, str] = {"ok": "✓", "warning": "!", "problem": "✗"}


class Finding(msgspec.Struct, frozen=True):
    """One finding; `mend` says what to do about a warning (works less well) or a problem (does not work)."""

    check: str
    status: Status
    message: str = ""
    mend: str = ""


CHECKS: dict[str, Check] = {
    "agentcli": checks.version,
    "installation": checks.installation,
    "ripgrep": checks.ripgrep,
    "bash": lambda subject: checks.check_program(subject.program("bash"), "bash", checks.NO_BASH),
    "git": lambda subject: checks.check_program(subject.program("git"), "git", checks.NO_GIT),
    "sandbox": checks.sandbox,
    "local model": checks.local_model,
    "state": checks.state,
    "sessions": checks.sessions,
    "keys": checks.keys,
    "settings": checks.settings,
    "model": checks.model,
    "servers": lambda subject: asyncio.run(checks.servers(subject)),
    "hooks": checks.hooks,
    "MCP servers": checks.mcp_servers,
    "terminal": checks.terminal,
}


def subject_here() -> Subject:
    """Return what a session here would have; the defaults where its settings cannot be read."""
    try:
        return Subject(configuration())
    except ConfigError as error:
        paths = find_paths(os.environ.get("AGENTCLI_HOME"))
        kept = KeptKeys(paths.credentials)
        return Subject(Config(Settings(), paths, current_folder(), dict(os.environ), kept_keys=kept), error)


def examine(subject: Subject) -> Iterator[Finding]:
    """Yield what every check finds, in order; where the settings cannot be read, those of models are left out."""
    for name, check in CHECKS.items():
        if subject.unread is None or name not in ("model", "servers"):
            results: list[Result] = []
            try:
                results.extend(check(subject))  # what it finds before it fails stays
            except (AgentcliError, OSError, ImportError) as error:
                results.append(("problem", str(error), "Mend that first: the rest of it could not be looked at."))
            yield from (Finding(name, *result) for result in results or [("ok", "", "")])


def lines(found: Sequence[Finding]) -> list[str]:
    """Return the findings in columns, each with its mend below it; checks that found nothing are counted at the end."""
    texts = [(one, one.message + (f"\n→ {one.mend}" if one.mend else "")) for one in found if one.message]
    silent, indent = len(found) - len(texts), "\n" + " " * 16
    listed = (f"{MARKS[one.status]} {one.check:<12}  {text}".replace("\n", indent) for one, text in texts)
    return [*listed, f"{silent} more check{'s' * (silent != 1)} found nothing."]


@single_command
def app(json: AsJson = False) -> None:
    """Look at everything a session needs, and say how to mend what is wrong; exit 1 where something does not work."""
    found = list(examine(subject_here()))
    if json:
        print_json([msgspec.to_builtins(one) for one in found])
    else:
        echo("\n".join(lines(found)))
    raise typer.Exit(int(any(one.status == "problem" for one in found)))
