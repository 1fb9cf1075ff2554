"""`agentcli sessions`: look at what is stored, export it, change it, and check the file."""

from __future__ import annotations

from agentcli.cli.subcommands.sessions.changing import fork, redact, remove, reset, restore
from agentcli.cli.subcommands.sessions.checking import fsck
from agentcli.cli.subcommands.sessions.exporting import export
from agentcli.cli.subcommands.sessions.looking import list_sessions, search, show
from agentcli.cli.subcommands.shared import make_app, run_app

app = make_app("Look at stored sessions, export them, change them, check the file they are in.")
app.command("list")(list_sessions)
app.command("show")(show)
app.command("search")(search)
app.command("export")(export)
app.command("fork")(fork)
app.command("rm")(remove)
app.command("restore")(restore)
app.command("reset")(reset)
app.command("redact")(redact)
app.command("fsck")(fsck)


def run(arguments: list[str]) -> int:
    return run_app(app, "sessions", arguments)
