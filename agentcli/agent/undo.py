"""Undoes and redoes the changes that turns made to files, and finds the call that wrote a line."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from agentcli.agent import interfaces
from agentcli.conversation import entries as log
from agentcli.conversation.blame import line_origins
from agentcli.conversation.history import calls_in, listed_names, shorten
from agentcli.conversation.mentions import typed_text
from agentcli.errors import StorageError, UsageError
from agentcli.llm.messages import ToolUse
from agentcli.patterns import lazy_pattern
from agentcli.settings.files import read_small_file
from agentcli.tools.observation import call_title

Direction = Literal["undo", "redo"]
Outcomes = Sequence[interfaces.RestoredFile]
NOTHING = {"undo": "There are no changes to undo.", "redo": "There are no changes to redo."}

_MAX_REPORTED = 20  # names of files in the reminder for the model
_MAX_LEFT_OUT = 10  # shown files that were not recorded
_MAX_LISTED = 60  # files
_MAX_PROMPT_CHARS = 50
_MAX_BLAMED = 10_000_000  # bytes
# A line of HEAD's reflog. The commit before is not all zeros, as it is for a first commit.
_MOVE = lazy_pattern(r"(?m)^(?P<before>\w*[1-9a-f]\w*) (?P<after>\w+) .*> (?P<time>\d+) [+-]\d+\t(?P<cause>.*)$")
_DROPPED_STASH = lazy_pattern(r"Dropped refs/stash@\{\d+\} \(([0-9a-f]{40,64})\)")  # as `git stash pop` prints it


class TurnChanges(Struct, frozen=True, kw_only=True):
    """Changes that are undone together: those of turn `number`, from 1, and if `is_open` those of all later turns."""

    number: int
    prompt: str
    calls: tuple[tuple[str, log.FilesChanged], ...]  # ids of entries, each with its remaining changes, oldest first
    is_open: bool = False
    is_untried: bool = True  # False if only the conflicts of an earlier undo remain
    times: tuple[tuple[float, float], ...] = ()  # the Unix times of each turn's prompt and last result
    stashes: tuple[str, ...] = ()  # the commits of stashes that git dropped

    @property
    def name(self) -> str:
        """The name for the person, as in `turn 3 (add a test)`."""
        prompt = f" ({shorten(self.prompt, _MAX_PROMPT_CHARS)})" if self.prompt else ""
        return f"{'everything since turn' if self.is_open else 'turn'} {self.number}{prompt}"

    @property
    def changes(self) -> tuple[log.FileChange, ...]:
        return tuple(change for _, call in self.calls for change in call.changes)

    @property
    def is_recorded(self) -> bool:
        return all(call.changes for _, call in self.calls)


class RecordedCall(NamedTuple):
    """A call that changed files, with its turn's number and prompt, and the reply that contains the call, if known."""

    turn: int
    prompt: str
    entry: log.Entry
    changed: log.FilesChanged
    reply: tuple[log.Entry, ToolUse] | None


