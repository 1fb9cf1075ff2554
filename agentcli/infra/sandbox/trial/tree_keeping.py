"""Brings the kept changes of a try into the real folder: each file atomically, and none that changed meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from agentcli.infra.sandbox.mounts.mount_points import open_real
from agentcli.infra.sandbox.trial.live_files import LiveFiles
from agentcli.infra.sandbox.trial.tree_changes import Piece
from agentcli.infra.sandbox.trial.tree_copy import copy_bytes
from agentcli.infra.sandbox.trial.tree_entries import (
    LAYER_ATTRIBUTES,
    Entry,
    Touched,
    copy_attributes,
    entry_at,
    has_same_content,
    open_content,
)
from agentcli.tools.trial import Conflict, Kept

_LOOK = os.O_RDONLY | getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC

# A repository stays whole for who reads it meanwhile, and after a crash: what is named comes before what names it.
_GIT_ORDER = ("/objects/", "/refs/", "/logs/", "/packed-refs", "/index", "/HEAD")


class _ConflictError(Exception):
    """Somebody else changed the entry meanwhile."""


def keep_pieces(
    pieces: Sequence[Piece], token: str, *, is_resumed: bool = False, live: LiveFiles | None = None
) -> Kept:
    """Apply changes. One that meets something else than the command did is left out as a whole, and told.

    Owners are kept where we are root. `token` is part of the names of files that are not yet in their places; with
    `is_resumed` an earlier session had begun with the same. `live` tells which files are in use. Raises nothing for
    what the disk refuses: that is told.
    """
    names: list[str] = []
    conflicts: list[Conflict] = []
    live = live or LiveFiles()
    for area in dict.fromkeys(piece.area for piece in pieces):
        keeping = _Keeping(area, [piece for piece in pieces if piece.area == area], live, token)
        for piece in keeping.pieces:
            try:
                keeping.keep(keeping.rest_of(piece) if is_resumed else piece)
                names.append(piece.change.name)
            except _ConflictError as error:
                conflicts.append(Conflict(piece.change.name, str(error)))
            except OSError as error:
                conflicts.append(Conflict(piece.change.name, error.strerror or str(error)))
        keeping.finish()
    return Kept(tuple(names), tuple(conflicts))


class _Place(NamedTuple):
    folder: int
    name: str


class _Keeping:
    """In one folder. `pieces` are in the order they are kept in."""

    def __init__(self, area: str, pieces: Sequence[Piece], live: LiveFiles, token: str) -> None:
        # What goes away comes last, so that a file that was moved is never missing in both places.
        self.pieces = sorted(pieces, key=lambda piece: (piece.change.kind == "deleted", piece.paths[0]))
        self._area = area
        self._live = live
        self._token = token
        self._modes: dict[str, Entry] = {}
        self._emptied: dict[str, Touched] = {}

    def keep(self, piece: Piece) -> None:
        """Raises `_ConflictError` before anything is done, `OSError`."""
        touched = piece.touched
        if piece.root and piece.change.kind == "created" and self._move(piece.root, piece):
            return
        removed = [path for path in piece.paths if path not in touched.after]
        made = [path for path in piece.paths if path in touched.after]
        swapped = [path for path in made if _changes_kind(*touched.of(path))]
        for path in piece.paths:
            self._require_unchanged(path, touched)
            if ".git" not in path.split("/"):  # git replaces its own files just so
                self._require_nobody_writes(path, touched)
        for path in (*removed, *swapped):
            self._require_nothing_else_in(path, touched)
        first = [path for path in removed if any(path.startswith(f"{one}/") for one in swapped)]
        self._remove([*first, *swapped], touched)
        for path in sorted(made, key=_order):
            self._make(path, touched)
        self._remove([path for path in removed if path not in first], touched)

    def finish(self) -> None:
        """The folders that are empty now and were taken away by the command; then the modes of folders."""
        for path in sorted(self._emptied, key=lambda path: -path.count("/")):
            with contextlib.suppress(OSError, _ConflictError), self._opened(path) as place:
                os.rmdir(place.name, dir_fd=place.folder)
        for path, entry in sorted(self._modes.items(), key=lambda item: -item[0].count("/")):
            with contextlib.suppress(OSError, _ConflictError), self._opened(path) as place:
                _set_mode(place, entry)

    def rest_of(self, piece: Piece) -> Piece:
        """The paths that are not yet as the command left them, where an earlier session had begun to keep them."""
        for path in piece.paths:
            with contextlib.suppress(OSError, _ConflictError), self._opened(path) as place:
                os.unlink(self._aside(place.name), dir_fd=place.folder)
        after = piece.touched.after
        if piece.root and piece.change.kind == "created" and not os.path.lexists(after[piece.root].where):
            with contextlib.suppress(OSError, _ConflictError), self._opened(piece.root) as place:
                _set_mode(place, after[piece.root])  # it was moved
                return piece._replace(paths=())
        return piece._replace(
            paths=tuple(path for path in piece.paths if not self._is_as_left(path, after.get(path))), root=""
        )

    def _aside(self, name: str) -> str:
        """The name of a file before it takes its place."""
        return f".{name[:40]}.{self._token}"

    def _is_as_left(self, path: str, after: Entry | None) -> bool:
        try:
            with self._opened(path) as place:
                now = entry_at(place.name, folder=place.folder, where=f"{self._area}/{path}" if path else self._area)
        except (OSError, _ConflictError):
            now = None
        if now is None or after is None:
            return now is after
        if (now.kind, now.mode, now.target) != (after.kind, after.mode, after.target):
            return False
        return now.kind != "file" or has_same_content(now, after)

    def _move(self, path: str, piece: Piece) -> bool:
        """Move a new folder as it is, where it is on the same disk. What is in it is nobody else's yet."""
        touched, folder = piece.touched, piece.touched.after[path]
        if os.stat(folder.where).st_dev != os.stat(self._area).st_dev:  # noqa: PTH116
            return False
        self._require_unchanged(path, touched)
        self._make_folders_around(path, touched)
        for one in reversed(piece.paths):  # the outermost folder can be moved only as long as its owner may write it
            _forget_overlay(touched.after[one], keeps_mode=one == path)
        with self._opened(path) as place:
            if entry_at(place.name, folder=place.folder) is not None:
                raise _ConflictError("something else was made there since the command started")
            os.rename(folder.where, place.name, dst_dir_fd=place.folder)
            _set_mode(place, folder)
        return True

    def _require_unchanged(self, path: str, touched: Touched) -> None:
        before, after = touched.of(path)
        if path in touched.stale:
            raise _ConflictError("it was changed by something else while the command ran")
        try:
            with self._opened(path) as place:
                now = entry_at(place.name, folder=place.folder)
        except FileNotFoundError:  # the folder around it is not there
            now = None
        except _ConflictError:
            if before is None:  # a file that is to become the folder around it is judged by itself
                return
            raise
        if now is None and before is None:
            return
        if now is None and after is None:  # gone already
            return
        if now is None:
            raise _ConflictError("it was removed since the command started")
        if before is None:
            if now.kind == "folder" and after is not None and after.kind == "folder":
                return
            raise _ConflictError("something else was made there since the command started")
        if not _is_as_it_was(now, before):
            raise _ConflictError("it was changed since the command started")

    def _require_nobody_writes(self, path: str, touched: Touched) -> None:
        before = touched.before.get(path)
        if before is not None and before.kind == "file":
            with contextlib.suppress(FileNotFoundError), self._opened(path) as place:
                if why := self._live.why(place.folder, place.name):
                    raise _ConflictError(why)

    def _require_nothing_else_in(self, path: str, touched: Touched) -> None:
        """A folder can only go when the command has seen, and taken away, everything that is in it."""
        if touched.before[path].kind != "folder":
            return
        with contextlib.suppress(FileNotFoundError), self._opened(path) as place:
            folder = os.open(
                place.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.folder
            )
            try:
                inside = [f"{path}/{name}" for name in os.listdir(folder)]  # noqa: PTH208  # of a descriptor
            finally:
                os.close(folder)
            if any(one not in touched.before or one in touched.after for one in inside):
                raise _ConflictError("something else was put into it since the command started")

    def _make(self, path: str, touched: Touched) -> None:
        before, after = touched.of(path)
        assert after is not None
        self._make_folders_around(path, touched)
        with self._opened(path) as place:
            if after.kind == "folder":
                self._make_folder(path, place, after)
            elif before is not None and _is_only_mode(before, after):
                _set_mode(place, after)
            else:
                replaced = before if before is not None and before.kind != "folder" else None
                _replace(place, self._aside(place.name), after, replaced)

    def _make_folders_around(self, path: str, touched: Touched) -> None:
        parts = path.split("/")
        for count in range(1, len(parts)):
            around = "/".join(parts[:count])
            before, after = touched.of(around)
            if after is not None and before is None and after.kind == "folder":
                with self._opened(around) as place:
                    self._make_folder(around, place, after)

    def _make_folder(self, path: str, place: _Place, after: Entry) -> None:
        if path:
            try:
                os.mkdir(place.name, 0o700, dir_fd=place.folder)
            except FileExistsError:
                there = entry_at(place.name, folder=place.folder)
                if there is None or there.kind != "folder":
                    raise
                if path in self._modes:
                    return
        self._modes[path] = after

    def _remove(self, paths: Sequence[str], touched: Touched) -> None:
        """Files first, then the folders they were in; of the folders around them the ones that are gone, at the end."""
        folders = []
        for path in paths:
            if touched.before[path].kind == "folder":
                folders.append(path)
                continue
            with contextlib.suppress(FileNotFoundError), self._opened(path) as place:
                now = entry_at(place.name, folder=place.folder)
                if now is not None and not _is_as_it_was(now, touched.before[path]):  # a piece of many takes its time
                    raise _ConflictError("it was changed since the command started")
                os.unlink(place.name, dir_fd=place.folder)
            parts = path.split("/")
            for count in range(1, len(parts)):
                around = "/".join(parts[:count])
                if around in touched.before and around not in touched.after:
                    self._emptied[around] = touched
        for path in sorted(folders, key=lambda path: -path.count("/")):
            with contextlib.suppress(FileNotFoundError), self._opened(path) as place:
                os.rmdir(place.name, dir_fd=place.folder)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[_Place]:
        """The folder that a path is in, no symlink on the way, and its name there."""
        with ExitStack() as stack:
            folder = open_real(self._area)
            stack.callback(os.close, folder)
            *parts, name = path.split("/")
            for part in parts:
                try:
                    folder = os.open(part, _LOOK | os.O_DIRECTORY, dir_fd=folder)
                except NotADirectoryError:
                    raise _ConflictError(f"{part} is no folder any more") from None
                stack.callback(os.close, folder)
            yield _Place(folder, name or ".")


