"""Finds secret files, and the values in them, so that searches leave them out and outputs are masked.

Judging a path takes tens of microseconds, and a search may find matches in fifty thousand files. Nearly all of them are
known to be plain by a look at their names; only the others are judged.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from itertools import repeat
from pathlib import Path

from agentcli.infra.changes.writing import open_to_read
from agentcli.infra.sandbox.git_config import find_git, path_in, run_git, text_of
from agentcli.patterns import lazy_pattern
from agentcli.safety.paths.judge import SECRET_GLOBS, SECRET_HOME_PATHS, fold_name

_EXTENSIONS = frozenset(glob.rpartition(".")[2].encode() for glob in SECRET_GLOBS if glob.startswith("*"))
_OTHERS = lazy_pattern("|".join(translate(glob) for glob in SECRET_GLOBS if not glob.startswith("*")).encode())

# A secret folder, or one that leads to one, has a part of such a name.
_FOLDERS = frozenset(
    fold_name(part).encode() for path in (*SECRET_HOME_PATHS, "proc", "secrets") for part in path.split("/")
)

# The first two letters of all such names: most names are known to be harmless by these alone.
_STARTS = frozenset(name[:2] for name in (*(glob.encode() for glob in SECRET_GLOBS if glob[0] != "*"), *_FOLDERS))

_IGNORED_ENDS = (b".", b" ")  # by Windows

MAX_FILES = 200
MAX_FILE_BYTES = 256 * 1024  # larger ones are databases, and certificates by the thousand
MAX_BYTES = 2 * 1024 * 1024
MAX_VALUES = 1_000
TICK_NS = 20_000_000  # within a tick of its file system's clock a file can change twice and keep one stamp

_OPTIONS = ("--no-optional-locks", "-c", "core.fsmonitor=false")
# Nothing is fetched, and no other object replaces one that a commit names.
_GIT_SETTINGS = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
_HEAD = (*_OPTIONS, "rev-parse", "--quiet", "--verify", "HEAD^{commit}")
_INDEX = (*_OPTIONS, "ls-files", "--stage", "-z")
_TREE = (*_OPTIONS, "ls-tree", "-r", "-z", "HEAD")
_SIZES = (*_OPTIONS, "cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)")
_CONTENTS = (*_OPTIONS, "cat-file", "--batch=%(objectname)")
_GREP = (
    *(*_OPTIONS, "grep", "--no-recurse-submodules", "--no-textconv", "--no-color", "--no-line-number", "--no-column"),
    *("-h", "-o", "-I", "-F", "-f", "-"),
)

_Stamp = tuple[int, int, int]  # the time of the last change, size, inode
GitState = tuple[object, ...]


class SecretFiles:
    """Finds the paths for which `is_secret` is true. It is asked only where a name is not known to be harmless."""

    def __init__(self, base: Path, is_secret: Callable[[Path], bool]) -> None:
        self._base = base
        self._is_secret = is_secret
        # If the plain name `a` is secret there, so is everything in the base.
        is_plain_base = not is_secret(base / "a") and all(map(_is_plain_folder, os.fsencode(base).split(b"/")[1:]))
        self._plain_folders = {b"": is_plain_base}  # for each folder below the base: its name makes no file secret

    def among(self, paths: Sequence[bytes], is_denied: Callable[[Path], bool] | None = None) -> set[bytes]:
        """Return the secret ones among paths relative to the base, and those that the person's rules deny."""
        # A rule may deny any name, so each path is tested.
        denied = (
            {path for path in paths if is_denied(self._base / os.fsdecode(path))} if is_denied is not None else set()
        )
        folders = {folder for folder, _, _ in map(bytes.rpartition, paths, repeat(b"/"))}
        are_usual = all(map(self._is_plain_folder, folders)) and not _is_odd(b"".join(paths))  # one test for all paths
        candidates = [path for path in paths if _may_match(path) or (not are_usual and self._is_unusual(path))]
        return denied.union(path for path in candidates if self._is_secret(self._base / os.fsdecode(path)))

    def _is_unusual(self, path: bytes) -> bool:
        """Return True if `_may_match` cannot judge a path: its name is odd, or a folder on it may be secret."""
        folder, _, name = path.rpartition(b"/")
        return _is_odd(name) or not self._is_plain_folder(folder)

    def _is_plain_folder(self, path: bytes) -> bool:
        is_plain = self._plain_folders.get(path)
        if is_plain is None:
            parent, _, name = path.rpartition(b"/")
            is_plain = self._plain_folders[path] = self._is_plain_folder(parent) and _is_plain_folder(name)
        return is_plain


