"""Restores what git and editors obey when commands change it and nothing could keep them from that.

Landlock grants whole folders: a command that may write the workspace may write its git hooks as well. So a copy is
taken before the first of the commands that run at the same time, and compared each time one has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agentcli.infra.sandbox.confinement import Told
from agentcli.infra.sandbox.mounts.protect_plan import Protection
from agentcli.infra.sandbox.protection.guard_journal import Journal
from agentcli.infra.sandbox.protection.protected_copy import ProtectedCopy
from agentcli.infra.sandbox.protection.putting_back import PuttingBack


class Guard:
    """Guards one workspace while commands run. `aside` is where what stood in the way goes, made when it is needed.

    In `journals` stands meanwhile what is to be put back if agentcli is killed; None: nothing is then.
    """

    def __init__(self, aside: Path, journals: Path | None = None) -> None:
        self._aside = aside.resolve()
        self._journals = journals
        self._journal: Journal | None = None
        self._copy: ProtectedCopy | None = None  # while no command runs, of what could not be put back
        self._running: list[tuple[Path, ...]] = []  # what each command that runs was granted
        self._roots: Sequence[Path] = ()
        self._said: set[Path] = set()  # that more is in it than is kept

    @contextmanager
    def during(self, protection: Protection, *, roots: Sequence[Path], granted: Sequence[Path]) -> Iterator[Told]:
        """Yield a record that in the end names what was put back, and what could not be.

        What was `granted` to the command may be changed by it, and stays so.
        """
        told = Told()
        self._copy = self._copy or ProtectedCopy()
        self._copy.take(protection)
        told.unguarded += map(str, sorted(self._copy.left_out - self._said))
        self._said |= self._copy.left_out
        mine = tuple(granted)
        self._running.append(mine)
        self._roots = roots
        self._note()
        try:
            yield told
        finally:
            self._running.remove(mine)
            self._copy.take_again(mine)
            self._put_back(roots, told)
            self._note()

    def try_again(self) -> Told:
        """Put back what could not be after the last command: before the next is planned by what is there."""
        told = Told()
        if self._copy is not None and not self._running:
            self._put_back(self._roots, told)
            self._note()
        return told

    @property
    def journal(self) -> int | None:
        """A descriptor; None where there is none."""
        return self._journal.descriptor if self._journal is not None else None

    @staticmethod
    def unguarded(protection: Protection) -> list[Path]:
        """The folders in which there is more than can be kept: what commands change there stays."""
        copy = ProtectedCopy()
        copy.take(protection)
        copy.close()
        return sorted(copy.left_out)

    def accept(self, path: Path, content: bytes) -> None:
        """Keep a file with what the person agreed to, whatever commands put beside it or in its place."""
        if self._copy is not None:
            self._copy.accept(path, content)
            self._note()

    @contextmanager
    def accepting(self, plan: Callable[[], Protection], roots: Sequence[Path]) -> Iterator[None]:
        """Keep whatever changes meanwhile: a command runs that the person let out of the sandbox."""
        failed: list[Path] = []
        if self._copy is not None:
            failed = self._put_back(roots, Told())
            self._rest()  # what the person allowed is not to be reverted, even if that lets more stay
        try:
            yield
        finally:
            if self._copy is not None:
                self._copy.keep_only(failed)
                if self._running:
                    self._copy.take(plan())
                self._note()

    def _put_back(self, roots: Sequence[Path], told: Told) -> list[Path]:
        """Put back what changed, and return what could not be: the only thing remembered while no command runs."""
        assert self._copy is not None
        failed = PuttingBack(self._copy, (self._aside, *roots), self._granted, told).run()
        if not self._running:
            self._copy.keep_only(failed)
            if not failed:
                self._copy = None
        return failed

    @property
    def _granted(self) -> list[Path]:
        return [path for paths in self._running for path in paths]

    def _note(self) -> None:
        """Keep the journal true. Where the disk takes none, commands run all the same."""
        if self._copy is None:
            self._rest()
            return
        writable = (*self._roots, *self._granted)
        if any(self._aside.is_relative_to(path) for path in writable):  # commands could write what is to be put back
            self._leave_journal(is_done=True)
            return
        if self._journals is not None:
            with suppress(OSError):
                self._journal = self._journal or Journal(self._journals)
                self._journal.write(self._copy.record((self._aside, *self._roots), self._granted))

    def _rest(self) -> None:
        if self._journal is not None:
            with suppress(OSError):
                self._journal.rest()

    def close(self) -> None:
        """Leave to the next start what could not be put back."""
        if self._copy is not None and not self._running:
            self._put_back(self._roots, Told())
        self._leave_journal(is_done=self._copy is None)

    def _leave_journal(self, *, is_done: bool) -> None:
        if self._journal is not None:
            if is_done:
                self._rest()
            self._journal.close(is_done=is_done)
            self._journal = None
