"""`agentcli redo`: does again what was taken back last."""

from __future__ import annotations

from agentcli.cli.subcommands.shared import run_app
from agentcli.cli.subcommands.undo import make_command

app = make_command("redo", "Do again what was taken back last. Exit code 1: not all of it.")


def run(arguments: list[str]) -> int:
    return run_app(app, "redo", arguments)
