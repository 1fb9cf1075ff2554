"""Finds agentcli's folders, homes and project roots; reads, replaces and locks files.

A project's file may turn out to be a pipe or endless, so `read_small_file` never waits and has a limit.
"""

import errno
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from agentcli.errors import UsageError

_MAX_TEXT_FILES = 1_000  # below a folder of commands, skills or the like
_MAX_TEXT_FILES_DEPTH = 10
MAX_SMALL_FILE_BYTES = 1024 * 1024


class Paths(Struct, frozen=True):
    """The folders of agentcli. They need not exist."""

    config: Path
    state: Path
    cache: Path

    @property
    def user_config(self) -> Path:
        return self.config / "config.toml"

    @property
    def credentials(self) -> Path:
        return self.config / "credentials.json"  # the keys that the person gave

    @property
    def sessions(self) -> Path:
        return self.state / "sessions.db"

    @property
    def plugin_index(self) -> Path:
        return self.config / "plugins/installed.json"  # beside the folders of the installed plugins

    @property
    def secret(self) -> tuple[Path, ...]:
        return self.user_config, self.credentials, self.state  # with keys, and the conversations of all projects

    @property
    def models(self) -> Path:
        return self.cache / "models"  # the weights of the embedded model


def find_paths(home: str | None) -> Paths:
    """Return the folders below `home` (AGENTCLI_HOME) if it is given, else the platform's own folders."""
    if home:
        folder = from_home(home, "AGENTCLI_HOME").absolute()
        return Paths(folder, folder / "state", folder / "cache")
    import platformdirs  # imported late, because AGENTCLI_HOME makes it unnecessary

    dirs = platformdirs.PlatformDirs("agentcli", appauthor=False)
    return Paths(dirs.user_config_path, dirs.user_state_path, dirs.user_cache_path)


def from_home(name: str, given_as: str = "") -> Path:
    """Return a path with `~` and `~user` expanded. Raises `UsageError` about `given_as` if there is no such home."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{given_as}: {name} names a missing home folder.".removeprefix(": ")) from error


def current_folder() -> Path:
    """Return the current folder. Raises `UsageError` if it was removed."""
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError("The current folder no longer exists. `cd` to another one.") from error


def home_of(environment: Mapping[str, str]) -> Path:
    home = environment.get("HOME", "")
    return Path(home) if home.startswith("/") else Path.home()


def is_writable(folder: Path) -> bool:
    """Return True for a folder that is writable, or that can be made."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110 - never raises
    return nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)


def project_root(cwd: Path) -> Path:
    """Return the nearest folder upwards with a `.git`, else `cwd` itself."""
    return next((folder for folder in (cwd, *cwd.parents) if os.path.exists(folder / ".git")), cwd)  # noqa: PTH110


def folder_text(folder: Path) -> str:
    """Return a folder as text; if its name is not UTF-8, as its `file:` address, which no other folder has."""
    try:
        return str(folder).encode().decode()
    except UnicodeEncodeError:
        return folder.absolute().as_uri()


def markdown_files(folder: Path) -> list[Path]:
    return text_files(folder, (".md",))


def text_files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files with these endings below a folder, sorted and limited. Linked folders are not entered."""
    files: list[Path] = []
    waiting = [(folder, 0)]
    while waiting and len(files) < _MAX_TEXT_FILES:
        current, depth = waiting.pop()
        with suppress(OSError), os.scandir(current) as entries:  # it may not exist, or not be readable
            for entry in itertools.islice(entries, _MAX_TEXT_FILES):
                if entry.is_dir(follow_symlinks=False) and depth < _MAX_TEXT_FILES_DEPTH:
                    waiting.append((current / entry.name, depth + 1))
                elif entry.name.endswith(endings) and entry.is_file():
                    files.append(current / entry.name)
    return sorted(files)


def is_file(path: Path) -> bool:
    """Return True for a file; False also if its folder may not be searched."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_small_file(
    path: Path, *, max_bytes: int = MAX_SMALL_FILE_BYTES, real: Path | None = None, truncates: bool = False
) -> bytes:
    """Return the content of a regular file without ever waiting, as opening a FIFO would. Raises `OSError`.

    A file larger than `max_bytes` is an error or, with `truncates`, only its beginning is returned. It is also an
    error if the path no longer leads to `real`, where it led when it was checked.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    # `open` rejects a folder, and closes it.
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        descriptor = file.fileno()
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        is_elsewhere = False
        with suppress(OSError):  # no /proc: another system, which cannot say where the path led
            is_elsewhere = real is not None and os.readlink(f"/proc/self/fd/{descriptor}") != str(real)  # noqa: PTH115
        if is_elsewhere:
            raise OSError(errno.ELOOP, "it now points elsewhere", str(path))
        content = file.read(max_bytes if truncates else max_bytes + 1)  # one more shows that it is larger
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes", str(path))
    return content


def make_private_folder(folder: Path) -> None:
    """Make a folder, and missing folders around it, accessible only to their owner. Raises `OSError`."""
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            with suppress(FileExistsError):  # another process made it; a file in its place is an error below
                path.mkdir(mode=0o700)
                path.chmod(0o700)  # the umask may have removed what the owner needs
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def replace_file(file: Path, content: bytes, *, mode: int = 0o600, syncs: bool = True) -> None:
    """Replace a file atomically; with `syncs`, only after the new content is on disk. Raises `OSError`."""
    new = file.with_name(f".{file.name}.{os.urandom(6).hex()}")  # not by `tempfile`, whose import takes 2 ms
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            os.fchmod(descriptor, mode)
            out.write(content)
            if syncs:
                out.flush()
                os.fsync(descriptor)
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def replace_private_file(file: Path, content: bytes, *, syncs: bool = True) -> None:
    """Replace a file as `replace_file` does, and make missing folders around it. Raises `OSError`."""
    make_private_folder(file.parent)
    replace_file(file, content, syncs=syncs)


class FileLock:
    """A lock between processes, and between parts of this one. A kill releases it. Its methods raise `OSError`."""

    def __init__(self, file: Path, *, timeout_s: float = 0.0, poll_s: float = 0.05) -> None:
        self._file, self._timeout_s, self._poll_s = file, timeout_s, poll_s
        self._descriptor: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:  # else its last holder deleted the file, and others lock a new one
                self._descriptor, descriptor = descriptor, -1
        except BlockingIOError:
            pass
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock, or wait for it. Raises `TimeoutError`."""
        deadline = time.monotonic() + self._timeout_s
        while not self.try_acquire():
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another program holds the lock {self._file}")
            time.sleep(self._poll_s)

    def release(self) -> None:
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # closing would not free it while a forked process has it, too
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()
