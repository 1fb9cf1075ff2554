"""`agentcli replay`: run a recorded session's calls again, and say what comes otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentcli.agent.accounting.metrics import counted
from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.sessions.store import with_store
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, run_app, wait_for
from agentcli.errors import UsageError, UserError
from agentcli.replay.comparing import Report, replay
from agentcli.settings.load import Config, load_config

LONGEST_SHOWN = 1_000  # characters of each side of a difference

app = make_app("Run a recorded session again in a copy of its workspace.", needs_command=False)


def run(arguments: list[str]) -> int:
    try:
        return run_app(app, "replay", arguments)
    except UserError as error:  # 1 says that something differs
        warn(str(error))
        return UsageError.exit_code


@app.command()
def show(
    session_id: Annotated[
        str, typer.Argument(metavar="ID", help="An id, which may be shortened, or a session's name.")
    ],
    json: AsJson = False,
) -> None:
    """Run a session's calls again in a copy of its workspace as it was; exits with 1 on a difference."""
    report = wait_for(_replayed(session_id))
    if json:
        print_json(report)
    else:
        _tell(report)
    raise typer.Exit(int(bool(report.differences)))


async def _replayed(session_id: str) -> Report:
    info, entries = await with_store(lambda store: store.load(session_id))
    return await replay(configuration_of(info.cwd), info, entries)


def configuration_of(folder: str) -> Config:
    """The settings that a session in a folder has now. Raises `UsageError` where the folder is gone."""
    here = configuration()
    if not Path(folder).is_dir():
        raise UsageError(
            f"The session's folder {folder} is not there: put it back, or replay a session of another one."
        )
    return load_config(here.paths, Path(folder), here.environment)


def _tell(report: Report) -> None:
    for one in report.differences:
        tell(f"turn {one.turn}, {one.kind}: {one.what}")
        for sign, text in (("-", one.recorded), ("+", one.replayed)):
            cut = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"
            tell("\n".join(f"  {sign} {line}" for line in cut.split("\n")))
    if report.not_replayed:
        names = ", ".join(f"{name} ×{count}" for name, count in report.not_replayed.items())
        tell(f"Not made again, their recorded results were used: {names}.")
    count = len(report.differences)
    found = f"{count} difference{'s' * (count != 1)}" if count else "no difference"
    done = (counted(report.turns, "turn"), counted(report.requests, "request"), counted(report.calls, "call"))
    tell(f"{', '.join(done)} made again: {found}.")
