"""Collects a command's output: part of it in memory, all of it in a file if it is long, and live text."""

import asyncio
import codecs
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from agentcli.infra.sandbox.processes.keeper import MAX_OUTPUT_BYTES
from agentcli.tools.observation import as_shown

# The first piece of live text is shown at once, further ones after short pauses. Nobody reads along after
# `_MAX_FAST_CHARS`: then the pauses are longer, and only the end of each piece is shown.
_FAST_PAUSE_S = 0.05
_SLOW_PAUSE_S = 0.5
_MAX_FAST_CHARS = 100_000
_MAX_SLOW_PIECE_CHARS = 4_000
_MAX_LAST_PIECE_CHARS = 15_000  # of the text not yet shown when the command ends

_WRITE_AT = 1 << 20  # bytes not yet in the file
_MAX_LINE_CHARS = 65_536  # of an unfinished line
_END_CHARS = 300  # enough to contain a prompt that waits for an answer
_MAX_HELD_CHARS = 4_096  # of an unfinished word; a longer one is no secret


class CommandOutput:
    """Keeps the beginning and end of a command's output, as a terminal shows it, and all of a longer one in a file."""

    def __init__(self, max_bytes: int, on_output: Callable[[str], None], new_file: Callable[[], Path]) -> None:
        self._half = max_bytes // 2  # the limit of `_head`, and after a cut that of `_tail`, in characters
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = self._tail = ""  # the beginning of the complete lines, and the end of those that follow it
        self._line = ""  # the unfinished line after them
        self._cut = 0  # characters left out between `_head` and `_tail`
        self._unwritten = bytearray()  # output that is not in the file yet
        self.saved = _OutputFile(new_file)
        self._live = _LiveOutput(on_output)
        self.last_output_at = time.monotonic()  # when the newest output arrived

    def add(self, data: bytes) -> None:
        self.last_output_at = time.monotonic()
        self._unwritten += data
        self._add_text(self._decoder.decode(data))

    def _add_text(self, text: str, *, is_end: bool = False) -> None:
        """Add text; complete lines go to `_head` and `_tail`, as a terminal shows them."""
        self._live.add(text)
        complete, newline, self._line = (self._line + text).rpartition("\n")
        complete += newline
        if len(self._line) > _MAX_LINE_CHARS or is_end:
            # A long line is first shortened to what a terminal shows of it, such as the newest state of a progress bar.
            # A `\r` at the end is kept, because it lets the next text overwrite this line.
            self._line = as_shown(self._line) + ("\r" if self._line.endswith("\r") and not is_end else "")
        if len(self._line) > _MAX_LINE_CHARS or is_end:  # it is still too long, or complete
            complete, self._line = complete + self._line, ""
        shown = as_shown(complete)
        missing_in_head = max(0, self._half - len(self._head))
        self._head += shown[:missing_in_head]
        self._tail += shown[missing_in_head:]
        if len(self._tail) > 2 * self._half:  # not at each overflow, because a cut copies the rest
            self._cut_middle()

    def _cut_middle(self) -> None:
        over = max(0, len(self._tail) - self._half)
        self._cut += over
        self._tail = self._tail[over:]

    @property
    def last_chars(self) -> str:
        return ((self._tail or self._head)[-_END_CHARS:] + as_shown(self._line))[-_END_CHARS:]

    @property
    def first_chars(self) -> str:
        return (self._head + self._line)[:_END_CHARS]

    @property
    def should_write(self) -> bool:
        return self._cut > 0 and len(self._unwritten) >= _WRITE_AT

    def write(self) -> None:
        """Write the output so far to the file. Blocks for as long as the disk takes."""
        self.saved.write(bytes(self._unwritten))
        self._unwritten.clear()

    def close(self) -> str:
        """Return the output, its middle cut above the limit. May block for a moment."""
        self._add_text(self._decoder.decode(b"", final=True), is_end=True)
        self._live.close()
        text = self._joined_text()
        self.saved.close()
        return text

    def move_to(self, path: Path, *, is_complete: bool) -> tuple[str, int, int]:
        """Move the output to `path`; return its text, the characters cut, and the bytes of both. Raises `OSError`."""
        self.write()
        # `held` is left for the next time the file is read, when the rest of the word may be there.
        self._line, held = (self._line, "") if is_complete else _without_last_word(self._line)
        self._add_text("", is_end=True)
        self._live.close()
        returned_bytes = self.saved.size - len(self._decoder.getstate()[0]) - len(held.encode())
        self.saved.move_to(path)
        return self._joined_text(), self._cut, returned_bytes

    def _joined_text(self) -> str:
        """Return the output; if its middle is cut, with a note that names the file, which is complete then."""
        self._cut_middle()
        if not self._cut:
            return self._head + self._tail
        self.write()
        return f"{self._head}\n[{self._cut:,} characters cut; {self.saved.where_it_is}]\n{self._tail}"


