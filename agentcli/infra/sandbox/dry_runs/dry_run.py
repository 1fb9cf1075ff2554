"""Runs a command on overlays of all folders that it may write; all or some of its changes are applied, or none.

Otherwise the command is confined as usual, so its requests to granted hosts are really sent. Nobody was asked about it,
so there are limits to its reading outside the workspace, its use of the machine, and the size of its changes.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.infra.changes.groups import ChangeGroup, DiffLimit, attention_order, group_changes, pick_hunks, shown_path
from agentcli.infra.changes.journal import PrivateFolder, remove_abandoned
from agentcli.infra.sandbox.confinement import Bounds, Confinement, is_inside, is_real, resolve_existing
from agentcli.infra.sandbox.dry_runs import lost_work
from agentcli.infra.sandbox.dry_runs.overlays import CacheLayers, OverlayReader, Overlays, TooMuch, probe_overlays
from agentcli.infra.sandbox.mount_points import is_mount_point
from agentcli.infra.sandbox.processes.shell import BackgroundRuns, DetachHandle, PrepareLaunch, Shell
from agentcli.tools.command import ApplyOutcome, ChangeSummary, Command, CommandResult, Conflict, DryRunLimits, Grants

_GIT_TIMEOUT_S = 20.0
_ENDED = "what it left running was ended, because nothing of a dry run goes on"

_WATCH_EVERY_S = 0.25
_MIN_FREE_MEMORY = 0.03  # as a share of all memory: with less, the kernel might soon kill some program
_MIN_FREE_DISK_BYTES = 500_000_000

# Top-level folders of systems (Filesystem Hierarchy Standard 3.0, Nix, Guix and snaps). All others hold people's data.
_SYSTEM = frozenset(
    "bin boot dev etc gnu lib lib32 lib64 libx32 nix opt proc run sbin snap sys tmp usr var lost+found".split()
)

# In a home: compilers, package managers and the programs that they installed, and git's settings.
_TOOLCHAINS = tuple(
    """
    .asdf .bun .cabal .cargo .composer .conda .deno .dotnet .elan .fnm .gem .ghcup .goenv .jenv .julia .juliaup .m2
    .npm-global .nix-profile .nvm .opam .pub-cache .pyenv .rbenv .rustup .rvm .sdkman .stack .swiftly .virtualenvs
    .volta .yarn .local/bin .local/lib .local/pipx .local/state/nix .local/share/fnm .local/share/mise
    .local/share/pipx .local/share/pnpm .local/share/uv .local/share/virtualenvs .config/git .gitconfig .gitignore
    anaconda3 go mambaforge micromamba miniconda3 miniforge3
    """.split()
)


class OverlayDryRun(Struct, eq=False, kw_only=True):
    """Implements `DryRun`; paths in the first root are relative to it."""

    result: CommandResult
    groups: Sequence[ChangeGroup]
    private: PrivateFolder  # holds the contents of changed files
    hides: Callable[[Path], Literal["", "here", "always"]]  # "here": hidden only in dry runs
    exceeded_limit: str = ""  # such as "it wrote more than 2 GB"; then the changes were not read
    cached: Sequence[str] = ()  # new folders that later dry runs see as caches, and that are never applied
    _is_open: bool = True  # False once the changes were applied or discarded
    _applying: asyncio.Future[ApplyOutcome] | None = None

    @property
    def changes(self) -> tuple[ChangeSummary, ...]:
        return tuple(group.summary for group in self.groups)

    def paths_of(self, name: str) -> list[Path]:
        return [Path(one.changes.at(path)) for one in self.groups if one.summary.name == name for path in one.paths]

    async def apply(
        self,
        names: Collection[str] | None = None,
        *,
        hunks: Mapping[str, Collection[int]] | None = None,
        note: Path | None = None,
    ) -> ApplyOutcome:
        """Apply all changes, or only those with `names`; of a change in `hunks` only the hunks with these numbers."""
        known = {change.name for change in self.changes}
        if unknown := sorted({*(names or ())} - known):
            listed = ", ".join(sorted(known)[:20]) or "none"
            raise ToolError(f"There is no change {unknown[0]!r}; there is {listed}.", kind="invalid_parameters")
        if not self._is_open:
            raise ToolError("This dry run is over: its changes were applied or discarded.", kind="invalid_parameters")
        self._is_open = False
        chosen = [group for group in self.groups if names is None or group.summary.name in names]
        self._applying = asyncio.ensure_future(asyncio.to_thread(self._apply, chosen, hunks or {}, note))
        return await asyncio.shield(self._applying)  # goes on even if the caller is cancelled

    def _apply(
        self, groups: Sequence[ChangeGroup], hunks: Mapping[str, Collection[int]], note: Path | None
    ) -> ApplyOutcome:
        """Apply groups with only their chosen hunks; a group that cannot be reduced to these becomes a conflict."""
        wanted: list[ChangeGroup] = []
        conflicts: list[Conflict] = []
        for number, group in enumerate(groups):
            all_hunks = {*range(group.summary.hunks)}
            chosen = {*hunks.get(group.summary.name, all_hunks)}
            try:
                part = self.private.path / f"part-{number}"  # receives the contents with only the chosen hunks
                wanted.append(group if chosen == all_hunks else pick_hunks(group, chosen, part))
            except OSError as error:
                conflicts.append(Conflict(group.summary.name, error.strerror or str(error)))
        try:
            outcome = self.private.apply(wanted, note=note)
        except OSError as error:
            raise ToolError(f"Nothing could be applied: {error.strerror}.", kind="resource_error") from error
        return replace(outcome, conflicts=(*conflicts, *outcome.conflicts))

    async def discard(self) -> None:
        self._is_open = False
        if self._applying is not None:
            await asyncio.wait([self._applying])
        await asyncio.shield(asyncio.to_thread(self.private.close))


class DryRuns:
    """The dry runs of one session; `folder`, which commands must not be able to write, holds the overlays."""

    def __init__(
        self,
        shell: Callable[[], Shell],
        confinement: Callable[[], Confinement],
        bounds: Callable[[Grants], Bounds],
        *,
        folder: Path,
        search_path: str = "",
        limits: DryRunLimits = DryRunLimits(),
    ) -> None:
        self._shell, self._confinement, self._bounds = shell, confinement, bounds
        self._folder, self._search_path, self._limits = folder, search_path, limits
        self._lock = threading.Lock()
        self._caches: CacheLayers | None = None  # of all dry runs
        self._cache_folder: PrivateFolder | None = None  # the folder around them
        self._problems: dict[tuple[str, ...], str] = {}  # roots that were probed -> why they get no overlays, or ""
        self.background = BackgroundRuns()

    def why_unavailable(self, grants: Grants) -> str:
        """Return the reason why there are no dry runs here, or "". Blocks at the first call, which mounts overlays."""
        bounds = self._bounds(grants)
        if bounds.profile == "danger-full-access":
            return "Commands are not confined, so what one does cannot be held back to be looked at."
        if bounds.profile == "read-only":
            return "Commands can write nothing here (read-only), so there is nothing to try."
        confinement = self._confinement()
        if confinement.name != "bubblewrap":
            why = f": {confinement.problem}" if confinement.problem else "."
            return f"Trying a command needs namespaces (bubblewrap), which are not there{why}"
        roots = tuple(map(str, bounds.roots))
        if roots not in self._problems:
            try:
                private, _ = self._new_folders()
                with closing(private):
                    reason = probe_overlays(roots, private.path)
            except (OSError, ToolError) as error:
                reason = str(error)
            self._problems[roots] = f"There are no dry runs here: {reason.rstrip('.')}." if reason else ""
        return self._problems[roots]

    async def run(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        masked: Sequence[Path] = (),
        detach_handle: DetachHandle | None = None,
    ) -> OverlayDryRun:
        """Run a command on overlays, which keep its changes; hide `masked` paths from it. Raises `ToolError`."""
        if why_unavailable := await asyncio.to_thread(self.why_unavailable, command.grants):
            raise ToolError(f"{why_unavailable} Run it as usual, or not at all.", kind="permission_denied")
        private, caches = await asyncio.to_thread(self._new_folders)
        wide_bounds = self._bounds(command.grants)  # those of a full dry run, which may read personal data

        def is_in_a_root(name: str) -> bool:  # a mount point is not: it is there only while another command runs
            return any((root / name).exists() and not is_mount_point(f"{root}/{name}") for root in wide_bounds.roots)

        # Missing names in the roots are not protected: if the dry run makes one, the person is asked about it.
        protected = tuple(name for name in wide_bounds.protected if name.startswith("/") or is_in_a_root(name))
        wide_bounds = replace(wide_bounds, masked=(*wide_bounds.masked, *masked), protected=protected)
        # Nobody was asked about a narrow dry run, so it cannot read personal data.
        bounds = _hide_personal_data(wide_bounds, self._search_path) if command.dry_run == "narrow" else wide_bounds

        def how_hidden(path: Path) -> Literal["", "here", "always"]:
            """Return "always" if every dry run hides a path, "here" if only this narrow one does."""
            return "always" if _hides(wide_bounds, path) else "here" if _hides(bounds, path) else ""

        try:
            with caches.in_use():
                overlays = Overlays(self._confinement(), bounds, private.path, caches.layer_over)
                result, exceeded_limit = await self._exec(overlays, command, on_output, detach_handle)
                groups, cached = list[ChangeGroup](), list[str]()
                if not exceeded_limit:
                    try:
                        groups, cached = await asyncio.to_thread(self._read_changes, overlays, bounds, caches)
                    except TooMuch as error:
                        exceeded_limit = str(error)
                groups = await self._prepare_for_review(overlays, groups, partial(self._run_read_only, command.grants))
                return OverlayDryRun(
                    result=result,
                    groups=groups,
                    private=private,
                    hides=how_hidden,
                    exceeded_limit=exceeded_limit,
                    cached=cached,
                )
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(private.close))
            if isinstance(error, OSError):
                message = f"The dry run could not begin: {error.strerror or error}."
                raise ToolError(message, kind="resource_error") from error
            raise

    async def _exec(
        self, overlays: Overlays, command: Command, on_output: Callable[[str], None], detach_handle: DetachHandle | None
    ) -> tuple[CommandResult, str]:
        """Run the command; return its result, and the reason if it exceeded a limit of resources.

        A command that the person sends to the background becomes a job, which is awaited. All other jobs are ended, so
        that nothing changes while the changes are read.
        """
        # Set by the person to send the command to the background, or by `_watch_limits`, to end it.
        detach = detach_handle.wants_detach if detach_handle is not None else asyncio.Event()
        limit_watch = asyncio.create_task(_watch_limits(overlays.folder, self._limits.max_bytes, detach))
        try:
            result = await self._shell().exec(command, on_output=on_output, detach=detach, launch=overlays.launch)
            # A result with an exit code is of an ended command: its job is only the processes that it left running.
            was_detached_by_person = detach.is_set() and not limit_watch.done() and result.exit_code is None
            if detach_handle is not None and result.job is not None and was_detached_by_person:
                result = await detach_handle.wait_for_job(command, result, self._shell(), limit_watch=limit_watch)
        finally:
            limit_watch.cancel()
        exceeded_limit = limit_watch.result() if limit_watch.done() and limit_watch.exception() is None else ""
        if (job := result.job) is not None:  # the command exceeded the limit, or left processes running
            await asyncio.shield(self._shell().end_and_forget(job.id))
            stall = "; ".join(filter(None, (exceeded_limit or result.stall, _ENDED)))
            result = replace(result, job=None, output_file=job.output_file, stall=stall)
        return result, exceeded_limit

    def _read_changes(
        self, overlays: Overlays, bounds: Bounds, caches: CacheLayers
    ) -> tuple[list[ChangeGroup], list[str]]:
        """Return the command's changes, and the names of new caches with a cache tag. Raises `OSError`, `TooMuch`."""
        reader = OverlayReader(self._limits, overlays.started_ns)
        diff_limit = DiffLimit()  # of all folders together
        first_root = str(bounds.roots[0])

        def name_of(path: str) -> str:
            return shown_path(os.path.relpath(path, first_root) if is_inside(path, first_root) else path)

        groups, cached = list[ChangeGroup](), list[str]()
        for overlay in overlays.newest:
            if overlay.real_folder == str(bounds.resources.cache):  # everything in it is a cache
                caches.add(overlay.real_folder, overlay.upper, os.listdir(overlay.upper))  # noqa: PTH208
                continue
            # Caches among the changes are not applied either: `caches` keeps them for later dry runs.
            changes = reader.read(overlay.real_folder, overlay.upper)
            groups += lost_work.mark_lost_tree(group_changes(changes, name_of=name_of, diff_limit=diff_limit), changes)
            new_caches = caches.add(overlay.real_folder, overlay.upper, changes.caches)
            cached += [name_of(changes.at(path)) for path in new_caches]
        return groups, cached

    async def _prepare_for_review(
        self, overlays: Overlays, groups: list[ChangeGroup], run_in: Callable[..., Awaitable[str]]
    ) -> list[ChangeGroup]:
        """Prepare the groups for the person's review: mark lost work, add git's descriptions of repositories, sort."""

        def runners_in(folder: Path) -> tuple[lost_work.RunScript, lost_work.RunScript]:
            run_before = partial(run_in, folder)
            return run_before, partial(run_before, launch=overlays.launch_inspection)  # with the command's changes

        repositories = [each for each in groups if each.summary.what == "repository" and each.summary.kind == "changed"]
        lost_files = lost_work.find_lost_files(groups)
        # Pairs of a root and of a worktree's path in it, which is empty or ends with a slash.
        worktrees = {(each.changes.root, each.paths[0].partition(".git")[0]) for each in repositories}
        for root, worktree in sorted({(root, "") for root in lost_files} | worktrees):
            if not root.endswith("/.git"):  # such a root is a linked worktree's repository, without working files
                # Uncommitted work is lost with files that are gone or rewritten, or reset to what was committed.
                uncommitted, reset = await lost_work.uncommitted_files(*runners_in(Path(root, worktree)))
                lost_paths = lost_files.get(root, set()).union(worktree + name for name in reset)
                groups = lost_work.mark_lost_work(groups, root, lost_paths, {worktree + name for name in uncommitted})
        for group in repositories:
            # The root may itself be a `.git` folder: the repository of a linked worktree.
            folder = f"{group.changes.root}/{group.paths[0]}".partition("/.git/")[0]
            git_changes = await lost_work.describe_git_changes(f"{folder}/.git", *runners_in(Path(folder)))
            git_changes = await asyncio.to_thread(lost_work.add_configuration_changes, git_changes, group)
            groups = await asyncio.to_thread(lost_work.join_worktree_changes, groups, group, git_changes)
        return sorted(groups, key=attention_order)

    async def _run_read_only(
        self, grants: Grants, folder: Path, script: str, *, launch: PrepareLaunch | None = None
    ) -> str:
        command = Command(script, folder, timeout_s=_GIT_TIMEOUT_S, profile="read-only", grants=grants)
        return (await self._shell().exec(command, launch=launch)).output

    def _new_folders(self) -> tuple[PrivateFolder, CacheLayers]:
        """Create a folder for a dry run; return it with the session's caches, which the first dry run creates."""
        with self._lock:
            try:
                if self._caches is None:
                    remove_abandoned(self._folder)
                    self._cache_folder = PrivateFolder(self._folder)
                    self._caches = CacheLayers(self._cache_folder.path)
                return PrivateFolder(self._folder), self._caches
            except OSError as error:
                message = f"{self._folder} cannot be written, where dry runs keep their changes: {error.strerror}."
                raise ToolError(message, kind="resource_error") from error

    def close(self) -> None:
        if self._cache_folder is not None:
            self._cache_folder.close()
            self._cache_folder = self._caches = None


