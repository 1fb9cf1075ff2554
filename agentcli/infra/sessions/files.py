"""Names, syncs and locks the files beside the session database."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable
from pathlib import Path

import filelock

from agentcli.errors import StorageError
from agentcli.settings.files import make_private_folder

_A_MOMENT_S = 0.02  # somebody may only look whether a session is open


def free_name(path: Path, suffix: str) -> Path:
    """The path with the suffix, numbered from 2 on where one is taken: what is kept is never overwritten."""
    names = itertools.chain((suffix,), (f"{suffix}-{number}" for number in itertools.count(2)))
    return next(free for free in (path.with_name(path.name + name) for name in names) if not free.exists())


def sync_folder(folder: Path) -> None:
    """New names in a folder are on disk when this returns."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines to a new file that only its owner can read, whole or not at all. Raises `StorageError`."""
    part = path.with_name(f"{path.name}.part")
    try:
        make_private_folder(path.parent)
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        with part.open("wb") as file:
            file.writelines(line + b"\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StorageError(f"{path} could not be written ({error.strerror}): nothing was changed.") from error


def wanted_file(path: Path, session_id: str) -> Path:
    """Is there while another program waits for a session of the store `path`."""
    return path.parent / "locks" / f"{session_id}.wanted"


def address_file(path: Path, session_id: str) -> Path:
    """Tells where the program that has a session of the store `path` open is reached."""
    return path.parent / "locks" / f"{session_id}.address"


def holder_of(path: Path, session_id: str) -> str | None:
    """The address of the program that holds the lock of a session ("" without one); None where it is free."""
    lock = path.parent / "locks" / f"{session_id}.lock"
    if not lock.exists():
        return None
    try:
        with filelock.FileLock(lock, timeout=0):  # for a moment, which whoever opens the session waits for
            return None
    except filelock.Timeout:
        address = address_file(path, session_id)
        return address.read_text() if address.exists() else ""


def session_lock(path: Path, session_id: str, *, address: str = "") -> filelock.BaseFileLock:
    """Hold the lock of a session in the store `path`; a killed program gives it up by dying.

    Raises `filelock.Timeout` when it is held, and `OSError`.
    """
    folder = path.parent / "locks"
    make_private_folder(folder)
    lock = filelock.FileLock(folder / f"{session_id}.lock", timeout=_A_MOMENT_S)
    lock.acquire(poll_interval=_A_MOMENT_S / 4)
    wanted_file(path, session_id).unlink(missing_ok=True)  # whoever waited for it has it now, or is gone
    if address:
        address_file(path, session_id).write_text(address)
    else:
        address_file(path, session_id).unlink(missing_ok=True)
    return lock
