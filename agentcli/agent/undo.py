"""Finds which changes of files the person can take back, or do again, and does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from agentcli.agent.interfaces import Checkpoints, Locks, Restoration, RestoredFile
from agentcli.agent.rewind import typed_text
from agentcli.conversation.entries import Assistant, Body, Entry, User, reminder
from agentcli.conversation.file_changes import FileChange, FilesChanged, FilesRestored, real_path, stored_path
from agentcli.conversation.titles import shortened
from agentcli.llm.messages import ToolUse

Direction = Literal["undo", "redo"]

_LOCK_PATIENCE_S = 30.0
_MOST_LOCKED = 500
_MOST_TOLD = 20  # names of files for the model
_MOST_LEFT_OUT = 10
_MOST_LISTED = 60  # files
_LONGEST_PROMPT = 50


class TurnChanges(Struct, frozen=True):
    """Changes that are taken back together: those of turn `number`, from 1 on, which answered `prompt`.

    `takes_back` are the entries they stand in, oldest first. `left_out` names what of the workspace was not looked at;
    of some `is_shared` others' changes, made while a command ran, may be part. With `is_open` those of all later turns
    are among them. `has_unrecorded` says that commands ran of which no changes were recorded.
    """

    number: int
    prompt: str
    takes_back: tuple[str, ...]
    changes: tuple[FileChange, ...]
    left_out: tuple[str, ...] = ()
    is_shared: bool = False
    is_open: bool = False
    has_unrecorded: bool = False

    @property
    def name(self) -> str:
        """`Turn 3 (add a test)`."""
        prompt = f" ({shortened(self.prompt, _LONGEST_PROMPT)})" if self.prompt else ""
        return f"{'Everything since turn' if self.is_open else 'Turn'} {self.number}{prompt}"


@dataclass
class _Turn:
    number: int
    prompt: Entry | None
    changed: list[tuple[str, FilesChanged]]


class History:
    """What the entries of a session say of changes to files, also those of prompts that were taken back."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._turns: list[_Turn] = [_Turn(0, None, [])]
        self._restored: dict[str, FilesRestored] = {}
        self._undone: dict[str, str] = {}  # entry, and the one that took it back
        self._turn_of_call: dict[str, _Turn] = {}
        self._positions: dict[str, int] = {}
        for position, entry in enumerate(entries):
            self._positions[entry.id] = position
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        turn = self._turns[-1]
        match entry.body:
            case User(is_reminder=False):
                self._turns.append(_Turn(turn.number + 1, entry, []))
            case Assistant(content):
                self._turn_of_call |= {block.id: turn for block in content if isinstance(block, ToolUse)}
            case FilesChanged(id, _) as changed:
                self._turn_of_call.get(id, turn).changed.append((entry.id, changed))
            case FilesRestored(takes_back) as restored:
                self._restored[entry.id] = restored
                for id in takes_back:
                    if id in self._restored:  # what it had taken back holds again
                        self._undone = {one: by for one, by in self._undone.items() if by != id}
                    self._undone[id] = entry.id
            case _:
                pass

    def to_undo(self) -> Iterator[TurnChanges]:
        """The turns that changed files, the newest first, without what was taken back."""
        return (found for turn in reversed(self._turns) if (found := self._of_turn(turn)) is not None)

    def to_redo(self) -> TurnChanges | None:
        """What was taken back last."""
        for id, restored in reversed(self._restored.items()):
            if id in self._undone or any(one in self._restored for one in restored.takes_back):
                continue
            turns = (t for t in self._turns if any(one in restored.takes_back for one, _ in t.changed))
            turn = next(turns, self._turns[0])  # of entries that cannot be read no turn is known
            return TurnChanges(turn.number, _prompt_of(turn), (id,), restored.changes)
        return None

    def since(self, entry_id: str) -> TurnChanges | None:
        """All changes that were recorded after an entry, together; None where there are none."""
        start = self._positions.get(entry_id, len(self._positions))
        later = [
            (id, changed, turn) for turn in self._turns for id, changed in turn.changed if self._positions[id] > start
        ]
        later.sort(key=lambda one: self._positions[one[0]])
        holding = [(id, left) for id, changed, _ in later if (left := self._holding(id, changed)) is not None]
        if not holding:
            return None
        turn = min((turn for _, _, turn in later), key=lambda turn: turn.number)
        return _together(holding, turn, is_open=True)

    def _holding(self, id: str, changed: FilesChanged) -> FilesChanged | None:
        """What of a call's changes was not taken back; None where nothing is left."""
        if id in self._undone:
            left = self._restored[self._undone[id]].left
            changes = tuple(change for change in changed.changes if change.path in left)
            return structs.replace(changed, changes=changes, left_out=()) if changes else None
        return changed if changed.changes or changed.left_out else None

    def _of_turn(self, turn: _Turn) -> TurnChanges | None:
        holding = [(id, left) for id, changed in turn.changed if (left := self._holding(id, changed)) is not None]
        return _together(holding, turn) if holding else None


