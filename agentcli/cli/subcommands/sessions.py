"""`agentcli sessions` shows, exports, changes and checks the stored sessions; `agentcli usage` adds up their cost."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from agentcli.agent.accounting import Tally, UsageCollector, by_cost
from agentcli.agent.calls.report import Mask
from agentcli.agent.interfaces import ONE_SHOTS, SearchHit, SessionInfo, SessionStore, subagents_owner
from agentcli.app import Builder
from agentcli.cli.output import echo, print_table, warn
from agentcli.cli.subcommands import shared
from agentcli.cli.subcommands.tools import open_bench
from agentcli.conversation.entries import ContextNote
from agentcli.conversation.history import counted, transcript_lines
from agentcli.errors import UsageError, UserError
from agentcli.frontends.export.documents import Format, as_dict, document, format_of
from agentcli.frontends.export.markdown import format_cost, format_time
from agentcli.frontends.printable import printable
from agentcli.infra.sandbox.environment import credentials_in
from agentcli.infra.sessions.repair import check, repair
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.safety.secrets.masking import Masker
from agentcli.settings.files import current_folder, replace_file
from agentcli.settings.load import Config

_MAX_FAULTS = 50  # faults that `fsck` prints
_MAX_LISTED = 1_000_000_000  # in effect, no limit
Everywhere = Annotated[bool, typer.Option("--all", help="Include the sessions of all directories.")]
Limit = Annotated[int, typer.Option(min=0, max=_MAX_LISTED, help="Show at most this many; 0 for all.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="The id of a session, its first letters, or its name.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask first.")]

sessions_app = shared.make_app("List, export, change and check stored sessions.")


@sessions_app.command("list")
def list_sessions(
    everywhere: Everywhere = False,
    limit: Limit = 50,
    user: Annotated[str | None, typer.Option("--user", metavar="ID", help="Show only this user's sessions.")] = None,
    json: shared.AsJson = False,
) -> None:
    """List the sessions of this directory, newest first; people get the one-shots of -p below the conversations."""
    cwd = None if everywhere else current_folder()
    found = shared.in_store(lambda store: store.list(cwd=cwd, limit=_MAX_LISTED, user_id=user))
    found = found if json else sorted(found, key=lambda info: info.user_id == ONE_SHOTS)
    found = found[: limit or None]  # 0: all
    shared.print_list(
        # `id` is the former name of `session_id`; it stays for one more release.
        [{"session_id": info.id, **msgspec.to_builtins(info)} for info in found],
        ("id", "changed", "entries", "title"),
        [(info.id, format_time(info.updated), f"{info.entries} entries", _title(info)) for info in found],
        as_json=json,
        numeric={"entries"},
        empty="No sessions in this directory. To list those of all directories, add --all.",
    )


def _title(info: SessionInfo) -> str:
    return f"{'one-shot: ' if info.user_id == ONE_SHOTS else ''}{info.name or info.title}"


@sessions_app.command()
def show(session_id: str, json: shared.AsJson = False) -> None:
    """Show the transcript of a session. ID may be shortened, or be the session's name."""
    info, entries = shared.in_store(lambda store: store.load(session_id))
    text = "\n".join((f"{info.id}  {info.cwd}\n", *transcript_lines(entries)))
    shared.print_answer(as_dict(info, entries), text, as_json=json)


@sessions_app.command()
def search(
    text: Annotated[str, typer.Argument(help="Words; each one finds all words that begin with it.")],
    everywhere: Everywhere = False,
    limit: Limit = 20,
    json: shared.AsJson = False,
) -> None:
    """Find entries that contain all of the words, newest first: prompts, answers, calls and results."""
    cwd = None if everywhere else current_folder()
    found: Sequence[SearchHit] = shared.in_store(lambda store: store.search(text, cwd=cwd, limit=limit or _MAX_LISTED))
    shared.print_list(
        list(map(msgspec.to_builtins, found)),
        ("session", "when", "kind", "text"),
        [(hit.session_id, format_time(hit.time), hit.kind, hit.excerpt) for hit in found],
        as_json=json,
        empty="Nothing found. To search all directories, add --all.",
    )


