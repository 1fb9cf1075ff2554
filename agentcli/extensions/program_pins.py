"""Holds the workspace files that trusted commands run to what they held when the person trusted them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import has_magic, iglob
from itertools import islice
from pathlib import Path

from agentcli.errors import ConfigError
from agentcli.extensions.named_files import NamedFile, named_files
from agentcli.tools.tool import Ask

MAX_BYTES = 50_000_000  # of a program that is pinned; of a larger one its size and times are
MISSING = ""
_MAX_FOUND = 200  # programs by one glob


RUN, REFUSE = "Run it as it is now", "Do not run it"


class ProgramPins:
    """Knows the files that the trusted commands of one configuration run. Files in `added` folders count, too.

    `trusted` gives the digests that were kept with the trust in the project, by path; `keep` adds to them. A command
    that the project's trust is not about is held to what its files were when it was added.
    """

    def __init__(
        self,
        *,
        cwd: Path,
        root: Path,
        added: Sequence[Path] = (),
        trusted: Callable[[], Mapping[str, str]] | None,
        keep: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._cwd, self._root = str(cwd), str(root)
        self._trusted = trusted
        self._keep = keep
        self._folders = dict.fromkeys((self._cwd, self._root, *map(str, added)))
        self._all: dict[str, set[NamedFile]] = {}
        self._named: dict[str, tuple[NamedFile, ...]] = {}  # in one of the folders
        self._pins: dict[str, dict[str, str]] = {}
        self._of_project: set[str] = set()
        self._seen: dict[str, dict[str, str]] = {}

    def add(self, command: str, *, is_of_project: bool = False, variables: Mapping[str, str] = {}) -> None:
        """Pin the files of a command from now on."""
        if command in self._named and (not is_of_project or command in self._of_project):
            return
        self._all[command] = named_files(command, cwd=self._cwd, root=self._root, variables=variables)
        self._named[command] = self._inside(command)
        if is_of_project:
            self._of_project.add(command)
        if is_of_project and self._trusted is not None:
            trusted = self._trusted()
            paths = {file.path for file in self._named[command]}
            self._pins[command] = {
                path: digest for path, digest in trusted.items() if any(_is_named(path, name) for name in paths)
            }
        else:
            self._pins[command] = self.digests(command)

    def cover(self, folders: Sequence[Path]) -> None:
        """From now on files in these folders count as well, as they are now."""
        if all(str(folder) in self._folders for folder in folders):
            return
        self._folders |= dict.fromkeys(map(str, folders))
        for command, before in self._named.items():
            self._named[command] = self._inside(command)
            known = {file.path for file in _found(before)}
            now = self.digests(command)
            self._pins[command] |= {path: digest for path, digest in now.items() if path not in known}

    def _inside(self, command: str) -> tuple[NamedFile, ...]:
        starts = tuple(f"{folder.rstrip('/')}/" for folder in self._folders)
        inside = (file for file in self._all[command] if file.path.startswith(starts))
        return tuple(sorted(inside, key=lambda file: file.path))

    def digests(self, command: str) -> dict[str, str]:
        """The digests of the files that a command runs, as they are now, by path."""
        pinned = self._pins.get(command, {})
        found = {file.path: digest_of(file.path) for file in _found(self._named[command]) if _is_program(file, pinned)}
        return {path: digest for path, digest in found.items() if digest != MISSING}

    def changed(self, command: str) -> Sequence[Path]:
        """The files of a command that are not as they were when it was trusted."""
        now = self.digests(command)
        if self._differing(command, now) and command in self._of_project and self._trusted is not None:
            kept = self._trusted()  # the person may have trusted the project again meanwhile
            for path in self._differing(command, now):
                if path in kept and kept[path] == now.get(path, MISSING):
                    self._pins[command][path] = kept[path]
        self._seen[command] = now
        return [Path(path) for path in self._differing(command, now)]

    def _differing(self, command: str, now: Mapping[str, str]) -> list[str]:
        pinned = self._pins[command]
        return [p for p in sorted(now.keys() | pinned.keys()) if now.get(p, MISSING) != pinned.get(p, MISSING)]

    def accept(self, command: str) -> None:
        """Trust them as they were when `changed` was called last. Raises `ConfigError`."""
        now = self._seen[command]
        gone = {path: MISSING for path in self._pins[command] if path not in now}
        for other, files in self._named.items():  # others may run the same files
            accepted = {file.path: now[file.path] for file in _found(files) if file.path in now}
            self._pins[other] = {
                path: digest for path, digest in (self._pins[other] | accepted).items() if path not in gone
            }
        if command in self._of_project and self._trusted is not None:
            self._keep({**gone, **now})

    def to_trust(self) -> dict[str, str]:
        """The digests to keep with the trust in the project, as its files are now; `MISSING` for what is not there."""
        named = {file.path: MISSING for command in self._of_project for file in self._named[command]}
        return named | {path: digest for command in self._of_project for path, digest in self.digests(command).items()}

    def files(self) -> list[Path]:
        """The files that all commands run, and that are there, without links."""
        named = {
            os.path.realpath(file.path)
            for command, files in self._named.items()
            for file in _found(files)
            if _is_program(file, self._pins[command])
        }
        return [Path(path) for path in sorted(named) if os.path.isfile(path)]  # noqa: PTH113


async def refusal(
    programs: ProgramPins, command: str, user: str, *, ask: Ask | None, tell: Callable[[str], None]
) -> str:
    """Ask about files of a command that have changed. Returns why `user` (a hook, a server) may not run it, or ""."""
    # Once more after each answer: what was accepted is what there was when the question was asked.
    while changed := await asyncio.to_thread(programs.changed, command):
        names = ", ".join(map(str, changed))
        verb, what = ("have", "them") if len(changed) > 1 else ("has", "it")
        why = f"{names} {verb} changed since you trusted {what}, and {user} would run {what} outside the sandbox."
        if ask is None or await ask(why, (RUN, REFUSE)) != RUN:
            return why
        try:
            programs.accept(command)
        except ConfigError as error:  # it is trusted until the program ends
            tell(str(error))
    return ""


def _is_named(path: str, name: str) -> bool:
    """True if a path or a glob means a path."""
    return path == name or (path.count("/") == name.count("/") and fnmatchcase(path, name))


def _found(files: Iterable[NamedFile]) -> Iterator[NamedFile]:
    """The files, and those that are found by the globs among them."""
    for file in files:
        yield file
        if has_magic(file.path):
            paths = islice(iglob(file.path), _MAX_FOUND)  # noqa: PTH207  # text, which a Path would change
            yield from (NamedFile(path, file.is_started) for path in paths)


def _is_program(file: NamedFile, pinned: Mapping[str, str]) -> bool:
    """True for what is pinned, and for files that are run: not data, unless it is executable."""
    if file.path in pinned:
        return True
    try:
        status = os.stat(file.path)  # noqa: PTH116  # many paths, most of which do not exist
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and (not file.is_data or bool(status.st_mode & 0o111))


def digest_of(path: str) -> str:
    """A digest of where a path leads and what is there; `MISSING` where there is no file."""
    digest = hashlib.sha256(os.fsencode(os.path.realpath(path)) + b"\0")
    try:
        with open(path, "rb", opener=_open_at_once) as file:  # with an opener
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return MISSING
            if status.st_size > MAX_BYTES:
                digest.update(f"{status.st_ino} {status.st_size} {status.st_ctime_ns}".encode())
            else:
                digest.update(file.read(MAX_BYTES + 1))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return MISSING
    except OSError as error:
        return f"unreadable ({error.errno})"
    return digest.hexdigest()


def _open_at_once(path: str, flags: int) -> int:
    """Do not wait where a pipe took the file's place."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
