"""Keeps in the state folder what belongs to a project: its memory, which is small text files, and its lasting rules."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import filelock
import msgspec

from agentcli.agent.interfaces import Restriction
from agentcli.errors import StorageError, ToolError
from agentcli.settings.files import (
    folder_text,
    make_private_folder,
    read_small_file,
    replace_file,
    replace_private_file,
)
from agentcli.settings.structs import MemorySettings

_NAME = re.compile(r"[A-Za-z0-9_][\w. -]{0,99}(?<![. ])")
_MAX_DEPTH = 4
_LOCK_TIMEOUT_S = 5.0
_MAX_FIRST_LINE_CHARS = 120

_Rules = list[str | Restriction]  # a grant is a text
_Grants = dict[str, _Rules]  # by project root


def memory_folder(state: Path, project: Path) -> Path:
    """Return the folder of a project's files: a name that people recognise, and a hash of the project's path."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", project.name).strip(".-")[:40] or "project"
    return state / "memory" / f"{name}-{sha256(os.fsencode(project)).hexdigest()[:8]}"


class MemoryFiles:
    """Implements `Memory`. A file that another session has changed is only replaced after it was read again."""

    def __init__(self, folder: Path, settings: MemorySettings) -> None:
        self.folder = folder
        self._max_bytes, self._max_total = settings.max_file_kb * 1024, settings.max_total_kb * 1024
        self._max_files = settings.max_files
        self._seen: dict[str, bytes] = {}  # contents as this session knows them

    def index(self) -> list[tuple[str, str]]:
        return [(name, self._first_line(path)) for name, path in self._files()]

    def _first_line(self, path: Path) -> str:
        try:
            text = self._content(path).decode(errors="replace")
        except OSError:
            return "(it cannot be read)"
        return next(iter(text.strip().splitlines()), "").strip()[:_MAX_FIRST_LINE_CHARS]

    def view(self, name: str) -> str:
        path = self.place_of(name)
        content = self._seen[_key(path)] = self._read(name, path)
        return content.decode(errors="replace")

    def write(self, name: str, text: str) -> None:
        with self._locked(name) as path:
            before = self._current(name, path)
            if before is not None and self._seen.get(_key(path)) != before:
                raise ToolError(
                    f"{name} exists and you have not viewed its current version: view it, then write the complete "
                    "new content.",
                    kind="validation_error",
                )
            self._replace(name, path, text.encode(errors="replace"), is_new=before is None)

    def append(self, name: str, text: str) -> None:
        with self._locked(name) as path:
            before = self._current(name, path) or b""
            line_end = b"" if not before or before.endswith(b"\n") else b"\n"
            self._replace(name, path, before + line_end + text.encode(errors="replace") + b"\n", is_new=not before)

    def delete(self, name: str) -> None:
        with self._locked(name) as path:
            if path.is_symlink() or not path.is_file():
                self._read(name, path)  # raises an error that says what is wrong
            try:
                path.unlink()
            except OSError as error:
                raise _failed(name, "deleted", error) from error
            self._seen.pop(_key(path), None)

    @contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        """Keep other sessions from writing while the body changes the file."""
        path = self.place_of(name)
        with ExitStack() as held:
            try:
                make_private_folder(self.folder)
                lock = filelock.FileLock(self.folder.parent / f".{self.folder.name}.lock", timeout=_LOCK_TIMEOUT_S)
                held.enter_context(lock)
            except OSError as error:  # a time-out is one, too
                raise ToolError(f"The memory cannot be written now: {error}", kind="resource_error") from error
            yield path

    def _replace(self, name: str, path: Path, content: bytes, *, is_new: bool) -> None:
        """Write a file. Raises `ToolError` if it cannot be written, would be too large, or one too many."""
        others = [file for _, file in self._files() if file != path]
        total = len(content) + sum(_size(file) for file in others)
        if len(content) > self._max_bytes:
            raise _too_much(f"{name} would hold {len(content):,} bytes, and {self._max_bytes:,} is the most for a file")
        if is_new and len(others) >= self._max_files:
            raise _too_much(f"there are {len(others)} files, and {self._max_files} is the most")
        if total > self._max_total:
            raise _too_much(f"all files would hold {total:,} bytes, and {self._max_total:,} is the most")
        try:
            replace_private_file(path, content)
        except OSError as error:
            raise _failed(name, "written", error) from error
        self._seen[_key(path)] = content

    def _current(self, name: str, path: Path) -> bytes | None:
        """Return the content that is to be replaced, None if there is no file."""
        if not os.path.lexists(path):
            return None
        if _size(path) > self._max_bytes:
            raise _too_much(f"{name} holds {_size(path):,} bytes, and {self._max_bytes:,} is the most")
        return self._read(name, path)

    def _read(self, name: str, path: Path) -> bytes:
        try:
            return self._content(path)
        except FileNotFoundError as error:
            known = ", ".join(name for name, _ in self._files()) or "none yet"
            raise ToolError(f"There is no memory file {name}; there is {known}.", kind="not_found") from error
        except OSError as error:
            raise _failed(name, "read", error) from error

    def _content(self, path: Path) -> bytes:
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link")
        return read_small_file(path, max_bytes=self._max_bytes)

    def place_of(self, name: str) -> Path:
        parts = name.split("/")
        if len(parts) > _MAX_DEPTH or not all(map(_NAME.fullmatch, parts)):
            raise ToolError(
                f"{name!r} is no name of a memory file: write a relative one such as notes.md or api/errors.md.",
                kind="invalid_parameters",
            )
        path = self.folder.joinpath(*parts)
        if any(folder.is_symlink() for folder in list(path.parents)[: len(parts) - 1]):
            raise ToolError(f"{name} leads out of the memory.", kind="permission_denied")
        return path

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield names and paths, sorted. Links are no files of the memory."""
        for folder, folders, names in os.walk(self.folder):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if not name.startswith(".") and not path.is_symlink():
                    yield path.relative_to(self.folder).as_posix(), path


def _key(path: Path) -> str:
    return str(path).casefold()


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def _too_much(reason: str) -> ToolError:
    return ToolError(f"Not written: {reason}. Shorten or delete something first.", kind="validation_error")


def _failed(name: str, done: str, error: OSError) -> ToolError:
    return ToolError(f"{name} could not be {done}: {error.strerror or error}.", kind="resource_error")


class FileGrants:
    """Implements `GrantStore` for the project at `root`. Other programs may write the same file at the same time."""

    def __init__(self, file: Path, root: Path) -> None:
        self.file = file
        self._root = folder_text(root)

    def list(self) -> Sequence[str]:
        return [rule for rule in self._read().get(self._root, []) if isinstance(rule, str)]

    def restrictions(self) -> Sequence[Restriction]:
        return [rule for rule in self._read().get(self._root, []) if isinstance(rule, Restriction)]

    def add(self, rule: str) -> None:
        self._change(lambda rules: rules if rule in rules else [*rules, rule])

    def remove(self, rule: str) -> None:
        self._change(lambda rules: [other for other in rules if rule not in (other, getattr(other, "rule", other))])

    def _read(self) -> _Grants:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=_Grants)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{self.file} could not be read ({error}): mend it, or move it away.") from error

    def _change(self, change: Callable[[_Rules], _Rules]) -> None:
        try:
            make_private_folder(self.file.parent)
            with filelock.FileLock(self.file.with_suffix(".lock"), timeout=5):
                grants = self._read()
                grants[self._root] = change(grants.get(self._root, []))
                rules_by_root = {root: rules for root, rules in grants.items() if rules}
                replace_file(self.file, msgspec.json.format(msgspec.json.encode(rules_by_root)))
        except OSError as error:  # a time-out is one, too
            raise StorageError(f"{self.file} could not be written ({error}).") from error
