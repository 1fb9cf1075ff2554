"""Checks a session database, keeps a copy of it, and restores a damaged file from that copy."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path

import apsw
import filelock
import msgspec

from agentcli.errors import StorageError
from agentcli.infra.sessions import database

log = logging.getLogger(__name__)

_MAX_FILE_FAULTS = 100  # that SQLite reports about one file
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.ConstraintError, UnicodeDecodeError)
# By kind: the text of a fault, and a query for the entries that have it, as session, number and id.
_FAULTS = {
    "checksum": (
        "its checksum is not that of its text",
        "SELECT session_id, seq, id FROM entries WHERE checksum <> crc32(CAST(body AS BLOB))",
    ),
    "parent": (
        "the entry it follows is not there",
        "SELECT session_id, seq, id FROM entries WHERE parent_id NOT IN (SELECT id FROM entries)",
    ),
    "order": (
        "entries before it are missing",
        "SELECT session_id, max(seq), '' FROM entries GROUP BY session_id, trashed HAVING count(*) <> max(seq)",
    ),
}


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong: with the file as a whole, or with one entry, whose session goes on without it."""

    kind: str  # `file`; of an entry `checksum`, `parent` or `order`
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


def first_damage(path: Path, *, within_s: float) -> str:
    """Return the first fault that SQLite finds within a time; "" if it finds none, or cannot open the file."""
    until = time.monotonic() + within_s
    try:
        with closing(database.open_raw(path)) as db:
            db.set_progress_handler(lambda: time.monotonic() > until, 10_000)
            lines = [str(line) for (line,) in db.execute("PRAGMA quick_check(1)")]
    except _DAMAGE as error:
        return str(error)
    except apsw.Error:
        return ""
    return "" if lines == ["ok"] else lines[0]


def _faults(path: Path) -> list[Fault]:
    """Return what is wrong. Entries are only checked in files of this version; the next write upgrades older files."""
    faults: list[Fault] = []
    try:
        with closing(database.open_raw(path)) as db:
            version = database.checked_version(db)
            lines = [str(line) for (line,) in db.execute(f"PRAGMA integrity_check({_MAX_FILE_FAULTS})")]
            lines += [f"a row of {table} belongs to nothing" for table, *_ in db.execute("PRAGMA foreign_key_check")]
            faults += [Fault("file", f"The file is damaged: {line}.") for line in lines if line != "ok"]
            for kind, (text, query) in _FAULTS.items() if version == database.VERSION else ():
                for id, seq, entry_id in db.execute(query):
                    faults.append(Fault(kind, f"Session {id}, entry {seq}: {text}.", id, entry_id))
    except _DAMAGE as error:
        faults.append(Fault("file", f"The file is damaged: {error}."))
    except apsw.Error as error:
        raise StorageError(f"{path} cannot be opened ({error}): check its permissions.") from error
    return faults


def copying(path: Path, *, timeout_s: float) -> filelock.BaseFileLock:
    """Return the lock that keeps other programs from making a copy. Entering it raises `filelock.Timeout`."""
    return filelock.FileLock(path.parent / "locks" / f"{path.name}.copy", timeout=timeout_s)


def make_copy(path: Path) -> None:
    """Replace the copy of the database by a new one, unless that file is damaged. Failures are logged."""
    try:
        with copying(path, timeout_s=0), database.vacuum_into(path, database.copy_of(path)) as part:
            if has_file_fault(found := _faults(part)):
                raise StorageError(found[0].text)
    except filelock.Timeout:
        log.info("Another program makes a copy of %s.", path)
    except (apsw.Error, OSError, StorageError) as error:
        log.warning(
            "No copy of %s was made (%s): see that there is room for one, and what agentcli sessions fsck says.",
            path, error,
        )  # fmt: skip


def wipe(path: Path) -> None:
    """Rewrite the file and remove its copies, since even pages in use keep bytes of what was deleted.

    Raises:
        StorageError: If the file cannot be rewritten now.
    """
    try:
        with closing(database.connect(path)) as db:
            db.execute("VACUUM")
            is_read, *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
            if is_read:
                raise apsw.BusyError("another program reads it")
    except apsw.Error as error:
        raise StorageError(
            f"The texts are redacted, but {path} could not be written anew ({error}) and may still hold bytes of "
            "them: close other agentcli programs, make room for a copy of the file, and redact again."
        ) from error
    for copy in (database.copy_of(path), *path.parent.glob(f"{path.name}.v*")):
        copy.unlink(missing_ok=True)


def repair(path: Path) -> CheckReport:
    """Replace a damaged file by a sound one, and keep the damaged file beside it.

    The new file has all that can be read if that is sound, else it is the copy. If only single entries are damaged, the
    file stays: the copy lacks what was stored since it was made.

    Raises:
        StorageError: If a session is open, or for the reasons of `check`.
    """
    before = check(path)
    if not before.is_file_damaged:
        return before
    _refuse_open_sessions(path)
    try:
        with (
            closing(database.open_raw(path)) as db,
            tempfile.TemporaryDirectory(prefix="repair-", dir=path.parent) as folder,
        ):
            with suppress(*_DAMAGE):  # a file so damaged cannot be written by others either
                db.execute("BEGIN IMMEDIATE")  # others wait until the file is replaced, which they then notice
            old, new, copy = Path(folder, "old.db"), Path(folder, "new.db"), database.copy_of(path)
            database.copy_files(path, old)
            left: list[Fault] = []
            restored_from = 0.0
            if not _rewrite(path, new):
                left = _faults(copy) if copy.exists() else before.found
                if has_file_fault(left):
                    return before
                new, restored_from = Path(folder, "copy.db"), copy.stat().st_mtime
                shutil.copyfile(copy, new)
            database.connect(new).close()  # an older version is upgraded
            _refuse_open_sessions(path)  # a session that was opened in between relies on the old file
            kept_as = database.free_name(path, f".damaged-{int(time.time())}")
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    Path(f"{old}{suffix}").replace(f"{kept_as}{suffix}")
            for suffix in ("-wal", "-shm"):  # a new file must never be beside an old log
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            new.replace(path)
            database.sync_folder(path.parent)
    except apsw.BusyError as error:
        raise StorageError(f"{path} is written by another program: try again when it has ended.") from error
    except (apsw.Error, OSError) as error:
        raise StorageError(
            f"{path} could not be repaired ({error}): make room for two copies of it in its folder, then try again. "
            "Nothing was changed."
        ) from error
    return CheckReport(path=str(path), found=before.found, left=left, kept_as=str(kept_as), restored_from=restored_from)


def _rewrite(old: Path, new: Path) -> bool:
    """Write all entries to a new file, with new indexes; return False if some of it cannot be read, or is not sound."""
    try:
        with database.vacuum_into(old, new) as part, closing(apsw.Connection(str(part))) as db:
            db.execute("REINDEX")
        return not _faults(new)
    except (*_DAMAGE, StorageError):
        return False


def _refuse_open_sessions(path: Path) -> None:
    for file in sorted((path.parent / "locks").glob("*.lock")):
        if database.SessionLock(path, file.stem).holder() is not None:
            raise StorageError(
                f"Session {file.stem} is open: close every agentcli session, then repair. Nothing was changed."
            )