def _together(holding: Sequence[tuple[str, FilesChanged]], turn: _Turn, *, is_open: bool = False) -> TurnChanges:
    changes = tuple(change for _, one in holding for change in one.changes)
    left_out = tuple(dict.fromkeys(name for _, one in holding for name in one.left_out))
    is_shared = any(not one.is_exact for _, one in holding)
    ids = tuple(id for id, _ in holding)
    has_unrecorded = any(not one.changes for _, one in holding)
    return TurnChanges(turn.number, _prompt_of(turn), ids, changes, left_out, is_shared, is_open, has_unrecorded)


def _prompt_of(turn: _Turn) -> str:
    body = turn.prompt.body if turn.prompt is not None else None
    return " ".join(typed_text(body).split()) if isinstance(body, User) else ""


class Plan(Struct, frozen=True):
    """Changes, and how they are taken back. `passed_over` names a newer turn of which nothing can be."""

    turn: TurnChanges
    direction: Direction
    restoration: Restoration
    passed_over: str = ""

    @property
    def obstacle(self) -> str:
        """The reason that nothing can be done; empty if something can."""
        if self.restoration.changes:
            return ""
        if any(file.how == "conflict" for file in self.restoration.files):
            return "conflicts"
        return "" if self.restoration.files else "its changes were not recorded"

    def is_complete(self, files: Sequence[RestoredFile]) -> bool:
        """True if, as the files were dealt with, something was done and nothing had to be left."""
        ways = {file.how for file in files}
        return bool(ways - {"kept"}) and "conflict" not in ways and not self.turn.has_unrecorded


async def plan_undo(
    entries: Iterable[Entry], checkpoints: Checkpoints, direction: Direction, turn: TurnChanges | None = None
) -> Plan | None:
    """How to take back the changes of a turn, or to do them again; None where there is nothing. Raises `ToolError`.

    Without a turn it is the newest one of which something can be taken back, or the newest.
    """
    history = History(entries)
    redo = history.to_redo() if direction == "redo" else None
    turns = [turn] if turn is not None else history.to_undo() if direction == "undo" else [redo] if redo else []
    newest: Plan | None = None
    for one in turns:
        plan = Plan(one, direction, await checkpoints.restoration(one.changes), newest.turn.name if newest else "")
        if not plan.obstacle:
            return plan
        newest = newest or plan
    return newest


