"""Keeps API keys in the system's keyring or a private file, and gets keys from commands."""

from __future__ import annotations

import asyncio
import os
import shlex
import stat
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from agentcli.errors import ConfigError
from agentcli.settings.files import make_private_folder, replace_file
from agentcli.settings.short_program import run_short_program

SERVICE = "agentcli"  # what keys are filed under in a keyring
_WORKING_PRIORITY = 1  # keyring's own: what ranks lower keeps nothing, or keeps it readable
LONGEST_RUN_S = 10.0
KEPT_S = 300.0
LARGEST = 64 * 1024  # bytes of output


class _StoredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str = ""
    in_keyring: bool = False


class KeptKeys:
    """Keys by the environment variable they stand in for. Without a file they are held for this process alone.

    The file names every kept key, so that a keyring, which takes long and may ask, is opened only for one that it has.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._read: dict[str, str] = {}
        self.typed: dict[str, str] = {}  # given to this process alone
        self.seen: set[str] = set()  # from elsewhere, and to be kept out of sight

    @property
    def values(self) -> tuple[str, ...]:
        """The keys that can be had without opening a keyring, for keeping them out of sight."""
        try:
            in_file = [kept.key for kept in self._index().values() if kept.key]
        except ConfigError:  # told where a key is asked for
            in_file = []
        return *self.typed.values(), *self._read.values(), *self.seen, *in_file

    def place(self, variable: str) -> str:
        """Describe the place of a key; empty if there is none. Raises `ConfigError` for a file others can read."""
        if kept := self._index().get(variable):
            return "kept in the keyring" if kept.in_keyring else f"kept in {self._file}"
        return "typed for this session" if variable in self.typed else ""

    def get(self, variable: str, *, afresh: bool = False) -> str:
        """Return the key that is kept, or an empty text; `afresh` if it may have changed. Raises `ConfigError`."""
        if (afresh or variable not in self._read) and (kept := self._index().get(variable)):
            self._read[variable] = self._from_keyring(variable) if kept.in_keyring else kept.key
        return self._read.get(variable, "")

    def store(self, variable: str, key: str) -> str:
        """Keep a key for good; gives its place. Raises `ConfigError`."""
        index = self._index()
        in_keyring = _set_in_keyring(variable, key)
        self._write(index | {variable: _StoredKey(in_keyring=True) if in_keyring else _StoredKey(key)})
        self._read[variable] = key
        return self.place(variable)

    def remove(self, variable: str) -> str:
        """Forget a key; gives the place it was in, or an empty string. Raises `ConfigError`."""
        was = self.place(variable)
        self.typed.pop(variable, None)
        self._read.pop(variable, None)
        index = self._index()
        if (kept := index.pop(variable, None)) is not None:
            if kept.in_keyring:
                _remove_from_keyring(variable)
            self._write(index)
        return was

    def _index(self) -> dict[str, _StoredKey]:
        if self._file is None:
            return {}
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise ConfigError(f"could not be read ({error.strerror}).", file=str(self._file)) from error
        with os.fdopen(descriptor, "rb") as file:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
                raise ConfigError(
                    f"holds keys and is not yours alone (mode {stat.S_IMODE(about.st_mode):o}): no key of it is used. "
                    f"chmod 600 it, and think of new keys.",
                    file=str(self._file),
                )
            try:
                return msgspec.json.decode(file.read(), type=dict[str, _StoredKey])
            except msgspec.DecodeError as error:
                raise ConfigError(f"could not be read ({error}).", file=str(self._file)) from error

    def _write(self, index: dict[str, _StoredKey]) -> None:
        assert self._file is not None, "a process without a file holds keys and keeps none"
        try:
            if not index:
                self._file.unlink(missing_ok=True)
                return
            make_private_folder(self._file.parent)
            replace_file(self._file, msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n")
        except OSError as error:
            raise ConfigError(f"could not be written ({error.strerror}).", file=str(self._file)) from error

    def _from_keyring(self, variable: str) -> str:
        import keyring

        try:
            return keyring.get_password(SERVICE, variable) or ""
        except Exception as error:
            raise ConfigError(
                f"its key is kept in the keyring, which does not give it ({error}): unlock it, or set the variable.",
                key=variable,
            ) from error


def sendable_key(key: str, error: Callable[[str], ConfigError]) -> str:
    """The key as it is. Raises the `error` where an HTTP header cannot carry it."""
    if not (key.isascii() and key.isprintable()):
        raise error("the key contains a character that an HTTP header cannot carry: copy it again.")
    return key


def _set_in_keyring(variable: str, key: str) -> bool:
    """Return True if a keyring took it. One that is locked or full has errors of its own, and there is the file."""
    try:
        import keyring

        if keyring.get_keyring().priority < _WORKING_PRIORITY:
            return False
        keyring.set_password(SERVICE, variable, key)
    except Exception:  # noqa: BLE001
        return False
    return True


def _remove_from_keyring(variable: str) -> None:
    import keyring

    try:
        keyring.delete_password(SERVICE, variable)
    except Exception as error:
        if keyring.errors.PasswordDeleteError in type(error).__mro__:  # it is gone already
            return
        raise ConfigError(f"the keyring does not remove its key ({error}).", key=variable) from error


class KeyHelper:
    """The key that `command` prints, run in `folder` without shell or terminal; no `error` shows the output."""

    def __init__(
        self, command: str, *, folder: Path, error: Callable[[str], ConfigError], on_key: Callable[[str], None]
    ) -> None:
        self._command, self._folder, self._error, self._on_key = command, folder, error, on_key
        self._asking = asyncio.Lock()
        self._key, self._until = "", 0.0

    async def key(self) -> str:
        """Raises `ConfigError`."""
        async with self._asking:
            if time.monotonic() >= self._until:
                self._key = await self._asked()
                self._until = time.monotonic() + KEPT_S
                self._on_key(self._key)
            return self._key

    def forget(self) -> None:
        """The key was refused: have the command run again for the next request."""
        self._until = 0.0

    async def _asked(self) -> str:
        words = split_command(self._command, self._error)
        try:
            end = await run_short_program(words, timeout_s=LONGEST_RUN_S, max_bytes=LARGEST, cwd=self._folder)
        except OSError as error:
            raise self._error(f"the command could not be started ({error.strerror}).") from error
        if end.exit_code is None:
            raise self._error(f"the command did not end within {LONGEST_RUN_S:g} s.")
        if end.exit_code != 0:
            raise self._error(f"the command ended with exit code {end.exit_code}: run it by hand to see why.")
        if not (key := end.stdout.decode(errors="replace").strip()):
            raise self._error("the command printed no key.")
        return sendable_key(key, self._error)


Key = str | KeyHelper  # a key, or the command that has it


def split_command(command: str, error: Callable[[str], ConfigError]) -> list[str]:
    """Its words, as a shell would part them. Raises the `error`."""
    try:
        program, *arguments = shlex.split(command)
    except ValueError as wrong:
        raise error(f"this is no command ({wrong}).") from wrong
    return [os.path.expanduser(program), *arguments]  # noqa: PTH111 - a bare name must stay one