class History:
    """The changes to files in a session's entries, including the changes of prompts that were taken back."""

    def __init__(self, entries: Iterable[log.Entry]) -> None:
        self.calls: dict[str, RecordedCall] = {}  # by the ids of their entries, oldest first
        self._restores: dict[str, log.FilesRestored] = {}  # undos and redos, by the ids of their entries
        self._undone: dict[str, str] = {}  # ids of undone entries, each with the id of the entry that undid it
        self._positions: dict[str, int] = {}  # of entries, by their ids
        self._times = {0: (0.0, 0.0)}  # the times of the prompt and the last result, by the number of the turn
        self._dropped_stashes: dict[str, str] = {}  # the commit of the stash that git dropped, by the id of the call
        self._number, self._prompt = 0, ""  # of the newest turn
        # By the id of a call: its turn, its prompt and its reply. If a model uses an id twice, the newer call applies.
        self._sources: dict[str, tuple[int, str, tuple[log.Entry, ToolUse] | None]] = {}
        for entry in entries:
            self._add(entry)

    def _add(self, entry: log.Entry) -> None:
        """Record what an undo needs from an entry: prompt, times, calls, changes to files, or the entries it undid."""
        self._positions[entry.id] = len(self._positions)
        match entry.body:
            case log.User(content, is_reminder=False):
                self._number, self._prompt = self._number + 1, " ".join(typed_text(content).split())
                self._times[self._number] = (entry.time, entry.time)
            case log.Result(result=result):
                began, _ = self._times[self._number]
                self._times[self._number] = (began, entry.time)
                if dropped := _DROPPED_STASH.search(str(result.content)):  # an undo says how to restore it
                    self._dropped_stashes[result.tool_use_id] = dropped[1]
            case log.Assistant() as reply:
                for use in calls_in(reply):
                    self._sources[use.id] = (self._number, self._prompt, (entry, use))
            case log.FilesChanged(call_id, _) as changed:  # of a program's own call if no reply has the id
                number, prompt, reply_and_use = self._sources.get(call_id, (self._number, self._prompt, None))
                self.calls[entry.id] = RecordedCall(number, prompt, entry, changed, reply_and_use)
            case log.FilesRestored(takes_back) as restored:
                self._restores[entry.id] = restored
                for id in takes_back:
                    if id in self._restores:  # a redo of an undo: what that had undone is in effect again
                        self._undone = {undone: by for undone, by in self._undone.items() if by != id}
                    self._undone[id] = entry.id

    def find(self, direction: Direction) -> TurnChanges | None:
        """Return the changes to undo or redo next. Turns whose undo met conflicts come after all others."""
        if direction == "redo":
            return self._to_redo()
        by_turn: dict[int, list[str]] = {}
        for id, call in self.calls.items():
            by_turn.setdefault(call.turn, []).append(id)
        newest_first = (self._remaining(ids) for _, ids in sorted(by_turn.items(), reverse=True))
        turns = [turn for turn in newest_first if turn is not None]
        return next((turn for turn in turns if turn.is_untried), turns[0] if turns else None)

    def since(self, entry_id: str) -> TurnChanges | None:
        """Return all changes that were recorded after an entry; None if there are none."""
        start = self._positions.get(entry_id, len(self._positions))
        return self._remaining([id for id in self.calls if self._positions[id] > start], is_open=True)

    def _to_redo(self) -> TurnChanges | None:
        """Return the changes that were undone last, and not redone since."""
        for id, restored in reversed(self._restores.items()):
            is_redo = any(taken_back in self._restores for taken_back in restored.takes_back)
            if not is_redo and id not in self._undone and restored.changes:
                calls = [self.calls[call] for call in restored.takes_back if call in self.calls]
                number, prompt = min(((call.turn, call.prompt) for call in calls), default=(0, ""))
                # To redo is to take back the changes that the undo has made.
                return TurnChanges(number=number, prompt=prompt, calls=((id, log.FilesChanged("", restored.changes)),))
        return None

    def _remaining(self, ids: Sequence[str], *, is_open: bool = False) -> TurnChanges | None:
        """Return the changes in these entries that are not undone, also those with conflicts; None if all are."""
        calls, is_untried = [], False
        for id in ids:
            changed = self.calls[id].changed
            if id not in self._undone:
                is_untried = is_untried or bool(changed.changes)
            else:  # the undo has `left` the paths where later changes conflicted
                conflicts = self._restores[self._undone[id]].left
                changes = tuple(change for change in changed.changes if change.path in conflicts)
                changed = structs.replace(changed, changes=changes, left_out=())
            if changed.changes or changed.left_out:
                calls.append((id, changed))
        if not calls:
            return None
        number, prompt = min((self.calls[id].turn, self.calls[id].prompt) for id in ids)
        return TurnChanges(
            number=number,
            prompt=prompt,
            calls=tuple(calls),
            is_open=is_open,
            is_untried=is_untried,
            times=tuple(self._times[turn] for turn in {self.calls[id].turn for id, _ in calls}),
            stashes=tuple(self._dropped_stashes[call.id] for _, call in calls if call.id in self._dropped_stashes),
        )


