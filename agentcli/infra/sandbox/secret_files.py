"""Finds secret files, and the values in them, so that searches can skip the files and outputs can be masked.

A full check of a path takes tens of microseconds, and a search may find matches in fifty thousand files. Nearly all of
these are ruled out by a quick test of their names; only the others get the full check.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from pathlib import Path
from typing import NamedTuple

from agentcli.infra.changes.writing import TICK_NS, open_to_read
from agentcli.infra.sandbox.git_config import find_git, read_linked_path, read_small_file, run_git
from agentcli.patterns import lazy_pattern
from agentcli.safety.paths.judge import SECRET_GLOBS, SECRET_HOME_PATHS, fold_name

_EXTENSIONS = frozenset(glob.rpartition(".")[2].encode() for glob in SECRET_GLOBS if glob.startswith("*"))
_OTHERS = lazy_pattern("|".join(translate(glob) for glob in SECRET_GLOBS if not glob.startswith("*")).encode())

# The names of secret folders, and of the folders that contain these.
_FOLDERS = frozenset(
    fold_name(part).encode() for path in (*SECRET_HOME_PATHS, "proc", "secrets") for part in path.split("/")
)

# The first two letters of all secret names: most names are ruled out by these alone.
_STARTS = frozenset(name[:2] for name in (*(glob.encode() for glob in SECRET_GLOBS if glob[0] != "*"), *_FOLDERS))

_IGNORED_ENDS = (b".", b" ")  # Windows ignores them at the end of a name

# Limits that keep commands from waiting for long. Values beyond them are not masked; the files still stay hidden.
MAX_FILES = 200  # secret files; also git objects that are new after a change of git's state
MAX_FILE_BYTES = 256 * 1024  # larger ones are databases, and collections of thousands of certificates
MAX_BYTES = 2 * 1024 * 1024  # of all files together
MAX_VALUES = 1_000

_OPTIONS = ("--no-optional-locks", "-c", "core.fsmonitor=false")
# Git must not fetch anything, nor use objects that replace the committed ones.
_GIT_SETTINGS = {"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1"}
_HEAD = ("rev-parse", "--quiet", "--verify", "HEAD^{commit}")
_INDEX = ("ls-files", "--stage", "-z")
_TREE = ("ls-tree", "-r", "-z", "HEAD")
_SIZES = ("cat-file", "--batch-check=%(objectname) %(objecttype) %(objectsize)")
_CONTENTS = ("cat-file", "--batch=%(objectname)")
_GREP = (
    *("grep", "--no-recurse-submodules", "--no-textconv", "--no-color", "--no-line-number", "--no-column"),
    *("-h", "-o", "-I", "-F", "-f", "-"),
)

GitState = tuple[object, ...]  # differs whenever HEAD or the index may have changed


class Stamp(NamedTuple):
    """Shows if a file changed; not within `TICK_NS` after `changed_ns`."""

    changed_ns: int
    size: int
    inode: int


class SecretFiles:
    """Finds the paths for which `is_secret` is true; it is called only for names that a quick test cannot rule out."""

    def __init__(self, base: Path, is_secret: Callable[[Path], bool]) -> None:
        self._base = base
        self._is_secret = is_secret
        # If even a file named `a` is secret, everything in the base is.
        is_plain_base = not is_secret(base / "a") and all(map(_is_plain_name, os.fsencode(base).split(b"/")[1:]))
        self._plain_folders = {b"": is_plain_base}  # folder below the base -> True if its path makes no file secret

    def among(self, paths: Sequence[bytes], is_denied: Callable[[Path], bool] | None = None) -> set[bytes]:
        """Return the paths, relative to the base, that are secret or that the person's rules deny."""
        denied = set[bytes]()
        if is_denied is not None:  # a rule may deny any name, so every path is tested
            denied = {path for path in paths if is_denied(self._base / os.fsdecode(path))}
        folders = {path.rpartition(b"/")[0] for path in paths}
        # If all are plain, their last names decide. One test of all together takes less time than one of each.
        are_plain = all(map(self._is_plain_folder, folders)) and not _is_ambiguous(b"".join(paths))
        candidates = [path for path in paths if _looks_secret(path) or (not are_plain and self._needs_full_check(path))]
        return denied.union(path for path in candidates if self._is_secret(self._base / os.fsdecode(path)))

    def _needs_full_check(self, path: bytes) -> bool:
        """Return True if a path's last name is not enough: it is ambiguous, or a folder of the path may be secret."""
        folder, _, name = path.rpartition(b"/")
        return _is_ambiguous(name) or not self._is_plain_folder(folder)

    def _is_plain_folder(self, path: bytes) -> bool:
        is_plain = self._plain_folders.get(path)
        if is_plain is None:
            parent, _, name = path.rpartition(b"/")
            is_plain = self._plain_folders[path] = self._is_plain_folder(parent) and _is_plain_name(name)
        return is_plain