@sessions_app.command()
def export(
    session_id: SessionId,
    format: Annotated[Format | None, typer.Option("--format", help="One of md, json, html (by the ending).")] = None,
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="Write this file, not stdout.")] = "",
    raw: Annotated[bool, typer.Option("--raw", help="Do not mask secrets.")] = False,
) -> None:
    """Export a session as a document. Secrets are masked."""
    info, entries = shared.in_store(lambda store: store.load(session_id))
    text, places = document(
        format or format_of(output), info, entries, None if raw else asyncio.run(folder_mask(shared.configuration()))
    )
    data = text.encode(errors="replace")
    if not output:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    else:
        try:
            replace_file(Path(output), data, mode=0o644)
        except OSError as error:
            raise UserError(f"Could not write {output}: {error.strerror}.") from error
    if places:
        warn(f"Masked possible secrets in {counted(places, 'place')}. To keep them, add --raw.")


async def folder_mask(config: Config) -> Mask:
    """Return the mask that hides secrets in the output of tools in this folder."""
    builder = Builder(config, store=MemorySessions(), on_notice=warn)
    async with open_bench(builder, builder.tool_registry(), "default") as bench:
        await bench.calls.services.load_secrets()
        return bench.calls.services.mask


@sessions_app.command("import")
def import_session(file: Annotated[Path, typer.Argument(metavar="FILE")], json: shared.AsJson = False) -> None:
    """Store a conversation of Claude Code or Codex (a .jsonl file) as a session of this directory."""
    from agentcli.cli.session_import import import_file

    session_id, report = import_file(shared.configuration(), file)
    text = f"{report}\nTo continue it: agentcli -r {session_id}"
    shared.print_answer({"session_id": session_id, "report": report}, text, as_json=json)


@sessions_app.command()
def fork(
    session_id: SessionId,
    at: Annotated[str | None, typer.Option(metavar="ENTRY", help="The id of the last entry to copy.")] = None,
    name: Annotated[str, typer.Option(help="A name for the copy.")] = "",
    json: shared.AsJson = False,
) -> None:
    """Copy a session, or its beginning, to a new session of this directory. To open it: `agentcli -r ID`."""

    async def fork_in(store: SessionStore) -> dict[str, str]:
        log, entries = await store.fork(session_id, cwd=current_folder(), name=name, at=at)
        source, _ = await store.load(session_id)
        last = entries[-1].id if entries else ""
        try:
            await log.append(ContextNote(f"This session continues {source.id} from entry {last}.")).committed
        finally:
            await log.close()
        return {"session_id": log.session_id, "forked_from": source.id, "entry_id": last}

    copy = shared.in_store(fork_in)
    id = copy["session_id"]
    shared.print_answer(copy, f"Forked to {id}. To open it: agentcli -r {id}", as_json=json)


@sessions_app.command("rm")
def remove(session_id: SessionId, yes: Yes = False, json: shared.AsJson = False) -> None:
    """Move a session and its subagents to the trash. To undo this: `restore`."""
    info, _ = shared.in_store(lambda store: store.load(session_id))
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError(f"Cannot ask here. To remove session {info.id}, add --yes.")
        question = f"Remove {info.id} ({info.name or info.title or 'no title'}, {info.entries} entries)?"
        typer.confirm(printable(question), abort=True, err=True)
    shared.in_store(lambda store: store.remove(info.id))
    done = f"Removed {info.id}. To restore it: agentcli sessions restore {info.id}"
    shared.print_answer({"session_id": info.id}, done, as_json=json)


