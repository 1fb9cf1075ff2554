"""Restores, once a session, what commands of killed sessions changed, and remembers what is still to be told."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from threading import Lock

from agentcli.infra.sandbox.confinement import Told


class LeftBehind:
    """The journals that other sessions left in a folder: see guard_journal.py."""

    def __init__(self, journals: Path | None) -> None:
        self._journals = journals
        self._lock = Lock()
        self._found: Told | None = None
        self._untold: Told | None = None

    def needs_looking(self) -> bool:
        """True if `put_back` may take its time: it waits for a keeper that is at it."""
        return self._found is None and self._journals is not None and self._journals.exists()

    def put_back(self) -> str:
        """Put back what is left and tell the person of it, the same each time."""
        with self._lock:
            if self.needs_looking():  # importing what does it takes some milliseconds
                finish = import_module("agentcli.infra.sandbox.protection.guard_journal").finish_journals
                self._found = self._untold = finish(self._journals)
            if self._found is None:
                return ""
            done, left = ("; ".join(each) for each in (self._found.put_back, self._found.left_changed))
            says = f"Put back what a command changed whose session was killed: {done}." if done else ""
            failed = f"Changed by a command of another session, and could not be put back: {left}." if left else ""
            return f"{says} {failed}".strip()

    def take_untold(self, told: Told) -> Told:
        """Add what the model has not been told yet."""
        untold, self._untold = self._untold, None
        if untold is not None:
            told.put_back += [f"{each}, changed by a command of a session that was killed" for each in untold.put_back]
            told.left_changed += untold.left_changed
        return told
