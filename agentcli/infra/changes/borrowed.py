"""Borrows the contents of tracked files from the repository, so that a snapshot need not store a copy of each.

By a file's times, size and inode, git's index tells the blob of each file that was not changed since. The packs of the
repository get a second name (a hard link) in a git folder of the program, other objects are packed there, so they
outlast `git gc` and `rm -r .git`. Git reads them with the program's own configuration, because the configuration of a
repository can make git run programs.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, SubprocessError, check_output

import msgspec

from agentcli.infra.changes.state import Objects
from agentcli.infra.sandbox.git_config import find_git, text_of
from agentcli.settings.files import make_private_folder

TICK_NS = 20_000_000  # within this time a file can change twice, and the second change does not show in its times
_MAX_GIT_S = 60.0
_PATHS = ("--show-toplevel", "--git-path", "index", "--git-path", "objects", "--git-path", "info/attributes")
# Filters and encodings make a file's bytes differ from its blob. Line ends and `ident` do too, but change the size.
_UNCONVERTED = ":(attr:!filter !working-tree-encoding)"
# An entry of the index: its tag (H where git looks at the file), mode, blob and stage (0 where it is merged).
_ENTRY = re.compile(
    r"(\S+) (\d+) ([0-9a-f]+) (\d)\t([^\0]+)\0  ctime: (\d+):(\d+)\n  mtime: (\d+):(\d+)\n"
    r"  dev: \d+\tino: (\d+)\n  uid: \d+\tgid: \d+\n  size: (\d+)\tflags: [0-9a-f]+\n"
)


class TrackedFile(msgspec.Struct, frozen=True, gc=False):
    """A file as it was when git compared it with its blob."""

    id: str
    stamp: tuple[int, int, int, int]
    size: int


def stamp_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return the times, inode and size by which git sees that a file was not touched, as they are in its index."""
    return status.st_ctime_ns, status.st_mtime_ns, status.st_ino & 0xFFFFFFFF, status.st_size


class BorrowedObjects:
    """The contents in the repository around `root`: none without git, or if git does not read it."""

    def __init__(self, root: str, folder: Path, writable: Sequence[Path]) -> None:
        self._root = root
        self._folder = folder
        self._git = find_git(os.environ.get("PATH", ""), (root, *writable))
        self._user_environment = {
            name: os.environ[name] for name in ("HOME", "PATH", "XDG_CONFIG_HOME") if name in os.environ
        }
        self._isolated_environment = self._user_environment | {
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_DIR": str(folder),
        }

    def borrow(self) -> dict[str, TrackedFile]:
        """Return the files below the root whose contents need not be copied, by their relative paths."""
        try:
            return self._borrow() if self._git else {}
        except (OSError, ValueError, SubprocessError):  # all files are copied
            return {}

    def _borrow(self) -> dict[str, TrackedFile]:
        answer = self._run(self._user_environment, "rev-parse", "--path-format=absolute", *_PATHS)  # runs no program
        top, index, objects, attributes = os.fsdecode(answer).splitlines()
        named = self._run(self._user_environment, "config", "--type=path", "--default=", "--get", "core.attributesFile")
        settings = ("-c", f"core.attributesFile={os.fsdecode(named).removesuffix(chr(10))}") if named.strip() else ()
        compared_ns = os.stat(index).st_mtime_ns - TICK_NS  # noqa: PTH116
        Objects(self._folder).make()
        for folder in ("objects/pack", "info"):
            make_private_folder(self._folder / folder)
        (self._folder / "info/attributes").write_bytes(text_of(attributes).encode(errors="surrogateescape"))
        with_alternates = self._isolated_environment | {"GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
        reading = with_alternates | {"GIT_WORK_TREE": top, "GIT_INDEX_FILE": index}
        listed = self._run(reading, *settings, "ls-files", "-s", "-v", "--debug", "-z", "--", _UNCONVERTED)
        if not (found := dict(_unchanged(os.fsdecode(listed), compared_ns))):
            return {}
        ids = {file.id for file in found.values()}
        packs = [file for file in Path(objects, "pack").iterdir() if file.suffix in (".pack", ".idx")]
        for file in sorted(packs, reverse=True):  # an index comes after its pack
            with suppress(OSError):  # a file on another disk, or of another user
                if not file.is_symlink():
                    (self._folder / "objects/pack" / file.name).hardlink_to(file)
        sizes = self._sizes(ids, self._isolated_environment)
        if others := self._sizes(ids - sizes.keys(), with_alternates):
            self._run(
                with_alternates, "pack-objects", "-q", "--window=0", f"{self._folder}/objects/pack/pack", lines=others
            )
            sizes |= others
        return {path: file for path, file in found.items() if sizes.get(file.id) == file.size}

    def copy(self, ids: Iterable[str], objects: Objects) -> None:
        """Store borrowed contents, because files that had them were changed. Raises `OSError`."""
        missing = [id for id in ids if not objects.has(id)]
        if not missing or not self._git or not self._folder.is_dir():
            return
        with tempfile.TemporaryFile() as wanted:
            wanted.write("".join(f"{id}\n" for id in missing).encode())
            wanted.seek(0)
            command = [self._git, "cat-file", "--batch", "--buffer"]
            with Popen(command, env=self._isolated_environment, stdin=wanted, stdout=PIPE, stderr=DEVNULL) as running:
                assert running.stdout is not None
                while head := running.stdout.readline().split():
                    if len(head) == 3:  # id, type and size; of a missing object only its id and a word
                        objects.put_bytes(running.stdout.read(int(head[2])))
                        running.stdout.read(1)

    def _sizes(self, ids: Iterable[str], environment: Mapping[str, str]) -> dict[str, int]:
        answer = self._run(environment, "cat-file", "--batch-check=%(objectname) %(objectsize)", "--buffer", lines=ids)
        words = (line.split() for line in answer.decode().splitlines())
        return {id: int(size) for id, size in words if size.isdigit()}

    def _run(self, environment: Mapping[str, str], *arguments: str, lines: Iterable[str] = ()) -> bytes:
        text = "".join(f"{line}\n" for line in lines).encode()
        return check_output(
            [self._git, *arguments], cwd=self._root, env=environment, input=text, stderr=DEVNULL, timeout=_MAX_GIT_S
        )


def _unchanged(listed: str, compared_ns: int) -> Iterator[tuple[str, TrackedFile]]:
    """Yield the files that were not touched since git compared them."""
    position = 0  # entries are matched one after another, because the name of a file may look like an entry
    while entry := _ENTRY.match(listed, position):
        position = entry.end()
        tag, mode, id, stage, path, *numbers = entry.groups()
        ctime_s, ctime_ns, mtime_s, mtime_ns, inode, size = map(int, numbers)
        stamp = (ctime_s * 10**9 + ctime_ns, mtime_s * 10**9 + mtime_ns, inode, size)
        if (tag, stage, mode[:3]) == ("H", "0", "100") and max(stamp[:2]) < compared_ns:
            yield path, TrackedFile(id, stamp, size)