@sessions_app.command()
def restore(session_id: SessionId, json: shared.AsJson = False) -> None:
    """Restore a session that `rm` removed."""
    id = shared.in_store(lambda store: store.restore(session_id))
    shared.print_answer({"session_id": id}, f"Restored {id}.", as_json=json)


@sessions_app.command()
def redact(
    session_id: SessionId,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="- reads lines from stdin.")] = None,
    found: Annotated[bool, typer.Option("--found", help="Redact everything that looks like a secret.")] = False,
    json: shared.AsJson = False,
) -> None:
    """Permanently replace texts by [redacted] in everything stored of a session."""
    secrets = [text for text in texts or () if text != "-"]
    if "-" in (texts or ()):
        secrets += [line.rstrip("\r\n") for line in sys.stdin if line.strip()]
    if not (secrets or found):
        raise UsageError(f"Add what to redact: agentcli sessions redact {session_id} TEXT, - for stdin, or --found.")
    config = shared.configuration()

    async def redact_in(store: SessionStore) -> tuple[str, int]:
        info, entries = await store.load(session_id)
        to_redact = [*secrets]
        if found:  # look for secrets also in the subagents' sessions, which `store.redact` changes, too
            for agent in await store.list(user_id=subagents_owner(info.id), limit=_MAX_LISTED):
                entries += (await store.load(agent.id))[1]
            masker = Masker((*credentials_in(os.environ), *config.stored_keys.known_keys))
            stored = {text for entry in entries for text in _texts_in(msgspec.to_builtins(entry.body))}
            to_redact += sorted({text[secret.start : secret.end] for text in stored for secret in masker.secrets(text)})
        return info.id, await store.redact(info.id, to_redact) if to_redact else 0

    id, place_count = shared.in_store(redact_in)
    # Damaged files, and files that earlier versions left, are not redacted, so the person must know of them.
    patterns = (f"{config.paths.sessions.name}.damaged-*", "agents.db*", "trash/*.jsonl", "events.db")
    copies = sorted(file for pattern in patterns for file in config.paths.sessions.parent.glob(pattern))
    done = f"Redacted in {counted(place_count, 'place')}, also in forks that share these entries."
    lines = [
        done if place_count else "Found nothing to redact in this session.",
        "Not changed: the prompt history, project files, and the sandbox's records of commands.",
        *(f"Not changed: {path}, which may contain it. Delete it if you do not need it." for path in copies),
    ]
    data = {"session_id": id, "places": place_count, "not_touched": list(map(str, copies))}
    shared.print_answer(data, "\n".join(lines), as_json=json)


