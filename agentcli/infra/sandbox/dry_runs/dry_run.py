"""Runs a command on overlays of every folder that it may write; its changes are applied, all or some, or discarded.

In all other respects it is confined as usual. What it sends to granted hosts is sent, and its caches go to layers of
their own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.infra.changes.groups import (
    LONGEST_DIFFS,
    ChangeGroup,
    by_weight,
    group_changes,
    pick_hunks,
    shown_path,
)
from agentcli.infra.changes.journal import PLAN, PrivateFolder, abandoned_folders
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch
from agentcli.infra.sandbox.dry_runs.caches import CacheLayers
from agentcli.infra.sandbox.dry_runs.git_changes import describe_git_changes, uncommitted_files
from agentcli.infra.sandbox.dry_runs.limits import Counter, TooMuch, Watch, hides, without_others_data
from agentcli.infra.sandbox.dry_runs.lost_work import find_lost_files, with_loss_of_tree, with_lost_work, with_worktree
from agentcli.infra.sandbox.dry_runs.overlays import Overlays, why_no_overlays
from agentcli.infra.sandbox.dry_runs.upper_folder import read_overlay
from agentcli.infra.sandbox.mounts.mount_points import NOTE, Note
from agentcli.infra.sandbox.mounts.protect_plan import is_inside
from agentcli.infra.sandbox.processes.shell import Launcher, Shell
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import NO_GRANTS, Command, CommandResult, Grants
from agentcli.tools.dry_run import ApplyOutcome, ChangeSummary, Conflict, DryRunLimits

_GIT_TIMEOUT_S = 20.0
_LEFT = "what it left running was ended, because nothing of a dry run goes on"


class OverlayDryRun(AbstractAsyncContextManager["OverlayDryRun"]):
    """Implements `DryRun`. `changes` are called by their paths, those of the first root relative to it.

    Leaving the context discards it, except for the file of a long output. Until then a later start finishes what was
    being applied.
    """

    def __init__(
        self,
        result: CommandResult,
        groups: Sequence[ChangeGroup],
        private: PrivateFolder,
        *,
        too_much: str = "",
        cached: Sequence[str] = (),
        hides: Callable[[Path], Literal["", "here", "always"]],
    ) -> None:
        self.hides = hides
        self.result = result
        self.cached = tuple(cached)
        self.too_much = too_much
        self.changes: tuple[ChangeSummary, ...] = tuple(group.summary for group in groups)
        self._groups = groups
        self._private = private
        self._is_open = True
        self._applying: asyncio.Future[ApplyOutcome] | None = None

    def paths_of(self, name: str) -> list[Path]:
        groups = [group for group in self._groups if group.summary.name == name]
        return [Path(group.changes.at(path)) for group in groups for path in group.paths]

    async def apply(
        self,
        names: Collection[str] | None = None,
        *,
        hunks: Mapping[str, Collection[int]] | None = None,
        note: Path | None = None,
    ) -> ApplyOutcome:
        known = {change.name for change in self.changes}
        if unknown := sorted({*(names or ())} - known):
            there = ", ".join(sorted(known)[:20]) or "none"
            raise ToolError(f"There is no change {unknown[0]!r}; there is {there}.", kind="invalid_parameters")
        if not self._is_open:
            raise ToolError("This dry run is over: its changes were applied or discarded.", kind="invalid_parameters")
        self._is_open = False
        chosen = [group for group in self._groups if names is None or group.summary.name in names]
        self._applying = asyncio.ensure_future(asyncio.to_thread(self._apply, chosen, hunks or {}, note))
        return await asyncio.shield(self._applying)

    def _apply(
        self, groups: Sequence[ChangeGroup], hunks: Mapping[str, Collection[int]], note: Path | None
    ) -> ApplyOutcome:
        wanted: list[ChangeGroup] = []
        conflicts: list[Conflict] = []
        for number, group in enumerate(groups):
            every = {*range(group.summary.hunks)}
            chosen = {*hunks.get(group.summary.name, every)}
            try:
                part = self._private.path / f"part-{number}"
                wanted.append(group if chosen == every else pick_hunks(group, chosen, part))
            except OSError as error:
                conflicts.append(Conflict(group.summary.name, error.strerror or str(error)))
        try:
            done = self._private.apply(wanted, note=note)
        except OSError as error:
            raise ToolError(f"Nothing could be kept: {error.strerror}.", kind="resource_error") from error
        return replace(done, conflicts=(*conflicts, *done.conflicts))

    async def discard(self) -> None:
        self._is_open = False
        if self._applying is not None:
            await asyncio.wait([self._applying])
        await asyncio.shield(asyncio.to_thread(self._private.close))

    async def __aexit__(self, *raised: object) -> None:
        await self.discard()


class DryRuns:
    """The dry runs of one session, whose commands the shell that `shell` gives starts.

    `confinement` and `bounds` are what commands with some grants are confined by now. `folder` holds the overlays, one
    folder for each dry run; it is outside of everything that commands may write, and should be on the disk of the
    workspace. What a killed process has left there is removed with the first one. `search_path` is the PATH of the
    commands.
    """

    def __init__(
        self,
        shell: Callable[[], Shell],
        confinement: Callable[[], Confinement],
        bounds: Callable[[Grants], Bounds],
        *,
        folder: Path,
        search_path: str = "",
        limits: DryRunLimits = DryRunLimits(),  # noqa: B008  # frozen
    ) -> None:
        self._shell = shell
        self._confinement = confinement
        self._bounds = bounds
        self._folder = folder
        self._search_path = search_path
        self._limits = limits
        self._start = threading.Lock()
        self._session: PrivateFolder | None = None
        self._caches: CacheLayers | None = None
        self._probed: dict[tuple[str, ...], str] = {}

    def why_not(self, grants: Grants = NO_GRANTS) -> str:
        """Say why there are no dry runs here, for the person; empty where there are. Mounts overlays, once."""
        bounds = self._bounds(grants)
        if bounds.profile == "danger-full-access":
            return "Commands are not confined, so what one does cannot be held back to be looked at."
        if bounds.profile == "read-only":
            return "Commands can write nothing here (read-only), so there is nothing to try."
        confinement = self._confinement()
        if confinement.name != "bubblewrap":
            why = f": {confinement.why}" if confinement.why else "."
            return f"Trying a command needs namespaces (bubblewrap), which are not there{why}"
        roots = tuple(map(str, bounds.roots))
        if roots not in self._probed:
            self._probed[roots] = self._probe(roots)
        return self._probed[roots]

    def _probe(self, roots: Sequence[str]) -> str:
        private = None
        try:
            private = self._new_folder()
            reason = why_no_overlays(roots, private.path)
        except (OSError, ToolError) as error:
            reason = str(error)
        finally:
            if private is not None:
                private.close()
        return f"Commands cannot be tried here: {reason.rstrip('.')}." if reason else ""

    async def run(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        masked: Sequence[Path] = (),
    ) -> OverlayDryRun:
        """Run a command as `Sandbox.run` does, but let it change nothing yet; what it leaves running is ended.

        It cannot read what is `masked`, beside what no command can. One that takes too much of the machine is ended,
        and of one that changed too much nothing can be applied; the dry run says so. Raises `ToolError` where no dry
        run is possible (permission_denied, resource_error).
        """
        if why_not := await asyncio.to_thread(self.why_not, command.grants):
            raise ToolError(f"{why_not} Run it as usual, or not at all.", kind="permission_denied")
        private = await asyncio.to_thread(self._new_folder)
        try:
            return await self._run_in(private, command, on_output, masked)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(private.close))
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
                raise ToolError(f"The command could not be tried: {reason}.", kind="resource_error") from error
            raise

    async def _run_in(
        self, private: PrivateFolder, command: Command, on_output: Callable[[str], None], masked: Sequence[Path]
    ) -> OverlayDryRun:
        assert self._caches is not None
        usual = bounds = replace(was := self._bounds(command.grants), masked=(*was.masked, *masked))
        if command.dry_run == "narrow":
            bounds = without_others_data(usual, self._search_path)

        def how_hidden(path: Path) -> Literal["", "here", "always"]:
            return "always" if hides(usual, path) else "here" if hides(bounds, path) else ""

        with self._caches.used():
            overlaid = _Overlaid(self._confinement(), bounds, private, self._caches)
            watch = Watch(private.path, self._limits)
            result = await self._exec(overlaid.launch, command, on_output, watch)
            too_much, groups = watch.why, list[ChangeGroup]()
            if not too_much:
                try:
                    groups = await asyncio.to_thread(overlaid.groups, Counter(self._limits, "it changed"))
                except TooMuch as error:
                    too_much = str(error)
            groups = await self._with_repositories(overlaid, groups, command.grants)
            return OverlayDryRun(result, groups, private, too_much=too_much, cached=overlaid.cached, hides=how_hidden)

    async def _exec(
        self, launch: Launcher, command: Command, on_output: Callable[[str], None], watch: Watch
    ) -> CommandResult:
        watching = asyncio.create_task(watch.run())
        try:
            result = await self._shell().exec(command, on_output=on_output, detach=watch.sign, launch=launch)
        finally:
            watching.cancel()
        if result.job is not None:
            await asyncio.shield(self._shell().jobs.end(result.job.id))
            why = watch.why or result.stall
            stall = f"{why}; {_LEFT}" if why else _LEFT
            result = replace(result, job=None, output_file=result.job.output_file, stall=stall)
        return result

    async def _with_repositories(
        self, overlaid: _Overlaid, groups: list[ChangeGroup], grants: Grants
    ) -> list[ChangeGroup]:
        """Let git say what became of repositories; the files of a worktree are kept with its `.git`, or not at all."""
        for group in groups:
            if group.summary.what != "repository" or group.summary.kind != "changed":
                continue
            folder = Path(group.changes.root)
            if folder.name != ".git":  # else a linked worktree's
                folder = folder / group.paths[0].partition(".git")[0] / ".git"
            look = partial(self._look, folder.parent, grants)
            words = await describe_git_changes(str(folder), look, partial(look, launch=overlaid.look))
            groups = with_worktree(groups, group, words)
        for root, taken in find_lost_files(groups).items():
            uncommitted = await uncommitted_files(partial(self._look, Path(root), grants))
            groups = with_lost_work(groups, root, taken, uncommitted)
        return sorted(groups, key=by_weight)

    async def _look(self, folder: Path, grants: Grants, script: str, *, launch: Launcher | None = None) -> str:
        command = Command(script, folder, timeout_s=_GIT_TIMEOUT_S, profile="read-only", grants=grants)
        return (await self._shell().exec(command, launch=launch)).output

    def _new_folder(self) -> PrivateFolder:
        with self._start:
            try:
                if self._session is None:
                    list(
                        abandoned_folders(self._folder, spares=PLAN)
                    )  # the next start finishes what has one, and says so
                    self._session = PrivateFolder(self._folder)
                    self._caches = CacheLayers(self._session.path)
                return PrivateFolder(self._folder)
            except OSError as error:
                message = f"{self._folder} cannot be written, where the changes of a try are kept: {error.strerror}."
                raise ToolError(message, kind="resource_error") from error

    def close(self) -> None:
        """Forget the caches. Raises nothing."""
        if self._session is not None:
            self._session.close()
            self._session = None


class _Overlaid:
    """One command's confinement, with overlays over the folders it may write."""

    def __init__(self, confinement: Confinement, bounds: Bounds, private: PrivateFolder, caches: CacheLayers) -> None:
        self._confinement = confinement
        self._bounds = replace(bounds, note=Note(private.path / NOTE))
        self._private = private
        self._caches = caches
        self._overlays: Overlays | None = None
        self._launches = 0
        self.cached: list[str] = []

    @contextmanager
    def launch(self, argv: Sequence[str], command: Command, pass_fds: Sequence[int]) -> Iterator[Launch]:
        """Raises `OSError`."""
        self._launches += 1
        folder = self._private.path / str(self._launches)
        folder.mkdir(mode=0o700)
        if self._bounds.cache is not None:
            make_private_folder(self._bounds.cache)
        with self._confinement.launch(argv, cwd=command.cwd, bounds=self._bounds, pass_fds=pass_fds) as launch:
            self._overlays = Overlays(launch, folder, self._caches.below)
            with self._wrap(launch) as wrapped:
                yield wrapped

    @contextmanager
    def look(self, argv: Sequence[str], command: Command, pass_fds: Sequence[int]) -> Iterator[Launch]:
        """Launch what looks at the changes, once the command has ended. Raises `OSError`."""
        with (
            self._confinement.launch(argv, cwd=command.cwd, bounds=self._bounds, pass_fds=pass_fds) as launch,
            self._wrap(launch, looks_only=True) as wrapped,
        ):
            yield wrapped

    @contextmanager
    def _wrap(self, launch: Launch, *, looks_only: bool = False) -> Iterator[Launch]:
        assert self._overlays is not None
        # Hidden as a whole: an overlay shows what is masked in the workspace, and those of others are nobody's.
        hidden = str(self._private.path.parent)
        with self._overlays.wrap(launch, hidden, looks_only=looks_only) as wrapped:
            yield wrapped._replace(environment={**wrapped.environment, "GIT_OPTIONAL_LOCKS": "0"})

    def groups(self, counter: Counter) -> list[ChangeGroup]:
        """Raises `OSError`, `TooMuch`."""
        overlays = self._overlays
        assert overlays is not None
        budget = [LONGEST_DIFFS]
        found = []
        for overlay in overlays.each:
            if overlay.area == str(self._bounds.cache):
                self._caches.take(overlay.area, overlay.upper, os.listdir(overlay.upper))  # noqa: PTH208
                continue
            changes = read_overlay(overlay.area, overlay.upper, overlays.started_ns, counter.take)
            found += with_loss_of_tree(group_changes(changes, name_of=self._name_of, budget=budget), changes)
            tagged = self._caches.take(overlay.area, overlay.upper, changes.caches)
            self.cached += [self._name_of(changes.at(path)) for path in tagged]
        return found

    def _name_of(self, path: str) -> str:
        first = str(self._bounds.roots[0]) if self._bounds.roots else ""
        if first and is_inside(path, first):
            path = os.path.relpath(path, first)
        return shown_path(path)
