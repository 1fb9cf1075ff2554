"""Runs a command on overlays of every folder that it may write; its changes are applied, all or some, or discarded.

In all other respects it is confined as usual. What it sends to granted hosts is sent, and its caches go to layers of
their own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.infra.changes.groups import MAX_DIFFS_CHARS, ChangeGroup, by_weight, group_changes, pick_hunks, shown_path
from agentcli.infra.changes.journal import PrivateFolder, remove_abandoned
from agentcli.infra.sandbox.confinement import Bounds, Confinement
from agentcli.infra.sandbox.dry_runs import lost_work
from agentcli.infra.sandbox.dry_runs.caches import CacheLayers
from agentcli.infra.sandbox.dry_runs.limits import Watch, hides, without_others_data
from agentcli.infra.sandbox.dry_runs.overlays import OverlayReader, Overlays, TooMuch, why_no_overlays
from agentcli.infra.sandbox.mounts.protect_plan import is_inside
from agentcli.infra.sandbox.processes.shell import Launcher, Shell
from agentcli.tools.command import NO_GRANTS, Command, CommandResult, Grants
from agentcli.tools.dry_run import ApplyOutcome, ChangeSummary, Conflict, DryRunLimits

_GIT_TIMEOUT_S = 20.0
_LEFT = "what it left running was ended, because nothing of a dry run goes on"


@dataclass(eq=False)
class OverlayDryRun(AbstractAsyncContextManager["OverlayDryRun"]):
    """Implements `DryRun`, discarded when left; paths in the first root are relative to it."""

    result: CommandResult
    groups: Sequence[ChangeGroup]
    private: PrivateFolder
    hides: Callable[[Path], Literal["", "here", "always"]]
    too_much: str = ""
    cached: Sequence[str] = ()
    _is_open: bool = field(default=True, init=False)
    _applying: asyncio.Future[ApplyOutcome] | None = field(default=None, init=False)

    @property
    def changes(self) -> tuple[ChangeSummary, ...]:
        return tuple(group.summary for group in self.groups)

    def paths_of(self, name: str) -> list[Path]:
        groups = [group for group in self.groups if group.summary.name == name]
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
        chosen = [group for group in self.groups if names is None or group.summary.name in names]
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
                part = self.private.path / f"part-{number}"
                wanted.append(group if chosen == every else pick_hunks(group, chosen, part))
            except OSError as error:
                conflicts.append(Conflict(group.summary.name, error.strerror or str(error)))
        try:
            done = self.private.apply(wanted, note=note)
        except OSError as error:
            raise ToolError(f"Nothing could be kept: {error.strerror}.", kind="resource_error") from error
        return replace(done, conflicts=(*conflicts, *done.conflicts))

    async def discard(self) -> None:
        self._is_open = False
        if self._applying is not None:
            await asyncio.wait([self._applying])
        await asyncio.shield(asyncio.to_thread(self.private.close))

    async def __aexit__(self, *raised: object) -> None:
        await self.discard()


@dataclass(eq=False)
class DryRuns:
    """The dry runs of one session; `folder` holds the overlays, outside of everything that commands may write."""

    shell: Callable[[], Shell]
    confinement: Callable[[], Confinement]
    bounds: Callable[[Grants], Bounds]
    folder: Path = field(kw_only=True)
    search_path: str = field(default="", kw_only=True)
    limits: DryRunLimits = field(default_factory=DryRunLimits, kw_only=True)
    _start: threading.Lock = field(default_factory=threading.Lock, init=False)
    _session: tuple[PrivateFolder, CacheLayers] | None = field(default=None, init=False)
    _probed: dict[tuple[str, ...], str] = field(default_factory=dict, init=False)

    def why_not(self, grants: Grants = NO_GRANTS) -> str:
        """Say why there are no dry runs here, for the person; empty where there are. Mounts overlays, once."""
        bounds = self.bounds(grants)
        if bounds.profile == "danger-full-access":
            return "Commands are not confined, so what one does cannot be held back to be looked at."
        if bounds.profile == "read-only":
            return "Commands can write nothing here (read-only), so there is nothing to try."
        confinement = self.confinement()
        if confinement.name != "bubblewrap":
            why = f": {confinement.why}" if confinement.why else "."
            return f"Trying a command needs namespaces (bubblewrap), which are not there{why}"
        roots = tuple(map(str, bounds.roots))
        if roots not in self._probed:
            try:
                with closing(self._new_folder()[0]) as private:
                    reason = why_no_overlays(roots, private.path)
            except (OSError, ToolError) as error:
                reason = str(error)
            self._probed[roots] = f"There are no dry runs here: {reason.rstrip('.')}." if reason else ""
        return self._probed[roots]

    async def run(
        self, command: Command, *, on_output: Callable[[str], None] = lambda text: None, masked: Sequence[Path] = ()
    ) -> OverlayDryRun:
        """Run a command as `Sandbox.run` does, but let it change nothing yet nor read `masked`. Raises `ToolError`."""
        if why_not := await asyncio.to_thread(self.why_not, command.grants):
            raise ToolError(f"{why_not} Run it as usual, or not at all.", kind="permission_denied")
        private, caches = await asyncio.to_thread(self._new_folder)
        usual = bounds = replace(was := self.bounds(command.grants), masked=(*was.masked, *masked))
        if command.dry_run == "narrow":
            bounds = without_others_data(usual, self.search_path)

        def how_hidden(path: Path) -> Literal["", "here", "always"]:
            return "always" if hides(usual, path) else "here" if hides(bounds, path) else ""

        try:
            with caches.used():
                overlays = Overlays(self.confinement(), bounds, private.path, caches.below)
                watch = Watch(private.path, self.limits)
                result = await self._exec(overlays.launch, command, on_output, watch)
                too_much, groups, cached = watch.why, list[ChangeGroup](), list[str]()
                if not too_much:
                    try:
                        groups, cached = await asyncio.to_thread(self._changes, overlays, bounds, caches)
                    except TooMuch as error:
                        too_much = str(error)
                groups = await self._described(overlays, groups, partial(self._look, command.grants))
                return OverlayDryRun(result, groups, private, how_hidden, too_much, cached=cached)
        except BaseException as error:
            await asyncio.shield(asyncio.to_thread(private.close))
            if isinstance(error, OSError):
                reason = error.strerror or str(error)
                raise ToolError(f"The dry run could not begin: {reason}.", kind="resource_error") from error
            raise

    async def _exec(
        self, launch: Launcher, command: Command, on_output: Callable[[str], None], watch: Watch
    ) -> CommandResult:
        watching = asyncio.create_task(watch.run())
        try:
            result = await self.shell().exec(command, on_output=on_output, detach=watch.sign, launch=launch)
        finally:
            watching.cancel()
        if result.job is not None:
            await asyncio.shield(self.shell().jobs.end(result.job.id))
            why = watch.why or result.stall
            stall = f"{why}; {_LEFT}" if why else _LEFT
            result = replace(result, job=None, output_file=result.job.output_file, stall=stall)
        return result

    def _changes(self, overlays: Overlays, bounds: Bounds, caches: CacheLayers) -> tuple[list[ChangeGroup], list[str]]:
        """Read what the command did, and take its caches; gives the names of new ones. Raises `OSError`, `TooMuch`."""
        reader, budget = OverlayReader(self.limits, overlays.started_ns), [MAX_DIFFS_CHARS]
        first = str(bounds.roots[0]) if bounds.roots else ""

        def name_of(path: str) -> str:
            return shown_path(os.path.relpath(path, first) if first and is_inside(path, first) else path)

        groups, cached = list[ChangeGroup](), list[str]()
        for overlay in overlays.each:
            if overlay.area == str(bounds.cache):
                caches.take(overlay.area, overlay.upper, os.listdir(overlay.upper))  # noqa: PTH208
                continue
            changes = reader.read(overlay.area, overlay.upper)
            groups += lost_work.with_loss_of_tree(group_changes(changes, name_of=name_of, budget=budget), changes)
            tagged = caches.take(overlay.area, overlay.upper, changes.caches)
            cached += [name_of(changes.at(path)) for path in tagged]
        return groups, cached

    async def _described(
        self, overlays: Overlays, groups: list[ChangeGroup], look_in: Callable[..., Awaitable[str]]
    ) -> list[ChangeGroup]:
        """Let git say what became of repositories and of what was in no commit; put first what needs a look."""
        repositories = [one for one in groups if one.summary.what == "repository" and one.summary.kind == "changed"]
        lost = lost_work.find_lost_files(groups)
        tops = {(one.changes.root, one.paths[0].partition(".git")[0]) for one in repositories}
        for root, top in sorted({(root, "") for root in lost} | tops):
            if root.endswith("/.git"):  # a linked worktree's
                continue
            look = partial(look_in, Path(root, top))
            files, reverted = await lost_work.uncommitted_files(look, partial(look, launch=overlays.look))
            taken = lost.get(root, set()).union(top + path for path in reverted)
            groups = lost_work.with_lost_work(groups, root, taken, {top + path for path in files})
        for group in repositories:
            # Of a linked worktree the root is the repository.
            folder = f"{group.changes.root}/{group.paths[0]}".partition("/.git/")[0]
            look = partial(look_in, Path(folder))
            described = await lost_work.describe_git_changes(
                f"{folder}/.git", look, partial(look, launch=overlays.look)
            )
            groups = lost_work.with_worktree(groups, group, described)
        return sorted(groups, key=by_weight)

    async def _look(self, grants: Grants, folder: Path, script: str, *, launch: Launcher | None = None) -> str:
        command = Command(script, folder, timeout_s=_GIT_TIMEOUT_S, profile="read-only", grants=grants)
        return (await self.shell().exec(command, launch=launch)).output

    def _new_folder(self) -> tuple[PrivateFolder, CacheLayers]:
        """Make a folder for a dry run; with the first one that of the session, in which its caches are."""
        with self._start:
            try:
                if self._session is None:
                    remove_abandoned(self.folder)
                    private = PrivateFolder(self.folder)
                    self._session = private, CacheLayers(private.path)
                return PrivateFolder(self.folder), self._session[1]
            except OSError as error:
                message = f"{self.folder} cannot be written, where the changes of a dry run are kept: {error.strerror}."
                raise ToolError(message, kind="resource_error") from error

    def close(self) -> None:
        """Forget the caches. Raises nothing."""
        if self._session is not None:
            self._session[0].close()
            self._session = None
