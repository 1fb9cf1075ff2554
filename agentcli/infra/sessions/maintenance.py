"""Maintains stored sessions: trash, permanent redaction, and checks, copies and repairs of the SQLite file.

No prompt needs any of this, so other modules import it only when they use it.
"""

import fcntl
import json
import logging
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec

from agentcli.agent.interfaces import StoredEntries, subagents_owner
from agentcli.conversation.entries import ContextNote, Unreadable, entry_now
from agentcli.conversation.history import counted, title_of
from agentcli.errors import StorageError
from agentcli.infra.sessions import database, tables
from agentcli.infra.sessions.tables import SQLITE
from agentcli.settings.files import FileLock, make_private_folder

log = logging.getLogger(__name__)

REDACTED = "[redacted]"

_FAMILY = "SELECT id FROM sessions WHERE id = :id OR user_id = :agents"  # a session and its subagents
_PENDING_BYTE = 1 << 30  # SQLite locks this byte before a new connection reads a file
_MAX_FILE_FAULTS = 100  # SQLite reports no more about one file
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.SQLError, apsw.ConstraintError, UnicodeDecodeError)
_FAULTS = {  # by kind; the statement `KIND_faults` finds them
    "checksum": "its checksum is not that of its text",
    "parent": "the entry it follows is not there",
    "order": "entries before it are missing",
}


async def remove(db: tables.Tables, session_id: str) -> None:
    """Move a session to the trash."""
    new_batch = await db.value("SELECT max(trashed) + 1 FROM sessions WHERE id = :id", id=session_id)
    await _move(db, session_id, source=0, target=new_batch)
    await db.rows(tables.SQL["hand_over"], id=session_id, batch=new_batch)  # shared entries now belong to a fork
    await db.rows(db.forget_stream, id=session_id)


async def _move(db: tables.Tables, session_id: str, *, source: float, target: float) -> None:
    """Move a session and its subagents between batches: 0 is outside the trash, each removal makes a new one."""
    names = {"id": session_id, "agents": subagents_owner(session_id), "source": source, "target": target}
    for table, id_column in (("sessions", "id"), ("entries", "session_id")):
        where = f"{id_column} IN ({_FAMILY}) AND trashed = :source"
        await db.rows(f"UPDATE {table} SET trashed = :target WHERE {where}", **names)  # noqa: S608 - constant text


async def id_in_trash(db: tables.Tables, session_id: str) -> str:
    """Return the full id of the one session in the trash whose id begins with `session_id`. Raises `StorageError`."""
    query = "SELECT DISTINCT id FROM sessions WHERE trashed > 0 AND id >= :id AND id < :end"
    ids = [str(id) for (id,) in await db.rows(query, id=session_id, end=f"{session_id}\U0010ffff")]
    if len(ids) != 1:
        count = "Several sessions begin" if ids else "No session begins"
        raise StorageError(f"{count} with {session_id!r} in the trash.")
    return ids[0]


async def restore(db: tables.Tables, session_id: str) -> None:
    """Restore the last removed session with an id. Raises `StorageError` if there is a session with that id again."""
    if await tables.is_stored(db, session_id):
        raise StorageError(
            f"There is a new session with the id {session_id}. To restore the old one, remove the new one first: "
            f"agentcli sessions rm {session_id}"
        )
    newest_batch = await db.value("SELECT max(trashed) FROM sessions WHERE id = :id", id=session_id)
    await _move(db, session_id, source=newest_batch, target=0)
    await db.rows(tables.SQL["take_back"], id=session_id)


class Secrets:
    """Texts to be redacted. The constructor raises `StorageError` if there are none."""

    def __init__(self, texts: Sequence[str]) -> None:
        plain = {text for text in texts if text.strip()}
        if not plain:
            raise StorageError("There is no text to redact. Give one, or lines of them on stdin with -.")
        # A text has its JSON form in strings that contain JSON, and in bodies that can no longer be decoded.
        in_json = {json.dumps(text, ensure_ascii=is_ascii) for text in plain for is_ascii in (True, False)}
        self._texts = plain | {quoted.removeprefix('"').removesuffix('"') for quoted in in_json}

    def redact(self, text: str) -> tuple[str, int]:
        """Return a text without the secrets, and the number of redacted places; overlapping secrets are one place."""
        spans = sorted(
            (match.start(), match.start() + len(secret))
            for secret in self._texts
            if secret in text
            for match in re.finditer(f"(?={re.escape(secret)})", text)  # a lookahead also finds overlapping places
        )
        pieces: list[str] = []  # a text and `REDACTED` for each place
        end = 0  # of the previous place
        for start, stop in spans:
            if start >= end:
                pieces += (text[end:start], REDACTED)
            end = max(end, stop)
        return "".join((*pieces, text[end:])), len(pieces) // 2

    def _redact_strings(self, value: Any) -> tuple[Any, int]:
        """Redact every string in a value of JSON, names included."""
        match value:
            case str():
                return self.redact(value)
            case list():
                items = [self._redact_strings(item) for item in value]
                return [item for item, _ in items], sum(places for _, places in items)
            case dict():
                names, places = self._redact_strings([*value])
                items, in_values = self._redact_strings([*value.values()])
                return dict(zip(names, items, strict=True)), places + in_values
        return value, 0

    def redact_row(self, row: Sequence[Any]) -> tuple[Sequence[Any], int]:
        """Redact a row of `tables.ENTRY_COLUMNS`, and count the places. Raises `StorageError` if it gets unreadable."""
        *other_columns, checksum, body = row
        body = body.encode() if isinstance(body, str) else body
        try:
            value, places = self._redact_strings(msgspec.json.decode(body))
            redacted = msgspec.json.encode(value)
        except (ValueError, RecursionError):  # the body is not JSON
            text, places = self.redact(body.decode(errors="surrogateescape"))
            redacted = text.encode(errors="surrogateescape")
        if not places:
            return row, 0
        before, after = tables.read_entry(row), tables.read_entry((*other_columns, None, redacted))
        if isinstance(after.body, Unreadable) and not isinstance(before.body, Unreadable):
            raise StorageError(
                f"Entry {before.id} could not be read any more without that text. Give more of it. Nothing was changed."
            )
        # A damaged entry keeps its wrong checksum.
        new_checksum = crc32(redacted) if checksum in (None, crc32(body)) else checksum
        return (*other_columns, new_checksum, redacted.decode(errors="replace")), places


