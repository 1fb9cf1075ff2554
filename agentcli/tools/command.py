"""Defines shell commands as a sandbox gets them, their results, background jobs, and dry runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from signal import SIGTERM
from typing import Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import astuple

STOPPED_CODES = (-SIGTERM, 128 + SIGTERM)  # exit codes of a stopped command; the second as a shell reports it

Access = Literal["read", "write"]

# read-only allows no writing; workspace-write, only to the workspace and temporary files; the last confines nothing.
Profile = Literal["read-only", "workspace-write", "danger-full-access"]

DryRunAccess = Literal["", "file", "files", "host"]  # missing in a dry run; "files" are several, or a folder


class Grants(Struct, frozen=True):
    """The exceptions to a sandbox's limits; all paths are real paths."""

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()  # these may be read too
    hosts: tuple[str, ...] = ()  # `example.org` or `*.example.org`, with or without `:port`
    roots: tuple[Path, ...] = ()  # further folders that belong to the workspace

    def __add__(self, more: Grants) -> Grants:
        return Grants(*(granted + new for granted, new in zip(astuple(self), astuple(more), strict=True)))

    def __sub__(self, less: Grants) -> Grants:
        """Revoke each grant of `less` once: what was granted twice is still granted."""
        pairs = zip(astuple(self), astuple(less), strict=True)
        return Grants(*(tuple((Counter(granted) - Counter(revoked)).elements()) for granted, revoked in pairs))

    def cover(self, path: Path, access: Access) -> bool:
        return path in self.writable or (access == "read" and path in self.readable)


NO_GRANTS = Grants()


class Command(Struct, frozen=True):
    """A shell command without input, and the terms it runs on, as plain data that can travel to another machine."""

    text: str
    cwd: Path
    timeout_s: float | None = None  # after this time it is ended with everything it has started
    max_bytes: int = 30_000  # of the output that is returned
    # None: that of the session. "own": the person's own command is unconfined and sees their whole environment.
    profile: Profile | Literal["own"] | None = None
    grants: Grants = NO_GRANTS
    terminal: str = ""  # the path of its controlling terminal, which then gets all of its output
    # A dry run changes nothing yet. A "narrow" one also reads only the workspace, the system and granted paths.
    dry_run: Literal["full", "narrow"] | None = None


class Reverts(Struct):
    """The auto-executed files that a command changed because the sandbox could not prevent it."""

    reverted: list[str] = []
    not_reverted: list[str] = []  # each with the reason
    unwatched: list[str] = []  # folders with more files than can be reverted; they are reported once a session

    def add(self, other: Reverts) -> None:
        self.reverted += other.reverted
        self.not_reverted += other.not_reverted
        self.unwatched += other.unwatched

    def notes(self) -> Iterator[str]:
        """Yield sentences for the model about the files that were reverted or not."""
        if self.reverted:
            yield (
                f"the sandbox reverted changes to files that other programs run or obey: {_first_five(self.reverted)}. "
                "To change them, use file_edit or unconfined, which ask the user"
            )
        if self.not_reverted:
            changed = _first_five(self.not_reverted)
            yield f"changes to files that other programs run or obey could not be reverted: {changed}"
        if self.unwatched:
            yield f"{_first_five(self.unwatched)} has more files than this sandbox can revert: tell the user"


def _first_five(paths: Sequence[str]) -> str:
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


class JobOutcome(Struct, frozen=True, kw_only=True):
    """The end of a job."""

    exit_code: int | None = None  # negative after a signal; None for processes that a command left behind
    timed_out: bool = False  # its time limit ended it
    duration_s: float = 0.0
    is_dry_run: bool = False  # it is reported with its changes once it has ended

    @property
    def text(self) -> str:
        """A description of the end, such as `failed (exit 3)`."""
        code = self.exit_code or 0
        if self.timed_out:
            return "ended at its time limit"
        if code < 0:
            return f"ended by signal {-code}"
        return f"failed (exit {code})" if code else "ended"


class BackgroundJob(Struct, frozen=True, kw_only=True):
    """A snapshot of a command that runs in the background; its output grows in `output_file`."""

    id: str
    pid: int
    output_file: Path
    command: str = ""
    outcome: JobOutcome | None = None  # None while it runs
    stall: str = ""  # the reason why it makes no progress, if known
    new_bytes: int = 0  # of its output that were not read yet
    reverts: Reverts = field(default_factory=Reverts)  # complete once it has ended

    @property
    def is_running(self) -> bool:
        return self.outcome is None


class CommandResult(Struct, frozen=True):
    """A command's outcome."""

    output: str  # both streams in their order of arrival, without the middle if it exceeds the command's limit
    exit_code: int | None  # negative for a signal, None if the command was killed or continues as a `job`
    timed_out: bool = False
    cwd: Path | None = None
    output_file: Path | None = None  # all of the output if it exceeds the limit
    job: BackgroundJob | None = None  # beside an exit code: what the command left running
    stall: str = ""  # what the command waited for, if known
    made: tuple[Path, ...] = ()  # new or changed files and folders that other programs obey, such as an editor's tasks
    ended: tuple[str, ...] = ()  # names of processes that the command left running and the sandbox ended
    reverts: Reverts = field(default_factory=Reverts)
    denials: tuple[str, ...] = ()  # the reasons for which the sandbox denied connections, perhaps of another command
    dry_run: DryRun | None = None  # with the changes of a dry run
    # The result of a dry run that continues as a job. Awaiting it raises `ToolError`, or is cancelled with the session.
    later: Awaitable[CommandResult] | None = None