# Shows a text and asks a question; returns None if nobody can be asked.
Confirm = Callable[[str, str], Awaitable[bool | None]]


class UndoHost(Struct, frozen=True, kw_only=True):
    """The services that an undo needs."""

    checkpoints: interfaces.Checkpoints
    append: Callable[..., Awaitable[object]]  # stores entries
    locks: interfaces.Locks
    shown: Callable[[Path], str]  # returns a path in the form for the person
    confirm: Confirm
    command: str = "/"  # the beginning of the commands that hints name, such as "/undo"


class UndoResult(Struct, frozen=True):
    """The report on an undo or redo. `is_wanted` is False if its files were only listed, or the person said no."""

    text: str
    turn: TurnChanges | None = None
    files: Outcomes = ()
    is_wanted: bool = True

    @property
    def is_complete(self) -> bool:
        outcomes = {file.how for file in self.files} - {"kept"}
        return bool(outcomes) and "conflict" not in outcomes and self.turn is not None and self.turn.is_recorded


async def undo(
    entries: Iterable[log.Entry], direction: Direction, answer: str, host: UndoHost, *, turn: TurnChanges | None = None
) -> UndoResult:
    """Undo or redo the changes of a turn, by default of the next one.

    The person's `answer` is "yes", "list" only to list the files, or "" if they are to be asked. Raises `ToolError` if
    nothing was done, and `UserError` if the log cannot be written.
    """
    turn = turn or History(entries).find(direction)
    if turn is None:
        return UndoResult(NOTHING[direction])
    plan = await host.checkpoints.restoration(turn.changes)
    # If there are only conflicts, nothing is asked, because nothing can be done; the headline reports them.
    is_possible = bool(plan.changes) or {file.how for file in plan.files} == {"kept"}
    verb = direction.capitalize()
    remarks = _remarks(turn, host.shown)
    text = "\n".join([f"{verb} {turn.name}:", *remarks, *_rows(plan.files, host.shown, direction, is_done=False)])
    if answer == "list":
        return UndoResult(text, turn, plan.files, is_wanted=False)
    is_asked = answer != "yes" and is_possible
    if is_asked and not (is_confirmed := await host.confirm(text, f"{verb}?")):
        how_to = f"{text}\nNothing was changed yet. To {direction}: {host.command}{direction} yes"
        text = how_to if is_confirmed is None else "Nothing was changed."  # None: nobody could be asked
        return UndoResult(text, turn, plan.files, is_wanted=False)
    files = await _carry_out(turn, direction, plan, host)
    headline = _headline(turn, direction, files, host.command)
    # A person who was asked has seen the list, so only files with another outcome are reported.
    reported = [file for file in files if not is_asked or file not in plan.files]
    stashes = [f"To bring back the stash that git dropped: git stash store {commit[:10]}" for commit in turn.stashes]
    remarks = [*await asyncio.to_thread(_git_remark, turn, host.shown), *stashes]
    return UndoResult("\n".join([headline, *remarks, *_rows(reported, host.shown, direction)]), turn, files)


async def _carry_out(turn: TurnChanges, direction: Direction, plan: interfaces.Restoration, host: UndoHost) -> Outcomes:
    """Carry out the plan, and store that in the log, with a reminder for the model. Return the outcome of each file."""
    keys = tuple(file.path for file in plan.files[: interfaces.MAX_LOCKED])
    async with host.locks.held(keys, timeout_s=interfaces.LOCK_TIMEOUT_S):
        files = await plan.carry_out()
        conflicts = tuple(log.stored_path(file.path) for file in files if file.how == "conflict")
        changes = tuple(change for change in plan.changes if change.path not in conflicts)
        if not files or (conflicts and not changes and direction == "redo"):
            return files  # nothing was changed; without an entry, the undo can still be redone later
        bodies: list[log.Body] = [log.FilesRestored(tuple(id for id, _ in turn.calls), changes, conflicts)]
        if changes:
            names = [host.shown(Path(log.system_path(change.path))) for change in changes]
            did = "undid" if direction == "undo" else "reapplied"
            bodies.append(log.reminder(f"The user {did} changes to these files: {listed_names(names, _MAX_REPORTED)}."))
        await host.append(*bodies)
        return files


