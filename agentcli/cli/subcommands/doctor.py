"""`agentcli doctor`: finds what is wrong with this installation, and says how to mend it."""

from __future__ import annotations

import msgspec
import typer

from agentcli.cli.doctor.checks import examine, lines, subject_here
from agentcli.cli.output import echo
from agentcli.cli.subcommands.shared import AsJson, print_json, single_command


@single_command
def app(json: AsJson = False) -> None:
    """Look at everything a session needs, and say how to mend what is wrong; exit 1 where something does not work."""
    found = list(examine(subject_here()))
    if json:
        print_json([msgspec.to_builtins(one) for one in found])
    else:
        echo("\n".join(lines(found)))
    raise typer.Exit(int(any(one.status == "problem" for one in found)))