def _forget_overlay(entry: Entry, *, keeps_mode: bool) -> None:
    """Take away what an overlay has noted at an entry, and give it the mode that the command gave it."""
    for name in os.listxattr(entry.where, follow_symlinks=False):
        if name.startswith(LAYER_ATTRIBUTES):
            os.removexattr(entry.where, name, follow_symlinks=False)
    if (
        not keeps_mode
        and entry.kind in {"file", "folder"}
        and stat.S_IMODE(os.lstat(entry.where).st_mode) != entry.mode
    ):
        os.chmod(entry.where, entry.mode)  # noqa: PTH101


def _order(path: str) -> tuple[int, str]:
    git = next((number for number, part in enumerate(_GIT_ORDER) if part in f"/{path}"), 2)
    return git, path


def _changes_kind(before: Entry | None, after: Entry | None) -> bool:
    return before is not None and after is not None and (before.kind == "folder") != (after.kind == "folder")


def _is_as_it_was(now: Entry, before: Entry) -> bool:
    """Of a folder nothing but its mode and owner counts: the rest changes with what is in it."""
    if now.kind == before.kind == "folder":
        return (now.mode, now.owner) == (before.mode, before.owner)
    return now.kind == before.kind and now.identity == before.identity


def _is_only_mode(before: Entry, after: Entry) -> bool:
    return before.kind == after.kind == "file" and has_same_content(before, after)


