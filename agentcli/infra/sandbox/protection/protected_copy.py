"""Copies what commands may not change, and records it on disk in case agentcli is killed before they end."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, msgpack
from msgspec.structs import replace

from agentcli.infra.sandbox.mounts.protect_plan import Protection
from agentcli.infra.sandbox.protection.pinned_folders import Entry, PinnedFolders, Place, place_of

MOST_ENTRIES = 20_000
MOST_OF_ONE = 5_000  # of a single folder, so that one repository leaves room for the others
MOST_BYTES = 16_000_000

_FOLDER_MODE, _FILE_MODE = 0o755, 0o644  # of what the person had made, where nothing else is known
_EXECUTABLE = 0o7111
# Files that programs obey at once come first: settings and hooks (githooks(5)), then folders of them.
_FIRST = (
    re.compile(
        r"(?:settings|config|tasks|launch|mcp|hooks|extensions)(?:[.-].*)?|.+\.toml|[a-z]+(?:-[a-z]+)+|update",
        re.IGNORECASE,
    ),
    re.compile(r"hooks|commands|agents|plugins|rules|skills", re.IGNORECASE),
)
_MOST_SEARCHED = 200_000  # folders, for one that was moved


class _Record(Struct, array_like=True):
    """A copy on disk. Paths are bytes: not every name is text. `held` has each folder's place, and that around it."""

    asides: list[bytes]
    granted: list[bytes]
    held: dict[bytes, tuple[Place, Place | None]]
    entries: dict[bytes, Entry]
    names: dict[bytes, list[bytes]]
    missing: dict[bytes, bytes | None]
    modes: dict[bytes, int] = {}


class ProtectedCopy:
    """The protected files as they were before commands ran. For all of the folders in `left_out` there was no room."""

    def __init__(self) -> None:
        self.held: dict[Path, int] = {}  # folders that stay writable, each with a descriptor of what it is
        self.places: dict[Path, tuple[Place, Place | None]] = {}  # of those, and of the folder that each is in
        self.entries: dict[Path, Entry] = {}
        self.names: defaultdict[Path, set[str]] = defaultdict(set)  # of the folders among them
        self.missing: dict[Path, bytes | None] = {}  # with a content that means the same as no file
        self.modes: dict[Path, int] = {}  # of the folders on the way
        self.left_out: set[Path] = set()
        self._room = MOST_BYTES

    def take(self, protection: Protection) -> None:
        """Copy what is not known yet."""
        with PinnedFolders() as pinned:
            for path in map(Path, protection.writable):
                if path not in self.held:
                    with suppress(OSError):
                        self.hold(path, pinned.open(path), pinned.place(path.parent))
            for path in map(Path, protection.read_only):
                self._keep(path, len(self.entries) + MOST_OF_ONE, pinned)
            for path in map(Path, (*protection.missing_folders, *protection.missing_files)):
                if path not in self.entries and pinned.place(path) is None:
                    self.missing[path] = protection.missing_files.get(str(path))
            self.modes = pinned.modes() | self.modes

    def hold(self, path: Path, descriptor: int, around: Place | None) -> None:
        self.held[path] = os.dup(descriptor)
        self.places[path] = place_of(os.fstat(descriptor)), around

    def _keep(self, path: Path, most: int, pinned: PinnedFolders) -> None:
        if path in self.entries or path in self.missing:  # what is there by now a command may have made
            return
        if len(self.entries) >= min(most, MOST_ENTRIES) or (entry := pinned.look(path, self._room)) is None:
            self.left_out.add(path.parent)
            return
        names: Sequence[str] = ()
        if stat.S_ISDIR(entry.mode):
            try:
                names = pinned.names(path)
            except OSError:
                self.left_out.add(path)
                return
            self.names[path] = {name for name in names if path / name not in self.missing}
        self._room -= len(entry.content)
        self.entries[path] = entry
        for name in sorted(names, key=_rank):
            self._keep(path / name, most, pinned)

    def take_again(self, paths: Iterable[Path]) -> None:
        """Keep as it is now what of these was kept before, what is in them, and the nearest thing around them."""
        for path in paths:
            known = {each for each in (*self.entries, *self.missing) if each.is_relative_to(path)}
            known |= {each for each in path.parents if each in self.missing}
            if path.parent in self.names:
                known.add(path)
            tops = [each for each in known if not known.intersection(each.parents)]
            for each in known:
                self.entries.pop(each, None)
                self.missing.pop(each, None)
                self.names.pop(each, None)
            with PinnedFolders() as pinned:
                for top in tops:
                    self._keep_again(top, pinned)

    def _keep_again(self, top: Path, pinned: PinnedFolders) -> None:
        is_there = pinned.place(top) is not None
        if top.parent in self.names:
            (self.names[top.parent].add if is_there else self.names[top.parent].discard)(top.name)
        if is_there:
            self._keep(top, len(self.entries) + MOST_OF_ONE, pinned)
        else:
            self.missing[top] = None

    def accept(self, path: Path, content: bytes) -> None:
        """Keep a file with a new content, and of the folders made for it nothing else that is in them by now."""
        way = [path]
        while not (way[0] in self.entries or way[0] in self.missing or way[0].parent in self.names):
            if way[0] == way[0].parent:
                return
            way.insert(0, way[0].parent)
        with PinnedFolders() as pinned:
            for each in way[:-1]:
                self._accept(each, Entry(stat.S_IFDIR | _FOLDER_MODE), pinned)
                self.names[each] = self.names[each]
            self._accept(path, Entry(stat.S_IFREG | _FILE_MODE, content), pinned)
        self._room -= len(content)

    def _accept(self, path: Path, entry: Entry, pinned: PinnedFolders) -> None:
        """Store an entry with the mode that it had, or has; no command makes a new one executable."""
        known, now = self.entries.get(path), pinned.look(path, 0)
        kind = stat.S_IFMT(entry.mode)
        if known is not None and stat.S_IFMT(known.mode) == kind:
            entry = replace(entry, mode=known.mode)
        elif now is not None and stat.S_IFMT(now.mode) == kind:
            mode = now.mode | stat.S_IRWXU if stat.S_ISDIR(kind) else now.mode & ~_EXECUTABLE
            entry = replace(entry, mode=mode)
        self.missing.pop(path, None)
        self.entries[path] = entry
        if path.parent in self.names:
            self.names[path.parent].add(path.name)

    def keep_only(self, paths: Iterable[Path]) -> None:
        """Forget all but these, what is in them, and the way to them."""
        tops = {*paths}
        on_the_way = {above for path in tops for above in path.parents}

        def is_kept(path: Path) -> bool:
            return path in tops or not tops.isdisjoint(path.parents)

        for known in (self.entries, self.names, self.missing):
            for path in [path for path in known if not is_kept(path)]:
                del known[path]
        for path in [path for path in self.held if not is_kept(path) and path not in on_the_way]:
            os.close(self.held.pop(path))
        self.places = {path: place for path, place in self.places.items() if path in self.held}
        self.modes = {path: mode for path, mode in self.modes.items() if is_kept(path) or path in on_the_way}
        self._room = MOST_BYTES - sum(len(entry.content) for entry in self.entries.values())

    def close(self) -> None:
        self.keep_only(())

    def record(self, asides: Sequence[Path], granted: Sequence[Path]) -> bytes:
        return msgpack.encode(
            _Record(
                [*map(os.fsencode, asides)],
                [*map(os.fsencode, granted)],
                {os.fsencode(path): places for path, places in self.places.items()},
                {os.fsencode(path): entry for path, entry in self.entries.items()},
                {os.fsencode(path): sorted(map(os.fsencode, names)) for path, names in self.names.items()},
                {os.fsencode(path): content for path, content in self.missing.items()},
                {os.fsencode(path): mode for path, mode in self.modes.items()},
            )
        )


