"""Tries a command: what it did to files is kept, in whole or in parts, or dropped, after it was seen.

While it runs, something stands in for every folder that it may write (`trial_mounts.py`); in all other respects it is
confined as ever. What it sends to granted hosts is sent, and its caches are not kept.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from agentcli.errors import ToolError
from agentcli.infra.sandbox.backends.bubblewrap_mounts import Mount, can_reach, mounts_of, writable_folders
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch
from agentcli.infra.sandbox.mounts.protect_plan import is_inside
from agentcli.infra.sandbox.processes.shell import Shell
from agentcli.infra.sandbox.trial.tree_changes import LONGEST_DIFFS, FileChange, Piece, pieces_of
from agentcli.infra.sandbox.trial.tree_keeping import Kept, keep_pieces
from agentcli.infra.sandbox.trial.trial_mounts import CopyMounts, Mechanism, OverlayMounts, TrialMounts
from agentcli.infra.sandbox.trial.try_folders import Counter, PrivateFolder, TryLimits, remove_leftovers
from agentcli.tools.command import Command, CommandResult, Profile

_LEFT = "what it left running was ended, as nothing of a try goes on"


class TryRun:
    """A command that was tried. `changes` are told by name, those of the first root relative to it.

    Exactly one of `keep` and `drop` ends it; leaving it as a context drops it where neither was called. Then nothing is
    left of it but the output file of a long output.
    """

    def __init__(
        self, result: CommandResult, mechanism: Mechanism, pieces: Sequence[Piece], private: PrivateFolder
    ) -> None:
        self.result = result
        self.mechanism: Mechanism = mechanism
        self.changes: tuple[FileChange, ...] = tuple(piece.change for piece in pieces)
        self._pieces = pieces
        self._private = private
        self._is_open = True

    async def keep(self, names: Collection[str] | None = None) -> Kept:
        """Bring changes into the real folders: those named, or all. The others are dropped.

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
        return await asyncio.shield(asyncio.to_thread(self._keep, chosen))

    def _keep(self, pieces: Sequence[Piece]) -> Kept:
        try:
            return keep_pieces(pieces)
        finally:
            self._private.close()

    async def drop(self) -> None:
        """Forget what the command did; nothing happens when the try is over already."""
        self._is_open = False
        await asyncio.shield(asyncio.to_thread(self._private.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.drop()


class TryRuns:
    """Tries the commands of one session.

    `confinement` and `bounds` are what commands are confined by now. `folder` holds what stands in, one folder for each
    try; it is outside of everything that commands may write, and should be on the disk of the workspace. What a killed
    process has left there is removed with the first try. Long output goes to `output_folder`. `mechanisms` are tried in
    this order.
    """

    def __init__(
        self,
        confinement: Callable[[], Confinement],
        bounds: Callable[[], Bounds],
        *,
        environment: Mapping[str, str],
        folder: Path,
        output_folder: Path,
        limits: TryLimits = TryLimits(),  # noqa: B008  # frozen
        mechanisms: Sequence[Mechanism] = ("overlay", "copy"),
    ) -> None:
        self._confinement = confinement
        self._bounds = bounds
        self._environment = environment
        self._folder = folder
        self._output_folder = output_folder
        self._limits = limits
        self._mechanisms = mechanisms
        self._is_clean = False

    def why_not(self) -> str:
        """Say why commands cannot be tried here, for the person; empty where they can."""
        bounds = self._bounds()
        if bounds.profile == "danger-full-access":
            return "Commands are not confined, so what one does cannot be held back to be looked at."
        if bounds.profile == "read-only":
            return "Commands can write nothing here (read-only), so there is nothing to try."
        confinement = self._confinement()
        if confinement.name != "bubblewrap":
            why = f": {confinement.why}" if confinement.why else "."
            return f"Trying a command needs namespaces (bubblewrap), which are not there{why}"
        return ""

    async def try_command(self, command: Command, *, on_output: Callable[[str], None] = lambda text: None) -> TryRun:
        """Run a command as `Commands.exec` does, but let it change nothing yet; what it leaves running is ended.

        Raises `ToolError` where that is impossible (permission_denied, resource_error), and when it changed more than
        the limits allow: then nothing of it is left.
        """
        if why_not := self.why_not():
            raise ToolError(f"{why_not} Run it as usual, or not at all.", kind="permission_denied")
        private = await asyncio.to_thread(self._new_folder)
        try:
            trial = await asyncio.to_thread(self._prepare, command.cwd, private)
            try:
                result = await self._run(trial, command, on_output)
                pieces = await asyncio.to_thread(trial.pieces, self._limits)
            finally:
                trial.replaced.close()
            return TryRun(result, trial.replaced.mechanism, pieces, private)
        except OSError as error:
            await asyncio.shield(asyncio.to_thread(private.close))
            reason = error.strerror or str(error)
            raise ToolError(f"The command could not be tried: {reason}.", kind="resource_error") from error
        except BaseException:
            await asyncio.shield(asyncio.to_thread(private.close))
            raise

    async def _run(self, trial: _Trial, command: Command, on_output: Callable[[str], None]) -> CommandResult:
        shell = Shell(self._environment, self._output_folder, launch=trial.launch)
        try:
            result = await shell.exec(command, on_output=on_output)
        finally:
            await asyncio.shield(shell.aclose())
        if result.job is not None:
            stall = f"{result.stall}; {_LEFT}" if result.stall else _LEFT
            result = msgspec.structs.replace(result, job=None, output_file=result.job.output_file, stall=stall)
        return result

    def _new_folder(self) -> PrivateFolder:
        if not self._is_clean:
            remove_leftovers(self._folder)
            self._is_clean = True
        try:
            return PrivateFolder(self._folder)
        except OSError as error:
            message = f"{self._folder} cannot be written, where the changes of a try are kept: {error.strerror}."
            raise ToolError(message, kind="resource_error") from error

    def _prepare(self, cwd: Path, private: PrivateFolder) -> _Trial:
        """Raises `OSError`, `ToolError`."""
        confinement, bounds = self._confinement(), self._bounds()
        if bounds.cache is not None:
            bounds.cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        reasons: list[str] = []
        for mechanism in self._mechanisms:
            if mechanism == "copy":  # a cache is large, and a command does without
                bounds = msgspec.structs.replace(bounds, cache=None)
            mounts = _planned_mounts(confinement, bounds, cwd)
            areas = writable_folders(mounts)
            if inside := next((area for area in areas if is_inside(str(private.path), area)), None):
                message = f"{inside} holds agentcli's own data, so what a command does there cannot be held back."
                raise ToolError(message, kind="permission_denied")
            try:
                if mechanism == "overlay":
                    return _Trial(confinement, bounds, OverlayMounts(areas, private.path), private)
                hidden = {mount.path for mount in mounts if mount.hides}
                counter = Counter(self._limits, "The workspace has")
                return _Trial(
                    confinement, bounds, CopyMounts(areas, private.path, hidden=hidden, take=counter.take), private
                )
            except OSError as error:
                reasons.append(f"{mechanism}: {error.strerror or error}")
        raise ToolError(
            f"The command cannot be tried here ({'; '.join(reasons)}). Run it as usual, or not at all.",
            kind="resource_error",
        )


class _Trial:
    """One command's confinement, with what stands in for the folders it may write."""

    def __init__(self, confinement: Confinement, bounds: Bounds, replaced: TrialMounts, private: PrivateFolder) -> None:
        self.replaced = replaced
        self._confinement = confinement
        self._bounds = bounds
        self._private = private
        self._mounts: Sequence[Mount] = ()

    @contextmanager
    def launch(
        self, argv: Sequence[str], cwd: Path, pass_fds: Sequence[int], profile: Profile | None = None
    ) -> Iterator[Launch]:
        """Raises `OSError`."""
        with self._confinement.launch(argv, cwd=cwd, bounds=self._bounds, pass_fds=pass_fds) as launch:
            self._mounts = mounts_of(launch.argv)
            # Hidden as a whole: what stands in shows what is masked in the workspace, and other tries are nobody's.
            yield self.replaced.wrap(launch, str(self._private.path.parent))

    def pieces(self, limits: TryLimits) -> list[Piece]:
        """Raises `OSError`, `ToolError`."""
        counter = Counter(limits, "The command changed")
        budget = [LONGEST_DIFFS]
        found = []
        for area, touched in self.replaced.changes(counter.take).items():
            if area != str(self._bounds.cache):
                found += pieces_of(
                    area,
                    touched,
                    can_reach=lambda path: can_reach(self._mounts, path),
                    name_of=self._name_of,
                    budget=budget,
                )
        return found

    def _name_of(self, path: str) -> str:
        first = str(self._bounds.roots[0]) if self._bounds.roots else ""
        if first and is_inside(path, first):
            return os.path.relpath(path, first)
        return path


def _planned_mounts(confinement: Confinement, bounds: Bounds, cwd: Path) -> list[Mount]:
    with confinement.launch(["true"], cwd=cwd, bounds=bounds) as launch:
        return mounts_of(launch.argv)