class ChangeSummary(
    Struct, frozen=True, kw_only=True, rename={"is_auto_executed": "is_obeyed", "permanent_loss": "loses"}
):
    """One change that can be applied by itself. In JSON, clients know some fields by the names in `rename`."""

    name: str  # unique: the path relative to the workspace, or absolute; both paths of a renamed file
    kind: Literal["created", "changed", "deleted", "mode", "renamed"]
    what: Literal["file", "folder", "link", "pipe", "repository", "tree"]  # "tree": changes in a folder that stays
    # A unified diff, or git's description of a repository; empty if the contents are the same, not text or too long.
    diff: str = ""
    hunks: int = 1  # of several hunks of the diff (`diff_hunks`), each can be applied by itself
    files: int = 1  # all in a folder, tree or repository
    size: int = 0  # bytes of these files
    # What a person should know before it is applied; for a renamed file the last note is how much of it is the same.
    notes: tuple[str, ...] = ()
    is_auto_executed: bool = False  # it affects something that other programs run or obey unasked
    # Lost for good by applying it: commits, stashes or uncommitted changes ("work"), `.git` or most files ("tree").
    permanent_loss: Literal["", "work", "tree"] = ""
    moves: str = ""  # what happened to a branch of a changed repository
    worktree: tuple[tuple[str, int], ...] = ()  # for a repository: what happened to files outside `.git`, to how many

    @property
    def outcome(self) -> str:
        """The word that `count_changes` shows for `kind`; a new mode counts as an edit."""
        return "edited" if self.kind in ("changed", "mode") else self.kind


_OUTCOMES = ("edited", "renamed", "created", "deleted")


def format_counts(counts: Mapping[str, int]) -> str:
    """Format numbers of files by what happened to them: `2 files edited, 1 deleted`; empty if all are 0."""
    files = [f"{counts[outcome]:,} {outcome}" for outcome in _OUTCOMES if counts.get(outcome)]
    if files:  # only the first count has a noun
        files[0] = files[0].replace(" ", " file " if files[0].startswith("1 ") else " files ")
    return ", ".join(files)


def count_changes(changes: Sequence[ChangeSummary]) -> str:
    """Count the files by what happened to them: `2 files edited, 1 deleted`; add what happened to branches."""
    counts, others = Counter[str](), list[str]()
    for change in changes:
        counts.update(dict(change.worktree))  # a repository's files outside `.git`
        if change.what != "repository" and change.files:
            counts[change.outcome] += change.files
        elif change.moves:
            others.append(change.moves)
        elif not change.worktree:  # a repository's own files are not counted
            others.append(f"{change.what} {change.outcome}")
    return ", ".join(filter(None, [format_counts(counts), *dict.fromkeys(others)]))


class Conflict(Struct, frozen=True):
    """A change that was not applied: its name, and why, for the person."""

    name: str
    why: str


class ApplyOutcome(Struct, frozen=True):
    """The names of the changes that were applied, and the changes that could not be."""

    names: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


class DryRunLimits(Struct, frozen=True):
    """The most files and folders, and bytes, that a command may change in a dry run."""

    max_entries: int = 200_000
    max_bytes: int = 2_000_000_000


class DryRun(Protocol):
    """A command that ran without changing anything yet. `changes` begins with those that need a look.

    `cached` are new folders marked as caches: they do not reach the workspace, but later dry runs see them.
    `exceeded_limit` says what a dry run cannot hold, as in `it wrote more than 2 GB`: then nothing can be applied.
    """

    @property
    def changes(self) -> Sequence[ChangeSummary]: ...

    @property
    def cached(self) -> Sequence[str]: ...

    @property
    def exceeded_limit(self) -> str: ...

    def paths_of(self, name: str) -> Sequence[Path]:
        """The real paths that a change is about."""

    def hides(self, path: Path) -> Literal["", "here", "always"]:
        """Return the dry runs that hide a real path from the command: none (""), this one ("here"), or "always"."""

    async def apply(
        self,
        names: Collection[str] | None = None,
        *,
        hunks: Mapping[str, Collection[int]] | None = None,
        note: Path | None = None,
    ) -> ApplyOutcome:
        """Apply these changes, or all, to the real folders, and discard the others. Raises `ToolError`.

        For a change that `hunks` names, only the hunks with these indices are applied. A file that something else has
        changed since the command started is a conflict and stays as it is. If agentcli is killed meanwhile, the next
        start finishes the work and describes it in the file `note`.
        """

    async def discard(self) -> None:
        """End the dry run, also after `apply`; may be called again."""
