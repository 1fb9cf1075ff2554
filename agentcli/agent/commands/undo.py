"""Goes back: what turns did to files, what was said since a prompt, or both."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentcli.agent.blame import blame, split_line, told_author
from agentcli.agent.commands.command import Command, CommandHost, Outcome, listed, number_in
from agentcli.agent.commands.sessions import MOST_LISTED, age, label
from agentcli.agent.interfaces import Checkpoints
from agentcli.agent.rewind import Point, points
from agentcli.agent.session import Session
from agentcli.agent.undo import Direction, History, Plan, TurnChanges, carry_out, plan_undo, told_outcome, told_plan
from agentcli.conversation.entries import Labelled
from agentcli.errors import UsageError, UserError


async def planned(session: Session, direction: Direction, turn: TurnChanges | None = None) -> Plan | None:
    """How to take back a turn, by default the newest; None where there is nothing. Raises `UserError`."""
    if session.is_busy:
        raise UserError("A turn is running: interrupt it first, then take its changes back.")
    checkpoints = _checkpoints_of(session)
    if changed := await checkpoints.under_way():
        session.append(*changed)
    return await plan_undo(session.state.conversation.entries, checkpoints, direction, turn)


def _checkpoints_of(session: Session) -> Checkpoints:
    checkpoints = session.runtime.calls.services.checkpoints
    if checkpoints is None:
        raise UserError("Changes of files are not recorded: the setting checkpoints.enabled is off.")
    return checkpoints


async def taken_back(session: Session, plan: Plan, *, is_listed: bool = False) -> str:
    """Carry a plan out, and say what became of each file, if it was not said before. Raises `UserError`."""
    shown = _shown(session)
    locks = session.runtime.calls.services.locks
    files = await carry_out(plan, append=session.append, locks=locks, shown=shown)
    return told_outcome(plan, files, shown, is_listed=is_listed)


def _shown(session: Session) -> Callable[[Path], str]:
    return session.runtime.calls.workspace.shown


async def _take_back(host: CommandHost, argument: str, direction: Direction) -> Outcome:
    if argument not in ("", "yes", "list"):
        raise UsageError(f"/{direction} shows the files and asks; /{direction} list only shows them, yes does not ask.")
    plan = await planned(host.session, direction)
    if plan is None:
        return "There is nothing to take back." if direction == "undo" else "Nothing was taken back before."
    verb = "Take back" if direction == "undo" else "Do again"
    shown = f"{verb} {plan.turn.name}:\n{told_plan(plan, _shown(host.session))}"
    if argument == "list" or plan.obstacle:
        return shown if argument == "list" else told_outcome(plan, plan.restoration.files, _shown(host.session))
    if argument != "yes":
        is_wanted = await host.confirm(shown, f"{verb}?")
        if is_wanted is None:
            return f"{shown}\nThis is not done yet: /{direction} yes does it."
        if not is_wanted:
            return "Nothing was changed."
    return await taken_back(host.session, plan, is_listed=argument != "yes")


async def _undo(host: CommandHost, argument: str) -> Outcome:
    return await _take_back(host, argument, "undo")


async def _redo(host: CommandHost, argument: str) -> Outcome:
    return await _take_back(host, argument, "redo")


async def _why(host: CommandHost, argument: str) -> Outcome:
    if not argument:
        raise UsageError("Give a file, and a line if you like: /why PATH[:LINE]")
    workspace = host.session.runtime.calls.workspace
    checkpoints = _checkpoints_of(host.session)
    name, line = split_line(argument, lambda name: workspace.lexical_path(name).exists())
    lines = await blame(workspace.real_path(name), host.stored_sessions, checkpoints.content)
    if line is not None and line > len(lines):
        raise UsageError(f"{name} has {len(lines)} lines: there is no line {line}.")
    authors = [one.author for one in (lines if line is None else [lines[line - 1]]) if one.author is not None]
    if not authors:
        return f"No session wrote {'anything in ' if line is None else ''}{argument}."
    newest = max(authors, key=lambda author: author.at)
    return told_author(newest, age(time.time() - newest.at))


_PARTS = ("conversation", "files", "both")


async def _rewind(host: CommandHost, argument: str) -> Outcome:
    """Numbers count from the newest prompt, which is what one most often wants back."""
    there = points(host.session.state.conversation)
    if not there:
        return "There is no prompt to go back to."
    which, part = _split_part(argument)
    if which:
        point = _named_point(which, there)
    else:
        options = [_in_columns(point) for point in there]
        chosen = await host.choose("Go back to before", options)
        if chosen is None:
            return listed(options[:MOST_LISTED], f"Go back to one: /rewind NUMBER|LABEL [{'|'.join(_PARTS)}]")
        point = there[chosen]
    changes = History(host.session.state.conversation.entries).since(point.entry_id) if point.kind != "branch" else None
    if not which and changes is not None:
        part = await _chosen_part(host, changes)
    return await _go_back(host, point, part or "conversation", changes, is_asked=bool(which))


def _split_part(argument: str) -> tuple[str, str]:
    """The place to go back to, and which part of what followed is to be taken back."""
    words = argument.split()
    return (" ".join(words[:-1]), words[-1]) if words and words[-1] in _PARTS else (argument, "")


def _named_point(which: str, there: Sequence[Point]) -> Point:
    """The one with that number, label or id. Raises `UsageError`."""
    if which.isdecimal():
        return there[number_in(which, len(there), "prompt")]
    found = [point for point in there if (point.kind == "label" and point.text == which) or point.entry_id == which]
    if not found:
        raise UsageError(f"There is no label {which!r}: /rewind shows where you can go back to.")
    return found[0]


def _in_columns(point: Point) -> tuple[str, str]:
    detail = {"prompt": "", "label": "a label: to just there", "branch": "left before: to its end"}[point.kind]
    return label(point.text), detail


async def _label(host: CommandHost, name: str) -> Outcome:
    if not name or name.isdecimal() or name.rsplit(maxsplit=1)[-1] in _PARTS:
        raise UsageError(
            f"Give this point a name that is no number and ends in none of {', '.join(_PARTS)}: /label NAME"
        )
    if host.session.is_busy:
        raise UserError("A turn is running: give a label when it has ended.")
    host.session.append(Labelled(name))
    return f"This point is called {name}: /rewind {name} goes back to it."


async def _chosen_part(host: CommandHost, changes: TurnChanges) -> str:
    count = len({change.path for change in changes.changes})
    files = f"{count} file{'s' if count > 1 else ''} changed since"
    details = ("files stay as they are", f"{files}; what was said stays", files)
    options = [(part.capitalize(), detail) for part, detail in zip(_PARTS, details, strict=True)]
    chosen = await host.choose("Take back", options)
    return _PARTS[chosen or 0]


async def _go_back(
    host: CommandHost, point: Point, part: str, changes: TurnChanges | None, *, is_asked: bool
) -> Outcome:
    """Take back the conversation, the files, or both. Files come first: a list of them is shown and agreed to."""
    session, said = host.session, []
    if part != "conversation":
        plan = await planned(session, "undo", changes) if changes is not None else None
        if plan is None:
            said.append("No file was changed since by what can be taken back.")
        else:
            shown = told_plan(plan, _shown(session))
            if not is_asked and not await host.confirm(f"Take back since then:\n{shown}", "Take back?"):
                return "Nothing was changed."
            said.append(await taken_back(session, plan, is_listed=not is_asked))
    if part != "files":
        text = session.rewind(point.entry_id)
        host.put_into_input(text)
        said.insert(0, f"Back {'before' if point.kind == 'prompt' else 'at'}: {label(point.text)}")
        said.append(
            "What it cost stays counted."
            if part == "both"
            else "Files are as they are now. What it cost stays counted."
        )
    return "\n".join(said)


UNDO_COMMANDS = (
    Command("undo", "take back what the newest turn did to files", _undo, "[list|yes]"),
    Command(
        "rewind",
        "go back to before one of your prompts: what was said, the files, or both",
        _rewind,
        "[WHERE]",
        ("checkpoint",),
        forms=("", "NUMBER|LABEL [conversation|files|both]"),
    ),
    Command("label", "give this point of the conversation a name, to go back to", _label, "NAME"),
    Command("why", "show which turn and call wrote a file, or a line of it", _why, "PATH[:LINE]"),
    Command("redo", "do again what was taken back", _redo, "[list|yes]"),
)
