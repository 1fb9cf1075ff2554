"""`agentcli undo` and `redo`: take back what a session's newest turn did to files, and do it again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct, structs

from agentcli.agent.calls.recording import account_for_interrupted
from agentcli.agent.interfaces import RestoredFile, SessionLog
from agentcli.agent.undo import Direction, History, Plan, carry_out, plan_undo, told_outcome, told_plan
from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json
from agentcli.conversation.entries import Body, Entry
from agentcli.errors import UsageError
from agentcli.infra.changes.journal import finish_interrupted
from agentcli.infra.locks import FileLocks
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder
from agentcli.setup.workspace import has_interrupted, make_checkpoints

_MOST_LOOKED_AT = 50  # sessions of this directory, for the newest that can take something back


class Wish(Struct, frozen=True):
    """The request of the command line."""

    direction: Direction
    session: str
    only_list: bool
    yes: bool
    json: bool


def make_command(direction: Direction, help: str) -> typer.Typer:
    """The command for one direction."""
    app = make_app(help, needs_command=False)

    @app.command(help=help)
    def command(
        session: Annotated[str, typer.Option(help="Its id or name; else the newest of this directory.")] = "",
        only_list: Annotated[bool, typer.Option("--list", help="Only show the files.")] = False,
        yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
        json: AsJson = False,
    ) -> None:
        if not (only_list or yes) and (json or not sys.stdin.isatty()):
            raise UsageError(f"Nobody can be asked here: agentcli {direction} --yes does it, --list shows the files.")
        raise typer.Exit(asyncio.run(_run(configuration(), Wish(direction, session, only_list, yes, json))))

    return app


app = make_command("undo", "Take back what the newest turn of a session did to files. Exit code 1: not all of it.")
redo = make_command("redo", "Do again what was taken back last. Exit code 1: not all of it.")


async def _run(config: Config, wish: Wish) -> int:
    if told := await asyncio.to_thread(finish_interrupted, config.paths.state / "tries"):
        warn(told)
    store = SqliteSessions(config.paths.sessions, on_notice=warn)
    try:
        newest = ""
        passed: tuple[str, Plan] | None = None  # the newest, where conflicts leave nothing of it
        async for id in _candidates(store, config, wish):
            log, entries = await store.open(id)
            try:
                plan = await _planned(config, wish, log, entries)
                if plan is not None and not plan.obstacle:
                    if passed and not plan.passed_over:
                        plan = structs.replace(plan, passed_over=passed[1].turn.name)
                    return await _carry_out(config, wish, log, plan)
            finally:
                await log.close()
            newest = newest or log.session_id
            passed = passed or ((log.session_id, plan) if plan else None)
    finally:
        await store.close()
    return _hopeless(wish, *passed) if passed else _nothing(wish, newest)


async def _candidates(store: SqliteSessions, config: Config, wish: Wish) -> AsyncIterator[str]:
    """The session that was named; else those of this directory with something to take back, the newest first.

    Where there is none it is the newest. What was taken back last is done again first: there it is only one.
    """
    if wish.session:
        yield wish.session
        return
    sessions = await store.list(cwd=config.cwd, limit=_MOST_LOOKED_AT)
    has_any = False
    for info in sessions:
        _, entries = await store.load(info.id)
        history = History(entries)
        if wish.direction == "redo":
            if history.to_redo() is not None:
                yield info.id
                return
        elif next(history.to_undo(), None) is not None or has_interrupted(config, info.id):
            has_any = True
            yield info.id
    if sessions and not has_any:
        yield sessions[0].id


async def _planned(config: Config, wish: Wish, log: SessionLog, entries: Sequence[Entry]) -> Plan | None:
    checkpoints = make_checkpoints(config, log.session_id, lambda: (config.cwd,), is_lasting=True)
    if checkpoints is None:
        raise UsageError("Changes of files are not recorded: the setting checkpoints.enabled is off.")
    entries = [*entries]

    def append(*bodies: Body) -> Awaitable[object]:
        appended = log.append(*bodies)
        entries.extend(appended.entries)
        return appended.committed

    await account_for_interrupted(checkpoints, entries, append)
    return await plan_undo(entries, checkpoints, wish.direction)


async def _carry_out(config: Config, wish: Wish, log: SessionLog, plan: Plan) -> int:
    if not wish.json:
        tell(f"{plan.turn.name}:\n{told_plan(plan, _shown)}")
    if wish.only_list or not (wish.yes or _is_wanted(wish.direction)):
        return _report(wish, log.session_id, plan, plan.restoration.files, is_done=False)
    files = await carry_out(
        plan,
        append=lambda *bodies: log.append(*bodies).committed,
        locks=FileLocks(config.paths.state / "file_locks"),
        shown=_shown,
    )
    if not wish.json:
        tell(told_outcome(plan, files, _shown, command="agentcli ", is_listed=True))
    return _report(wish, log.session_id, plan, files, is_done=True)


def _hopeless(wish: Wish, session_id: str, plan: Plan) -> int:
    files = plan.restoration.files
    if not wish.json:
        tell(f"{plan.turn.name}:\n{told_plan(plan, _shown)}")
        if not wish.only_list:
            tell(told_outcome(plan, files, _shown, is_listed=True))
    return _report(wish, session_id, plan, files, is_done=False)


def _is_wanted(direction: Direction) -> bool:
    """Ask. Ctrl-C ends it: the event loop would hear of it only after the answer."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm("Take back?" if direction == "undo" else "Do again?")
    finally:
        signal.signal(signal.SIGINT, before)


def _report(wish: Wish, session_id: str, plan: Plan, files: Sequence[RestoredFile], *, is_done: bool) -> int:
    """Print the outcome for programs; gives the exit code."""
    is_complete = plan.is_complete(files)
    if wish.json:
        rows = [{"path": _shown(Path(f.path)), "change": f.how, **({"why": f.why} if f.why else {})} for f in files]
        _print(session_id, plan.turn.number, rows, is_done=is_done and is_complete)
    return int(not is_complete)


def _nothing(wish: Wish, session_id: str) -> int:
    """Of a list that is empty nothing is wrong; what cannot be done is."""
    if wish.json:
        _print(session_id or None, None, [], is_done=False)
    else:
        tell("There is nothing to take back." if wish.direction == "undo" else "Nothing was taken back before.")
    return 0 if wish.only_list else 1


def _print(session_id: str | None, turn: int | None, files: list[dict[str, Any]], *, is_done: bool) -> None:
    print_json({"session_id": session_id, "turn": turn, "files": files, "done": is_done})


def _shown(path: Path) -> str:
    """Relative to the folder the command was called in, where it is there or near."""
    return os.fsencode(os.path.relpath(path, current_folder().resolve())).decode(errors="replace")
