"""Goes back: what turns did to files, what was said since a prompt, or both."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from agentcli.agent.blame import blame, format_author
from agentcli.agent.commands.command import CommandHost, Outcome, SlashCommand, listed, number_in
from agentcli.agent.commands.sessions import MOST_LISTED, age, label
from agentcli.agent.interfaces import Checkpoints
from agentcli.agent.rewind import Point, points
from agentcli.agent.session import Session
from agentcli.agent.undo import Confirm, Direction, History, TurnChanges, UndoHost, UndoResult, undo
from agentcli.conversation.entries import Labelled
from agentcli.errors import UsageError, UserError


async def undo_in(
    session: Session, direction: Direction, given: str, confirm: Confirm, *, turn: TurnChanges | None = None
) -> UndoResult:
    """`undo` in an open session, also of what runs in the background."""
    if session.is_busy:
        raise UserError("A turn is running: interrupt it first, then take its changes back.")
    checkpoints, calls = _checkpoints_of(session), session.runtime.calls
    if changed := await checkpoints.under_way():
        session.append(*changed)
    host = UndoHost(checkpoints, session.append, calls.services.locks, calls.workspace.shown, confirm)
    return await undo(session.state.conversation.entries, direction, given, host, turn=turn)


def _checkpoints_of(session: Session) -> Checkpoints:
    checkpoints = session.runtime.calls.recording.checkpoints
    if checkpoints is None:
        raise UserError("Changes of files are not recorded: the setting checkpoints.enabled is off.")
    return checkpoints


async def _take_back(direction: Direction, host: CommandHost, argument: str) -> Outcome:
    if argument not in ("", "yes", "list"):
        raise UsageError(f"/{direction} shows the files and asks; /{direction} list only shows them, yes does not ask.")
    return (await undo_in(host.session, direction, argument, host.confirm)).text


async def _why(host: CommandHost, argument: str) -> Outcome:
    if not argument:
        raise UsageError("Give a file, and a line if you like: /why PATH[:LINE]")
    find, read = host.session.runtime.calls.workspace.real_path, _checkpoints_of(host.session).content
    authors = [line.author for line in await blame(argument, find, host.stored_sessions, read) if line.author]
    if not authors:
        return f"No session wrote anything in {argument}."
    newest = max(authors, key=lambda author: author.at)
    return format_author(newest, age(time.time() - newest.at))


_PARTS = ("conversation", "files", "both")
_POINTS = {"prompt": "", "label": "a label: to just there", "branch": "abandoned branch: to its end"}


async def _rewind(host: CommandHost, argument: str) -> Outcome:
    """Go back to a point: in the conversation, in the files, or in both. Numbers count from the newest prompt.

    Files come first: a list of them is shown and agreed to, unless the command names the point.
    """
    session, report = host.session, []
    there = points(session.state.conversation)
    if not there:
        return "There is no prompt to go back to."
    words = argument.split()
    part = words.pop() if words and words[-1] in _PARTS else "conversation"
    if which := " ".join(words):
        point = _named_point(which, there)
    else:
        options = [(label(point.text), _POINTS[point.kind]) for point in there]
        chosen = await host.choose("Go back to before", options)
        if chosen is None:
            return listed(options[:MOST_LISTED], f"Go back to one: /rewind NUMBER|LABEL [{'|'.join(_PARTS)}]")
        point = there[chosen]
    changes = History(session.state.conversation.entries).since(point.entry_id) if point.kind != "branch" else None
    if not which and changes is not None:
        part = await _choose_part(host, changes)
    if part != "conversation" and changes is not None:
        result = await undo_in(session, "undo", "yes" if which else "", host.confirm, turn=changes)
        if not result.is_wanted:
            return result.text
        report.append(result.text)
    elif part != "conversation":
        report.append("No file changes since then.")
    if part != "files":
        host.put_into_input(session.rewind(point.entry_id))
        report.insert(0, f"Back {'before' if point.kind == 'prompt' else 'at'}: {label(point.text)}")
        report.append(f"{'' if part == 'both' else 'Files are as they are now. '}What it cost stays counted.")
    return "\n".join(report)


def _named_point(which: str, there: Sequence[Point]) -> Point:
    """The one with that number, label or id. Raises `UsageError`."""
    if which.isdecimal():
        return there[number_in(which, len(there), "prompt")]
    found = [point for point in there if (point.kind == "label" and point.text == which) or point.entry_id == which]
    if not found:
        raise UsageError(f"There is no label {which!r}: /rewind shows where you can go back to.")
    return found[0]


async def _label(host: CommandHost, name: str) -> Outcome:
    if not name or name.isdecimal() or name.rsplit(maxsplit=1)[-1] in _PARTS:
        raise UsageError(
            f"Give this point a name that is no number and ends in none of {', '.join(_PARTS)}: /label NAME"
        )
    if host.session.is_busy:
        raise UserError("A turn is running: give a label when it has ended.")
    host.session.append(Labelled(name))
    return f"This point is called {name}: /rewind {name} goes back to it."


async def _choose_part(host: CommandHost, changes: TurnChanges) -> str:
    count = len({change.path for change in changes.changes})
    files = f"{count} file{'s' if count > 1 else ''} changed since"
    details = ("files stay as they are", f"{files}; what was said stays", files)
    options = [(part.capitalize(), detail) for part, detail in zip(_PARTS, details, strict=True)]
    chosen = await host.choose("Take back", options)
    return _PARTS[chosen or 0]


UNDO_COMMANDS = (
    SlashCommand("undo", "take back what the newest turn did to files", partial(_take_back, "undo"), "[list|yes]"),
    SlashCommand(
        "rewind",
        "go back to before one of your prompts: what was said, the files, or both",
        _rewind,
        "[WHERE]",
        ("checkpoint",),
        forms=("", "NUMBER|LABEL [conversation|files|both]"),
    ),
    SlashCommand("label", "give this point of the conversation a name, to go back to", _label, "NAME"),
    SlashCommand("why", "show which turn and call wrote a file, or a line of it", _why, "PATH[:LINE]"),
    SlashCommand("redo", "do again what was taken back", partial(_take_back, "redo"), "[list|yes]"),
)
