"""Checks, copies and repairs the SQLite file of the sessions. Other modules import this only when they use it."""

import errno
import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import BinaryIO

import apsw
import msgspec

from agentcli.errors import StorageError
from agentcli.infra.sessions import database
from agentcli.infra.sessions.tables import SQLITE
from agentcli.settings.files import FileLock, make_private_folder

log = logging.getLogger(__name__)

_PENDING_BYTE = 1 << 30  # SQLite locks this byte before a new connection reads a file
_TIMEOUT_S = 1.0  # the longest wait for another program that copies, repairs or opens the file
_MAX_FILE_FAULTS = 100  # SQLite reports no more about one file
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.ConstraintError, UnicodeDecodeError)
_FAULTS = {  # by kind; the statement `KIND_faults` finds them
    "checksum": "its checksum is not that of its text",
    "parent": "the entry it follows is not there",
    "order": "entries before it are missing",
}


class Fault(msgspec.Struct, frozen=True):
    """A fault of the file as a whole, or of one entry. A session is opened without its faulty entries."""

    kind: str  # `file`, or for an entry `checksum`, `parent` or `order`
    text: str
    session_id: str = ""
    entry_id: str = ""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The faults that a check found, and what a repair did about them."""

    path: str
    found: list[Fault]
    left: list[Fault]  # the faults that are still in the file after a repair
    kept_as: str = ""  # the path of the damaged file
    restored_from: float = 0.0  # the time of the copy that replaced the file, or 0

    @property
    def is_healthy(self) -> bool:
        return not self.left

    @property
    def is_file_damaged(self) -> bool:
        """True if the file is damaged, not only single entries."""
        return has_file_fault(self.left)

    @property
    def restored_text(self) -> str:
        if not self.restored_from:
            return "everything in it is restored"
        copied_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.restored_from))
        return f"what was stored until {copied_at} is restored from the copy of that time"


def has_file_fault(faults: Iterable[Fault]) -> bool:
    return any(fault.kind == "file" for fault in faults)


def check(path: Path) -> CheckReport:
    """Check a file. Raises `StorageError` if it belongs to another program or cannot be opened."""
    found = _faults(path) if path.exists() else []
    return CheckReport(path=str(path), found=found, left=found)


def _faults(path: Path) -> list[Fault]:
    """Return a file's faults. Those of entries are only found in files of this version; writing upgrades older ones."""
    if why := database.why_incomplete(path):
        return [Fault("file", f"The file is damaged: {why}.")]
    faults: list[Fault] = []
    try:
        with closing(database.open_raw(path)) as db:
            version = database.checked_version(db)
            lines = [str(line) for (line,) in db.execute(f"PRAGMA integrity_check({_MAX_FILE_FAULTS})")]
            lines += [f"a row of {table} belongs to nothing" for table, *_ in db.execute("PRAGMA foreign_key_check")]
            faults += [Fault("file", f"The file is damaged: {line}.") for line in lines if line != "ok"]
            for kind, text in _FAULTS.items() if version == database.VERSION else ():
                for id, seq, entry_id in db.execute(SQLITE[f"{kind}_faults"]):
                    faults.append(Fault(kind, f"Session {id}, entry {seq}: {text}.", id, entry_id))
    except _DAMAGE as error:
        faults.append(Fault("file", f"The file is damaged: {error}."))
    except apsw.Error as error:
        raise StorageError(
            f"{path} cannot be opened ({error}). Check that it is a file, and its permissions."
        ) from error
    return faults


def copy_lock(path: Path, *, timeout_s: float) -> FileLock:
    """Return the lock of the program that copies, repairs or wipes a file. Entering it raises `TimeoutError`."""
    folder = path.parent / "locks"
    make_private_folder(folder)
    return FileLock(folder / f"{path.name}.copy", timeout_s=timeout_s)


def make_copy(path: Path) -> None:
    """Replace the copy of the database with a new one, unless the database is damaged. Failures are logged."""
    try:
        with copy_lock(path, timeout_s=0), database.vacuum_into(path, database.copy_of(path)) as part:
            if has_file_fault(found := _faults(part)):
                raise StorageError(found[0].text)
    except TimeoutError:
        log.info("Another program makes a copy of %s.", path)
    except (apsw.Error, OSError, StorageError) as error:
        log.warning(
            "No copy of %s was made (%s). Check that there is room for one, and run agentcli sessions fsck.",
            path,
            error,
        )


def wipe(path: Path) -> None:
    """Rewrite the file and remove its copies, because even pages in use keep deleted texts. Raises `StorageError`."""
    try:
        with closing(database.connect(path)) as db:
            db.execute("VACUUM")
            ((is_busy, *_),) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if is_busy:  # the old bytes are still in the write-ahead log
                raise apsw.BusyError("another program reads it")
    except apsw.Error as error:
        raise StorageError(
            f"The texts are redacted, but {path} could not be rewritten ({error}) and may still hold bytes of "
            "them. Close other agentcli programs, make room for a copy of the file, and redact again."
        ) from error
    for copy in (database.copy_of(path), *path.parent.glob(f"{path.name}.v*")):
        copy.unlink(missing_ok=True)


def repair(path: Path) -> CheckReport:
    """Replace a damaged file with a sound one, and keep the damaged file beside it.

    The new file is a rewrite of the old one, or the daily copy if that is not possible. If only single entries are
    damaged, the file stays, because the copy lacks entries that were stored later. Raises `StorageError` if a session
    is open, or the file cannot be replaced.
    """
    before = check(path)
    if not before.is_file_damaged:
        return before
    try:
        with copy_lock(path, timeout_s=_TIMEOUT_S):
            return _replace_damaged(path)
    except (apsw.BusyError, TimeoutError) as error:
        raise StorageError(f"Another program is writing to {path}. Try again when it has ended.") from error
    except (apsw.Error, OSError) as error:
        raise StorageError(
            f"{path} could not be repaired ({error}). Make room for two copies of it in its folder, then try again. "
            "Nothing was changed."
        ) from error


