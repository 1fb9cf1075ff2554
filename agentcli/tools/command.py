"""Defines shell commands as a sandbox gets them, their results, background jobs, and dry runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct, field
from msgspec.structs import astuple

Access = Literal["read", "write"]

# read-only allows no writing; workspace-write, only to the workspace and temporary files; the last confines nothing.
Profile = Literal["read-only", "workspace-write", "danger-full-access"]


class Grants(Struct, frozen=True):
    """The exceptions to a sandbox's limits: real paths, hosts, and further folders that belong to the workspace.

    A path that is `writable` may be read too. Hosts are `example.org` or `*.example.org`, with or without `:port`.
    """

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    roots: tuple[Path, ...] = ()

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
    """A shell command and the terms it runs on, as plain data that can travel to another machine.

    It gets no input. After `timeout_s` it is ended with everything it has started; None sets no limit. At most
    `most_bytes` of its output are returned. `profile` overrides the session's; "own" marks the person's own command,
    which is unconfined and sees their whole environment. `terminal` is the path of its controlling terminal, which then
    gets all of its output. A `dry_run` changes nothing yet. A "narrow" one also reads only the workspace, the system
    and granted paths.
    """

    text: str
    cwd: Path
    timeout_s: float | None = None
    most_bytes: int = 30_000
    profile: Profile | Literal["own"] | None = None
    grants: Grants = NO_GRANTS
    terminal: str = ""
    dry_run: Literal["full", "narrow"] | None = None


class Reverts(Struct):
    """The auto-executed files that a command changed because the sandbox could not prevent it.

    `put_back` were reverted; `left_changed` could not be (each with the reason). The folders in `unguarded` have more
    files than can be reverted; they are reported once a session.
    """

    put_back: list[str] = []
    left_changed: list[str] = []
    unguarded: list[str] = []

    def add(self, other: Reverts) -> None:
        self.put_back += other.put_back
        self.left_changed += other.left_changed
        self.unguarded += other.unguarded

    def notes(self) -> Iterator[str]:
        """Yield sentences about them for the model."""
        if self.put_back:
            yield (
                f"the sandbox reverted changes to files that other programs run or obey: {_first_five(self.put_back)}. "
                "To change them, use file_edit or unconfined, which ask the user"
            )
        if self.left_changed:
            changed = _first_five(self.left_changed)
            yield f"files that other programs run or obey are changed and could not be put back: {changed}"
        if self.unguarded:
            yield f"{_first_five(self.unguarded)} has more files than this sandbox can revert: tell the user"


def _first_five(paths: Sequence[str]) -> str:
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


class JobOutcome(Struct, frozen=True, kw_only=True):
    """The end of a job. `exit_code` is negative after a signal, and None for processes that a command left behind.

    `timed_out` is True if its time limit ended it. A dry run is reported with its changes once it has ended.
    """

    exit_code: int | None = None
    timed_out: bool = False
    duration_s: float = 0.0
    is_dry_run: bool = False

    @property
    def text(self) -> str:
        """The end in words, such as `failed (exit 3)`."""
        code = self.exit_code or 0
        end = f"failed (exit {code})" if code > 0 else f"ended by signal {-code}" if code else "ended"
        return "ended at its time limit" if self.timed_out else end


class BackgroundJob(Struct, frozen=True, kw_only=True):
    """A snapshot of a command that runs in the background; its output grows in `output_file`.

    `outcome` is None while it runs. `stall` is the reason why it makes no progress, if known. `new_bytes` of its output
    were not read yet. `reverts` is complete once it has ended.
    """

    id: str
    pid: int
    output_file: Path
    command: str = ""
    outcome: JobOutcome | None = None
    stall: str = ""
    new_bytes: int = 0
    reverts: Reverts = field(default_factory=Reverts)

    @property
    def is_running(self) -> bool:
        return self.outcome is None


class CommandResult(Struct, frozen=True):
    """A command's outcome. `exit_code` is negative for a signal, None if it was killed or continues as a `job`.

    `output` has both streams in their order of arrival; if it exceeds the command's limit, its middle is cut out and
    `output_file` has all of it. `stall` says what the command waited for, if known. A `job` beside an exit code is what
    the command left running. `made` are new or changed files and folders that other programs obey by themselves, such
    as an editor's tasks. `ended` names processes that the command left running and the sandbox ended. `dry_run` has the
    changes of a dry run; if that continues as a job, `later` is its result. Awaiting it raises `ToolError`, or is
    cancelled with the session.
    """

    output: str
    exit_code: int | None
    timed_out: bool = False
    cwd: Path | None = None
    output_file: Path | None = None
    job: BackgroundJob | None = None
    stall: str = ""
    made: tuple[Path, ...] = ()
    ended: tuple[str, ...] = ()
    reverts: Reverts = field(default_factory=Reverts)
    dry_run: DryRun | None = None
    later: Awaitable[CommandResult] | None = None


class ChangeSummary(Struct, frozen=True, kw_only=True):
    """One change that can be applied by itself.

    `name` is unique and readable: relative to the workspace, or absolute. `diff` is a unified diff, empty if the
    contents are the same, are not text or are too long; for a repository it is git's description. A renamed file has
    both names and, as the last note, how much of it is the same. If there are several `hunks`, each of the diff's
    (`diff_hunks`) can be applied by itself. `files` and `size` (bytes) are totals of a folder, tree or repository.
    `notes` are what a person should know before the change is applied. A change that `is_obeyed` affects something that
    other programs run or obey unasked. `loses` is "work" if commits, stashes or uncommitted changes are lost, "tree" if
    `.git` or most files are. For a changed repository, `moves` describes what happened to a branch, and `worktree`
    counts the files outside `.git` by what happened to them.
    """

    name: str
    kind: Literal["created", "changed", "deleted", "mode", "renamed"]
    what: Literal["file", "folder", "link", "pipe", "repository", "tree"]
    diff: str = ""
    hunks: int = 1
    files: int = 1
    size: int = 0
    notes: tuple[str, ...] = ()
    is_obeyed: bool = False
    loses: Literal["", "work", "tree"] = ""
    moves: str = ""
    worktree: tuple[tuple[str, int], ...] = ()

    @property
    def outcome(self) -> str:
        return "edited" if self.kind in ("changed", "mode") else self.kind


_OUTCOMES = ("edited", "renamed", "created", "deleted")


def count_changes(changes: Sequence[ChangeSummary]) -> str:
    """Count the files by what happened to them: `2 files edited, 1 deleted`; add what happened to branches."""
    counts, others = Counter[str](), list[str]()
    for change in changes:
        counts.update(dict(change.worktree))
        if change.what != "repository" and change.files:
            counts[change.outcome] += change.files
        elif not change.worktree:  # a repository's own files are not counted
            others.append(change.moves or f"{change.what} {change.outcome}")
        elif change.moves:
            others.append(change.moves)
    files = [f"{counts[outcome]:,} {outcome}" for outcome in _OUTCOMES if counts[outcome]]
    if files:  # only the first count has a noun
        files[0] = files[0].replace(" ", " file " if files[0].startswith("1 ") else " files ")
    return ", ".join([*files, *dict.fromkeys(others)])


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
    `too_much` is the reason why nothing can be applied, if it took or changed more than a dry run can hold.
    """

    @property
    def changes(self) -> Sequence[ChangeSummary]: ...

    @property
    def cached(self) -> Sequence[str]: ...

    @property
    def too_much(self) -> str: ...

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
