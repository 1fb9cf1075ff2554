"""Describes files: a `FileEntry` is a file on disk, a `FileState` its record in the log, with contents in `Objects`.

`Objects` stores contents in git's format, as loose objects of a bare repository (gitformat-loose, git 2.39), without
running git: checkpoints work on machines that lack it, and no setting or filter of a project can change a byte.
`git --git-dir FOLDER cat-file -p ID` shows an object.

`BorrowedObjects` finds contents that the project's own repository has, so that a snapshot need not copy them. Git's
index gives the blob of each file whose times, size and inode show that it is unchanged. The repository's packs get a
second name (a hard link) in a git folder of agentcli, and other objects are packed there, so they survive `git gc` and
`rm -r .git`. Git reads them with agentcli's configuration, because a repository's own can make git run programs.
"""

import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, check_output
from typing import Literal, NamedTuple

import msgspec

from agentcli.conversation.entries import FileKind, FileState, stored_path
from agentcli.infra.changes.writing import CHUNK_BYTES, TICK_NS, open_source
from agentcli.infra.sandbox.git_config import find_git, read_small_file
from agentcli.patterns import lazy_pattern
from agentcli.settings.files import make_private_folder, replace_file

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS: dict[int, FileKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe"}
_FASTEST = 1  # a level of zlib: takes half the time of the default, and output is a few per cent larger
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tbare = true\n[gc]\n\tauto = 0\n\tpruneExpire = never\n"
_MAX_GIT_S = 60.0
_ATTRIBUTES_FILE = "core.attributesFile"
_REV_PARSE_PATHS = ("--show-toplevel", "--git-path", "index", "--git-path", "objects", "--git-path", "info/attributes")
# Files whose bytes are those of their blobs. Line endings and `ident` can change bytes, too, but then the sizes differ.
_UNCONVERTED = ":(attr:!filter !working-tree-encoding)"
# An entry of `git ls-files`: tag (H: git checks the file for changes), mode, blob, stage (0: no merge conflict), path,
# ctime and mtime (each seconds and nanoseconds), inode, size.
_ENTRY = lazy_pattern(
    r"(\S+) (\d+) ([0-9a-f]+) (\d)\t([^\0]+)\0  ctime: (\d+):(\d+)\n  mtime: (\d+):(\d+)\n"
    r"  dev: \d+\tino: (\d+)\n  uid: \d+\tgid: \d+\n  size: (\d+)\tflags: [0-9a-f]+\n"
)

_CACHE_FOLDERS = frozenset(
    """
    __pycache__ .pytest_cache .mypy_cache .ruff_cache .hypothesis .pytype .pyre .tox .nox .ipynb_checkpoints
    .parcel-cache .turbo .nx .sass-cache .jest-cache .nyc_output .gradle .ccls-cache .clangd .cache .phpunit.cache
    """.split()
)
_CACHE_FILES = frozenset(
    ".eslintcache .stylelintcache .coverage .DS_Store .phpunit.result.cache .php-cs-fixer.cache".split()
)
_CACHE_SUFFIXES = (".pyc", ".tsbuildinfo")

# https://bford.info/cachedir/
_CACHE_TAG, _CACHE_SIGNATURE = "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55"


class Objects:
    """Stores contents in a folder, by id (40 hexadecimal digits). Several processes may use the folder at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_made = False  # True after the first `make`

    def make(self) -> None:
        """Make the folder a bare repository, so that git reads it. Raises `OSError`."""
        if self._is_made:
            return
        for name in ("objects", "refs"):
            make_private_folder(self.folder / name)
        for name, text in (("config", _CONFIG), ("HEAD", "ref: refs/heads/main\n")):
            if not (self.folder / name).exists():
                (self.folder / name).write_text(text)
        self._is_made = True

    def has(self, id: str) -> bool:
        return os.path.exists(self._path(id))  # noqa: PTH110  # a tenth of the time of a Path

    def put(self, content: bytes) -> str:
        """Store contents and return their id. Raises `OSError`."""
        head = b"blob %d\0" % len(content)
        digest = hashlib.sha1(head, usedforsecurity=False)
        digest.update(content)
        if self.has(id := digest.hexdigest()):
            return id
        self.make()
        packer = zlib.compressobj(_FASTEST)
        target = Path(self._path(id))
        target.parent.mkdir(0o700, exist_ok=True)
        packed = b"".join((packer.compress(head), packer.compress(content), packer.flush()))
        replace_file(target, packed, syncs=False)  # for speed; `get` notices if a crash of the system damaged it
        return id

    def get(self, id: str) -> bytes:
        """Return contents. Raises `OSError`, also if the object is damaged."""
        try:
            stored = zlib.decompress(Path(self._path(id)).read_bytes())
        except zlib.error as error:
            raise OSError(f"checkpoint {id} is damaged: {error}") from error
        if hashlib.sha1(stored, usedforsecurity=False).hexdigest() != id:
            raise OSError(f"checkpoint {id} is damaged")
        return stored.partition(b"\0")[2]

    def _path(self, id: str) -> str:
        return f"{self.folder}/objects/{id[:2]}/{id[2:]}"


class FileStamp(NamedTuple):
    """Attributes of a file; at least one of them differs after every change of it."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int  # the ctime, which programs cannot set
    mode: int
    uid: int
    gid: int


class FileEntry(NamedTuple):
    """A file, folder, link or other entry on disk; links are not followed."""

    kind: FileKind | Literal["other"]
    stamp: FileStamp
    mode: int
    size: int
    owner: tuple[int, int]
    target: str  # where a link points, "" for other kinds
    source: str  # the path at which its contents can be read

    def open(self) -> FileIO:
        """Open a file's contents. Raises `OSError`, also if the path contains a link by now."""
        return open_source(self.source)


class ChangeSet(msgspec.Struct, kw_only=True):
    """Entries before and after a command or an undo, by path relative to `root`."""

    root: str
    before: dict[str, FileEntry] = msgspec.field(default_factory=dict)
    after: dict[str, FileEntry] = msgspec.field(default_factory=dict)
    stale: set[str] = msgspec.field(default_factory=set)  # paths that somebody else has changed since
    caches: list[str] = msgspec.field(default_factory=list)  # changed caches, which are never applied

    def before_and_after(self, path: str) -> tuple[FileEntry | None, FileEntry | None]:
        return self.before.get(path), self.after.get(path)

    def at(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def swaps_folder(self, path: str) -> bool:
        """Return True if the path was a folder before and is something else after, or the reverse."""
        before, after = self.before_and_after(path)
        return before is not None and after is not None and (before.kind == "folder") != (after.kind == "folder")


def kind_of(status: os.stat_result) -> FileKind | None:
    """Return the kind of a file, None for sockets and devices, which checkpoints do not cover."""
    return _KINDS.get(stat.S_IFMT(status.st_mode))


def entry_at(name: str, *, folder: int | None = None, source: str = "") -> FileEntry | None:
    """Return the entry at a path, or at a name in an open folder with its path in `source`; None if there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else ""
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind, mode, size = kind_of(status) or "other", stat.S_IMODE(status.st_mode), status.st_size
    owner = status.st_uid, status.st_gid
    stamp = FileStamp(status.st_ino, size, status.st_mtime_ns, status.st_ctime_ns, mode, *owner)
    return FileEntry(kind=kind, stamp=stamp, mode=mode, size=size, owner=owner, target=target, source=source or name)


def walk(root: str, path: str) -> Iterator[tuple[str, FileEntry]]:
    """Yield everything at and below a path relative to `root`: outer folders before their contents, by name."""
    waiting = [path]
    while waiting:
        path = waiting.pop()
        if (entry := entry_at(f"{root}/{path}" if path else root)) is not None:
            yield path, entry
            if entry.kind == "folder":
                waiting += [joined(path, name) for name in reversed(names_in(entry.source))]  # the first name is next


def joined(folder: str, name: str) -> str:
    """Return the path of a name in a relative folder; the root is the empty path."""
    return f"{folder}/{name}" if folder else name


def names_in(folder: str) -> list[str]:
    return sorted(os.listdir(folder))  # noqa: PTH208  # a tenth of the time of a Path


def parents_of(path: str) -> list[str]:
    """Return the folders around a relative path, outermost first: "" (the root), `a` and `a/b` for `a/b/c`."""
    parts = path.split("/")
    return ["", *("/".join(parts[:count]) for count in range(1, len(parts)))] if path else []


def differs(before: FileEntry | None, after: FileEntry | None) -> bool:
    """Return True if two entries differ in more than their times."""
    if before is None or after is None:
        return before is not None or after is not None
    attributes = before.kind, before.mode, before.owner, before.target
    if attributes != (after.kind, after.mode, after.owner, after.target):
        return True
    return before.kind == "file" and not has_same_content(before, after)


def has_same_content(before: FileEntry, after: FileEntry) -> bool:
    """Compare two files; if one cannot be read, they count as different."""
    with suppress(OSError):
        if before.size == after.size:
            with before.open() as old, after.open() as new:
                while (data := old.read(CHUNK_BYTES)) == new.read(CHUNK_BYTES):
                    if not data:
                        return True
    return False


def digest_of(entry: FileEntry) -> bytes:
    """Return a digest of a file's contents, by which a copy of the file is found."""
    with suppress(OSError), entry.open() as file:
        return hashlib.file_digest(file, "sha256").digest()
    return os.fsencode(entry.source)  # unique, because a file that cannot be read counts as a copy of no other


def state_at(path: str, objects: Objects, *, max_bytes: int) -> FileState | None:
    """Return the state of a path, None if nothing is there, and store contents up to `max_bytes`. Raises `OSError`."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return state_of(path, status, objects, max_bytes=max_bytes)


def state_of(path: str, status: os.stat_result, objects: Objects, *, max_bytes: int) -> FileState | None:
    """Return the state of a path whose status is known, and store contents; None if gone, a socket or a device."""
    kind, mode = kind_of(status), stat.S_IMODE(status.st_mode)
    if kind is None or kind in ("folder", "pipe"):
        return FileState(kind, mode) if kind else None
    if kind == "link":
        with suppress(OSError):
            return FileState("link", mode, stored_path(os.readlink(path)))  # noqa: PTH115  # a `str`, as `path` is
        return None  # every link can be read, so it was removed or replaced just now
    without_contents = FileState("file", mode, size=status.st_size)
    if status.st_size > max_bytes:
        return without_contents
    try:
        file = open(path, "rb", opener=lambda name, _: os.open(name, READ_FLAGS))  # noqa: SIM115
    except FileNotFoundError:
        return None
    except OSError:  # we may not read it, or it is a link or a folder by now
        return without_contents
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return without_contents
        content = file.read(status.st_size)  # a file that grows meanwhile is cut at this size
    return FileState("file", mode, objects.put(content), len(content))


def is_cache(path: str, *, is_folder: bool) -> bool:
    """Return True if a path, relative or absolute, has the name of a cache."""
    name = path.rpartition("/")[2]
    return name in _CACHE_FOLDERS or (not is_folder and (name in _CACHE_FILES or name.endswith(_CACHE_SUFFIXES)))


def has_cache_tag(folder: str) -> bool:
    """Return True if a folder contains the tag file that marks it as a cache."""
    with suppress(OSError), FileIO(f"{folder}/{_CACHE_TAG}", opener=lambda tag, _: os.open(tag, READ_FLAGS)) as tag:
        return tag.read(len(_CACHE_SIGNATURE)) == _CACHE_SIGNATURE
    return False


class TrackedFile(msgspec.Struct, frozen=True, gc=False):
    """A file's state when git last found it equal to its blob `id`."""

    id: str
    git_stamp: tuple[int, int, int]  # ctime and mtime in nanoseconds, and the inode's lower 32 bits, as in git's index
    size: int

    def is_unchanged(self, status: os.stat_result) -> bool:
        now = status.st_ctime_ns, status.st_mtime_ns, status.st_ino & 0xFFFFFFFF
        return now == self.git_stamp and status.st_size == self.size


class BorrowedObjects:
    """Gives access to contents in the repository around `root`, through git and a bare repository in `folder`."""

    def __init__(self, root: str, folder: Path, writable: Sequence[Path]) -> None:
        self._root = root
        self._folder = folder
        self._git = find_git(os.environ.get("PATH", ""), (root, *writable))  # not one that a command could have made
        configuration_variables = ("HOME", "PATH", "XDG_CONFIG_HOME")  # by which git finds the person's configuration
        self._user_environment = {name: os.environ[name] for name in configuration_variables if name in os.environ}
        isolation = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_DIR": str(folder)}
        self._isolated_environment = self._user_environment | isolation

    def borrow(self) -> dict[str, TrackedFile]:
        """Make the blobs of unchanged files readable in our folder; return the files whose bytes are their blobs.

        The keys are paths relative to the root. Raises `OSError`, `ValueError` and `SubprocessError`.
        """
        if not self._git:
            return {}
        # Neither of these two commands makes git run another program.
        paths = self._run(self._user_environment, "rev-parse", "--path-format=absolute", *_REV_PARSE_PATHS)
        user_file = self._run(self._user_environment, "config", "--type=path", "--default=", "--get", _ATTRIBUTES_FILE)
        top, index, objects, attributes = os.fsdecode(paths).removesuffix("\n").split("\n")  # as in `_REV_PARSE_PATHS`
        # The attributes of the repository and of the person decide which files git converts: see `_UNCONVERTED`.
        setting = f"{_ATTRIBUTES_FILE}=" + os.fsdecode(user_file).removesuffix("\n")
        settings = ("-c", setting) if user_file.strip() else ()
        # Git compared all files with their blobs before it wrote its index. A file that was touched later may differ.
        compared_ns = os.stat(index).st_mtime_ns - TICK_NS  # noqa: PTH116
        # From here on git uses the bare repository of agentcli: the user's configuration could make it run programs.
        self._make_repository(attributes)
        with_alternates = self._isolated_environment | {"GIT_ALTERNATE_OBJECT_DIRECTORIES": objects}
        with_index = with_alternates | {"GIT_WORK_TREE": top, "GIT_INDEX_FILE": index}
        listing = self._run(with_index, *settings, "ls-files", "-s", "-v", "--debug", "-z", "--", _UNCONVERTED)
        unchanged = dict(_unchanged_files(os.fsdecode(listing), compared_ns))
        if not unchanged:
            return {}
        self._share_packs(Path(objects, "pack"))
        sizes = self._pack_others({file.id for file in unchanged.values()}, with_alternates)
        # A file whose size differs from its blob's was converted (see `_UNCONVERTED`), or its blob is missing.
        return {path: file for path, file in unchanged.items() if sizes.get(file.id) == file.size}

    def _make_repository(self, attributes: str) -> None:
        """Make our bare repository, with a copy of the file `attributes`. Raises `OSError`."""
        Objects(self._folder).make()
        for folder in ("objects/pack", "info"):
            make_private_folder(self._folder / folder)
        (self._folder / "info/attributes").write_bytes(read_small_file(attributes).encode(errors="surrogateescape"))

    def _pack_others(self, ids: set[str], with_alternates: Mapping[str, str]) -> dict[str, int]:
        """Make a pack of the blobs that are in no shared pack, and return the sizes of all that exist, by id."""
        sizes = self._sizes(ids, self._isolated_environment)  # only objects in our folder have one here
        if other_sizes := self._sizes(ids - sizes.keys(), with_alternates):
            new_pack = f"{self._folder}/objects/pack/pack"  # git adds the hash and the ending
            self._run(with_alternates, "pack-objects", "-q", "--window=0", new_pack, lines=other_sizes)
        return sizes | other_sizes

    def _share_packs(self, folder: Path) -> None:
        """Give the repository's packs a second name in our folder, so that nothing in them must be copied."""
        packs = [file for file in folder.iterdir() if file.suffix in (".pack", ".idx")]
        for file in sorted(packs, reverse=True):  # a pack before its index, by which git finds it
            with suppress(OSError):  # it is on another disk, belongs to another user, or is linked already
                if not file.is_symlink():
                    (self._folder / "objects/pack" / file.name).hardlink_to(file)

    def copy(self, ids: Iterable[str], objects: Objects) -> None:
        """Copy borrowed contents into `objects`, because their files have changed. Raises `OSError`."""
        missing = [id for id in ids if not objects.has(id)]
        if not missing or not self._git or not self._folder.is_dir():
            return
        with tempfile.TemporaryFile() as ids_file:
            ids_file.write("".join(f"{id}\n" for id in missing).encode())
            ids_file.seek(0)
            command = [self._git, "cat-file", "--batch", "--buffer"]
            with Popen(command, env=self._isolated_environment, stdin=ids_file, stdout=PIPE, stderr=DEVNULL) as running:
                assert running.stdout is not None
                while head := running.stdout.readline().split():
                    if len(head) == 3:  # id, type and size; a missing object has only two words
                        objects.put(running.stdout.read(int(head[2])))
                        running.stdout.read(1)  # the newline after the contents

    def _sizes(self, ids: Iterable[str], environment: Mapping[str, str]) -> dict[str, int]:
        """Return the sizes in bytes of those of the objects that exist, by id."""
        output = self._run(environment, "cat-file", "--batch-check=%(objectname) %(objectsize)", "--buffer", lines=ids)
        words = (line.split() for line in output.decode().splitlines())
        return {id: int(size) for id, size in words if size.isdigit()}  # a missing object has the line `ID missing`

    def _run(self, environment: Mapping[str, str], *arguments: str, lines: Iterable[str] = ()) -> bytes:
        text = "".join(f"{line}\n" for line in lines).encode()
        return check_output(
            [self._git, *arguments], cwd=self._root, env=environment, input=text, stderr=DEVNULL, timeout=_MAX_GIT_S
        )


def _unchanged_files(listing: str, compared_ns: int) -> Iterator[tuple[str, TrackedFile]]:
    """Yield the files in the output of `ls-files` that were last touched before `compared_ns`."""
    position = 0  # entries are matched one after another, because the name of a file may look like an entry
    while entry := _ENTRY.match(listing, position):
        position = entry.end()
        tag, mode, id, stage, path, *numbers = entry.groups()
        ctime_s, ctime_ns, mtime_s, mtime_ns, inode, size = map(int, numbers)
        changed_ns, modified_ns = ctime_s * 10**9 + ctime_ns, mtime_s * 10**9 + mtime_ns
        is_regular_file = mode.startswith("100")
        if (tag, stage) == ("H", "0") and is_regular_file and max(changed_ns, modified_ns) < compared_ns:
            yield path, TrackedFile(id, (changed_ns, modified_ns, inode), size)