async def redact(db: tables.Tables, session_id: str, secrets: Secrets) -> int:
    """Redact a session, all copies of its entries, and the trash.

    Return the number of redacted places in the session and its subagents, without those in copies and in the trash.
    """
    names = {"id": session_id, "agents": subagents_owner(session_id)}
    family = {str(id) for (id,) in await db.rows(_FAMILY, **names)}
    new_rows: list[tuple[int, Sequence[Any]]] = []  # by the number of the entry
    changed_sessions: set[tuple[str, float]] = set()  # by id and batch of the trash
    total = 0
    # "affected" returns the entries of the family, their copies in other sessions, and everything in the trash.
    async for n, id, trashed, *row in db.stream(tables.SQL["affected"], **names):
        redacted, places = secrets.redact_row(row)
        if places:
            new_rows.append((n, redacted))
            changed_sessions.add((str(id), trashed))
        if id in family and not trashed:
            total += places
    await db.replace_bodies(new_rows)
    if total:
        newest = (await tables.entries_of(db, session_id))[-1]
        text = f"Texts were struck out of this session in {counted(total, 'place')}."
        note = entry_now(tables.new_id(), newest.id, ContextNote(text))
        await db.insert(session_id, StoredEntries((note,), await tables.last_seq(db, session_id) + 1))
    for id, trashed in sorted(changed_sessions):
        # A title is the beginning of a prompt and may end in the middle of a secret, so it is built again.
        entries = await tables.entries_of(db, id, trashed=trashed)
        where = "WHERE id = :id AND trashed = :trashed"
        name, _ = secrets.redact(await db.value(f"SELECT name FROM sessions {where}", id=id, trashed=trashed))  # noqa: S608
        await db.rows(
            f"UPDATE sessions SET title = :title, last_prompt = :last_prompt, name = :name {where}",  # noqa: S608
            title=title_of(entries),
            last_prompt=title_of(reversed(entries)),
            name=name,
            id=id,
            trashed=trashed,
        )
    for id in {session_id, *(id for id, trashed in changed_sessions if not trashed)}:
        await db.rows(db.forget_stream, id=id)  # its events contain the secrets, too
    return total


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
    if database.is_emptied(path):
        return [Fault("file", "The file is damaged: it is empty.")]
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
    """Return the lock of the program that copies a file or `wipe`s it. Entering it raises `TimeoutError`."""
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
    _require_no_open_session(path)
    try:
        temporary_folder = tempfile.TemporaryDirectory(prefix="repair-", dir=path.parent)
        with temporary_folder as folder, closing(database.open_raw(path)) as db, ExitStack() as held:
            with suppress(*_DAMAGE, apsw.ReadOnlyError, apsw.IOError):  # others cannot write to such a file either
                if not database.is_emptied(path):  # SQLite would remove the log of an empty file
                    db.execute("BEGIN IMMEDIATE")  # others wait until the file is replaced, which they then notice
            old, new, copy = Path(folder, "old.db"), Path(folder, "new.db"), database.copy_of(path)
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    shutil.copy2(f"{path}{suffix}", f"{old}{suffix}")
            left: list[Fault] = []
            restored_from = 0.0
            if not _rewrite(path, new):
                left = _faults(copy) if copy.exists() else before.found
                if has_file_fault(left):  # there is no sound copy to restore
                    return before
                new, restored_from = Path(folder, "copy.db"), copy.stat().st_mtime
                shutil.copyfile(copy, new)
            database.connect(new).close()  # an older version is upgraded
            _require_no_open_session(path)  # a session that was opened in between relies on the old file
            # The nanoseconds make the name unique: a kept file is never overwritten.
            kept_as = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
            for suffix in ("", "-wal"):
                with suppress(FileNotFoundError):
                    Path(f"{old}{suffix}").replace(f"{kept_as}{suffix}")
            with suppress(PermissionError):  # others cannot write to such a file either
                # Programs that open the old file now must wait, or they would make another log for it.
                fcntl.lockf(held.enter_context(path.open("r+b")), fcntl.LOCK_EX, 1, _PENDING_BYTE)
            for suffix in ("-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            database.sync_folder(path.parent)  # not even a power cut may leave the new file beside the old log
            new.replace(path)
            database.sync_folder(path.parent)
    except apsw.BusyError as error:
        raise StorageError(f"Another program is writing to {path}. Try again when it has ended.") from error
    except (apsw.Error, OSError) as error:
        raise StorageError(
            f"{path} could not be repaired ({error}). Make room for two copies of it in its folder, then try again. "
            "Nothing was changed."
        ) from error
    return CheckReport(path=str(path), found=before.found, left=left, kept_as=str(kept_as), restored_from=restored_from)


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
