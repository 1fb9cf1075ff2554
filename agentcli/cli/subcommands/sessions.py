"""`agentcli sessions`: look at what is stored."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, run_app, wait_for
from agentcli.cli.tables import print_table
from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Compaction, Entry, Result, Unreadable, User
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Message
from agentcli.llm.wire.anthropic_request import block_to_wire
from agentcli.paths import current_folder
from agentcli.tools.summary import call_title

_MOST = 1_000_000_000
app = make_app("Look at stored sessions.")


def run(arguments: list[str]) -> int:
    return run_app(app, "sessions", arguments)


@app.command("list")
def list_sessions(
    everywhere: Annotated[bool, typer.Option("--all", help="Of every directory, not only this one.")] = False,
    limit: Annotated[int, typer.Option(min=0, max=_MOST, help="At most so many; 0 for all.")] = 50,
    json: AsJson = False,
) -> None:
    """The sessions of this directory, newest first."""
    found = wait_for(
        _with_store(lambda store: store.list(cwd=None if everywhere else current_folder(), limit=limit or _MOST))
    )
    if json:
        print_json([msgspec.to_builtins(info) for info in found])
        return
    none = "No sessions in this directory (--all shows those of others)."
    print_table(("id", "changed", "entries", "title"), list(map(_row, found)), numeric={"entries"}, empty=none)


@app.command()
def show(session_id: str, json: AsJson = False) -> None:
    """One session: what was said and done. ID may be shortened, or be the session's name."""
    info, entries = wait_for(_with_store(lambda store: store.load(session_id)))
    if json:
        print_json(
            {
                "session_id": info.id,
                "messages": [_wire(message) for message in Conversation(entries).valid_messages()],
                "entries": [msgspec.to_builtins(entry) for entry in entries],
            }
        )
        return
    tell(f"{info.id}  {info.cwd}\n")
    for entry in entries:
        if text := _shown(entry):
            tell(text)


async def _with_store(work: Any) -> Any:
    store: SessionStore = SqliteSessions(configuration().paths.sessions, on_notice=warn)
    try:
        return await work(store)
    finally:
        await store.close()


def _row(info: SessionInfo) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated))
    return info.id, when, f"{info.entries} entries", info.name or info.title


def _wire(message: Message) -> dict[str, Any]:
    return {"role": message.role, "content": [block_to_wire(block) for block in message.content]}


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