def _texts_in(value: Any) -> Iterator[str]:
    """Yield all texts of a JSON value, also the keys of its objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        parts = chain.from_iterable(value.items()) if isinstance(value, dict) else value
        yield from chain.from_iterable(map(_texts_in, parts))


@sessions_app.command()
def fsck(
    repairs: Annotated[
        bool, typer.Option("--repair", help="Replace a damaged file; it is kept beside the new one.")
    ] = False,
    json: shared.AsJson = False,
) -> None:
    """Check the stored sessions for damage. Exits with 1 if damage is found; with --repair, only if some remains."""
    path = shared.configuration().paths.sessions
    report = (repair if repairs else check)(path)
    lines = [fault.text for fault in report.found[:_MAX_FAULTS]]
    if len(report.found) > _MAX_FAULTS:
        lines.append(f"… and {len(report.found) - _MAX_FAULTS} more. To see all, add --json.")
    if report.kept_as:
        lines.append(f"Repaired {path}: {report.restored_text}. The damaged file is kept as {report.kept_as}.")
    elif report.is_healthy:
        lines.append(f"{path} is intact.")
    elif not report.is_file_damaged:
        lines.append(
            "Sessions continue without the damaged entries. The rest of the file is intact and stays unchanged."
        )
    elif repairs:
        lines.append(f"There is no intact copy to restore {path} from. Move it away to start a new one.")
    else:
        lines.append("To repair it, and keep the damaged file: agentcli sessions fsck --repair")
    shared.print_answer({**msgspec.to_builtins(report), "healthy": report.is_healthy}, "\n".join(lines), as_json=json)
    raise typer.Exit(int(not report.is_healthy))


_FIGURES = ("requests", "in", "cached", "out", "cost")


@shared.single_command
def usage_app(
    days: Annotated[int, typer.Option(min=0, max=36_500, help="Show this many days, including today; 0 for all.")] = 30,
    session: Annotated[str, typer.Option(help="Show only this session (id or name), on all days.")] = "",
    json: shared.AsJson = False,
) -> None:
    """Show the tokens and costs of the stored sessions by day, model, tool and user."""
    year, month, day, *_ = time.localtime()
    midnight = time.mktime((year, month, day, 0, 0, 0, 0, 0, -1))  # -1: the system decides about summer time
    since = midnight - (days - 1) * 86_400 if days and not session else 0.0
    usage = shared.in_store(lambda store: store.usage(since=since, session=session))
    if json:
        shared.print_json(usage.report())
    elif not usage.total.requests:
        echo("No usage." if session or not days else f"No usage in the last {days} days. To see all, add --days 0.")
    else:
        _print_usage(usage, is_of_session=bool(session))


def _print_usage(usage: UsageCollector, *, is_of_session: bool) -> None:
    """Print the cost in total, by day, by model and by user, and the calls of each tool."""
    total = usage.total
    retries = f", {counted(total.retries, 'retry', 'retries')}" if total.retries else ""
    sessions = "" if is_of_session else f" in {counted(len(usage.sessions), 'session')}"
    echo(f"{_money(total)} for {counted(total.requests, 'request')}{sessions}{retries}\n")
    _print_tallies("day", sorted(usage.days.items()))
    _print_tallies("model", by_cost(usage.models))
    if len(usage.users) > 1:
        _print_tallies("user", [(user or "(none)", tally) for user, tally in by_cost(usage.users)])
    if usage.tools:
        rows = []
        for name, tool in sorted(usage.tools.items(), key=lambda item: -item[1].calls):
            success = f"{tool.success_rate:.0%} ok" if tool.ran else "none ran"
            figures = success, f"{tool.mean_ms:,.0f} ms", f"{tool.tokens:,} tokens"
            rows.append((name, counted(tool.calls, "call"), *figures, tool.top_errors(3)))
        print_table(("tool", "calls", "success", "ms", "tokens", "errors"), rows, numeric={"calls", "ms", "tokens"})
        skills = "".join(f", skill {name} {count}×" for name, count in total.skills.most_common())
        all_tools = total.calls
        means = f"{all_tools.mean_ms:,.0f} ms and {all_tools.tokens / all_tools.calls:,.0f} tokens on average"
        echo(f"\n{counted(all_tools.calls, 'call')}: {means}, {counted(all_tools.retries, 'retry', 'retries')}{skills}")
    if total.unpriced:
        echo(f"\nThe price of {counted(total.unpriced, 'request')} is unknown and not included in the costs.")


def _print_tallies(heading: str, tallies: Sequence[tuple[str, Tally]]) -> None:
    print_table((heading, *_FIGURES), [(name, *_figures(tally)) for name, tally in tallies], numeric=set(_FIGURES))
    echo("")


def _figures(tally: Tally) -> tuple[str, ...]:
    usage = tally.usage
    cached = f"{usage.cache_read_input_tokens / usage.prompt_tokens:.0%}" if usage.prompt_tokens else "0%"
    tokens = f"{usage.prompt_tokens:,} in", cached, f"{usage.output_tokens:,} out"
    return counted(tally.requests, "request"), *tokens, _money(tally)


def _money(tally: Tally) -> str:
    return "price unknown" if tally.unpriced == tally.requests and tally.requests else format_cost(tally.cost_usd)
