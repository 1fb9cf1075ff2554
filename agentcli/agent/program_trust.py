"""Programs of the workspace that trusted commands run: they may be run as they were trusted, and no other way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

RUN, REFUSE = "Run it as it is now", "Do not run it"


class ProgramTrust(Protocol):
    """Knows the files that trusted commands run."""

    def changed(self, command: str) -> Sequence[Path]:
        """The files of a command that are not as they were when it was trusted."""
        ...

    def accept(self, command: str) -> None:
        """Trust them as they were when `changed` was called last. Raises `ConfigError`."""
        ...


def changed_sentence(changed: Sequence[Path], user: str) -> str:
    """Say which files changed that `user`, a hook or a server, would run."""
    names = ", ".join(map(str, changed))
    verb, what = ("have", "them") if len(changed) > 1 else ("has", "it")
    return f"{names} {verb} changed since you trusted {what}, and {user} would run {what} outside the sandbox."
