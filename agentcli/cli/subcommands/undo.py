"""`agentcli undo` and `redo` revert and reapply sessions' file changes; `agentcli blame` shows who wrote each line."""

import os
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Any

import typer

from agentcli.agent.calls.perform import store_interrupted_changes
from agentcli.agent.undo import NOTHING, Author, Direction, History, UndoHost, UndoResult, blame, undo
from agentcli.cli.output import echo, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, in_store, print_answer, print_json, single_command
from agentcli.conversation.entries import Body
from agentcli.conversation.history import shorten
from agentcli.errors import UsageError
from agentcli.frontends.export.markdown import format_time
from agentcli.infra.changes.journal import finish_interrupted
from agentcli.infra.changes.state import Objects
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.infra.shared import FileLocks
from agentcli.settings.files import current_folder
from agentcli.settings.load import Config
from agentcli.setup.workspace import has_interrupted_calls, make_checkpoints
from agentcli.tools.observation import call_title

_MAX_PROMPT_CHARS = 30


def make_command(direction: Direction, help: str) -> typer.Typer:
    """Return the subcommand `agentcli undo` or `agentcli redo`, which does what `/undo` and `/redo` do in a session."""

    def command(
        session: Annotated[str, typer.Option(help="Its id or name (this directory's newest).")] = "",
        only_list: Annotated[bool, typer.Option("--list", help="Only list the files.")] = False,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
        json: AsJson = False,
    ) -> None:
        must_ask, can_ask = not (only_list or yes), sys.stdin.isatty() and not json
        if must_ask and not can_ask:
            raise UsageError(f"Cannot ask here. Add --yes to {direction} the changes, or --list to list them.")
        config = configuration()
        argument = "list" if only_list else "yes" if yes else ""  # as typed after `/undo` in a session
        # A killed session may have applied only a part of a dry run's changes: complete them before any are undone.
        if notice := finish_interrupted(config.paths.state / "tries"):
            warn(notice)
        id, result = in_store(
            lambda store: _undo_or_redo(config, direction, store, session=session, argument=argument),
            config.paths.sessions,
        )
        files = [
            {"path": _relative(Path(file.path)), "change": file.how, **({"why": file.why} if file.why else {})}
            for file in result.files
        ]
        turn = result.turn and result.turn.number
        is_done = result.is_wanted and result.is_complete  # not wanted: only listed, or not confirmed
        print_answer({"session_id": id, "turn": turn, "files": files, "done": is_done}, result.text, as_json=json)
        # Exit with 1 if nothing can be undone or redone, or not all of it. With `--list`, an empty list is no failure.
        has_nothing_to_list = only_list and result.turn is None
        raise typer.Exit(0 if result.is_complete or has_nothing_to_list else 1)

    command.__doc__ = help
    return single_command(command)


undo_app = make_command("undo", "Undo the file changes of a session's last turn. Exits with 1 if some remain.")
redo_app = make_command("redo", "Reapply the changes that undo reverted. Exits with 1 if some were not.")


async def _undo_or_redo(
    config: Config, direction: Direction, store: SqliteSessions, *, session: str, argument: str
) -> tuple[str | None, UndoResult]:
    """Undo or redo a turn; return the id of its session (None if there is no session) and the result."""
    id = session or await _find_session(store, config, direction)
    if not id:
        return None, UndoResult(NOTHING[direction])
    log, stored = await store.open(id)
    try:
        checkpoints = make_checkpoints(config, log.session_id, lambda: (config.cwd,), is_lasting=True)
        if checkpoints is None:
            raise UsageError("File changes are not recorded because the setting checkpoints.enabled is off.")
        entries = [*stored]

        def append(*bodies: Body) -> Awaitable[object]:  # also to `entries`, in which `undo` looks for changes
            appended = log.append(*bodies)
            entries.extend(appended.entries)
            return appended.committed

        await store_interrupted_changes(checkpoints, entries, append)
        locks = FileLocks(config.paths.state / "file_locks")
        host = UndoHost(
            checkpoints=checkpoints, append=append, locks=locks, shown=_relative, confirm=_confirm, command="agentcli "
        )
        return log.session_id, await undo(entries, direction, argument, host)
    finally:
        await log.close()


async def _find_session(store: SqliteSessions, config: Config, direction: Direction) -> str:
    """Return this directory's newest session with a turn to undo or redo, of the 50 newest; empty without a session."""
    sessions = await store.list(cwd=config.cwd, limit=50)
    with_conflicts = ""  # the newest session in which only conflicts of an earlier undo are left; the second choice
    for info in sessions:
        _, entries = await store.load(info.id)
        turn = History(entries).find(direction)
        # Changes of an interrupted call are not in the log yet, but can be undone.
        is_interrupted = direction == "undo" and has_interrupted_calls(config, info.id)
        if is_interrupted or (turn is not None and turn.is_untried):
            return info.id
        if turn is not None:  # it was tried, and conflicts kept some of its changes
            with_conflicts = with_conflicts or info.id
    return with_conflicts or (sessions[0].id if sessions else "")


async def _confirm(summary: str, question: str) -> bool:
    """Ask the person. Ctrl-C ends the program at once: the event loop would handle it only after the answer."""
    echo(summary)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return typer.confirm(question)
    finally:
        signal.signal(signal.SIGINT, before)


def _relative(path: Path) -> str:
    return os.fsencode(os.path.relpath(path, current_folder().resolve())).decode(errors="replace")


@single_command
def blame_app(
    file: Annotated[str, typer.Argument(metavar="FILE[:LINE]", help="A file, or one line of it.")], json: AsJson = False
) -> None:
    """Show who wrote each line: session, turn, prompt, tool call and model."""
    paths, folder = configuration().paths, current_folder()
    read = Objects(paths.state / "checkpoints").get
    lines = in_store(lambda store: blame(file, lambda name: (folder / name).resolve(), store, read), paths.sessions)
    if json:
        print_json([{"line": line.line, "text": line.text, **_author_object(line.author)} for line in lines])
        return
    for line in lines:
        columns = ""
        if (author := line.author) is not None:
            prompt = shorten(author.prompt, _MAX_PROMPT_CHARS)
            # 42 characters and the prompt. The first 13 of an id are its time (UUIDv7), which tells sessions apart.
            columns = f"{author.session_id[:13]} {format_time(author.at)} {author.call.name:<10} {prompt}"
        echo(f"{columns:<{42 + _MAX_PROMPT_CHARS}}  {line.line:>{len(str(lines[-1].line))}}  {line.text}")


def _author_object(author: Author | None) -> dict[str, Any]:
    if author is None:  # no session wrote the line
        return dict.fromkeys(("session_id", "entry_id", "call_id", "tool", "model", "prompt", "at"))
    call = author.call
    return {
        "session_id": author.session_id,
        "entry_id": author.entry_id,
        "call_id": call.id,
        "tool": call.name,
        "model": author.model,
        "prompt": author.prompt,
        "at": author.at,
        "turn": author.turn,
        "did": call_title(call.name, call.input),
    }
