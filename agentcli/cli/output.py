"""Writes to stdout and stderr: nothing in it steers a terminal, and an output that takes nothing is reported."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentcli.errors import UsageError
from agentcli.frontends.printable import printable, with_tilde

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from agentcli.settings.load import Config

Row = Sequence[str]
READABLE = 12  # columns of the terminal below which the last column is not squeezed


def locale_encoding() -> str:
    """Return the charset of the terminal, empty for UTF-8; the program restarts in UTF-8 mode and leaves it here."""
    name = sys._xoptions.get("agentcli_locale", "")  # noqa: SLF001  # documented, in spite of its name
    return name if isinstance(name, str) else ""


def use_locale_encoding() -> None:
    """Let the standard streams speak the charset of the locale, unless PYTHONIOENCODING names another."""
    if (encoding := locale_encoding()) and not os.environ.get("PYTHONIOENCODING"):
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding=encoding)


def echo(text: str) -> None:
    """Print lines for a person. Names, paths and errors hold what others chose; for programs there is JSON."""
    print(printable(text))


def warn(text: str) -> None:
    """Say something beside the output, on stderr."""
    print(f"agentcli: {printable(text)}", file=sys.stderr, flush=True)


def banner(config: Config) -> tuple[str, str]:
    """Return the name of the program, and the folder it runs in."""
    from agentcli import __version__

    return f"agentcli {__version__}", with_tilde(printable(str(config.cwd)), str(Path.home()))


class LenientError(io.FileIO):
    """Stderr; what it does not take is dropped, and changes neither the run nor its exit code."""

    @classmethod
    def in_place_of_stderr(cls) -> None:
        before = sys.stderr
        if before is None:  # closed: the next file to be opened would take its number
            null = os.open(os.devnull, os.O_WRONLY)
            if null != _STDERR:
                os.dup2(null, _STDERR)
                os.close(null)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(cls(_STDERR, "w", closefd=False)),
            encoding=before.encoding if before else "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError:  # nobody is left to hear it
            return memoryview(data).nbytes


_STDERR = 2


_RESULT = b'{"type":"result"'


class WatchedOutput(io.FileIO):
    """Stdout; after a `failure` writes are dropped, so that the interpreter's last flush does not complain."""

    failure: OSError | None = None
    # How the last line begins, whether it goes on, what is being written then, and how many bytes of that were: all in
    # one value, so that a signal finds it whole.
    _state: tuple[bytes, bool, bytes, list[int]] = (b"", False, b"", [])

    @property
    def is_within_line(self) -> bool:
        return self._last_line()[1]

    @property
    def ends_with_result(self) -> bool:
        return self._last_line() == (_RESULT, False)

    @classmethod
    def in_place_of_stdout(cls) -> WatchedOutput:
        """Raises `UsageError` when there is no stdout: the next file to be opened would take its number."""
        before = sys.stdout
        if before is None:
            raise UsageError("Stdout is closed: send it to a file, or to /dev/null.")
        before.flush()
        watched = cls(before.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(watched),
            encoding=before.encoding,
            errors="backslashreplace",  # what the encoding has no sign for is no reason to lose an answer
            line_buffering=watched.isatty(),
        )
        return watched

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        if self.failure is not None:
            return view.nbytes
        written: list[int] = []
        self._state = (*self._last_line(), bytes(view), written)
        try:
            written.extend(map(super().write, (view,)))  # one step for the interpreter: no signal comes between the two
        except OSError as error:
            self.failure = error
            raise
        return written[0]

    def _last_line(self) -> tuple[bytes, bool]:
        """Return the beginning of the last line on stdout, and True if it goes on."""
        line, continues, data, written = self._state
        if not written or not written[0]:
            return line, continues
        out = data[: written[0]]
        lines = out.removesuffix(b"\n")
        start = lines.rfind(b"\n") + 1
        begun = line if continues and start == 0 else b""
        return (begun + lines[start : start + len(_RESULT)])[: len(_RESULT)], not out.endswith(b"\n")


# Tables: drawn by rich on a terminal, in plain columns that are never cut elsewhere


def draws_tables() -> bool:
    """True if stdout is a terminal, which shows more than plain text."""
    return sys.stdout.isatty()


def print_table(headings: Row, rows: Sequence[Row], *, numeric: Collection[str] = (), empty: str = "") -> None:
    """Print rows under `headings`, on a terminal; elsewhere the rows alone. `numeric` columns are right-aligned."""
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        echo(empty)
    elif draws_tables():
        _draw(headings, cells, numeric)
    else:
        cells = [[cell.replace("\n", " ") for cell in row] for row in cells]
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        for row in cells:  # the last column is not padded
            padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
            echo("  ".join([*padded, row[-1]]))


def _draw(headings: Row, rows: Sequence[Row], numeric: Collection[str]) -> None:
    """Only the last column breaks its lines, so that ids and names can be copied; all do on a narrow terminal."""
    from rich.box import SIMPLE_HEAD  # 60 ms that only a terminal needs
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [
        [cell.partition(" ")[0] if heading in numeric else cell for heading, cell in zip(headings, row, strict=True)]
        for row in rows
    ]
    console = Console(file=sys.stdout, highlight=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    *widths, last = (max(map(cell_len, column)) for column in zip(headings, *rows, strict=True))
    is_narrow = sum(widths) + min(last, READABLE) + 2 * len(headings) > console.width
    for n, heading in enumerate(headings):
        side: Literal["left", "right"] = "right" if heading in numeric else "left"
        table.add_column(heading, justify=side, no_wrap=not is_narrow and n < len(widths), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
