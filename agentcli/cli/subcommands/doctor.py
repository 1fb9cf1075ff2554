"""`agentcli doctor` runs the checks of an installation and shows what they find."""

import asyncio
import platform
import sys
from collections.abc import Iterator, Sequence

import msgspec
import typer

from agentcli import __version__
from agentcli.cli import doctor as checks
from agentcli.cli.doctor import Check, Result, Status, Subject, check_program
from agentcli.cli.subcommands.shared import AsJson, configuration, print_answer, single_command
from agentcli.conversation.history import counted
from agentcli.errors import AgentcliError, ConfigError

_MARKS: dict[Status, str] = {"ok": "✓", "warning": "!", "problem": "✗"}


class Finding(msgspec.Struct, frozen=True):
    """One finding; `mend` says how to fix a warning (works less well) or a problem (does not work)."""

    check: str
    status: Status
    message: str = ""
    mend: str = ""


CHECKS: dict[str, Check] = {
    "agentcli": lambda subject: [("ok", f"{__version__}, Python {platform.python_version()}, {sys.platform}", "")],
    "installation": checks.check_installation,
    "ripgrep": checks.check_ripgrep,
    "bash": lambda subject: check_program(
        subject.find_program("bash"), "bash", "commands run in /bin/sh, which supports fewer of them"
    ),
    "git": lambda subject: check_program(
        subject.find_program("git"),
        "git",
        "no commits, /diff all or /review, and no report of what a command did to a repository",
    ),
    "sandbox": checks.check_sandbox,
    "local model": checks.check_local_model,
    "state": checks.check_state,
    "sessions": checks.check_sessions,
    "keys": checks.check_keys,
    "settings": checks.check_settings,
    "model": checks.check_model,
    "servers": lambda subject: asyncio.run(checks.check_servers(subject)),
    "hooks": checks.check_hooks,
    "MCP servers": checks.check_mcp_servers,
    "terminal": checks.check_terminal,
}


def examine(subject: Subject) -> Iterator[Finding]:
    """Yield the findings of every check, in order; a check that finds nothing is an `ok` without a message."""
    for name, check in CHECKS.items():
        results: list[Result] = []
        try:
            results.extend(check(subject))  # `extend` keeps the findings before an error
        except (AgentcliError, OSError, ImportError) as error:
            results.append(("problem", str(error), "Fix this first. The rest of this check did not run."))
        yield from (Finding(name, *result) for result in results or [("ok", "", "")])


def format_findings(findings: Sequence[Finding]) -> str:
    """Return the findings in columns, each followed by its fix; checks that found nothing are counted at the end."""
    rows = [(one, one.message + (f"\n→ {one.mend}" if one.mend else "")) for one in findings if one.message]
    silent, indent = len(findings) - len(rows), "\n" + " " * 16
    lines = [f"{_MARKS[one.status]} {one.check:<12}  {text}".replace("\n", indent) for one, text in rows]
    return "\n".join([*lines, f"{counted(silent, 'more check')} found no problems."])


@single_command
def doctor_app(json: AsJson = False) -> None:
    """Check everything a session needs, and say how to fix problems. Exits with 1 if something does not work."""
    try:
        config = configuration()
    except ConfigError as error:
        fix = "Correct it there (docs/settings.md lists all settings), then run agentcli doctor again."
        findings = [Finding("settings", "problem", str(error), fix)]
    else:
        findings = list(examine(Subject(config)))
    print_answer(list(map(msgspec.to_builtins, findings)), format_findings(findings), as_json=json)
    raise typer.Exit(int(any(one.status == "problem" for one in findings)))
