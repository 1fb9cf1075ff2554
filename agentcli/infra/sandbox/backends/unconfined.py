"""Commands that are not confined at all: where nothing works, and where the person wants it so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentcli.infra.sandbox.bounds import Bounds, Launch, Profile


class Unconfined:
    """Implements `Confinement` by doing nothing. `why` says why there is nothing better."""

    name = "none"
    weakness = ""
    keeps_names = False
    ends_trees = False

    def __init__(self, why: str = "") -> None:
        self.why = why

    @contextmanager
    def launch(
        self, argv: Sequence[str], *, cwd: Path, bounds: Bounds, pass_fds: Sequence[int] = ()
    ) -> Iterator[Launch]:
        yield Launch(list(argv), tuple(pass_fds), {})

    def hides(self, profile: Profile) -> bool:
        return False

    def command_group(self, pid: int) -> int | None:
        return pid

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return ("Commands are not confined: they can do whatever you can.",)