def _rank(name: str) -> tuple[int, str]:
    return next((number for number, first in enumerate(_FIRST) if first.fullmatch(name)), len(_FIRST)), name


def read_record(data: bytes) -> tuple[ProtectedCopy, list[Path], list[Path]]:
    """The copy, the folders to put aside in, and what was granted. Raises `msgspec.MsgspecError`."""
    record = msgpack.decode(data, type=_Record)
    copy = ProtectedCopy()
    copy.entries = {_path(path): entry for path, entry in record.entries.items()}
    copy.names.update({_path(path): {*map(os.fsdecode, names)} for path, names in record.names.items()})
    copy.missing = {_path(path): content for path, content in record.missing.items()}
    copy.modes = {_path(path): mode for path, mode in record.modes.items()}
    asides = [*map(_path, record.asides)]
    _hold_again(copy, {_path(path): places for path, places in record.held.items()}, asides[1:])
    return copy, asides, [*map(_path, record.granted)]


def _path(name: bytes) -> Path:
    return Path(os.fsdecode(name))


def _hold_again(copy: ProtectedCopy, held: dict[Path, tuple[Place, Place | None]], roots: Sequence[Path]) -> None:
    """Open the folders where they are by now. One that is not found is left out, like one that was deleted."""
    with PinnedFolders(unlocks=True) as pinned:
        lost = {}
        for path, (place, around) in held.items():
            with suppress(OSError):
                if pinned.place(path) == place:
                    copy.hold(path, pinned.open(path), around)
                    continue
            lost[place] = path
        wanted = set(lost)
        for found, place in _search(roots, wanted):
            path = lost[place]
            known = {each.name for each in (*held, *copy.entries) if each.parent == path}
            with suppress(OSError):
                if known.intersection(pinned.names(found)):  # else its number went to another folder
                    copy.hold(path, pinned.open(found), held[path][1])


def _search(roots: Iterable[Path], wanted: set[Place]) -> Iterable[tuple[Path, Place]]:
    """Folders by their places."""
    waiting, seen = [*roots] if wanted else [], 0
    numbers = {inode for _, inode in wanted}
    while waiting and seen < _MOST_SEARCHED:
        folder = waiting.pop(0)
        seen += 1
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    continue
                waiting.append(Path(entry.path))
                if entry.inode() in numbers and (place := place_of(entry.stat(follow_symlinks=False))) in wanted:
                    yield waiting[-1], place