def _is_plain_folder(name: bytes) -> bool:
    return name.lower() not in _FOLDERS and not _is_odd(name)


def _may_match(path: bytes) -> bool:
    """Return True if the last name of a path, in usual letters, may be that of a secret file."""
    name = path[path.rfind(b"/") + 1 :].lower()
    has_secret_start = name[:2] in _STARTS and (name in _FOLDERS or _OTHERS.match(name) is not None)
    return has_secret_start or name[name.rfind(b".") + 1 :] in _EXTENSIONS or name.endswith(_IGNORED_ENDS)


def _is_odd(name: bytes) -> bool:
    """Return True if some file system takes a name for another one."""
    return not name.isascii() or b"~" in name or b":" in name or name.endswith(_IGNORED_ENDS)


def git_state(root: Path) -> GitState:
    """Return the state of the index and HEAD of the repository that `root` is in, without running git.

    It is empty outside of a repository. The files are those of gitrepository-layout(5). A command may have replaced one
    of them with a named pipe, so reading never blocks.
    """
    for folder in (root, *root.parents):
        link = f"{folder}/.git"
        head = text_of(f"{link}/HEAD")
        git = link if head else path_in(link, "gitdir: ")
        if git is not None:
            head = (head or text_of(f"{git}/HEAD")).partition("\n")[0]
            common = path_in(f"{git}/commondir") or git
            return (
                head,
                _stamp(f"{git}/index"),
                _stamp(f"{common}/{head.removeprefix('ref: ')}"),
                _stamp(f"{common}/packed-refs"),
                _stamp(f"{common}/reftable/tables.list"),
            )
    return ()


def _stamp(path: str | Path) -> _Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # a Path takes longer
    except (OSError, ValueError):
        return None
    return (status.st_ctime_ns, status.st_size, status.st_ino)