# The label of each outcome, before and after the undo.
_LABELS = {
    "restored": ("↩ would restore", "↩ restored"),
    "removed": ("- would remove", "- removed"),
    "merged": ("⇄ would merge", "⇄ merged"),
    "conflict": ("! conflict", "! conflict"),
    "kept": ("= kept", "= kept"),
}
_REDONE = {"restored": ("↪ would reapply", "↪ reapplied")}


def _remarks(turn: TurnChanges, shown: Callable[[Path], str]) -> list[str]:
    """Return lines about files that were not recorded, and about changes by others that may be included."""
    left_out = [*dict.fromkeys(name for _, call in turn.calls for name in call.left_out)]
    lines = [f"Not recorded, stays unchanged: {show_path_in(name, shown)}" for name in left_out[:_MAX_LEFT_OUT]]
    if (more := len(left_out) - _MAX_LEFT_OUT) > 0:
        lines.append(f"Not recorded: {more} more.")
    if not all(call.is_exact for _, call in turn.calls):
        lines.append("A command ran: all changes made meanwhile count as its own. Git's own files are not included.")
    return lines


def _git_remark(turn: TurnChanges, shown: Callable[[Path], str]) -> list[str]:
    """Return a line about a git branch that the turn's calls moved, unless it has moved again since. Blocks."""
    for folder in {parent for change in turn.changes for parent in Path(log.system_path(change.path)).parents}:
        with suppress(OSError):  # most folders are not a repository
            reflog = read_small_file(folder / ".git/logs/HEAD").decode(errors="replace")
            moves = [match.groupdict() for match in _MOVE.finditer(reflog)]
            own = [move for move in moves if any(int(start) <= int(move["time"]) <= end for start, end in turn.times)]
            if not own or own[-1] != moves[-1]:  # the turn's calls did not move it, or it has moved again
                continue
            commit_before, commit_now = own[0]["before"], own[-1]["after"]
            if commit_before != commit_now:
                where = shlex.quote(shown(folder))
                git = "git" if where == "." else f"git -C {where}"
                # After a checkout, the reset would move another branch.
                is_same_branch = not any(move["cause"].startswith("checkout:") for move in own)
                hint = f" To move it back: {git} reset {commit_before[:7]}" if is_same_branch else ""
                return [f"The git branch stays at {commit_now[:7]}.{hint}"]
    return []


def _headline(turn: TurnChanges, direction: Direction, files: Outcomes, command: str) -> str:
    """Return a sentence about the outcome, and about how to reverse it."""
    did, outcomes = "Reapplied" if direction == "redo" else "Undid", [file.how for file in files]
    if set(outcomes) == {"kept"}:
        return f"Nothing to {direction} in {turn.name}: its files are already in that state, or no longer exist."
    if set(outcomes) <= {"conflict", "kept"}:
        why = "all its files conflict" if outcomes else "its changes were not recorded"
        has_earlier = direction == "undo" and turn.is_untried  # the next undo is for an earlier turn
        hint = f" To undo earlier changes: {command}undo" if has_earlier else ""
        return f"Could not {direction} {turn.name}: {why}.{hint}"
    if conflicts := outcomes.count("conflict"):
        return f"{did} {turn.name}, except for {conflicts} of {len(files)} files, which conflict and stay unchanged."
    if not turn.is_recorded:
        return f"{did} {turn.name}, except for changes by commands that were not recorded."
    reverse = "undo" if direction == "redo" else "redo"
    return f"{did} {turn.name}. To {reverse} it: {command}{reverse}"


