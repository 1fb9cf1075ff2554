"""Keeps the summaries that models wrote, so that a conversation that goes on does not pay for them again."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from agentcli.settings.files import make_private_folder, read_small_file, replace_file

log = logging.getLogger(__name__)

_PRUNED_AT = 1.1  # times as many as are kept


class SummaryFiles:
    """Files by key: for so many hours, and the newest `most`. What cannot be read or written is missing."""

    def __init__(self, folder: Path, *, hours: float, most: int) -> None:
        self._folder = folder
        self._seconds = hours * 3_600
        self._most = most

    def get(self, key: str) -> str | None:
        file = self._folder / key
        try:
            is_fresh = time.time() - file.stat().st_mtime < self._seconds
            return read_small_file(file).decode() if is_fresh else None
        except (OSError, UnicodeDecodeError):
            return None

    def __setitem__(self, key: str, text: str) -> None:
        try:
            make_private_folder(self._folder)
            replace_file(self._folder / key, text.encode(errors="replace"), syncs=False)
            files = [(file.stat().st_mtime, file) for file in self._folder.iterdir()]
            if len(files) > _PRUNED_AT * self._most:
                for _, file in sorted(files, reverse=True)[self._most :]:
                    file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a summary could not be kept: %s", error)
