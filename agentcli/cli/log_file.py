"""Keeps the log of the program: a file in the state folder, with keys and tokens masked."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def set_up_logging(state: Path, level: str) -> None:
    """Log to a file that is made with the first record, so that a quiet run writes nothing.

    What knows keys and tokens is imported with the first record too.
    """

    class StateFileHandler(logging.FileHandler):
        def emit(self, record: logging.LogRecord) -> None:
            with suppress(OSError):  # a log that cannot be written ends nothing
                super().emit(record)

        def _open(self) -> Any:
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return super()._open()

    class MaskingFormatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            from agentcli.infra.sandbox.processes.environment import credentials_in
            from agentcli.safety.secrets.masking import Masker

            return Masker(credentials_in(os.environ)).mask(super().format(record))

    handler = StateFileHandler(state / "logs" / "agentcli.log", encoding="utf-8", delay=True)
    handler.setFormatter(MaskingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