def _is_plain_name(name: bytes) -> bool:
    return name.lower() not in _FOLDERS and not _is_ambiguous(name)


def _looks_secret(path: bytes) -> bool:
    """Return True if the last name of a path may be that of a secret file; ambiguous names are not recognised."""
    name = path[path.rfind(b"/") + 1 :].lower()
    has_secret_start = name[:2] in _STARTS and (name in _FOLDERS or _OTHERS.match(name) is not None)
    return has_secret_start or name[name.rfind(b".") + 1 :] in _EXTENSIONS or name.endswith(_IGNORED_ENDS)


def _is_ambiguous(name: bytes) -> bool:
    """Return True if some file system may treat a name as another one."""
    return not name.isascii() or b"~" in name or b":" in name or name.endswith(_IGNORED_ENDS)


def git_state(root: Path) -> GitState:
    """Return the state of the index and HEAD of the repository around `root`, without running git; () without one."""
    # gitrepository-layout(5). Any file may be a command's named pipe, on which `read_small_file` does not block.
    for folder in (root, *root.parents):
        dot_git = f"{folder}/.git"
        head = read_small_file(f"{dot_git}/HEAD")
        git_folder = dot_git if head else read_linked_path(dot_git, "gitdir: ")
        if git_folder is not None:
            head = (head or read_small_file(f"{git_folder}/HEAD")).partition("\n")[0]
            common = read_linked_path(f"{git_folder}/commondir") or git_folder
            return (
                head,
                stamp_of(f"{git_folder}/index"),
                stamp_of(f"{common}/{head.removeprefix('ref: ')}"),
                stamp_of(f"{common}/packed-refs"),
                stamp_of(f"{common}/reftable/tables.list"),
            )
    return ()


def stamp_of(path: str | Path) -> Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116  # a Path takes longer
    except (OSError, ValueError):
        return None
    return Stamp(status.st_ctime_ns, status.st_size, status.st_ino)


