"""Stores files in the state folder, for one project or for all.

These are large results of tool calls, summaries that models wrote, the memory of a project (small text files), and the
permission rules that the person granted permanently.
"""

import logging
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

import msgspec

from agentcli.errors import StorageError, ToolError
from agentcli.patterns import lazy_pattern
from agentcli.settings import files
from agentcli.settings.structs import DataSettings, MemorySettings
from agentcli.tools.workspace import DataFile

_TARGET_SHARE = 0.8  # of the allowed size: cleaning leaves some room, so that the next results fit
_MEMORY_NAME = lazy_pattern(r"[A-Za-z0-9_][\w. -]{0,99}(?<![. ])")  # of a file or a folder; hidden ones are not allowed
_MAX_MEMORY_DEPTH = 4
_LOCK_TIMEOUT_S = 5.0
_MAX_FIRST_LINE_CHARS = 120

log = logging.getLogger(__name__)


class DataFolder(msgspec.Struct, kw_only=True):
    """The large results of all sessions in one folder, which several processes may use at once.

    The file `ab/cdef…` has the content with the SHA-256 hash `abcdef…`; its mtime is that of its last use.
    `calls/SESSION/CALL` is a link to it, with the mtime of the call. Results of a session for which `is_resumable` is
    true are never deleted. `outputs` has a folder for each session with the output of its commands; it is cleaned, too.
    """

    folder: Path
    outputs: Path | None = None
    is_resumable: Callable[[str], bool] = lambda session_id: False
    settings: DataSettings = DataSettings()
    clock: Callable[[], float] = time.time

    def share(self, source_id: str, fork_id: str) -> None:
        """Let a fork find the results of the session that it was forked from."""
        from shutil import copy2

        for link in self.links_of(source_id).glob("*"):
            files.make_private_folder(self.links_of(fork_id))
            with suppress(FileExistsError):
                copy2(link, self.links_of(fork_id) / link.name, follow_symlinks=False)

    def links_of(self, session_id: str) -> Path:
        return self.folder / "calls" / quote(session_id, safe="")

    def content_file(self, link: Path) -> Path:
        return self.folder.joinpath(*link.readlink().parts[-2:])  # `ab` and `cdef…`, even if the folder was moved

    def clean(self) -> None:
        """Delete old outputs and results; if the rest is too large, the least recently used results, too."""
        now, max_age_s = self.clock(), self.settings.max_age_hours * 3_600
        max_bytes = self.settings.max_size_gb * 1024**3
        links = defaultdict[Path, list[Path]](list)  # by file, the links of the calls with that result
        for link in self.folder.glob("calls/*/*"):
            links[self.content_file(link)].append(link)
        results = []  # the age of a result counts from its last call; reading it only makes it recently used
        for path in self.folder.glob("??/*"):
            with suppress(FileNotFoundError):  # another process has removed it
                status = path.stat()
                last_call_at = max((link.lstat().st_mtime for link in links[path]), default=status.st_mtime)
                is_young, last_used_at = now - last_call_at <= max_age_s, status.st_mtime
                results.append((is_young, last_used_at, status.st_size, path))
        total = sum(size for _, _, size, _ in results)
        target_size = max_bytes * _TARGET_SHARE if total > max_bytes else float("inf")
        for is_young, _, size, path in sorted(results):  # old ones first (False < True), then by last use
            if is_young and total <= target_size:
                break
            session_ids = {unquote(link.parent.name) for link in links[path]}
            if not any(map(self.is_resumable, session_ids)):
                for file in (path, *links[path]):
                    file.unlink(missing_ok=True)
                total -= size
        for session_links in self.folder.glob("calls/*"):
            with suppress(OSError):  # it is not empty
                session_links.rmdir()
        self._clean_outputs(now, max_age_s)

    def _clean_outputs(self, now: float, max_age_s: float) -> None:
        from shutil import rmtree

        for folder in self.outputs.glob("*/") if self.outputs is not None else ():
            with suppress(OSError):  # another process is removing it
                newest = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                if now - newest > max_age_s and not self.is_resumable(folder.name):
                    rmtree(folder)

    def clean_when_due(self) -> None:
        """Clean, unless the last cleaning was less than `clean_every_minutes` ago. Raises `OSError`."""
        stamp = self.folder / ".cleaned"  # an empty file, whose time is that of the last cleaning
        interval_s = self.settings.clean_every_minutes * 60
        # The stamp's time is in the future if the clock was set back.
        is_due = not stamp.exists() or abs(self.clock() - stamp.stat().st_mtime) >= interval_s
        if is_due and any(folder is not None and folder.is_dir() for folder in (self.folder, self.outputs)):
            files.make_private_folder(self.folder)
            stamp.touch()
            os.utime(stamp, (self.clock(), self.clock()))
            self.clean()


