"""Stores text that is typed and not sent yet, so that it survives a crash or a closed terminal."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import msgspec

from agentcli.frontends.terminal.input.pastes import Sent
from agentcli.settings.files import make_private_folder, replace_file

MOST_SESSIONS = 50  # of one directory at the same time; one more has no draft


def drafts_of(folder: Path, cwd: Path) -> Drafts | None:
    """A place for this session's draft in a directory; the draft of a killed session is found there again.

    Each place has a lock, which the system frees with the process that held it.
    """
    key = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:16]
    with suppress(OSError):  # a disk that takes nothing takes no drafts either
        make_private_folder(folder)
        for number in range(MOST_SESSIONS):
            lock = (folder / f"{key}.{number}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return Drafts(folder / f"{key}.{number}", lock)
            except OSError:
                lock.close()
    return None


class Drafts:
    """One draft in one file. A failing disk costs the draft, never the session. `lock` is held meanwhile."""

    def __init__(self, file: Path, lock: TextIO | None = None) -> None:
        self._file = file
        self._lock = lock

    def save(self, draft: Sent) -> None:
        """Store a text; an empty one leaves no draft."""
        if not draft.text:
            self.clear()
            return
        # A terminal can send bytes that are no UTF-8; prompt_toolkit makes lone surrogates of them.
        draft = Sent(draft.text.encode(errors="replace").decode(), draft.pastes)
        with suppress(OSError):
            make_private_folder(self._file.parent)
            replace_file(self._file, msgspec.json.encode(draft), syncs=False)

    def load(self) -> Sent | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Sent)
        except (OSError, msgspec.MsgspecError, ValueError):
            return None

    def clear(self) -> None:
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
