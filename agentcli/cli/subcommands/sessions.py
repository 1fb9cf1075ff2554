"""`agentcli sessions`: look at what is stored, export it, change it, and check the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from agentcli.agent.calls.report import Mask
from agentcli.agent.interfaces import Found, SessionStore, subagents_owner
from agentcli.app import Builder
from agentcli.cli.output import echo, print_table, warn
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, wait_for, with_store
from agentcli.cli.subcommands.tools import open_bench
from agentcli.conversation.entries import Assistant, Compaction, ContextNote, Entry, Result, Unreadable, User
from agentcli.errors import UsageError, UserError
from agentcli.frontends.export.documents import Form, document, form_of
from agentcli.frontends.export.documents import shown as as_json
from agentcli.frontends.export.markdown import when
from agentcli.frontends.printable import printable
from agentcli.infra.sandbox.environment import credentials_in
from agentcli.infra.sessions.fsck import check, repair
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm.messages import Message
from agentcli.safety.secrets.masking import Masker
from agentcli.settings.files import replace_file
from agentcli.settings.paths import current_folder
from agentcli.tools.summary import call_title

T = TypeVar("T")
_MAX_FAULTS = 50  # lines
_MAX_LISTED = 1_000_000_000
Everywhere = Annotated[bool, typer.Option("--all", help="Of every directory, not only this one.")]
Limit = Annotated[int, typer.Option(min=0, max=_MAX_LISTED, help="At most so many; 0 for all.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="An id, which may be shortened, or a session's name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

app = make_app("Look at stored sessions, export them, change them, check the file they are in.")


@app.command("list")
def list_sessions(
    everywhere: Everywhere = False,
    limit: Limit = 50,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Of one user only.")] = None,
    json: AsJson = False,
) -> None:
    """The sessions of this directory, newest first."""
    cwd = None if everywhere else current_folder()
    found = wait_for(with_store(lambda store: store.list(cwd=cwd, limit=limit or _MAX_LISTED, user_id=user)))
    if json:
        # `id` is what `session_id` was called before: it stays for one more release
        print_json([{"session_id": info.id, **msgspec.to_builtins(info)} for info in found])
        return
    none = "No sessions in this directory (--all shows those of others)."
    rows = [(one.id, when(one.updated), f"{one.entries} entries", one.name or one.title) for one in found]
    print_table(("id", "changed", "entries", "title"), rows, numeric={"entries"}, empty=none)


@app.command()
def show(session_id: str, json: AsJson = False) -> None:
    """One session: what was said and done. ID may be shortened, or be the session's name."""
    info, entries = wait_for(with_store(lambda store: store.load(session_id)))
    if json:
        print_json(as_json(info, entries))
        return
    echo(f"{info.id}  {info.cwd}\n")
    for entry in entries:
        if text := _shown(entry):
            echo(text)


@app.command()
def search(
    text: Annotated[str, typer.Argument(help="Words; each finds all that begin with it.")],
    everywhere: Everywhere = False,
    limit: Limit = 20,
    json: AsJson = False,
) -> None:
    """Entries that hold all of the words, newest first: prompts, answers, calls and what came of them."""
    cwd = None if everywhere else current_folder()
    found: Sequence[Found] = wait_for(with_store(lambda store: store.search(text, cwd=cwd, limit=limit or _MAX_LISTED)))
    if json:
        print_json([msgspec.to_builtins(one) for one in found])
        return
    rows = [(one.session_id, when(one.time), one.kind, one.excerpt) for one in found]
    print_table(("session", "when", "kind", "text"), rows, empty="Nothing found (--all looks in every directory).")


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


@app.command()
def export(
    session_id: SessionId,
    format: Annotated[Form | None, typer.Option("--format", help="One of md, json, html; else by the ending.")] = None,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="In place of stdout.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Leave secrets as they are.")] = False,
) -> None:
    """Write a session as a document. Secrets are masked."""
    info, entries = wait_for(with_store(lambda store: store.load(session_id)))
    text, places = document(format or form_of(output), info, entries, None if raw else wait_for(_mask()))
    data = text.encode(errors="replace")
    if not output:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    else:
        try:
            replace_file(Path(output), data, mode=0o644)
        except OSError as error:
            raise UserError(f"{output} could not be written: {error.strerror}.") from error
    if places:
        warn(f"masked what looks like a secret in {places} place{'s' * (places != 1)} (--raw leaves it).")