class SessionData:  # implements `DataFiles`
    def __init__(self, data: DataFolder, session_id: str) -> None:
        self._data = data
        self._links = data.links_of(session_id)

    def store(self, content: bytes, call_id: str) -> DataFile:
        hash, now = sha256(content).hexdigest(), self._data.clock()
        path = self._data.folder / hash[:2] / hash[2:]
        link = self._link(call_id)
        new_link = link.with_name(f"{link.name}.new")  # renamed, because a link cannot be changed in place
        files.make_private_folder(link.parent)
        files.replace_private_file(path, content, syncs=False)
        os.utime(path, (now, now))
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(Path("..", "..", hash[:2], hash[2:]))
        os.utime(new_link, (now, now), follow_symlinks=False)
        new_link.replace(link)
        self._data.clean_when_due()
        return DataFile(path, hash, len(content))

    def find(self, call_id: str) -> Path | None:
        now = self._data.clock()
        with suppress(FileNotFoundError):
            path = self._data.content_file(self._link(call_id))
            os.utime(path, (now, now))  # so that `clean` keeps it; raises an error if it was cleaned away
            return path
        return None

    def _link(self, call_id: str) -> Path:
        return self._links / sha256(call_id.encode(errors="surrogatepass")).hexdigest()


class SummaryFiles(msgspec.Struct):
    """Stores summaries that models wrote, by key, so that nobody pays for them again.

    The newest `max_files` are kept for `hours`. A summary that cannot be read or written counts as missing.
    """

    folder: Path
    hours: float
    max_files: int

    def get(self, key: str) -> str | None:
        file = self.folder / key
        with suppress(OSError, UnicodeDecodeError):
            if time.time() - file.stat().st_mtime < self.hours * 3_600:
                return files.read_small_file(file).decode()
        return None

    def __setitem__(self, key: str, text: str) -> None:
        try:
            files.replace_private_file(self.folder / key, text.encode(errors="replace"), syncs=False)
            newest_first = sorted(self.folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
            for file in newest_first[self.max_files :]:
                file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a summary could not be kept: %s", error)


def memory_folder(state: Path, project: Path) -> Path:
    """Return the folder of a project's memory: `memory/NAME-HASH`, with the project's name and a hash of its path."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", project.name).strip(".-")[:40] or "project"
    return state / "memory" / f"{name}-{sha256(os.fsencode(project)).hexdigest()[:8]}"


class MemoryFiles:
    """Implements `Memory`. Several sessions may change the files at the same time."""

    def __init__(self, folder: Path, settings: MemorySettings) -> None:
        self.folder = folder
        self._max_bytes, self._max_total = settings.max_file_kb * 1024, settings.max_total_kb * 1024
        self._max_files = settings.max_files

    def index(self) -> list[tuple[str, str]]:
        return [(name, self._first_line(path)) for name, path in self._files()]

    def _first_line(self, path: Path) -> str:
        try:
            text = self._content(path).decode(errors="replace")
        except OSError:
            return "(it cannot be read)"
        return next(iter(text.strip().splitlines()), "").strip()[:_MAX_FIRST_LINE_CHARS]

    def view(self, name: str) -> str:
        return self._read(name, self.path_of(name)).decode(errors="replace")

    def write(self, name: str, text: str, *, before: str | None = None) -> None:
        with self._locked(name) as path:
            current = self._read(name, path) if os.path.lexists(path) else None
            if current is not None and current.decode(errors="replace") != before:
                raise ToolError(f"{name} has changed: view it, then write it again.", kind="validation_error")
            self._replace(name, path, text.encode(errors="replace"), is_new=current is None)

    def append(self, name: str, text: str) -> None:
        with self._locked(name) as path:
            before = self._read(name, path) if os.path.lexists(path) else b""
            line_end = b"" if not before or before.endswith(b"\n") else b"\n"
            content = before + line_end + text.encode(errors="replace") + b"\n"
            self._replace(name, path, content, is_new=not before)

    def delete(self, name: str) -> None:
        with self._locked(name) as path:
            if path.is_symlink() or not path.is_file():
                self._read(name, path)  # raises an error that says what is wrong
            try:
                path.unlink()
            except OSError as error:
                raise _memory_error(name, "deleted", error) from error

    @contextmanager
    def _locked(self, name: str) -> Iterator[Path]:
        """Yield the path of a memory file, and keep other sessions from writing to the memory meanwhile."""
        path = self.path_of(name)
        with ExitStack() as held:
            try:
                files.make_private_folder(self.folder)
                lock_file = self.folder.parent / f".{self.folder.name}.lock"
                held.enter_context(files.FileLock(lock_file, timeout_s=_LOCK_TIMEOUT_S))
            except OSError as error:
                raise ToolError(f"The memory cannot be written now: {error}", kind="resource_error") from error
            yield path

    def _replace(self, name: str, path: Path, content: bytes, *, is_new: bool) -> None:
        """Write a file. Raises `ToolError` if it cannot be written, or the limits of the memory do not allow it."""
        others = [file for _, file in self._files() if file != path]
        total = len(content) + sum(_size(file) for file in others)
        new_count = len(others) + 1 if is_new else 0  # an existing file may be changed even if there are too many
        limits = (  # a size, its limit, and the text of the error
            (len(content), self._max_bytes, f"{name} would have {{:,}} bytes, and a file may have at most {{:,}}"),
            (new_count, self._max_files, "there would be {:,} files, and at most {:,} may be"),
            (total, self._max_total, "all files together would have {:,} bytes, and at most {:,} are allowed"),
        )
        for size, limit, text in limits:
            if size > limit:
                why = text.format(size, limit)
                raise ToolError(f"Not written: {why}. Shorten or delete something first.", kind="validation_error")
        try:
            files.replace_private_file(path, content)
        except OSError as error:
            raise _memory_error(name, "written", error) from error

    def _read(self, name: str, path: Path) -> bytes:
        try:
            return self._content(path)
        except FileNotFoundError as error:
            names = ", ".join(name for name, _ in self._files()) or "none yet"
            raise ToolError(f"There is no memory file {name}. Existing files: {names}.", kind="not_found") from error
        except OSError as error:
            raise _memory_error(name, "read", error) from error

    def _content(self, path: Path) -> bytes:
        if path.is_symlink():
            raise OSError("it is a link")
        return files.read_small_file(path, max_bytes=self._max_bytes)

    def path_of(self, name: str) -> Path:
        parts = name.split("/")
        if len(parts) > _MAX_MEMORY_DEPTH or not all(map(_MEMORY_NAME.fullmatch, parts)):
            raise ToolError(
                f"{name!r} is not a valid name of a memory file. Use a relative name such as notes.md or "
                "api/errors.md.",
                kind="invalid_parameters",
            )
        path = self.folder.joinpath(*parts)
        folders_in_memory = list(path.parents)[: len(parts) - 1]
        if any(folder.is_symlink() for folder in folders_in_memory):
            raise ToolError(f"{name} leads out of the memory: one of its folders is a link.", kind="permission_denied")
        return path

    def _files(self) -> Iterator[tuple[str, Path]]:
        """Yield names and paths, sorted. Links and hidden files are left out."""
        for folder, folders, names in os.walk(self.folder):
            folders.sort()  # `walk` enters them in this order
            for name in sorted(names):
                path = Path(folder, name)
                if not name.startswith(".") and not path.is_symlink():
                    yield path.relative_to(self.folder).as_posix(), path


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0


def _memory_error(name: str, done: str, error: OSError) -> ToolError:
    return ToolError(f"{name} could not be {done}: {error.strerror or error}.", kind="resource_error")


class Restriction(msgspec.Struct, frozen=True):
    """A rule that an earlier version made from the line `quote` of an instruction file; it applies until removed."""

    verb: Literal["ask", "deny"]
    rule: str
    quote: str = ""


_Rules = list[str | Restriction]  # a grant is a text, such as "Bash(git status)"
_Grants = dict[str, _Rules]  # by project root


class FileGrants:
    """Implements `GrantStore` for the project at `root`. Other programs may write the same file at the same time."""

    def __init__(self, file: Path, root: Path) -> None:
        self.file = file
        self._root = files.folder_text(root)

    def list(self) -> Sequence[str]:
        return [rule for rule in self._read().get(self._root, []) if isinstance(rule, str)]

    def restrictions(self) -> Sequence[Restriction]:
        return [rule for rule in self._read().get(self._root, []) if isinstance(rule, Restriction)]

    def add(self, rule: str) -> None:
        self._change(lambda rules: rules if rule in rules else [*rules, rule])

    def remove(self, rule: str) -> None:
        # A restriction has its rule in an attribute, a grant is one.
        self._change(lambda rules: [other for other in rules if getattr(other, "rule", other) != rule])

    def _read(self) -> _Grants:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=_Grants)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise StorageError(f"{self.file} could not be read ({error}). Correct it, or move it away.") from error

    def _change(self, change: Callable[[_Rules], _Rules]) -> None:
        try:
            files.make_private_folder(self.file.parent)
            with files.FileLock(self.file.with_suffix(".lock"), timeout_s=5):
                grants = self._read()
                grants[self._root] = change(grants.get(self._root, []))
                rules_by_root = {root: rules for root, rules in grants.items() if rules}
                files.replace_file(self.file, msgspec.json.format(msgspec.json.encode(rules_by_root)))
        except OSError as error:
            raise StorageError(f"{self.file} could not be written ({error}).") from error