class SecretValues:
    """The secret values of one workspace. Files are read again only after they change. Git runs in `environment`.

    A value in a committed file is not a secret, unless that file is itself a secret file. The commit is the HEAD of the
    first call, because commands can write the index and commit. `secrets_among` finds the secret ones among paths.
    """

    def __init__(
        self, environment: Mapping[str, str], secrets_among: Callable[[Path, Sequence[bytes]], set[bytes]]
    ) -> None:
        self._environment = {**environment, **_GIT_SETTINGS}
        self._secrets_among = secrets_among
        # Root -> the state of git at the last call, and the secret files in the index and HEAD below the root.
        self._tracked: dict[Path, tuple[GitState, frozenset[str]]] = {}
        self._objects: dict[str, frozenset[str]] = {}  # id of a git object that was a secret file -> its values
        self._git = ""  # the path of git
        self._files: dict[Path, tuple[Stamp, frozenset[str]]] = {}  # secret file -> its stamp and values
        self._lock = threading.Lock()
        # Root -> the commit that was HEAD at the first call, the values of the last search in it, and those found.
        self._committed: dict[Path, tuple[str, frozenset[str], frozenset[str]]] = {}

    def values_in(
        self, files: Collection[Path], roots: Sequence[Path], *, apart_from: Path | None = None
    ) -> frozenset[str]:
        """Return the values to mask: those in `files` and the roots' repositories, but not in the file `apart_from`."""
        states = {root: git_state(root) for root in roots}
        if not files and not any(states.values()):  # and there is no repository that may have had secret files
            return frozenset()
        with self._lock:
            self._git = find_git(self._environment.get("PATH", ""), tuple(roots))
            self._files = dict(self._read_files(files))
            shown = set[str]()  # not to be masked: values in `apart_from`, which the person opened, and committed ones
            for file, (_, values) in self._files.items():
                if apart_from is not None and os.path.realpath(file) == str(apart_from):
                    shown |= values
            for root, state in states.items():
                with suppress(OSError, subprocess.TimeoutExpired):  # the next command tries again
                    self._read_tracked_if_changed(root, state)
            all_values = set[str]().union(*(values for _, values in self._files.values()), *self._objects.values())
            # If there are too many values, only the longest are masked.
            found = frozenset(sorted(all_values, key=len, reverse=True)[:MAX_VALUES])
            for root in roots:
                with suppress(OSError, subprocess.TimeoutExpired):
                    shown |= self._find_committed(root, found)
            return found - shown

    def _read_files(self, files: Iterable[Path]) -> Iterable[tuple[Path, tuple[Stamp, frozenset[str]]]]:
        """Yield each file with its stamp and values, files near the root first; unchanged files are not read again."""
        free_bytes, count = MAX_BYTES, 0  # bytes that may still be read, and files that were
        for path in sorted(set(files), key=lambda path: (len(path.parts), path)):
            stamp = stamp_of(path)
            if count >= MAX_FILES or stamp is None or not 0 < stamp.size <= min(MAX_FILE_BYTES, free_bytes):
                continue
            is_reliable = time.time_ns() - stamp.changed_ns >= TICK_NS  # else the file may change and keep its stamp
            known_stamp, values = self._files.get(path, (None, frozenset[str]()))
            with suppress(OSError, UnicodeError):
                if stamp != known_stamp or not is_reliable:
                    with open_to_read(path.resolve()) as file:
                        values = _secret_values_in(file.read(MAX_FILE_BYTES))
                    if not is_reliable:  # no file has the change time 0, so this one is read again next time
                        stamp = stamp._replace(changed_ns=0)
                free_bytes, count = free_bytes - stamp.size, count + 1
                yield path, (stamp, values)

    def _read_tracked_if_changed(self, root: Path, state: GitState) -> None:
        """Read the values in the secret files of the index and HEAD, if `state` is not that of the last call."""
        last_state, _ = self._tracked.get(root, ((), frozenset[str]()))
        if state in ((), last_state):  # there is no repository, or nothing changed
            return
        objects: dict[bytes, set[str]] = {}  # path -> ids of its objects
        # Entries are `MODE OBJECT STAGE⇥PATH` in the index, and `MODE TYPE OBJECT⇥PATH` in a tree.
        for command, position in ((_INDEX, 1), (_TREE, 2)):
            for line in filter(None, self._git_output(command, root).split(b"\0")):
                fields, _, path = line.partition(b"\t")
                objects.setdefault(path, set()).add(fields.split(b" ")[position].decode())
        names = self._secrets_among(root, [*objects])
        new = set[str]().union(*(objects[name] for name in names)) - self._objects.keys()
        self._read_objects(sorted(new)[:MAX_FILES], root)
        self._tracked[root] = state, frozenset(map(os.fsdecode, names))

    def _read_objects(self, objects: Sequence[str], root: Path) -> None:
        """Read the secret values in git objects by their ids; those that are too large are skipped."""
        free_bytes = MAX_BYTES
        sizes: dict[str, int] = {}
        described = self._git_output(_SIZES, root, "\n".join(objects).encode()) if objects else b""
        for line in described.decode().splitlines():
            id, kind, *size_field = line.split(" ")  # `OBJECT blob SIZE`, or `OBJECT missing`
            if kind == "blob" and int(size_field[0]) <= min(MAX_FILE_BYTES, free_bytes):
                sizes[id] = int(size_field[0])
                free_bytes -= sizes[id]
        content = self._git_output(_CONTENTS, root, "\n".join(sizes).encode()) if sizes else b""
        for id, size in sizes.items():  # git prints a line for each object, then its content and a line end
            start = content.find(b"\n") + 1
            self._objects[id] = _secret_values_in(content[start : start + size])
            content = content[start + size + 1 :]

    def _find_committed(self, root: Path, values: frozenset[str]) -> frozenset[str]:
        """Return the values that an ordinary file of the commit contains; none if there is no commit."""
        if root not in self._committed:
            head = self._git_output(_HEAD, root).decode().strip()
            self._committed[root] = head, frozenset(), frozenset()
        head, searched, found = self._committed[root]
        if head and searched != values:
            found = self._grep_commit(head, values, root)
            self._committed[root] = head, values, found
        return found

    def _grep_commit(self, head: str, values: frozenset[str], root: Path) -> frozenset[str]:
        """Return the values that git finds in the commit outside its secret files."""
        _, tracked = self._tracked.get(root, ((), frozenset[str]()))
        names = tracked.union(str(file.relative_to(root)) for file in self._files if file.is_relative_to(root))
        excluded = [f":(exclude,literal){name}" for name in sorted(names)]
        lines = "\n".join(value for value in values if "\n" not in value)  # grep reads one pattern per line
        patterns = lines.encode(errors="surrogateescape")
        found = self._git_output((*_GREP, head, "--", ".", *excluded), root, patterns)
        return values.intersection(found.decode(errors="surrogateescape").split("\n"))

    def _git_output(self, command: Sequence[str], root: Path, stdin: bytes = b"") -> bytes:
        return run_git([self._git, *_OPTIONS, *command], cwd=root, environment=self._environment, stdin=stdin).stdout


def _secret_values_in(content: bytes) -> frozenset[str]:
    from agentcli.safety.secrets.settings import secret_values  # imported late, because it takes 20 ms

    return frozenset() if b"\0" in content else frozenset(secret_values(content.decode("utf-8-sig", "replace")))