async def _mask() -> Mask | None:
    """Return the mask that the output of tools gets in this folder."""
    builder = Builder(configuration(), store=MemorySessions(), on_notice=warn)
    async with open_bench(builder, builder.tool_registry(), "default") as bench:
        await bench.calls.services.know_secrets()
        return bench.calls.services.mask


@app.command()
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
    print_json(made) if json else echo(f"{made['session_id']}: go on with agentcli -r {made['session_id']}.")


@app.command("rm")
def remove(session_id: SessionId, yes: Yes = False, json: AsJson = False) -> None:
    """Move a session and its subagents to the trash. `restore` brings them back."""
    info, _ = wait_for(with_store(lambda store: store.load(session_id)))
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"Nobody can be asked here: say --yes to do it to session {info.id}.")
        what = f"Remove {info.id} ({info.name or info.title or 'no title'}, {info.entries} entries)?"
        typer.confirm(printable(what), abort=True, err=True)
    wait_for(with_store(lambda store: store.remove(info.id)))
    done = f"Removed {info.id}: agentcli sessions restore {info.id} brings it back."
    print_json({"session_id": info.id}) if json else echo(done)


@app.command()
def restore(session_id: SessionId, json: AsJson = False) -> None:
    """Bring back what `rm` took last."""
    id = wait_for(with_store(lambda store: store.restore(session_id)))
    print_json({"session_id": id}) if json else echo(f"{id} is back.")


@app.command()
def redact(
    session_id: SessionId,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="- reads lines from stdin.")] = None,
    found: Annotated[bool, typer.Option("--found", help="Redact what looks like a secret.")] = False,
    json: AsJson = False,
) -> None:
    """Replace texts in everything that is stored of a session by [redacted], for good."""
    secrets = [text for text in texts or () if text != "-"]
    if "-" in (texts or ()):
        secrets += [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    if not (secrets or found):
        raise UsageError(f"Say what to redact: agentcli sessions redact {session_id} TEXT, - for stdin, or --found.")
    config = configuration()

    async def work(store: SessionStore) -> tuple[str, int]:
        info, entries = await store.load(session_id)
        for agent in await store.list(user_id=subagents_owner(info.id), limit=_MAX_LISTED) if found else ():
            entries += (await store.load(agent.id))[1]
        every = [*secrets]
        if found:
            masker = Masker((*credentials_in(os.environ), *config.kept_keys.values))
            texts = {text for entry in entries for text in _texts_in(msgspec.to_builtins(entry.body))}
            every += sorted({text[secret.start : secret.end] for text in texts for secret in masker.secrets(text)})
        return info.id, await store.redact(info.id, every) if every else 0

    id, places = wait_for(with_store(work))
    kept = _copies(config.paths.sessions)
    if json:
        print_json({"session_id": id, "places": places, "not_touched": [str(path) for path in kept]})
        return
    done = f"Redacted in {places} place{'s' * (places != 1)}; forks that have these entries show it, too."
    echo(done if places else "Nothing to redact was found in the session.")
    echo("Not touched: the history of prompts, files in any project, what the sandbox keeps of commands.")
    for path in kept:
        echo(f"Not touched: {path}, which may hold it; delete it if you can do without it.")


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
    """Files of earlier versions, or damaged ones, that may hold what was in the database."""
    patterns = (f"{database.name}.damaged-*", "agents.db*", "trash/*.jsonl", "events.db")
    return sorted(file for pattern in patterns for file in database.parent.glob(pattern))


@app.command()
def fsck(
    repairs: Annotated[bool, typer.Option("--repair", help="Restore it from the newest sound copy.")] = False,
    json: AsJson = False,
) -> None:
    """Look for damage in the stored sessions; exits with 1 when there is some, and when a repair leaves some."""
    path = configuration().paths.sessions
    report = (repair if repairs else check)(path)
    if json:
        print_json({**msgspec.to_builtins(report), "healthy": report.is_healthy})
        raise typer.Exit(0 if report.is_healthy else 1)
    for fault in report.found[:_MAX_FAULTS]:
        echo(fault.text)
    if len(report.found) > _MAX_FAULTS:
        echo(f"… and {len(report.found) - _MAX_FAULTS} more (--json has all).")
    if report.kept_as:
        echo(f"Repaired {path}: {report.restored_text}. The damaged file is kept as {report.kept_as}.")
    elif report.is_healthy:
        echo(f"{path} is sound.")
    elif repairs:
        echo(f"There is no sound copy to restore {path} from. Move it away to begin a new one.")
    else:
        echo("agentcli sessions fsck --repair restores it from the newest sound copy, and keeps this file.")
    raise typer.Exit(0 if report.is_healthy else 1)