def _rows(files: Outcomes, shown: Callable[[Path], str], direction: Direction, *, is_done: bool = True) -> list[str]:
    """Format a line for each file, conflicts first; of many files only the first ones."""
    texts = _LABELS | (_REDONE if direction == "redo" else {})
    labels = {how: after if is_done else before for how, (before, after) in texts.items()}
    width = max((len(labels[file.how]) for file in files), default=0)
    rows = []
    for file in sorted(files, key=lambda file: file.how != "conflict")[:_MAX_LISTED]:
        name = shown(Path(file.path)).replace("\n", "\\n").replace("\r", "\\r")
        rows.append(f"  {labels[file.how]:<{width}}  {name}{f'  ({file.why})' if file.why else ''}")
    more = len(files) - _MAX_LISTED
    return [*rows, f"  … and {more:,} more"] if more > 0 else rows


def show_path_in(name: str, shown: Callable[[Path], str]) -> str:
    """Return a text such as "/repo/a.bin: too large" with the path in the form for the person; others unchanged."""
    path, colon, why = name.rpartition(": ")
    return f"{shown(Path(path))}{colon}{why}" if path.startswith("/") else name


class Author(Struct, frozen=True, kw_only=True):
    """The call that wrote a line. `entry_id` is that of the reply with the call, `at` a Unix time."""

    session_id: str
    entry_id: str
    call: ToolUse
    model: str
    turn: int
    prompt: str
    at: float


class BlamedLine(Struct, frozen=True):
    """A line of a file, counted from 1. `author` is None if no session wrote it."""

    line: int
    text: str
    author: Author | None


async def blame(
    name: str, find: Callable[[str], Path], store: interfaces.SessionStore, read: Callable[[str], bytes]
) -> list[BlamedLine]:
    """Return the lines of a file, or the one line of `PATH:LINE`, with their authors.

    `find` returns the real path of a name, `read` the recorded content with an id. Raises `UserError`.
    """
    path, colon, number = name.rpartition(":")
    if not colon or not number.isdecimal() or find(name).exists():  # the name of a file may also end with ":12"
        path, number = name, ""
    file = find(path)
    try:
        content = read_small_file(file, max_bytes=_MAX_BLAMED)
    except OSError as error:
        raise UsageError(f"Could not read {file}: {error.strerror or error}.") from error
    lines = line_origins(log.stored_path(str(file)), content, await store.file_changes(), read)
    if number and not 0 < int(number) <= len(lines):
        raise UsageError(f"{path} has {len(lines)} lines. There is no line {number}.")
    # An origin is the id of a session, and the entry of the change.
    authors = await _authors({origin[0] for _, origin in lines if origin is not None}, store)
    blamed = [
        BlamedLine(line, text, authors.get(origin[1].id) if origin else None)
        for line, (text, origin) in enumerate(lines, 1)
    ]
    return [blamed[int(number) - 1]] if number else blamed


async def _authors(session_ids: set[str], store: interfaces.SessionStore) -> dict[str, Author]:
    """Return the authors of all changes in these sessions, by the id of the entry that has the change."""
    found: dict[str, Author] = {}
    for session_id in session_ids:
        with suppress(StorageError):  # the session was removed meanwhile
            _, entries = await store.load(session_id)
            for call in History(entries).calls.values():
                reply, use = call.reply or (None, None)
                if reply and use and isinstance(reply.body, log.Assistant):
                    found[call.entry.id] = Author(
                        session_id=session_id,
                        entry_id=reply.id,
                        call=use,
                        model=f"{reply.body.provider}/{reply.body.model}",
                        turn=call.turn,
                        prompt=call.prompt,
                        at=call.entry.time,
                    )
    return found


def format_author(author: Author, when: str) -> str:
    return (
        f"{call_title(author.call.name, author.call.input)}\n"
        f"  in turn {author.turn} of session {author.session_id}, {when}\n"
        f"  by {author.model}, prompt: {author.prompt}\n  to open it: agentcli --resume {author.session_id}"
    )