class SecretValues:
    """Secret values of one workspace. A file is read again once it has changed; `environment` is what git runs in.

    A value that a committed file contains is no secret, unless that file is itself a secret one. The commit is HEAD at
    the first look: neither the index nor later commits count, because commands can write them. `secrets_among` gives
    the paths of secret files among those below a root.
    """

    def __init__(
        self, environment: Mapping[str, str], secrets_among: Callable[[Path, Sequence[bytes]], set[bytes]]
    ) -> None:
        self._environment = {**environment, **_GIT_SETTINGS}
        self._secrets_among = secrets_among
        # By root: the state of git at the last look, and the secret files in the index and HEAD below the root.
        self._tracked: dict[Path, tuple[GitState, frozenset[str]]] = {}
        self._objects: dict[str, frozenset[str]] = {}  # the values in each secret git object ever tracked, by its id
        self._program = ""  # git's path
        self._files: dict[Path, tuple[_Stamp, frozenset[str]]] = {}  # each secret file's stamp and values
        self._lock = threading.Lock()
        self._heads: dict[Path, str] = {}  # the commit of each root at the first look
        # By root: the values that were looked for in its commit, and those of them that are in it.
        self._committed: dict[Path, tuple[frozenset[str], frozenset[str]]] = {}

    def held_by(
        self, files: Collection[Path], roots: Sequence[Path], *, apart_from: Path | None = None
    ) -> frozenset[str]:
        """Return the values in `files`, except those of the file at the real path `apart_from`."""
        states = {root: git_state(root) for root in roots}
        if not files and not any(states.values()):  # nor a repository, which may have had such files
            return frozenset()
        with self._lock:
            self._program = find_git(self._environment.get("PATH", ""), tuple(roots))
            self._files = dict(self._read_files(files))
            shown = set[str]()  # values that are no secrets here
            for file, (_, values) in self._files.items() if apart_from is not None else ():
                if os.path.realpath(file) == str(apart_from):
                    shown |= values
            for root, state in states.items():
                with suppress(OSError, subprocess.TimeoutExpired):  # the next command tries again
                    self._read_tracked_if_changed(root, state)
            all_values = set[str]().union(*(values for _, values in self._files.values()), *self._objects.values())
            # If there are too many, the longest are masked.
            found = frozenset(sorted(all_values, key=len, reverse=True)[:MAX_VALUES])
            for root in roots:
                with suppress(OSError, subprocess.TimeoutExpired):
                    shown |= self._committed_in(root, found)
            return found - shown

    def _read_files(self, files: Iterable[Path]) -> Iterable[tuple[Path, tuple[_Stamp, frozenset[str]]]]:
        """Yield each file with its stamp and values, those near the root first; unchanged files are not read again."""
        room, count = MAX_BYTES, 0
        for path in sorted(set(files), key=lambda path: (len(path.parts), path)):
            stamp = _stamp(path)
            if stamp is None or not 0 < stamp[1] <= min(MAX_FILE_BYTES, room) or count >= MAX_FILES:
                continue
            changed_ns, size, inode = stamp
            if time.time_ns() - changed_ns < TICK_NS:  # it may change once more with the same stamp
                stamp = (0, size, inode)  # which no file has, so it is read again next time
            known = self._files.get(path)
            with suppress(OSError, UnicodeError):
                if known is None or known[0] != stamp or stamp[0] == 0:
                    with open_to_read(path.resolve()) as file:
                        known = stamp, _secret_values_in(file.read(MAX_FILE_BYTES))
                room, count = room - size, count + 1
                yield path, known

    def _read_tracked_if_changed(self, root: Path, state: GitState) -> None:
        if not state or self._tracked.get(root, ((), frozenset()))[0] == state:  # no repository, or it has not changed
            return
        objects: dict[bytes, set[str]] = {}
        # The index has lines `MODE OBJECT STAGE⇥PATH`, a tree has `MODE TYPE OBJECT⇥PATH`.
        for command, position in ((_INDEX, 1), (_TREE, 2)):
            for line in filter(None, self._output(command, root).split(b"\0")):
                fields, _, path = line.partition(b"\t")
                objects.setdefault(path, set()).add(fields.split(b" ")[position].decode())
        names = self._secrets_among(root, [*objects])
        new = set[str]().union(*(objects[name] for name in names)) - self._objects.keys()
        self._read_objects(sorted(new)[:MAX_FILES], root)
        self._tracked[root] = state, frozenset(map(os.fsdecode, names))

    def _read_objects(self, objects: Sequence[str], root: Path) -> None:
        room = MAX_BYTES
        sizes: dict[str, int] = {}
        described = self._output(_SIZES, root, "\n".join(objects).encode()) if objects else b""
        for line in described.decode().splitlines():
            name, kind, *further = line.split(" ")  # `OBJECT blob SIZE`, or `OBJECT missing`
            if kind == "blob" and int(further[0]) <= min(MAX_FILE_BYTES, room):
                sizes[name] = int(further[0])
                room -= sizes[name]
        content = self._output(_CONTENTS, root, "\n".join(sizes).encode()) if sizes else b""
        for name, size in sizes.items():  # for each object git prints a line, the object's content and a line end
            start = content.find(b"\n") + 1
            self._objects[name] = _secret_values_in(content[start : start + size])
            content = content[start + size + 1 :]

    def _committed_in(self, root: Path, values: frozenset[str]) -> frozenset[str]:
        """Return the values that are in a file of the commit; none where there is no commit."""
        if root not in self._heads:
            self._heads[root] = self._output(_HEAD, root).decode().strip()
        if not values or not self._heads[root]:
            return frozenset()
        looked_for, _ = self._committed.get(root, (None, None))
        if looked_for != values:
            self._committed[root] = (values, self._grep(values, root))
        return self._committed[root][1]

    def _grep(self, values: frozenset[str], root: Path) -> frozenset[str]:
        _, tracked = self._tracked.get(root, ((), frozenset[str]()))
        names = tracked.union(str(file.relative_to(root)) for file in self._files if file.is_relative_to(root))
        secret = [f":(exclude,literal){name}" for name in sorted(names)]
        lines = "\n".join(value for value in values if "\n" not in value)  # grep reads one pattern from each line
        grep = (*_GREP, self._heads[root], "--", ".", *secret)
        found = self._output(grep, root, lines.encode(errors="surrogateescape"))
        return values.intersection(found.decode(errors="surrogateescape").split("\n"))

    def _output(self, command: Sequence[str], root: Path, stdin: bytes = b"") -> bytes:
        return run_git([self._program, *command], cwd=root, environment=self._environment, stdin=stdin).stdout


def _secret_values_in(content: bytes) -> frozenset[str]:
    from agentcli.safety.secrets.settings import secret_values  # late, because it takes 20 ms

    return frozenset() if b"\0" in content else frozenset(secret_values(content.decode("utf-8-sig", "replace")))
