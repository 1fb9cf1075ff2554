"""Has put back, once a session, what commands of killed sessions changed, and knows what is still to be told of it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock


class LeftBehind:
    """What other sessions left in `journals`: see guard_journal.py."""

    def __init__(self, journals: Path | None) -> None:
        self._journals = journals
        self._lock = Lock()
        self._found: Sequence[str] | None = None
        self._untold: Sequence[str] = ()

    def needs_looking(self) -> bool:
        """True if `put_back` may take its time: it waits for a keeper that is at it."""
        return self._found is None and self._journals is not None and self._journals.exists()

    def put_back(self) -> Sequence[str]:
        """Put back what is left and tell of it, the same each time: as `Guard.during` does."""
        with self._lock:
            if self.needs_looking():  # importing what does it takes some milliseconds
                self._untold = import_module("agentcli.infra.sandbox.guard_journal").finish_journals(self._journals)
            self._found = self._found or self._untold
            return self._found

    def take_untold(self) -> list[str]:
        """What the model has not been told yet."""
        untold, self._untold = self._untold, ()
        return [f"{each}, changed by a command of a session that was killed" for each in untold]
