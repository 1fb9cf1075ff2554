"""Tries a command: what it did to files is kept, in whole or in parts, or dropped, after it was seen.

While it runs, overlays stand in for every folder that it may write (`overlays.py`); in all other respects it is
confined as ever. What it sends to granted hosts is sent, and its caches go to layers of their own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from agentcli.errors import ToolError
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch
from agentcli.infra.sandbox.mounts.mount_points import NOTE
from agentcli.infra.sandbox.mounts.protect_plan import is_inside
from agentcli.infra.sandbox.processes.shell import Launcher, Shell
from agentcli.infra.sandbox.trial.caches import CacheLayers
from agentcli.infra.sandbox.trial.git_words import told_by_git, uncommitted_files
from agentcli.infra.sandbox.trial.keep_plan import PLAN, write_plan
from agentcli.infra.sandbox.trial.lost_work import taken_away, with_loss_of_tree, with_lost_work, with_worktree
from agentcli.infra.sandbox.trial.overlay_tree import overlay_changes
from agentcli.infra.sandbox.trial.overlays import Overlays, why_no_overlays
from agentcli.infra.sandbox.trial.readable import hides, without_others_data
from agentcli.infra.sandbox.trial.tree_changes import (
    LONGEST_DIFFS,
    Piece,
    by_weight,
    pieces_of,
    told_path,
    with_parts,
)
from agentcli.infra.sandbox.trial.tree_keeping import keep_pieces
from agentcli.infra.sandbox.trial.try_folders import Counter, PrivateFolder, TooMuch, left_behind
from agentcli.infra.sandbox.trial.watching import Watch
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import Command, CommandResult, Profile
from agentcli.tools.trial import Conflict, Kept, TriedChange, TryLimits

_LONGEST_LOOK_S = 20.0
_LEFT = "what it left running was ended, as nothing of a try goes on"


class TryRun:
    """A command that was tried. `changes` are told by name, those of the first root relative to it.

    `drop` ends it, after `keep` too, and so does leaving it as a context. Then nothing is left of it but the output
    file of a long output. Until then a later start would finish, and tell, what was to be kept.
    """

    def __init__(
        self,
        result: CommandResult,
        pieces: Sequence[Piece],
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
        self.changes: tuple[TriedChange, ...] = tuple(piece.change for piece in pieces)
        self._pieces = pieces
        self._private = private
        self._is_open = True
        self._keeping: asyncio.Future[Kept] | None = None

    def paths_of(self, name: str) -> list[Path]:
        pieces = [piece for piece in self._pieces if piece.change.name == name]
        return [Path(piece.area, path) for piece in pieces for path in piece.paths]

    async def keep(
        self, names: Collection[str] | None = None, *, parts: Mapping[str, Collection[int]] | None = None
    ) -> Kept:
        """Bring changes into the real folders: those named, or all. The others are dropped.

        Of a change that `parts` names only these hunks are kept, by number.
        A file that was changed by something else since the command started is a conflict: it stays as it is. Raises
        `ToolError` (invalid_parameters) for a name that no change has, and when the try is over already.
        """
        known = {change.name for change in self.changes}
        if unknown := sorted({*(names or ())} - known):
            there = ", ".join(sorted(known)[:20]) or "none"
            raise ToolError(f"There is no change {unknown[0]!r}; there is {there}.", kind="invalid_parameters")
        if not self._is_open:
            raise ToolError("This try is over: its changes were kept or dropped.", kind="invalid_parameters")
        self._is_open = False
        chosen = [piece for piece in self._pieces if names is None or piece.change.name in names]
        self._keeping = asyncio.ensure_future(asyncio.to_thread(self._keep, chosen, parts or {}))
        return await asyncio.shield(self._keeping)

    def _keep(self, pieces: Sequence[Piece], parts: Mapping[str, Collection[int]]) -> Kept:
        try:
            pieces, conflicts = self._narrowed(pieces, parts)
            write_plan(self._private.path, pieces)
            kept = keep_pieces(pieces, self._private.path.name)
            return msgspec.structs.replace(kept, conflicts=(*conflicts, *kept.conflicts))
        except OSError as error:
            raise ToolError(f"Nothing could be kept: {error.strerror}.", kind="resource_error") from error

    def _narrowed(
        self, pieces: Sequence[Piece], parts: Mapping[str, Collection[int]]
    ) -> tuple[list[Piece], list[Conflict]]:
        """The pieces with only the hunks that are wanted of them, and those of which no part can be made any more."""
        narrowed: list[Piece] = []
        conflicts: list[Conflict] = []
        for number, piece in enumerate(pieces):
            chosen = parts.get(piece.change.name)
            is_whole = chosen is None or {*chosen} == {*range(piece.change.hunks)}
            try:
                narrowed.append(
                    piece if is_whole else with_parts(piece, chosen or (), self._private.path / f"part-{number}")
                )
            except OSError as error:
                conflicts.append(Conflict(piece.change.name, error.strerror or str(error)))
        return narrowed, conflicts

    async def drop(self) -> None:
        """Forget what the command did, once what is to be kept is; nothing happens when the try is over already."""
        self._is_open = False
        if self._keeping is not None:
            await asyncio.wait([self._keeping])
        await asyncio.shield(asyncio.to_thread(self._private.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drop()


class TryRuns:
    """Tries the commands of one session, which the shell that `shell` gives starts.

    `confinement` and `bounds` are what commands are confined by now. `folder` holds the overlays, one folder for each
    try; it is outside of everything that commands may write, and should be on the disk of the workspace. What a killed
    process has left there is removed with the first try. `search_path` is the PATH of the commands.
    """

    def __init__(
        self,
        shell: Callable[[], Shell],
        confinement: Callable[[], Confinement],
        bounds: Callable[[], Bounds],
        *,
        folder: Path,
        search_path: str = "",
        limits: TryLimits = TryLimits(),  # noqa: B008  # frozen
    ) -> None:
        self._shell = shell
        self._confinement = confinement
        self._bounds = bounds
        self._folder = folder
        self._search_path = search_path
        self._limits = limits
        self._beginning = threading.Lock()
        self._session: PrivateFolder | None = None
        self._caches: CacheLayers | None = None
        self._probed: dict[tuple[str, ...], str] = {}

    def why_not(self) -> str:
        """Say why commands cannot be tried here, for the person; empty where they can. Mounts overlays, once."""
        bounds = self._bounds()
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

    async def try_command(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        masked: Sequence[Path] = (),
    ) -> TryRun:
        """Run a command as `Commands.exec` does, but let it change nothing yet; what it leaves running is ended.

        It cannot read what is `masked`, beside what no command can. One that takes too much of the machine is ended,
        and of one that changed too much nothing can be kept; both are told. Raises `ToolError` where a try is
        impossible (permission_denied, resource_error).
        """
        if why_not := await asyncio.to_thread(self.why_not):
            raise ToolError(f"{why_not} Run it as usual, or not at all.", kind="permission_denied")
        private = await asyncio.to_thread(self._new_folder)
        assert self._caches is not None
        self._caches.begin()
        try:
            usual = bounds = msgspec.structs.replace(was := self._bounds(), masked=(*was.masked, *masked))
            if command.nobody_allowed:
                bounds = without_others_data(usual, self._search_path, opens_hosts=command.opens_hosts)

            def how_hidden(path: Path) -> Literal["", "here", "always"]:
                return "always" if hides(usual, path) else "here" if hides(bounds, path) else ""

            trial = _Trial(self._confinement(), bounds, private, self._caches)
            watch = Watch(private.path, self._limits)
            result = await self._run(trial.launch, command, on_output, watch)
            if watch.why:
                return TryRun(result, (), private, too_much=watch.why, hides=how_hidden)
            try:
                pieces = await asyncio.to_thread(trial.pieces, self._limits)
            except TooMuch as error:
                return TryRun(result, (), private, too_much=str(error), hides=how_hidden)
            pieces = await self._with_repositories(trial, pieces)
            return TryRun(result, pieces, private, cached=trial.cached, hides=how_hidden)
        except OSError as error:
            await asyncio.shield(asyncio.to_thread(private.close))
            reason = error.strerror or str(error)
            raise ToolError(f"The command could not be tried: {reason}.", kind="resource_error") from error
        except BaseException:
            await asyncio.shield(asyncio.to_thread(private.close))
            raise
        finally:
            self._caches.end()

    async def _run(
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
            result = msgspec.structs.replace(result, job=None, output_file=result.job.output_file, stall=stall)
        return result

    async def _with_repositories(self, trial: _Trial, pieces: list[Piece]) -> list[Piece]:
        """Let git say what became of repositories; the files of a worktree are kept with its `.git`, or not at all."""
        for piece in pieces:
            if piece.change.what != "repository" or piece.change.kind != "changed":
                continue
            folder = Path(piece.area)
            if folder.name != ".git":  # else a linked worktree's
                folder = folder / piece.paths[0].partition(".git")[0] / ".git"
            look = partial(self._look, folder.parent)
            words = await told_by_git(str(folder), look, partial(look, launch=trial.look))
            pieces = with_worktree(pieces, piece, words)
        for area, taken in taken_away(pieces).items():
            uncommitted = await uncommitted_files(partial(self._look, Path(area)))
            pieces = with_lost_work(pieces, area, taken, uncommitted)
        return sorted(pieces, key=by_weight)

    async def _look(self, folder: Path, script: str, *, launch: Launcher | None = None) -> str:
        command = Command(script, folder, timeout_s=_LONGEST_LOOK_S, profile="read-only")
        return (await self._shell().exec(command, launch=launch)).output

    def _new_folder(self) -> PrivateFolder:
        with self._beginning:
            try:
                if self._session is None:
                    list(left_behind(self._folder, spares=PLAN))  # the next start finishes what has one, and says so
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


class _Trial:
    """One command's confinement, with overlays over the folders it may write."""

    def __init__(self, confinement: Confinement, bounds: Bounds, private: PrivateFolder, caches: CacheLayers) -> None:
        self._confinement = confinement
        self._bounds = msgspec.structs.replace(bounds, note=private.path / NOTE)
        self._private = private
        self._caches = caches
        self._overlays: Overlays | None = None
        self._launches = 0
        self.cached: list[str] = []

    @contextmanager
    def launch(
        self, argv: Sequence[str], cwd: Path, pass_fds: Sequence[int], profile: Profile | None = None
    ) -> Iterator[Launch]:
        """Raises `OSError`."""
        self._launches += 1
        folder = self._private.path / str(self._launches)
        folder.mkdir(mode=0o700)
        if self._bounds.cache is not None:
            make_private_folder(self._bounds.cache)
        with self._confinement.launch(argv, cwd=cwd, bounds=self._bounds, pass_fds=pass_fds) as launch:
            self._overlays = Overlays(launch, folder, self._caches.below)
            # Hidden as a whole: what stands in shows what is masked in the workspace, and other tries are nobody's.
            with self._overlays.wrap(launch, str(self._private.path.parent)) as wrapped:
                environment = {**wrapped.environment, "GIT_OPTIONAL_LOCKS": "0"}
                yield wrapped._replace(environment=environment)

    @contextmanager
    def look(
        self, argv: Sequence[str], cwd: Path, pass_fds: Sequence[int], profile: Profile | None = None
    ) -> Iterator[Launch]:
        """What looks at the changes, once the command has ended. Raises `OSError`."""
        assert self._overlays is not None
        with (
            self._confinement.launch(argv, cwd=cwd, bounds=self._bounds, pass_fds=pass_fds) as launch,
            self._overlays.wrap(launch, str(self._private.path.parent), looks_only=True) as wrapped,
        ):
            yield wrapped._replace(environment={**wrapped.environment, "GIT_OPTIONAL_LOCKS": "0"})

    def pieces(self, limits: TryLimits) -> list[Piece]:
        """Raises `OSError`, `ToolError`."""
        overlays = self._overlays
        assert overlays is not None
        counter = Counter(limits, "it changed")
        budget = [LONGEST_DIFFS]
        found = []
        for overlay in overlays.each:
            if overlay.area == str(self._bounds.cache):
                self._caches.take(overlay.area, overlay.upper, os.listdir(overlay.upper))  # noqa: PTH208
                continue
            touched = overlay_changes(overlay.area, overlay.upper, overlays.started_ns, counter.take)
            pieces = pieces_of(overlay.area, touched, name_of=self._name_of, budget=budget)
            found += with_loss_of_tree(pieces, overlay.area, touched)
            tagged = self._caches.take(overlay.area, overlay.upper, touched.caches)
            self.cached += [self._name_of(f"{overlay.area}/{path}") for path in tagged]
        return found

    def _name_of(self, path: str) -> str:
        first = str(self._bounds.roots[0]) if self._bounds.roots else ""
        if first and is_inside(path, first):
            path = os.path.relpath(path, first)
        return told_path(path)
