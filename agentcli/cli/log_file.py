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
    """Log as the settings say, but not to stderr below a screen; what needs an import is imported with a record."""
    settings = config.settings.observability
    outputs: list[logging.Handler] = []
    if "file" in settings.log_outputs:
        file, max_bytes = config.paths.state / "logs" / "agentcli.log", int(settings.log_max_mb * 1e6)
        outputs.append(LogFile(file, max_bytes=max_bytes, keep=settings.log_keep))
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
        from agentcli.infra.sandbox.environment import credentials_in
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
    """A file for the person alone, to which any number of processes append, made with the first record.

    At `max_bytes` it becomes FILE.1, up to `keep` of them; `RotatingFileHandler` would go on writing to that one.
    """

    def __init__(self, file: Path, *, max_bytes: int, keep: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._files = [file, *(file.with_name(f"{file.name}.{number}") for number in range(1, keep + 1))]

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ImportError):  # also what the format imports can fail, where no file can be opened
            line = (self.format(record) + "\n").encode(errors="backslashreplace")
            file = self._files[0]
            make_private_folder(file.parent)
            if file.exists() and file.stat().st_size >= self._max_bytes:
                for newer, older in reversed([*zip(self._files, self._files[1:], strict=False)]):
                    with suppress(FileNotFoundError):
                        newer.rename(older)
            with open(file, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
                log.write(line)  # at once, so that lines of several processes stay whole
