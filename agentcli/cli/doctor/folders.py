"""Checks the folders and files that agentcli keeps: rights, room, damage, and what earlier sessions left behind."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import filelock
import msgspec

from agentcli.cli.doctor.finding import Check, Said, Subject, ok, problem, warning
from agentcli.cli.keys import key_lines
from agentcli.cli.output import warn
from agentcli.cli.subcommands.shared import wait_for
from agentcli.errors import ConfigError, StorageError
from agentcli.extensions.subagents.config import AGENTS_FILE
from agentcli.infra.grants import FileGrants
from agentcli.infra.sessions.files import session_lock
from agentcli.infra.sessions.fsck import first_damage
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.settings.paths import is_writable, project_root

_LONGEST_LOOK_S = 2.0  # at one database
_LITTLE_ROOM, _NO_ROOM = 500_000_000, 50_000_000  # bytes
_HUGE_LOG, _HUGE_CHECKPOINTS = 50_000_000, 5_000_000_000
# Types of file systems whose locks and shared memory SQLite's WAL cannot rely on (sqlite.org/wal.html).
_OVER_A_NETWORK = frozenset(
    "9p afs ceph cifs fuse.glusterfs fuse.rclone fuse.sshfs glusterfs lustre nfs nfs4 smb3".split()
)


def state(subject: Subject) -> Iterator[Said]:
    folder = subject.config.paths.state
    elsewhere = "or set AGENTCLI_HOME to a folder that you can write."
    if not is_writable(folder):
        yield problem(f"{folder} cannot be written: no session is kept.", f"chown or chmod it, {elsewhere}")
    elif folder.is_dir() and folder.stat().st_uid != os.geteuid():
        yield problem(f"{folder} belongs to another user.", f"chown -R it, {elsewhere}")
    elif folder.is_dir() and (mode := stat.S_IMODE(folder.stat().st_mode)) != stat.S_IRWXU:
        yield warning(f"{folder} has the mode {mode:o}: it holds what you say, for you alone.", f"chmod 700 {folder}")
    else:
        yield ok(str(folder))


def disk(subject: Subject) -> Iterator[Said]:
    folder = _nearest(subject.config.paths.state)
    mend = "Delete what you do not need there, or set AGENTCLI_HOME to a folder on another disk."
    free, about = shutil.disk_usage(folder).free, os.statvfs(folder)
    if free < _LITTLE_ROOM:
        told = f"{free / 1e6:,.0f} MB are free for {folder}: sessions are soon no longer kept."
        yield (problem if free < _NO_ROOM else warning)(told, mend)
    elif about.f_files and not about.f_favail:
        yield problem(f"The disk of {folder} holds as many files as it can.", mend)


def file_system(subject: Subject) -> Iterator[Said]:
    folder = Path(os.path.realpath(_nearest(subject.config.paths.state)))
    mounts = _mounts()
    kind = next((mounts[str(path)] for path in (folder, *folder.parents) if str(path) in mounts), "")
    if kind in _OVER_A_NETWORK:
        yield warning(
            f"{folder} is on a network file system ({kind}), where the database of sessions can be damaged.",
            "Set AGENTCLI_HOME to a folder on a disk of this machine.",
        )


def _nearest(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def _mounts() -> dict[str, str]:
    """The type of what is mounted, by the place (proc_pid_mountinfo(5)); the last one at a place counts."""
    try:
        lines = Path("/proc/self/mountinfo").read_text("utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return {}
    fields = [(line.split(" "), line.partition(" - ")[2].split(" ")) for line in lines]
    return {first[4].replace("\\040", " "): last[0] for first, last in fields}


def sessions(subject: Subject) -> Iterator[Said]:
    """The databases of sessions and of subagents."""
    for file in (subject.config.paths.sessions, subject.config.paths.state / AGENTS_FILE):
        if file.is_file() and (damage := first_damage(file, within_s=_LONGEST_LOOK_S)):
            mend = "agentcli sessions fsck --repair" if file == subject.config.paths.sessions else f"Move {file} away."
            yield problem(f"{file} is damaged ({damage}).", mend)
            return
    try:
        yield ok(f"{wait_for(_count(subject.config.paths.sessions))} stored, SQLite {apsw.sqlite_lib_version()}")
    except StorageError as error:
        yield problem(str(error), "agentcli sessions fsck says more, and --repair mends what can be mended.")


async def _count(file: Path) -> int:
    store = SqliteSessions(file, on_notice=warn)
    try:
        return len(await store.list(limit=1_000))
    finally:
        await store.close()


def grants(subject: Subject) -> Iterator[Said]:
    file = subject.config.paths.state / "grants.json"
    kept = FileGrants(file, project_root(subject.config.cwd))
    yield from _own_file(file, kept.list, "what you granted for good is asked anew.")


def trust(subject: Subject) -> Iterator[Said]:
    file = subject.config.paths.state / "trust.json"

    def read() -> object:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])

    yield from _own_file(file, read, "then run agentcli config trust in your projects: until then none is trusted.")


def _own_file(file: Path, read: Callable[[], object], mend: str) -> Iterator[Said]:
    """Others who own or write it could grant whatever they like."""
    if not file.exists():
        return
    about = file.stat()
    if about.st_uid != os.geteuid():
        yield problem(f"{file} belongs to another user.", f"Read it, then: chown {os.geteuid()} {file}")
    elif about.st_mode & 0o077:
        yield warning(f"{file} is open to others (mode {stat.S_IMODE(about.st_mode):o}).", f"chmod 600 {file}")
    try:
        read()
    except (StorageError, OSError, msgspec.MsgspecError) as error:
        yield problem(f"{file} is damaged ({error}).", f"Mend it (JSON), or move it away: {mend}")


def keys(subject: Subject) -> Iterator[Said]:
    """Where the keys that are there come from; none of them is shown."""
    file = subject.config.paths.credentials
    try:
        subject.config.kept_keys.place("")
    except ConfigError as error:
        yield problem(str(error), f"chmod 600 {file}; if it is damaged, delete it: agentcli login makes a new one.")
        return
    if subject.unread is None:
        yield ok("; ".join(key_lines(subject.config)) or "none (agentcli login keeps one)")


def locks(subject: Subject) -> Iterator[Said]:
    """A lock for which everything else waits; that of a program that has died is free."""
    file = subject.config.paths.state / "grants.lock"
    try:
        if file.is_file():
            filelock.FileLock(file, timeout=1).acquire().lock.release()
    except (filelock.Timeout, OSError):
        yield warning(f"Another program keeps {file} locked: no grant can be stored.", f"Find and end it: fuser {file}")


def leftovers(subject: Subject) -> Iterator[Said]:
    """What killed sessions left to be looked at. What they had begun to keep, the check of the sandbox finishes."""
    folder = subject.config.paths.state
    for notes in sorted((folder / "checkpoints" / "under_way").glob("*")):
        if any(notes.glob("*.json")) and _is_closed(folder / "sessions.db", notes.name):
            yield warning(
                f"Session {notes.name} was killed in the middle of a call: what that changed cannot be undone yet.",
                f"agentcli -r {notes.name} goes on with it, and takes it down.",
            )
    if aside := sorted((folder / "put_aside").glob("agentcli-put-aside-*")):
        yield warning(
            f"{len(aside)} times something was moved aside to put hooks and settings back: {aside[0].parent}.",
            "Look at it, keep what is yours, and delete the folders.",
        )


def _is_closed(store: Path, session_id: str) -> bool:
    try:
        session_lock(store, session_id).release()
    except (filelock.Timeout, OSError):
        return False
    return True


def sizes(subject: Subject) -> Iterator[Said]:
    folder = subject.config.paths.state
    log = folder / "logs" / "agentcli.log"
    if log.is_file() and (size := log.stat().st_size) > _HUGE_LOG:
        yield warning(f"{log} has {size / 1e6:,.0f} MB.", 'Delete it; observability.log_level = "warning" logs less.')
    kept = folder / "checkpoints"
    sizes = [os.lstat(Path(place, name)).st_size for place, _, names in os.walk(kept) for name in names]
    if (size := sum(sizes)) > _HUGE_CHECKPOINTS:
        yield warning(
            f"{kept} has {size / 1e9:,.1f} GB in {len(sizes):,} files: what /undo takes back.",
            "Delete it if nothing needs to be undone; checkpoints.exclude and largest_mb keep it smaller.",
        )


CHECKS: dict[str, Check] = {
    "state": state,
    "disk": disk,
    "file system": file_system,
    "sessions": sessions,
    "grants": grants,
    "trust": trust,
    "keys": keys,
    "locks": locks,
    "leftovers": leftovers,
    "sizes": sizes,
}
