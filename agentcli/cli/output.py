"""Writes to stdout, to stderr and to the log file.

Control characters never reach a terminal, failed writes to stdout are reported, and keys are masked in the log.
"""

import io
import logging
import os
import sys
import textwrap
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from msgspec.json import encode

from agentcli.errors import UsageError
from agentcli.frontends.printable import printable, with_tilde
from agentcli.settings.files import make_private_folder
from agentcli.settings.load import Config
from agentcli.version import __version__

Row = Sequence[str]
MIN_READABLE_COLUMNS = 12  # characters; if the last column would get fewer, the other columns wrap as well


def locale_encoding() -> str:
    """Return the charset of the locale, which is also the terminal's; empty for UTF-8.

    The program restarts itself in UTF-8 mode and passes on the original charset as an interpreter option.
    """
    name = sys._xoptions.get("agentcli_locale", "")  # noqa: SLF001  # documented, in spite of its name
    return name if isinstance(name, str) else ""


def use_locale_encoding() -> None:
    """Let the standard streams use the charset of the locale, unless PYTHONIOENCODING names another one."""
    if (encoding := locale_encoding()) and not os.environ.get("PYTHONIOENCODING"):
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding=encoding)


def echo(text: str) -> None:
    """Print text for a person, without the control characters that names, paths and errors may contain."""
    print(printable(text))


def warn(text: str) -> None:
    """Print a warning, on a terminal wrapped between words."""
    text = f"agentcli: {printable(text)}"
    if sys.stderr.isatty() and (columns := os.get_terminal_size(sys.stderr.fileno()).columns):
        wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(map(wrapper.fill, text.split("\n")))
    print(text, file=sys.stderr, flush=True)


def banner(config: Config) -> tuple[str, str]:
    """Return the name and version of the program, and the folder it runs in."""
    return f"agentcli {__version__}", with_tilde(printable(str(config.cwd)), str(Path.home()))


class LenientStderr(io.FileIO):
    """Stderr that drops text it cannot write, so that neither the run nor its exit code changes."""

    @classmethod
    def install(cls) -> None:
        before = sys.stderr
        if before is None:  # stderr is closed: occupy its number, or the next file that is opened would get it
            null = os.open(os.devnull, os.O_WRONLY)  # may itself get the number of stderr
            if null != _STDERR:
                os.dup2(null, _STDERR)
                os.close(null)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(cls(_STDERR, "w", closefd=False)),
            encoding=before.encoding if before else "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:  # nobody can read it any more
            return memoryview(data).nbytes


_STDERR = 2
_RESULT = b'{"type":"result"'  # the start of the last line of a run with JSON output


class _LastLine(NamedTuple):
    start: bytes = b""  # as many bytes as `_RESULT` has
    continues: bool = False  # its end has not been written yet


class WatchedStdout(io.FileIO):
    """Stdout that drops writes after a `failure`, so that the interpreter's last flush does not fail as well."""

    failure: OSError | None = None  # the first failed write
    # The last line before the newest write, the data of that write, and the number of its bytes that were written (an
    # empty list until then). All in one value, because a signal handler may need it between two steps of a write.
    _newest_write: tuple[_LastLine, bytes, list[int]] = (_LastLine(), b"", [])

    @property
    def is_within_line(self) -> bool:
        return self._last_line().continues

    @property
    def ends_with_result(self) -> bool:
        """True if the last line is a whole result, after which nothing more may be written."""
        return self._last_line() == _LastLine(_RESULT, continues=False)

    @classmethod
    def install(cls) -> "WatchedStdout":
        """Replace `sys.stdout`. Raises `UsageError` if it is closed: the next opened file would get its descriptor."""
        before = sys.stdout
        if before is None:
            raise UsageError("Stdout is closed. Redirect it to a file, or to /dev/null.")
        before.flush()
        watched = cls(before.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(watched),
            encoding=before.encoding,
            errors="backslashreplace",  # a character that the encoding lacks must not lose the answer
            line_buffering=watched.isatty(),
        )
        return watched

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.failure is not None:
            return view.nbytes
        written: list[int] = []
        self._newest_write = (self._last_line(), bytes(view), written)
        try:
            written.extend(map(super().write, (view,)))  # one bytecode step, so no signal handler runs within it
        except OSError as error:
            self.failure = error
            raise
        return written[0]

    def _last_line(self) -> _LastLine:
        """Return the start of the last line that was written so far: enough of it to recognize a result."""
        before, data, written = self._newest_write
        if not written or not written[0]:
            return before
        data = data[: written[0]]
        lines = data.removesuffix(b"\n")
        begin = lines.rfind(b"\n") + 1  # where the last line begins in the data
        start = lines[begin : begin + len(_RESULT)]
        if before.continues and begin == 0:
            start = (before.start + start)[: len(_RESULT)]
        return _LastLine(start, continues=not data.endswith(b"\n"))


