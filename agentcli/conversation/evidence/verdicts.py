"""Holds the claims of a final message against the log of the conversation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from msgspec import Struct

from agentcli.conversation.claim import Claim, ClaimVerdict
from agentcli.conversation.entries import Assistant, Entry, Result, User
from agentcli.conversation.evidence.claims import Found, found_claims
from agentcli.conversation.evidence.runs import Run, kinds_named, runs_of, tables
from agentcli.conversation.file_changes import FileChange, FilesChanged, FilesRestored, FileState
from agentcli.llm.messages import ToolUse

Place = tuple[int, int]  # of a call in the log: its reply, and its place among that reply's calls
Look = Callable[[str], str | None]  # the id of what a file holds now, empty if it is gone, None where that is not known
Judgement = tuple[ClaimVerdict, tuple[str, ...]]
_FAILED_LINE = re.compile(r"FAIL|✗|✕|×|❌|not ok|Error|panicked|^\s+\d+\) ", re.IGNORECASE)
_PASSED_LINE = re.compile(r"PASS|✓|✔|\bok\b|^\s*\S+ \.+ *$", re.IGNORECASE)


class Changed(Struct, frozen=True):
    """A change of one file, by which call and where the log tells of it."""

    change: FileChange
    at: Place
    entry_id: str


class Ended(Struct, frozen=True):
    """A call that ended. `text` holds its arguments."""

    name: str
    text: str
    at: Place
    entry_id: str
    is_error: bool


class Record:
    """What a conversation's log holds of commands and changes of files, oldest first.

    Commands are read only where that is asked for, which takes a millisecond for each.
    """

    def __init__(self, path: Iterable[Entry], cwd: str, *, reads_commands: bool = True) -> None:
        self._cwd = cwd
        self._reads_commands = reads_commands
        self.runs: list[Run] = []
        self.changes: list[Changed] = []
        self.ended: list[Ended] = []
        self.commands: list[tuple[str, int | None, Ended]] = []
        self.turn_began: Place = (0, 0)
        self._calls: dict[str, tuple[Place, ToolUse]] = {}
        self._jobs: dict[str, Place] = {}
        for n, entry in enumerate(path):
            self._add(n, entry)

    def _add(self, n: int, entry: Entry) -> None:
        match entry.body:
            case User(is_reminder=False):
                self.turn_began = (n, 0)
            case Assistant(content):
                calls = [block for block in content if isinstance(block, ToolUse)]
                self._calls |= {call.id: ((n, place), call) for place, call in enumerate(calls)}
            case FilesChanged(id, changes):
                at = self._calls[id][0] if id in self._calls else (n, 0)
                self.changes += [Changed(change, at, entry.id) for change in changes]
            case FilesRestored(_, changes):
                self.changes += [Changed(change, (n, 0), entry.id) for change in changes]
            case Result() as result:
                self._add_result(n, entry.id, result)
            case _:
                pass

    def _add_result(self, n: int, entry_id: str, result: Result) -> None:
        at, call = self._calls.get(result.result.tool_use_id, ((n, 0), None))
        given = call.input if call else {}
        text = "\n".join(str(value) for value in given.values())
        told = result.structured if isinstance(result.structured, dict) else {}
        dropped = _dropped(told)
        ended = Ended(result.name, "\n".join([text, *dropped]), at, entry_id, result.result.is_error or bool(dropped))
        self.ended.append(ended)
        if "job_id" in told and "exit_code" not in told:
            self._jobs[told["job_id"]] = at
        if result.name not in ("bash", "jobs") or told.get("is_running"):
            return
        command = str(told.get("command", given.get("command", "")))
        code = None if told.get("timed_out") or (dropped and not told.get("kept")) else told.get("exit_code")
        at = self._jobs.get(told.get("job_id", ""), at) if result.name == "jobs" else at
        if self._reads_commands and ("exit_code" in told or result.name == "bash"):
            self.commands.append((command, code, ended))
            self.runs += runs_of(command, code, str(told.get("output", "")), at, entry_id)

    def is_stale(self, at: Place) -> bool:
        """True if files that a check may depend on changed after a call."""
        return any(change.at > at and _is_source(change.change, self._cwd) for change in self.changes)


def _dropped(told: Mapping[str, Any]) -> list[str]:
    """What a command had changed on a stand-in of the workspace that was not kept."""
    names = [str(change.get("name", "")) for change in told.get("changes") or () if isinstance(change, dict)]
    return [name for name in names if name not in (told.get("kept") or ())]


def _is_source(change: FileChange, cwd: str) -> bool:
    path, none = PurePath(change.path.removeprefix(f"{cwd}/")), tables()["no_source"]
    if any(state is not None and state.kind == "folder" for state in (change.before, change.after)):
        return False
    is_apart = path.suffix in none["endings"] or path.name in none["names"]
    return not (is_apart or set(path.parts) & set(none["folders"]))


def checked_claims(
    message: str, path: Sequence[Entry], *, cwd: str, look: Look, is_recorded: bool = True
) -> list[Claim]:
    """The claims of a message with a verdict on each.

    `path` are the entries of the conversation, `look` tells what a file at an absolute path holds now. Where changes
    of files are not recorded, their absence says nothing.
    """
    found = found_claims(message)
    if not found:
        return []
    record = Record(path, cwd, reads_commands=any(not claim.kind.startswith("file") for claim in found))
    tells_failures = any(claim.kind == "tests_fail" for claim in found)
    judge = _Judge(record, cwd, look, is_recorded=is_recorded, tells_failures=tells_failures)
    return [Claim(claim.text, claim.kind, *judge.verdict(claim)) for claim in found]


class _Judge:
    def __init__(self, record: Record, cwd: str, look: Look, *, is_recorded: bool, tells_failures: bool) -> None:
        self._record, self._cwd, self._look, self._is_recorded = record, cwd, look, is_recorded
        self._tells_failures = tells_failures

    def verdict(self, claim: Found) -> Judgement:
        topic, _, how = claim.kind.partition("_")
        if topic == "file":
            return self._nothing_changed() if not claim.path else self._file(claim, how)
        if topic == "command" and not (claim.command and kinds_named(claim.command) and how != "ran"):
            return self._command(claim, how)
        if topic == "checks":
            return self._all_checks(is_good=how == "pass")
        kind = "tests" if topic == "tests" else topic
        return self._check(claim, kind, is_good=claim.kind.endswith(("pass", "passes", "clean")))

    # Checks

    def _check(self, claim: Found, kind: str, *, is_good: bool) -> Judgement:
        runs = [run for run in self._record.runs if run.kind == kind]
        fitting = self._fitting(claim, runs)
        if not fitting:
            return "unverified", tuple(run.entry_id for run in runs[-1:])
        newest = self._counted(claim, fitting) if is_good else fitting[-1]
        entries: tuple[str, ...] = (newest.entry_id,)
        if claim.is_all and claim.count is None and is_good and newest.passed and newest.is_partial:
            whole = next((run for run in reversed(fitting) if not run.is_partial), None)
            if whole is None or not whole.passed:
                return "unverified", entries
            newest, entries = whole, (whole.entry_id,)
        if newest.passed is None:
            return "unverified", entries
        if claim.names and kind == "tests" and not newest.passed:
            named = self._named(claim, newest, is_good=is_good)
        elif is_good and self._is_of_some(claim):
            named = _fits(claim, newest, is_good=True)
        else:
            named = newest.passed is is_good and _fits(claim, newest, is_good=is_good)
        if named is not True:
            return ("refuted" if named is False else "unverified"), entries
        if is_good and (self._record.is_stale(newest.at) or self._other_failed(newest)):
            return "unverified", entries
        return "verified", entries

    def _counted(self, claim: Found, runs: Sequence[Run]) -> Run:
        """The newest run; of several programs the one that ran as many tests as a claim says."""
        newest = {run.program: run for run in runs}.values()
        same = [run for run in newest if claim.count is not None and _fits(claim, run, is_good=True)]
        return max(same, key=lambda run: run.at) if same else runs[-1]

    def _is_of_some(self, claim: Found) -> bool:
        """True if a claim says how many tests pass, and that others do not."""
        tells_others = self._tells_failures if claim.out_of is None else claim.out_of != claim.count
        return claim.count is not None and not claim.is_all and tells_others

    def _fitting(self, claim: Found, runs: Sequence[Run]) -> list[Run]:
        """The runs that a claim is about: those of its program, and those that cover what it names."""
        if claim.command:
            words = [word for word in claim.command.lower().split() if not word.startswith("-")]
            own = [run for run in runs if all(word in run.command.lower() for word in words)]
            runs = own or [run for run in runs if words and words[0] in run.output.lower()]
        if not claim.names:
            return list(runs)
        return [
            run
            for run in runs
            if not run.is_partial or all(name in run.command or name in run.output for name in claim.names)
        ]

    def _named(self, claim: Found, run: Run, *, is_good: bool) -> bool | None:
        """Whether a claim about single tests of a run that failed is right; None where the output does not tell."""
        verdicts = [_outcome_of(name, run) for name in claim.names]
        if None in verdicts:
            return None
        return all(verdict is is_good for verdict in verdicts)

    def _other_failed(self, run: Run) -> bool:
        """True if another kind of program has failed tests, and nothing changed since."""
        others = {other.program: other for other in self._record.runs if other.kind == run.kind}
        return any(
            other.passed is False
            and other.counts
            and not self._record.is_stale(other.at)
            and other.program != run.program
            for other in others.values()
        )

    def _all_checks(self, *, is_good: bool) -> Judgement:
        newest = {(run.kind, run.program): run for run in self._record.runs}
        runs = list(newest.values())
        entries = tuple(dict.fromkeys(run.entry_id for run in runs))
        failed = [run.entry_id for run in runs if run.passed is False]
        if failed:
            return ("refuted" if is_good else "verified"), tuple(dict.fromkeys(failed))
        if not runs or any(run.passed is None or self._record.is_stale(run.at) for run in runs):
            return "unverified", entries
        return ("verified" if is_good else "refuted"), entries

    # Commands

    def _command(self, claim: Found, how: str) -> Judgement:
        wanted = " ".join(claim.command.split())
        ran = [
            (command, code, ended)
            for command, code, ended in self._record.commands
            if wanted in " ".join(command.split())
        ]
        if not ran:
            return "unverified", ()
        command, code, ended = ran[-1]
        is_own = " ".join(command.split()).rpartition("&& ")[2] == wanted or " ".join(command.split()).endswith(
            f" {wanted}"
        )
        is_own = is_own or not re.search(r"[|;&]", command)
        if how == "ran":
            return ("verified" if code is not None else "unverified"), (ended.entry_id,)
        if code is None or not is_own:
            return "unverified", (ended.entry_id,)
        is_so = (code == 0) is (how == "passed") and claim.exit_code in (None, code)
        return ("verified" if is_so else "refuted"), (ended.entry_id,)

    # Files

    def _nothing_changed(self) -> Judgement:
        changes = [each for each in self._record.changes if each.at >= self._record.turn_began]
        if changes:
            return "refuted", tuple(dict.fromkeys(each.entry_id for each in changes))
        return ("verified" if self._sees_all() else "unverified"), ()

    def _sees_all(self) -> bool:
        calls = (call for call in self._record.ended if call.at >= self._record.turn_began)
        return self._is_recorded or not any(call.name not in _ONLY_READ for call in calls)

    def _file(self, claim: Found, how: str) -> Judgement:
        changes = [each for each in self._record.changes if _is_path(each.change.path, claim.path, self._cwd)]
        if how == "unchanged":
            return self._unchanged(changes)
        if not changes:
            return self._never_changed(claim)
        first, last = changes[0], changes[-1]
        before, after = first.change.before, last.change.after
        was_file = any(each.change.before is not None for each in changes)
        is_so = {
            "created": before is None and after is not None,
            "deleted": after is None and was_file,
            "changed": after is not None and not _same(before, after),
        }[how]
        entries = tuple(dict.fromkeys((first.entry_id, last.entry_id)))
        if not is_so:
            return "refuted", entries
        now = self._look(last.change.path)
        is_left = now is None or after is None or now == after.content
        return ("verified" if is_left and not (after is None and now) else "unverified"), entries

    def _never_changed(self, claim: Found) -> Judgement:
        """Of a file that no call changed: refuted if the call failed that should have."""
        name = PurePath(claim.path).name
        failed = [
            call for call in self._record.ended if call.is_error and name in call.text and call.name not in _ONLY_READ
        ]
        return ("refuted" if failed else "unverified"), tuple(call.entry_id for call in failed[-1:])

    def _unchanged(self, changes: Sequence[Changed]) -> Judgement:
        changes = [each for each in changes if each.at >= self._record.turn_began]
        if changes and not _same(changes[0].change.before, changes[-1].change.after):
            return "refuted", tuple(dict.fromkeys(each.entry_id for each in changes))
        return ("verified" if self._sees_all() else "unverified"), tuple(each.entry_id for each in changes)


_ONLY_READ = {
    "file_read",
    "file_list",
    "grep_search",
    "think",
    "todo",
    "web_fetch",
    "web_search",
    "read_more",
    "recall",
    "skill",
    "ask_user",
}


def _same(before: FileState | None, after: FileState | None) -> bool:
    """True if a file holds what it held; one without an id of its contents may hold anything."""
    return before == after and (before is None or before.is_kept)


def _is_path(path: str, claimed: str, cwd: str) -> bool:
    """True if a claim means this file, which it may call by the end of its path."""
    wanted = PurePath(claimed.removesuffix("/").removeprefix("./"))
    if PurePath(path) == PurePath(cwd) / wanted:
        return True
    return not wanted.is_absolute() and PurePath(path).parts[-len(wanted.parts) :] == wanted.parts


def _fits(claim: Found, run: Run, *, is_good: bool) -> bool | None:
    """Whether the numbers of a claim are those of a run; None where its output has none."""
    if claim.count is None:
        return True
    if run.counts is None or run.kind != "tests":
        return None if run.kind == "tests" else True
    if not is_good:
        return claim.count == run.counts.failed
    return claim.count in run.counts.fits and (claim.out_of is None or claim.out_of in run.counts.all)


def _outcome_of(name: str, run: Run) -> bool | None:
    bare = name.rpartition("::")[2].removesuffix("()")
    lines = [line for line in run.output.splitlines() if bare in line]
    if any(_FAILED_LINE.search(line) for line in lines):
        return False
    return True if any(_PASSED_LINE.search(line) for line in lines) else None