def _hide_personal_data(bounds: Bounds, search_path: str) -> Bounds:
    """Hide the home and all top-level folders that are not the system's, but show toolchains and the search path."""
    data = [path for path in Path("/").iterdir() if path.name not in _SYSTEM]
    shown = [bounds.home / name for name in _TOOLCHAINS]
    for entry in map(Path, filter(None, search_path.split(":"))):
        if entry.is_absolute():
            # The folder around a `bin` has the libraries of its programs, and is shown unless it holds a whole home.
            has_libraries = entry.name in {"bin", "sbin"} and entry.parent not in {bounds.home, *bounds.home.parents}
            shown.append(entry.parent if has_libraries else entry)
    return replace(bounds, masked=(*bounds.masked, bounds.home, *data), readable_again=(*bounds.readable_again, *shown))


def _hides(bounds: Bounds, path: Path) -> bool:
    """Return True if a command in these bounds cannot see a path; the innermost folder around the path decides."""
    if not is_real(str(path)):  # nothing is there, or a link leads somewhere else
        return False
    shown = resolve_existing((*bounds.readable_again, *bounds.writable, *bounds.roots))
    is_hidden = {each.path: True for each in resolve_existing(bounds.masked)} | {each.path: False for each in shown}
    around = [folder for folder in is_hidden if is_inside(str(path), folder)]
    return bool(around) and is_hidden[max(around, key=len)]


