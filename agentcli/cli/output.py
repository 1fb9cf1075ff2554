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


_RESULT = b'{"type":"result"'


class WatchedOutput(io.FileIO):
    """Stdout; `failure` is why it could not be written. What is written after that is dropped.

    So the last flush of the interpreter has nothing to complain about. `ends_with_result` says that the last line is
    a result object, `is_within_line` that it is not complete.
    """

    failure: OSError | None = None
    ends_with_result = False
    is_within_line = False
    _line = b""  # the beginning of the last one

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
        continues, self.is_within_line, self.ends_with_result = self.is_within_line, True, False
        try:
            written = super().write(view)
        except OSError as error:
            self.failure = error
            raise
        self._note(bytes(view[:written]), continues=continues)
        return written

    def _note(self, written: bytes, *, continues: bool) -> None:
        """Remember how the last line begins, and whether it is complete."""
        lines = written.removesuffix(b"\n")
        start = lines.rfind(b"\n") + 1
        begun = self._line if continues and start == 0 else b""
        self._line = (begun + lines[start : start + len(_RESULT)])[: len(_RESULT)]
        self.is_within_line = not written.endswith(b"\n")
        self.ends_with_result = not self.is_within_line and self._line == _RESULT