def _replace(place: _Place, temporary: str, after: Entry, before: Entry | None) -> None:
    """Put a file, a link or a pipe in its place at once; where nothing was there, nothing is replaced."""
    try:
        _make_aside(_Place(place.folder, temporary), after)
        now = entry_at(place.name, folder=place.folder)
        if before is None:
            if now is not None:
                raise _ConflictError("something else was made there since the command started")
            _move_to_nothing(place, temporary)
            return
        if now is None or not _is_as_it_was(now, before):
            raise _ConflictError("it was changed since the command started")
        os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=place.folder)


def _make_aside(place: _Place, after: Entry) -> None:
    if after.kind == "link":
        os.symlink(after.target, place.name, dir_fd=place.folder)
        _own(place, after)
        return
    if after.kind == "pipe":
        os.mkfifo(place.name, 0o600, dir_fd=place.folder)
        _set_mode(place, after)
        return
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    target = os.open(place.name, flags, 0o600, dir_fd=place.folder)
    try:
        with open_content(after) as source:
            copy_attributes(source, target)
            copy_bytes(source, target)
        if os.geteuid() == 0:
            os.fchown(target, *after.owner)
        os.fchmod(target, after.mode)
        os.utime(target, ns=(after.identity[2], after.identity[2]))
    finally:
        os.close(target)


def _move_to_nothing(place: _Place, temporary: str) -> None:
    try:
        os.link(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder, follow_symlinks=False)
    except FileExistsError:
        raise _ConflictError("something else was made there since the command started") from None
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
        os.rename(temporary, place.name, src_dir_fd=place.folder, dst_dir_fd=place.folder)  # a disk without hard links


def _set_mode(place: _Place, after: Entry) -> None:
    """Through a descriptor: a link put there meanwhile would lead the change elsewhere."""
    descriptor = os.open(place.name, _LOOK, dir_fd=place.folder)
    try:
        found = os.fstat(descriptor)
        if stat.S_ISLNK(found.st_mode):
            raise _ConflictError("a link was put there since the command started")
        if os.geteuid() == 0:
            os.chown(f"/proc/self/fd/{descriptor}", *after.owner)
        os.chmod(f"/proc/self/fd/{descriptor}", after.mode)  # noqa: PTH101
    finally:
        os.close(descriptor)


def _own(place: _Place, after: Entry) -> None:
    if os.geteuid() == 0:
        os.chown(place.name, *after.owner, dir_fd=place.folder, follow_symlinks=False)