def _replace_damaged(path: Path) -> CheckReport:
    """Check the file again, and repair it; the caller holds the copy lock, so that no copy is made meanwhile."""
    _require_no_open_session(path)
    file = path.resolve()  # a link stays: programs that have its target open would not notice another file at the link
    _finish_moves(file)
    before = check(path)  # another program may have repaired it since the first check
    if not before.is_file_damaged:
        return before
    with (
        tempfile.TemporaryDirectory(prefix="repair-", dir=file.parent, ignore_cleanup_errors=True) as folder,
        # Closed last, because closing any descriptor of a file ends all locks that this process has on it.
        file.open("r+b" if os.access(file, os.W_OK) else "rb") as damaged,
        closing(database.open_raw(file)) as db,
    ):
        with suppress(*_DAMAGE, apsw.ReadOnlyError, apsw.IOError):  # then nobody else can write to the file, either
            if not database.why_incomplete(path):  # SQLite would remove the log of an empty file
                db.execute("BEGIN IMMEDIATE")  # others wait until the file is replaced, which they then notice
        old = Path(folder, "old.db")
        with suppress(FileNotFoundError), Path(f"{file}-wal").open("rb") as wal:
            _write_copy(wal, Path(f"{old}-wal"))  # first, because a checkpoint moves pages from the log to the file
        _write_copy(damaged, old)
        if (replacement := _sound_version(path, Path(folder))) is None:
            return before
        new, left, restored_from = replacement
        _require_no_open_session(path)  # a session that was opened in between relies on the old file
        _block_openers(damaged)
        # The damaged file and its log are kept as copies; the nanoseconds make their name unique.
        kept_as = file.with_name(f"{file.name}.damaged-{time.time_ns()}")
        moves = [(f"{old}{suffix}", f"{kept_as}{suffix}") for suffix in ("", "-wal")]
        # Not even a power cut may leave the new file beside the old log.
        moves += [(f"{file}{suffix}", str(database.moved_log(file, suffix))) for suffix in ("-wal", "-shm")]
        _replace_after_moves(file, new, moves)
        with suppress(OSError):  # the file is replaced by now; the next repair removes the logs that are left
            database.sync_folder(file.parent)
            _finish_moves(file)
    return CheckReport(path=str(path), found=before.found, left=left, kept_as=str(kept_as), restored_from=restored_from)


def _sound_version(path: Path, folder: Path) -> tuple[Path, list[Fault], float] | None:
    """Make a sound file in `folder`: a rewrite of a damaged one, or else its copy; return None if both are damaged.

    Also return the faults of single entries in it, and the time of the copy (0 for a rewrite).
    """
    new, copy = folder / "new.db", database.copy_of(path)
    faults: list[Fault] = []
    copied_at = 0.0
    if not _rewrite(path, new):
        if not copy.exists() or has_file_fault(faults := _faults(copy)):
            return None
        new, copied_at = folder / "copy.db", copy.stat().st_mtime
        shutil.copyfile(copy, new)
    database.connect(new).close()  # an older version is upgraded
    return new, faults, copied_at


def _write_copy(source: BinaryIO, target: Path) -> None:
    """Copy an open file with its mode and times, and wait until the copy is on disk."""
    with target.open("xb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())
    shutil.copystat(source.name, target)


def _block_openers(file: BinaryIO) -> None:
    """Make programs that open the file wait, or each would begin a write-ahead log for it. Raises `TimeoutError`."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:  # other programs have this lock only for a moment
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _PENDING_BYTE)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):  # a read-only file, or no such locks here
                return
        time.sleep(0.01)
    raise TimeoutError(f"another program locks {file.name}")


def _finish_moves(file: Path) -> None:
    """Move back the log of a file that a killed repair has not replaced, and remove the logs of replaced files."""
    for suffix in ("-shm", "-wal"):  # `-wal` last: its moved log shows others that the file is incomplete
        moved, log_file = database.moved_log(file, suffix), Path(f"{file}{suffix}")
        if moved.exists() and not log_file.exists():
            moved.rename(log_file)
        for unused in file.parent.glob(f"{file.name}{suffix}.*"):
            if unused.suffix[1:].isdigit():  # a name by `moved_log`
                unused.unlink()


def _replace_after_moves(file: Path, new: Path, moves: Sequence[tuple[str, str]]) -> None:
    """Move files out of the way, as far as they exist, then replace a file. If that fails, they are moved back."""
    with ExitStack() as undo:
        for source, target in moves:
            with suppress(FileNotFoundError):
                moved = Path(source).rename(target)
                undo.callback(moved.rename, source)
        database.sync_folder(file.parent)  # the moves must be on disk first
        new.replace(file)
        undo.pop_all()


def _rewrite(old: Path, new: Path) -> bool:
    """Copy a file and rebuild its indexes; return False if it cannot be read completely, or the result has faults."""
    try:
        with database.vacuum_into(old, new) as part, closing(apsw.Connection(str(part))) as db:
            db.execute("REINDEX")
        return not _faults(new)
    except (*_DAMAGE, StorageError):
        return False


def _require_no_open_session(path: Path) -> None:
    for file in sorted((path.parent / "locks").glob("*.lock")):
        if database.SessionLock(path, file.stem).holder() is not None:
            raise StorageError(
                f"Session {file.stem} is open. Close every agentcli session, then repair. Nothing was changed."
            )