def print_table(headings: Row, rows: Sequence[Row], *, numeric: Collection[str] = (), empty: str = "") -> None:
    """Print rows, or `empty` if there are none. Only a terminal gets `headings` and right-aligned `numeric` columns."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        echo(empty)
    elif sys.stdout.isatty():
        _draw_table(headings, cells, numeric)
    else:
        cells = [[cell.replace("\n", " ") for cell in row] for row in cells]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        for row in cells:  # the last column is not padded
            padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
            echo("  ".join([*padded, row[-1]]))


def _draw_table(headings: Row, rows: Sequence[Row], numeric: Collection[str]) -> None:
    """Draw a table. Only the last column wraps, so that ids can be copied; on a narrow terminal all columns wrap."""
    from rich.box import SIMPLE_HEAD  # rich takes 60 ms to import, and only tables on a terminal need it
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [  # numbers without their units, which the headings name
        [cell.partition(" ")[0] if heading in numeric else cell for heading, cell in zip(headings, row, strict=True)]
        for row in rows
    ]
    console = Console(file=sys.stdout, highlight=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    *widths, last = (max(map(cell_len, column)) for column in zip(headings, *rows, strict=True))
    gaps = 2 * len(headings)
    is_narrow = sum(widths) + min(last, MIN_READABLE_COLUMNS) + gaps > console.width
    for n, heading in enumerate(headings):
        side: Literal["left", "right"] = "right" if heading in numeric else "left"
        table.add_column(heading, justify=side, no_wrap=not is_narrow and n < len(widths), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def set_up_logging(config: Config, *, has_screen: bool = False) -> None:
    """Set up logging as the settings say, but never log to stderr while a session uses the screen."""
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
    # Without a level of its own, the logger of sessions' activity gets WARNING, as programs with the library need it.
    for logger in (root, logging.getLogger("agentcli.agent.activity_log")):
        logger.setLevel(settings.log_level.upper())


class MaskingFormatter(logging.Formatter):
    """Formats records as text or JSON, with keys and tokens masked. Modules are imported with the first record."""

    def __init__(self, config: Config) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._config = config
        self._is_json = config.settings.observability.log_format == "json"

    def format(self, record: logging.LogRecord) -> str:
        from agentcli.infra.sandbox.environment import credentials_in
        from agentcli.safety.secrets.masking import Masker
        from agentcli.setup.options import secret_headers

        mask = Masker((*credentials_in(os.environ), *secret_headers(self._config))).mask
        if not self._is_json:
            return mask(super().format(record))
        line = {
            "time": datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": mask(logging.Formatter().format(record)),  # with the traceback
        }
        if session_id := getattr(record, "session_id", ""):
            line["session_id"] = session_id
        return encode(line).decode()


class LogFile(logging.Handler):
    """A private file to which any number of processes append; it is created with the first record.

    A file that reaches `max_bytes` is renamed to FILE.1, an older one to FILE.2, up to FILE.`keep`. With the standard
    `RotatingFileHandler` other processes would continue to write to the renamed file.
    """

    def __init__(self, file: Path, *, max_bytes: int, keep: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes
        self._files = [file, *(file.with_name(f"{file.name}.{number}") for number in range(1, keep + 1))]

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ImportError):  # imports fail as well when no more files can be opened
            line = (self.format(record) + "\n").encode(errors="backslashreplace")
            file = self._files[0]
            make_private_folder(file.parent)
            if file.exists() and file.stat().st_size >= self._max_bytes:
                for newer, older in reversed([*zip(self._files, self._files[1:], strict=False)]):  # the oldest first
                    with suppress(FileNotFoundError):
                        newer.rename(older)
            with open(file, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
                log.write(line)  # in one write, so that lines of several processes do not mix
