"""Keeps the log of the program: lines in the state folder or on stderr, with keys and tokens masked."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentcli.settings.files import make_private_folder

if TYPE_CHECKING:
    from agentcli.settings.load import Config


def set_up_logging(config: Config, *, has_screen: bool = False) -> None:
    """Log as the settings say; what needs an import is imported with the first record.

    A screen would be garbled by what goes to stderr, so nothing does.
    """
    settings = config.settings.observability
    outputs: list[logging.Handler] = []
    if "file" in settings.log_outputs:
        file = config.paths.state / "logs" / "agentcli.log"
        outputs.append(LogFile(file, most_bytes=int(settings.log_max_mb * 1e6), keep=settings.log_keep))
    if "stderr" in settings.log_outputs and not has_screen:
        outputs.append(logging.StreamHandler())
    root = logging.getLogger()
    for handler in outputs:
        handler.setFormatter(MaskingFormatter(config))
        root.addHandler(handler)
    for logger in (root, logging.getLogger("agentcli.agent.activity_log")):
        logger.setLevel(settings.log_level.upper())


class MaskingFormatter(logging.Formatter):
    """Writes records as text or as JSON, without keys and tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._config = config
        self._is_json = config.settings.observability.log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        from agentcli.infra.sandbox.processes.environment import credentials_in
        from agentcli.safety.secrets.masking import Masker
        from agentcli.setup.telemetry import secret_headers

        mask = Masker((*credentials_in(os.environ), *secret_headers(self._config))).mask
        if not self._is_json:
            return mask(super().format(record))
        from datetime import datetime

        from msgspec.json import encode

        line = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask(logging.Formatter().format(record)),
        }
        if session_id := getattr(record, "session_id", ""):
            line["session_id"] = session_id
        return encode(line).decode()


class LogFile(logging.Handler):
    """A file for the person alone, which any number of processes append to, made with the first record.

    One that has `most_bytes` is put aside as FILE.1, and so on up to `keep` of them. A log that cannot be written ends
    nothing.
    """

    def __init__(self, file: Path, *, most_bytes: int, keep: int) -> None:
        super().__init__()
        self._file = file
        self._most_bytes = most_bytes
        self._keep = keep

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ImportError):  # also what the format imports can fail, where no file can be opened
            line = (self.format(record) + "\n").encode(errors="backslashreplace")
            make_private_folder(self._file.parent)
            file = self._open()
            try:
                if os.fstat(file).st_size >= self._most_bytes:
                    file = self._rotated(file)
                os.write(file, line)  # at once, so that lines of several processes stay whole
            finally:
                os.close(file)

    def _open(self) -> int:
        return os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _rotated(self, full: int) -> int:
        """A file with room in place of the full one, which is put aside unless another process has done that."""
        from fcntl import LOCK_EX, flock

        flock(full, LOCK_EX)  # freed with the file
        with suppress(OSError):
            if os.path.samestat(os.fstat(full), self._file.stat()):
                for number in range(self._keep - 1, 0, -1):
                    with suppress(FileNotFoundError):
                        self._aside(number).rename(self._aside(number + 1))
                self._file.rename(self._aside(1))
        file = self._open()
        os.close(full)
        return file

    def _aside(self, number: int) -> Path:
        return self._file.with_name(f"{self._file.name}.{number}")
