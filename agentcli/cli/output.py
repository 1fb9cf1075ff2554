"""What the command line writes: nothing in it steers a terminal, and an output that takes nothing is told."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from agentcli.errors import UsageError
from agentcli.frontends.printable import printable

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def tell(text: str) -> None:
    """Print lines for a person. Names, paths and errors hold what others chose; for programs there is JSON."""
    print(printable(text))


def warn(text: str) -> None:
    """Say something beside the output, on stderr."""
    with suppress(OSError):  # nobody is left to hear it
        print(f"agentcli: {printable(text)}", file=sys.stderr, flush=True)


class WatchedOutput(io.FileIO):
    """Stdout; `failure` is why it could not be written. What is written after that is dropped.

    So the last flush of the interpreter has nothing to complain about.
    """

    failure: OSError | None = None

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
            errors=before.errors,
            line_buffering=watched.isatty(),
        )
        return watched

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
                raise
        return size
