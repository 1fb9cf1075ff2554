"""Records on disk what to restore, and restores it for a session that was killed while its commands ran.

A journal is a folder with a file of that name. agentcli holds a lock on the folder; the lock on the file it shares with
the keeper, which goes on after the death of agentcli until it has ended what ran, and then becomes `main` here. What is
still there when both locks are free is for the next agentcli that starts.

The file: where the record is and how long (two numbers of eight bytes; zeros while no command runs), then records.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from msgspec import MsgspecError, json
from msgspec.structs import astuple

from agentcli.infra.sandbox.confinement import Told
from agentcli.infra.sandbox.mounts.mount_points import NOTE, locked, remove_left
from agentcli.infra.sandbox.protection.protected_copy import read_record
from agentcli.infra.sandbox.protection.putting_back import PuttingBack
from agentcli.settings.files import make_private_folder

_HEADER = struct.Struct(">QQ")
_IDLE = _HEADER.pack(0, 0)
_PATIENCE_S = 15.0  # a keeper takes no longer to end what is left


class Journal:
    """The journal of one session. Nothing waits for the disk but the first record and those that differ from it."""

    def __init__(self, around: Path) -> None:
        """Raises `OSError`."""
        make_private_folder(around)
        self._folder = Path(tempfile.mkdtemp(dir=around))
        self._alive = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.descriptor = os.open(self._folder / "journal", flags, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        self._header = self._written = _IDLE
        self._digest = b""

    def write(self, record: bytes) -> None:
        """From now on this is to be put back. Raises `OSError`."""
        digest = hashlib.blake2b(record).digest()
        if digest != self._digest:
            # The record that counts now stays whole until the new one is.
            at = _HEADER.size if self._header == _IDLE else sum(_HEADER.unpack(self._written))
            self._digest = b""
            _write(self.descriptor, record, at)
            os.fdatasync(self.descriptor)
            self._written, self._digest = _HEADER.pack(at, len(record)), digest
        self._begin_with(self._written)

    def rest(self) -> None:
        """Nothing is to be put back while no command runs: what changes now, the person changed."""
        self._begin_with(_IDLE)

    def _begin_with(self, header: bytes) -> None:
        if header != self._header:
            os.pwrite(self.descriptor, header, 0)
            self._header = header

    def close(self, *, is_done: bool = True) -> None:
        """Take it away, or leave it to the next that starts."""
        if is_done:
            shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self.descriptor)
        os.close(self._alive)


def _write(descriptor: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, at)
        rest, at = rest[written:], at + written


class LeftBehind:
    """Puts back what commands of killed sessions changed, at once, and tells of it.

    `journals` is where sessions have theirs. Blocks, for as long as a keeper is at it.
    """

    def __init__(self, journals: Path) -> None:
        self._found = _finish_all(journals)
        self._is_told = False

    def as_warning(self) -> str:
        """Tell the person; empty if there was nothing."""
        done, left = ("; ".join(each) for each in (self._found.put_back, self._found.left_changed))
        says = f"Put back what a command changed whose session was killed: {done}." if done else ""
        failed = f"Changed by a command of another session, and could not be put back: {left}." if left else ""
        return f"{says} {failed}".strip()

    def tell_once(self, told: Told) -> None:
        """Tell the model, with the first command."""
        if not self._is_told:
            self._is_told = True
            done = self._found.put_back
            told.put_back += [f"{each}, changed by a command of a session that was killed" for each in done]
            told.left_changed += self._found.left_changed


def _finish_all(around: Path) -> Told:
    told = Told()
    try:
        journals = sorted(around.iterdir())
    except OSError:
        return told
    for folder in journals:
        with suppress(OSError), locked(folder):
            told.add(_finish(folder))
    return told


def _finish(folder: Path) -> Told:
    told = Told()
    if not any(folder.iterdir()):  # another session is about to begin it
        return told
    is_done = True
    with suppress(FileNotFoundError), locked(folder / "journal", _PATIENCE_S) as journal:
        is_done = _put_back(journal, folder, told)
    with suppress(FileNotFoundError, MsgspecError):
        told.add(json.decode((folder / "told").read_bytes(), type=Told))
        (folder / "told").unlink()
    if is_done:
        shutil.rmtree(folder, ignore_errors=True)
    return told


def _put_back(journal: int, folder: Path, told: Told) -> bool:
    """Put back by the journal in a folder; False if some of it is to be tried again, which alone stays in there."""
    at, length = _HEADER.unpack(os.pread(journal, _HEADER.size, 0).ljust(_HEADER.size, b"\0"))
    if not length or not os.fstat(journal).st_nlink:
        return True
    try:
        copy, asides, granted = read_record(os.pread(journal, length, at))
    except MsgspecError:  # the machine went down before it was whole
        return True
    failed = PuttingBack(copy, asides, granted, told).run()
    copy.keep_only(failed)
    rest = copy.record(asides, granted)
    copy.close()
    if failed:
        (folder / "journal").write_bytes(_HEADER.pack(_HEADER.size, len(rest)) + rest)
    return not failed


def main() -> None:
    """Put back by a journal whose keeper this was: the argument is its descriptor. What there is to tell waits.

    It may also be a session's note of mount points, which are removed.
    """
    journal = int(sys.argv[1])
    file = Path(f"/proc/self/fd/{journal}").readlink()
    folder = file.parent
    if file.name == NOTE:
        remove_left(file)
        shutil.rmtree(folder, ignore_errors=True)
        return
    told = Told()
    is_done = _put_back(journal, folder, told)
    if told.put_back or told.left_changed:
        said = Told(*([text.encode(errors="replace").decode() for text in each] for each in astuple(told)))
        (folder / "told").write_bytes(json.encode(said))
    if is_done:
        (folder / "journal").unlink()