class _OutputFile:
    """A file that is created by the first write; it stays incomplete on a full disk, and after 1 GB."""

    def __init__(self, new_file: Callable[[], Path]) -> None:
        self._new_file = new_file
        self._descriptor = -1
        self._problem = ""  # why the file is not complete
        self.path: Path | None = None
        self.size = 0  # bytes written

    def write(self, data: bytes) -> None:
        if self._problem or not data:
            return
        try:
            if self._descriptor < 0:
                self.path = self._new_file()
                self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            room = MAX_OUTPUT_BYTES - self.size
            unwritten = memoryview(data)[:room]
            while unwritten:
                written = os.write(self._descriptor, unwritten)
                self.size += written
                unwritten = unwritten[written:]
            if len(data) > room:
                self._problem = "more is not kept"
        except OSError as error:
            self._problem = error.strerror or str(error)

    @property
    def where_it_is(self) -> str:
        if self.path is None:
            return f"it could not be kept: {self._problem}"
        if self._problem:
            return f"the first {self.size:,} bytes are in {self.path}: {self._problem}"
        return f"all of it is in {self.path}"

    def move_to(self, path: Path) -> None:
        """Move the file over the empty file at `path`. Raises `OSError`."""
        if self.path is not None:
            shutil.move(self.path, path)
        self.path = path
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class _LiveOutput:
    """Passes text on to people who follow it, in pieces and with pauses, and skips text that is too long to read."""

    def __init__(self, on_output: Callable[[str], None]) -> None:
        self._on_output = on_output
        self._pending = ""  # text for the next piece
        self._skipped = 0  # characters left out since the last piece
        self._shown = 0  # characters shown so far
        self._timer: asyncio.TimerHandle | None = None  # set during the pause after a piece

    def add(self, text: str) -> None:
        """Take text, which is shown at once except during a pause."""
        self._pending += text
        max_chars = max(_MAX_LAST_PIECE_CHARS, self._max_piece_chars)
        if len(self._pending) > 2 * max_chars:  # not at each overflow, because a cut copies the rest
            self._skip_to_last(max_chars)
        if self._pending and self._timer is None:
            self._show()

    @property
    def _max_piece_chars(self) -> int:
        return max(_MAX_SLOW_PIECE_CHARS, _MAX_FAST_CHARS - self._shown)

    def _skip_to_last(self, max_chars: int) -> None:
        over = max(0, len(self._pending) - max_chars)
        self._skipped += over
        self._pending = self._pending[over:]

    def _show(self, *, is_last: bool = False) -> None:
        """Show the pending text, and begin a pause before the next piece; without pending text there is no pause."""
        self._timer = None
        if not self._pending:
            return
        self._skip_to_last(max(_MAX_LAST_PIECE_CHARS, self._max_piece_chars) if is_last else self._max_piece_chars)
        text, self._pending = self._pending, ""
        self._shown += len(text)
        if self._skipped:
            text = f"\n[{self._skipped:,} characters not shown]\n{text}"
            self._skipped = 0
        pause_s = _FAST_PAUSE_S if self._shown < _MAX_FAST_CHARS else _SLOW_PAUSE_S
        if not is_last:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._show)
        self._on_output(text)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._show(is_last=True)


def read_rest(file: BinaryIO, start: int, max_bytes: int, *, is_complete: bool) -> tuple[str, int]:
    """Return a file's text from `start` to its last whole word, and where it ends; cut the middle of a long text."""
    end = os.fstat(file.fileno()).st_size
    file.seek(start)
    if end - start <= max_bytes:
        text, size = _decode_whole_words(file.read(end - start), is_complete=is_complete)
        return text, start + size
    head, head_size = _decode_whole_words(file.read(max_bytes // 2))
    file.seek(end - max_bytes // 2)
    data = file.read(max_bytes // 2).lstrip(bytes(range(0x80, 0xC0)))  # without the rest of a character cut in two
    tail, size = _decode_whole_words(data, is_complete=is_complete)
    missing = end - start - head_size - len(data)
    return f"{head}\n[{missing:,} bytes cut]\n{tail}", end - len(data) + size


def _decode_whole_words(data: bytes, *, is_complete: bool = False) -> tuple[str, int]:
    """Decode bytes up to the last whole word, so that no secret is cut in two; return the text and its size."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=is_complete)
    text, held = (text, "") if is_complete else _without_last_word(text)
    return text, len(data) - len(decoder.getstate()[0]) - len(held.encode())


def _without_last_word(text: str) -> tuple[str, str]:
    """Split off the last word of unfinished output: half a secret is not recognized, so it would not be masked.

    Nothing is split off if the word is no secret, because it is too long or has bytes that are not UTF-8.
    """
    end = max(map(text.rfind, " \t\r\n")) + 1
    word = text[end:]
    return (text, "") if len(word) > _MAX_HELD_CHARS or "\ufffd" in word else (text[:end], word)