async def _watch_limits(folder: Path, max_bytes: int, detach: asyncio.Event) -> str:
    """Wait until a command exceeds a limit of resources, set `detach`, and return the reason."""
    free_at_first, why = shutil.disk_usage(folder).free, ""
    while not why:
        await asyncio.sleep(_WATCH_EVERY_S)
        with suppress(OSError, RuntimeError):  # no thread could be started: try again at the next check
            why = await asyncio.to_thread(_find_excess, folder, max_bytes, free_at_first)
    detach.set()
    return why


def _find_excess(folder: Path, max_bytes: int, free_at_first: int) -> str:
    """Return the limit that a command exceeds, as the end of a sentence, or ""."""
    free = shutil.disk_usage(folder).free
    if free < min(_MIN_FREE_DISK_BYTES, free_at_first // 2):  # half, if little was free before it began
        return "it filled the disk"
    # Other programs fill the disk too, so what the command wrote is counted then.
    if free_at_first - free > max_bytes and sum(_sizes_below(folder)) > max_bytes:
        return f"it wrote more than {max_bytes // 1_000_000:,} MB"
    return "it took the machine's memory" if _free_memory() < _MIN_FREE_MEMORY else ""


def _sizes_below(folder: Path) -> Iterator[int]:
    for where, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                yield Path(where, name).lstat().st_blocks * 512  # always units of 512 bytes (stat(2))


def _free_memory() -> float:
    """Return the share of all memory that programs can still get (proc_meminfo(5)); 1 if unknown."""
    with suppress(OSError, ValueError, KeyError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        numbers = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        return numbers["MemAvailable"] / numbers["MemTotal"]
    return 1.0