async def carry_out(
    plan: Plan, *, append: Callable[..., Awaitable[object]], locks: Locks, shown: Callable[[Path], str]
) -> Sequence[RestoredFile]:
    """Take the changes back; gives what became of each file. The log has what was done, and the model is told.

    What meets a conflict can still be taken back later. Raises `UserError`, and `ToolError` where nothing was done.
    """
    if plan.obstacle:
        return plan.restoration.files
    keys = tuple(file.path for file in plan.restoration.files[:_MOST_LOCKED])
    async with locks.held(keys, timeout_s=_LOCK_PATIENCE_S):
        files = await plan.restoration.carry_out()
        left = tuple(stored_path(file.path) for file in files if file.how == "conflict")
        changes = tuple(change for change in plan.restoration.changes if change.path not in left)
        if left and not changes:
            return files
        entries: list[Body] = [FilesRestored(plan.turn.takes_back, changes, left)]
        if changes:
            names = [shown(Path(real_path(change.path))) for change in changes]
            more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
            did = "took back what was changed in" if plan.direction == "undo" else "did again what was taken back in"
            entries.append(reminder(f"The user {did} these files: {', '.join(names[:_MOST_TOLD])}{more}."))
        await append(*entries)
        return files


_SIGNS = {"restored": "↩", "removed": "-", "merged": "⇄", "conflict": "!", "kept": "="}


def told_plan(plan: Plan, shown: Callable[[Path], str]) -> str:
    """What would become of each file; what is not covered comes first."""
    turn = plan.turn
    lines = [f"Nothing of {_lower(plan.passed_over)} can be taken back."] if plan.passed_over else []
    lines += [f"Not covered, and stays as it is: {shown_name(name, shown)}" for name in turn.left_out[:_MOST_LEFT_OUT]]
    if (more := len(turn.left_out) - _MOST_LEFT_OUT) > 0:
        lines.append(f"Not covered, too: {more} more.")
    if turn.is_shared:
        lines.append("A command ran: what else changed while it did counts as its own. What git keeps is git's.")
    return "\n".join([*lines, told_files(plan.restoration.files, shown)])


def told_outcome(
    plan: Plan,
    files: Sequence[RestoredFile],
    shown: Callable[[Path], str],
    *,
    command: str = "/",
    is_listed: bool = False,
) -> str:
    """What became of each file, and how to go back from there; `command` is what begins that command.

    Where the plan `is_listed` already, only what came otherwise is.
    """
    is_redo = plan.direction == "redo"
    how = "done again" if is_redo else "taken back"
    done = f"{plan.turn.name} was {how}"
    if plan.obstacle:
        head = f"Nothing of {_lower(plan.turn.name)} could be {how}: {plan.obstacle}."
    elif all(file.how == "kept" for file in files):
        why = "its files are already in that state, or no longer exist"
        head = f"Nothing of {_lower(plan.turn.name)} needed to be {how}: {why}."
    elif conflicts := sum(file.how == "conflict" for file in files):
        head = f"{done}, but for {conflicts} of {len(files)} files: these stay as they are."
    elif plan.turn.has_unrecorded:
        head = f"{done}, except for what commands changed without being recorded."
    else:
        head = f"{done}. {command}{'undo takes it back' if is_redo else 'redo does it again'}."
    told = [file for file in files if file not in plan.restoration.files] if is_listed else files
    return f"{head}\n{told_files(told, shown)}" if told else head


def _lower(name: str) -> str:
    return name[:1].lower() + name[1:]


def told_files(files: Sequence[RestoredFile], shown: Callable[[Path], str]) -> str:
    """A line for each file, conflicts first; of many the first."""
    width = max((len(file.how) for file in files), default=0)
    rows = []
    for file in sorted(files, key=lambda file: file.how != "conflict")[:_MOST_LISTED]:
        why = f"  ({file.why})" if file.why else ""
        rows.append(f"  {_SIGNS[file.how]} {file.how:<{width}}  {_in_a_line(shown(Path(file.path)))}{why}")
    if (more := len(files) - _MOST_LISTED) > 0:
        rows.append(f"  … and {more:,} more")
    return "\n".join(rows)


def _in_a_line(name: str) -> str:
    return name.replace("\n", "\\n").replace("\r", "\\r")


def shown_name(name: str, shown: Callable[[Path], str]) -> str:
    """`PATH: why`, the path as the person knows it."""
    path, colon, why = name.rpartition(": ")
    return f"{shown(Path(path))}{colon}{why}" if path.startswith("/") else name
