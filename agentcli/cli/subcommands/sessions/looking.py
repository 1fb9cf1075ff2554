"""Lists, shows and searches stored sessions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from agentcli.agent.interfaces import Found, SessionInfo
from agentcli.cli.output import tell
from agentcli.cli.subcommands.sessions.store import with_store
from agentcli.cli.subcommands.shared import AsJson, print_json, wait_for
from agentcli.cli.tables import print_table
from agentcli.conversation.entries import Assistant, Compaction, Entry, Result, Unreadable, User
from agentcli.frontends.export.documents import shown
from agentcli.llm.messages import Message
from agentcli.settings.paths import current_folder
from agentcli.tools.summary import call_title

_MOST = 1_000_000_000
Everywhere = Annotated[bool, typer.Option("--all", help="Of every directory, not only this one.")]
Limit = Annotated[int, typer.Option(min=0, max=_MOST, help="At most so many; 0 for all.")]


def list_sessions(
    everywhere: Everywhere = False,
    limit: Limit = 50,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Of one user only.")] = None,
    json: AsJson = False,
) -> None:
    """The sessions of this directory, newest first."""
    cwd = None if everywhere else current_folder()
    found = wait_for(with_store(lambda store: store.list(cwd=cwd, limit=limit or _MOST, user_id=user)))
    if json:
        # `id` is what `session_id` was called before: it stays for one more release
        print_json([{"session_id": info.id, **msgspec.to_builtins(info)} for info in found])
        return
    none = "No sessions in this directory (--all shows those of others)."
    print_table(("id", "changed", "entries", "title"), list(map(_row, found)), numeric={"entries"}, empty=none)


def show(session_id: str, json: AsJson = False) -> None:
    """One session: what was said and done. ID may be shortened, or be the session's name."""
    info, entries = wait_for(with_store(lambda store: store.load(session_id)))
    if json:
        print_json(shown(info, entries))
        return
    tell(f"{info.id}  {info.cwd}\n")
    for entry in entries:
        if text := _shown(entry):
            tell(text)


def search(
    text: Annotated[str, typer.Argument(help="Words; each finds all that begin with it.")],
    everywhere: Everywhere = False,
    limit: Limit = 20,
    json: AsJson = False,
) -> None:
    """Entries that hold all of the words, newest first: prompts, answers, calls and what came of them."""
    cwd = None if everywhere else current_folder()
    found: Sequence[Found] = wait_for(with_store(lambda store: store.search(text, cwd=cwd, limit=limit or _MOST)))
    if json:
        print_json([msgspec.to_builtins(one) for one in found])
        return
    rows = [(one.session_id, _when(one.time), one.kind, one.excerpt) for one in found]
    print_table(("session", "when", "kind", "text"), rows, empty="Nothing found (--all looks in every directory).")


def _row(info: SessionInfo) -> tuple[str, ...]:
    return info.id, _when(info.updated), f"{info.entries} entries", info.name or info.title


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _shown(entry: Entry) -> str:
    match entry.body:
        case User() as user if not user.is_reminder:
            return f"› {user.text}\n"
        case Assistant() as reply:
            message = Message("assistant", reply.content)
            calls = [f"• {call_title(use.name, use.input)}" for use in message.tool_uses]
            return "\n".join(part for part in (message.text, *calls) if part.strip())
        case Result() as result:
            return f"  {'✗' if result.result.is_error else '✓'} {result.name} {result.summary}"
        case Compaction(carried):
            return f"[summary] {carried}"
        case Unreadable(error, stored):
            return f"[{error}] {stored}".rstrip()
        case _:
            return ""
