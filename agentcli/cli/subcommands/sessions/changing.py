"""Forks, removes, restores, empties and redacts stored sessions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.cli.output import tell
from agentcli.cli.subcommands.sessions.store import with_agents, with_store
from agentcli.cli.subcommands.shared import AsJson, configuration, print_json, wait_for
from agentcli.conversation.entries import ContextNote, Entry
from agentcli.errors import UsageError
from agentcli.frontends.printable import printable
from agentcli.infra.sandbox.processes.environment import credentials_in
from agentcli.safety.secrets.masking import Masker
from agentcli.settings.load import Config
from agentcli.settings.paths import current_folder

SessionId = Annotated[str, typer.Argument(metavar="ID", help="An id, which may be shortened, or a session's name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def fork(
    session_id: SessionId,
    at: Annotated[str | None, typer.Option(metavar="ENTRY", help="The id of the last entry of the copy.")] = None,
    name: Annotated[str, typer.Option(help="The name of the copy.")] = "",
    json: AsJson = False,
) -> None:
    """Copy a session, or its beginning, into a new one of this directory, which `agentcli -r ID` goes on with."""

    async def work(store: SessionStore) -> dict[str, str]:
        log, entries = await store.fork(session_id, cwd=current_folder(), name=name, at=at)
        source, _ = await store.load(session_id)
        last = entries[-1].id if entries else ""
        try:
            await log.append(ContextNote(f"This session goes on from {source.id}, entry {last}.")).committed
        finally:
            await log.close()
        return {"session_id": log.session_id, "forked_from": source.id, "entry_id": last}

    made = wait_for(with_store(work))
    print_json(made) if json else tell(f"{made['session_id']}: go on with agentcli -r {made['session_id']}.")


def remove(session_id: SessionId, yes: Yes = False, json: AsJson = False) -> None:
    """Move a session and its subagents to the trash. `restore` brings it back."""
    info = _confirmed("Remove", session_id, yes)
    wait_for(with_store(lambda store: store.remove(info.id)))
    wait_for(with_agents(info.id, lambda store, agent_id: store.remove(agent_id)))
    _tell_done(info.id, f"Removed {info.id}: agentcli sessions restore {info.id} brings it back.", json)


def restore(session_id: SessionId, json: AsJson = False) -> None:
    """Bring back what `rm` or `reset` took last."""
    id = wait_for(with_store(lambda store: store.restore(session_id)))
    _tell_done(id, f"{id} is back.", json)


def reset(session_id: SessionId, yes: Yes = False, json: AsJson = False) -> None:
    """Empty a session: its entries go to the trash, its id, directory, name and user stay."""
    info = _confirmed("Empty", session_id, yes)
    wait_for(with_store(lambda store: store.reset(info.id)))
    _tell_done(info.id, f"{info.id} is empty; what it held is in the trash.", json)


def redact(
    session_id: SessionId,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="- reads lines from stdin.")] = None,
    found: Annotated[bool, typer.Option("--found", help="Strike out what looks like a secret.")] = False,
    json: AsJson = False,
) -> None:
    """Strike texts out of everything that is stored of a session, for good."""
    secrets = [line for text in texts or () for line in (_lines() if text == "-" else [text])]
    if not (secrets or found):
        raise UsageError(
            f"Say what to strike out: agentcli sessions redact {session_id} TEXT, - for stdin, or --found."
        )
    config = configuration()

    async def work(store: SessionStore, session_id: str) -> tuple[str, int]:
        info, entries = await store.load(session_id)
        every = [*secrets, *(_secrets_in(entries, config) if found else ())]
        return info.id, await store.redact(info.id, every) if every else 0

    id, places = wait_for(with_store(lambda store: work(store, session_id)))
    places += sum(more for _, more in wait_for(with_agents(id, work)))
    kept = _copies(config.paths.sessions)
    if json:
        print_json({"session_id": id, "places": places, "not_touched": [str(path) for path in kept]})
        return
    tell(f"Struck out in {places} place{'s' * (places != 1)}; sessions that share these entries show it, too.")
    tell("Not touched: the history of prompts, files in any project, what the sandbox keeps of commands.")
    for path in kept:
        tell(f"Not touched: {path}, which may hold it; delete it if you can do without it.")


def _lines() -> list[str]:
    return [line.rstrip("\r\n") for line in sys.stdin if line.strip()]


def _secrets_in(entries: list[Entry], config: Config) -> list[str]:
    masker = Masker((*credentials_in(os.environ), *config.kept_keys.values))
    return sorted(
        {
            text[secret.start : secret.end]
            for entry in entries
            for text in _texts_in(msgspec.to_builtins(entry.body))
            for secret in masker.secrets(text)
        }
    )


def _texts_in(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, item in value.items():
                yield from (name, *_texts_in(item))
        case list() | tuple():
            for item in value:
                yield from _texts_in(item)


def _copies(database: Path) -> list[Path]:
    """What else may hold what was in the database: what is in the trash, older versions, damaged files."""
    beside = database.parent.glob(f"{database.name}.*")
    return sorted((*beside, *(database.parent / "trash").glob("*.jsonl")))


def _confirmed(verb: str, session_id: str, yes: bool) -> SessionInfo:
    """The session, if the person agrees. Raises `UsageError` where nobody can be asked."""
    info, _ = wait_for(with_store(lambda store: store.load(session_id)))
    if yes:
        return info
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"Nobody can be asked here: say --yes to do it to session {info.id}.")
    what = f"{verb} {info.id} ({info.name or info.title or 'no title'}, {info.entries} entries)?"
    typer.confirm(printable(what), abort=True, err=True)
    return info


def _tell_done(session_id: str, text: str, json: bool) -> None:
    print_json({"session_id": session_id}) if json else tell(text)
