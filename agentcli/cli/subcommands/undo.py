"""`agentcli undo`, `redo` and `blame`: what sessions did to files, taken back, done again, or shown line by line."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from agentcli.agent.blame import blame
from agentcli.agent.calls.recording import account_for_interrupted
from agentcli.agent.undo import NOTHING, Direction, History, UndoHost, UndoResult, undo
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, print_json, single_command, wait_for, with_store
from agentcli.conversation.entries import Body
from agentcli.conversation.history import shortened
from agentcli.errors import UsageError
from agentcli.frontends.export.markdown import when
from agentcli.infra.changes.journal import finish_interrupted
from agentcli.infra.changes.objects import Objects
from agentcli.infra.locks import FileLocks
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder
from agentcli.setup.workspace import has_interrupted, make_checkpoints

_MAX_SESSIONS = 50  # of this directory, in which the newest with something to take back is looked for


def make_command(direction: Direction, help: str) -> typer.Typer:
    """The command for one direction."""

    def command(
        session: Annotated[str, typer.Option(help="Its id or name; else the newest of this directory.")] = "",
        only_list: Annotated[bool, typer.Option("--list", help="Only show the files.")] = False,
        yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
        json: AsJson = False,
    ) -> None:
        if not (only_list or yes) and (json or not sys.stdin.isatty()):
            raise UsageError(f"Nobody can be asked here: agentcli {direction} --yes does it, --list shows the files.")
        config, given = configuration(), "list" if only_list else "yes" if yes else ""
        if notice := finish_interrupted(config.paths.state / "tries"):
            warn(notice)
        work = partial(_run, config, direction, session=session, given=given)
        id, result = asyncio.run(with_store(work, config.paths.sessions))
        if json:
            rows = [
                {"path": _shown(Path(f.path)), "change": f.how, **({"why": f.why} if f.why else {})}
                for f in result.files
            ]
            turn, is_done = result.turn and result.turn.number, result.is_wanted and result.is_complete
            print_json({"session_id": id, "turn": turn, "files": rows, "done": is_done})
        else:
            echo(result.text)
        raise typer.Exit(int(not (result.is_complete or (only_list and result.turn is None))))

    command.__doc__ = help
    return single_command(command)


undo_command = make_command("undo", "Take back what a session's newest turn did to files. Exit code 1: not all of it.")
redo_command = make_command("redo", "Do again what was taken back last. Exit code 1: not all of it.")


async def _run(
    config: Config, direction: Direction, store: SqliteSessions, *, session: str, given: str
) -> tuple[str | None, UndoResult]:
    id = session or await _find_session(store, config, direction)
    if not id:
        return None, UndoResult(NOTHING[direction])
    log, stored = await store.open(id)
    try:
        checkpoints = make_checkpoints(config, log.session_id, lambda: (config.cwd,), is_lasting=True)
        if checkpoints is None:
            raise UsageError("Changes of files are not recorded: the setting checkpoints.enabled is off.")
        entries = [*stored]

        def append(*bodies: Body) -> Awaitable[object]:
            appended = log.append(*bodies)
            entries.extend(appended.entries)
            return appended.committed

        await account_for_interrupted(checkpoints, entries, append)
        locks = FileLocks(config.paths.state / "file_locks")
        host = UndoHost(checkpoints, append, locks, _shown, _confirm, command="agentcli ")
        return log.session_id, await undo(entries, direction, given, host)
    finally:
        await log.close()


async def _find_session(store: SqliteSessions, config: Config, direction: Direction) -> str:
    """The newest of this directory with something to take back; one that met conflicts only where there is no other."""
    sessions = await store.list(cwd=config.cwd, limit=_MAX_SESSIONS)
    tried = ""
    for info in sessions:
        turn = History((await store.load(info.id))[1]).find(direction)
        if turn.is_untried if turn else direction == "undo" and has_interrupted(config, info.id):
            return info.id
        tried = tried or (info.id if turn else "")
    return tried or (sessions[0].id if sessions else "")


async def _confirm(shown: str, question: str) -> bool:
    """Ask. Ctrl-C ends it: the event loop would hear of it only after the answer."""
    echo(shown)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm(question)
    finally:
        signal.signal(signal.SIGINT, before)


def _shown(path: Path) -> str:
    """Relative to the folder the command was called in, where it is there or near."""
    return os.fsencode(os.path.relpath(path, current_folder().resolve())).decode(errors="replace")


_MAX_PROMPT_CHARS = 30
_NOBODY = dict.fromkeys(("session_id", "entry_id", "call_id", "tool", "model", "prompt", "at"))


@single_command
def blame_command(
    file: Annotated[str, typer.Argument(metavar="PATH[:LINE]", help="A file, or one line of it.")], json: AsJson = False
) -> None:
    """Show who wrote each line: session, turn, prompt, call and model, by edit or by shell."""
    paths = configuration().paths
    find, read = lambda name: (current_folder() / name).resolve(), Objects(paths.state / "checkpoints").get
    lines = wait_for(with_store(lambda store: blame(file, find, store, read), paths.sessions))
    if json:
        authors = [msgspec.to_builtins(line.author) if line.author else _NOBODY for line in lines]
        print_json([{"line": line.line, "text": line.text, **who} for line, who in zip(lines, authors, strict=True)])
        return
    for line in lines:
        who = ""
        if (author := line.author) is not None:
            prompt = shortened(author.prompt, _MAX_PROMPT_CHARS)
            who = f"{author.session_id[:13]} {when(author.at)} {author.tool:<10} {prompt}"
        echo(f"{who:<{42 + _MAX_PROMPT_CHARS}}  {line.line:>{len(str(lines[-1].line))}}  {line.text}")
