"""Keeps API keys in the system's keyring or in a private file, and gets keys from commands."""

import asyncio
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from agentcli.errors import ConfigError
from agentcli.settings.files import read_small_file, replace_private_file

_SERVICE = "agentcli"  # the name of the program in a keyring
_MIN_PRIORITY = 1  # lower keyrings store nothing, or plain text: see `keyring.backend.KeyringBackend`
_MAX_RUN_S = 10.0  # the longest run of a command that prints a key
_KEY_LIFETIME_S = 300.0  # of the key that a command printed, after which the command runs again
_MAX_OUTPUT_BYTES = 64 * 1024


class _StoredKey(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str = ""
    in_keyring: bool = False


class StoredKeys:
    """The keys that the person gave, keyed by the environment variable that they replace.

    The file lists every stored key, also those in the keyring. A keyring is slow and may ask for a password, so it is
    opened only for keys that are listed there. Without a file, keys last as long as the process.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._cached: dict[str, str] = {}  # stored keys that this process has read
        self.typed: dict[str, str] = {}  # keys that the person entered for this process alone
        self.printed: set[str] = set()  # keys that commands printed, which must be masked, too

    @property
    def known_keys(self) -> tuple[str, ...]:
        """All keys that are known without opening a keyring, so that they can be masked."""
        in_file: list[str] = []
        with suppress(ConfigError):  # `get` raises it where a key is needed
            in_file += [stored.key for stored in self._index().values() if stored.key]
        return *self.typed.values(), *self._cached.values(), *self.printed, *in_file

    def place(self, variable: str) -> str:
        """Describe where a key is stored; "" if it is not. Raises `ConfigError` for a file that others can read."""
        if stored := self._index().get(variable):
            return "saved in the keyring" if stored.in_keyring else f"saved in {self._file}"
        return "entered for this session" if variable in self.typed else ""

    def get(self, variable: str, *, reread: bool = False) -> str:
        """Return the stored key, "" if there is none. Raises `ConfigError`.

        `reread` ignores the key that was read before, because another process may have replaced or removed it.
        """
        if reread or variable not in self._cached:
            if (stored := self._index().get(variable)) is None:
                self._cached.pop(variable, None)
                return ""
            self._cached[variable] = _get_from_keyring(variable) if stored.in_keyring else stored.key
        return self._cached[variable]

    def store(self, variable: str, key: str) -> str:
        """Store a key permanently and describe where it is. Raises `ConfigError`."""
        index = self._index()
        in_keyring = _set_in_keyring(variable, key)
        self._write(index | {variable: _StoredKey(in_keyring=True) if in_keyring else _StoredKey(key)})
        self._cached[variable] = key
        return self.place(variable)

    def remove(self, variable: str) -> str:
        """Remove a key and describe where it was, "" if nowhere. Raises `ConfigError`."""
        place = self.place(variable)
        self.typed.pop(variable, None)
        self._cached.pop(variable, None)
        index = self._index()
        if (stored := index.pop(variable, None)) is not None:
            if stored.in_keyring:
                _remove_from_keyring(variable)
            self._write(index)
        return place

    def _index(self) -> dict[str, _StoredKey]:
        """Return the stored keys by variable. Raises `ConfigError`, also if others can read the file."""
        if self._file is None:
            return {}
        try:
            content, status = read_small_file(self._file), self._file.stat()
            index = msgspec.json.decode(content, type=dict[str, _StoredKey])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, msgspec.DecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"could not be read ({reason}).", file=str(self._file)) from error
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(
                f"contains keys but is not private to you (mode {stat.S_IMODE(status.st_mode):o}), so none is used. "
                f"Run chmod 600 on it, and replace the keys.",
                file=str(self._file),
            )
        return index

    def _write(self, index: dict[str, _StoredKey]) -> None:
        assert self._file is not None, "a process without a file stores no keys"
        try:
            if index:
                replace_private_file(self._file, msgspec.json.format(msgspec.json.encode(index), indent=2) + b"\n")
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"could not be written ({error.strerror}).", file=str(self._file)) from error


def sendable_key(key: str, make_error: Callable[[str], ConfigError]) -> str:
    """Return the key. Raises an error if an HTTP header cannot carry it."""
    if not (key.isascii() and key.isprintable()):
        raise make_error("the key contains a character that HTTP headers do not allow. Copy it again.")
    return key


def _get_from_keyring(variable: str) -> str:
    import keyring

    try:
        return keyring.get_password(_SERVICE, variable) or ""
    except Exception as error:  # each keyring has its own errors
        why = f"could not read its key from the keyring ({error}). Unlock the keyring, or set the variable."
        raise ConfigError(why, key=variable) from error


def _set_in_keyring(variable: str, key: str) -> bool:
    """Return True if a keyring stored the key. After any error of a keyring the key goes to the file instead."""
    with suppress(Exception):
        import keyring

        if keyring.get_keyring().priority >= _MIN_PRIORITY:
            keyring.set_password(_SERVICE, variable, key)
            return True
    return False


def _remove_from_keyring(variable: str) -> None:
    import keyring

    try:
        with suppress(keyring.errors.PasswordDeleteError):  # it is gone already
            keyring.delete_password(_SERVICE, variable)
    except Exception as error:
        raise ConfigError(f"could not remove its key from the keyring ({error}).", key=variable) from error


class KeyHelper:
    """Gets a key from a command, which runs in a folder without shell or terminal. Errors never show its output."""

    def __init__(
        self, command: str, *, folder: Path, make_error: Callable[[str], ConfigError], on_key: Callable[[str], None]
    ) -> None:
        self._command, self._folder, self._make_error, self._on_key = command, folder, make_error, on_key
        self._lock = asyncio.Lock()  # requests that start together run the command once
        self._key, self._valid_until = "", 0.0  # a `time.monotonic()`

    async def key(self) -> str:
        """Return the key; the command runs again after some minutes. Raises `ConfigError`."""
        async with self._lock:
            if time.monotonic() >= self._valid_until:
                self._key = await self._run_command()
                self._valid_until = time.monotonic() + _KEY_LIFETIME_S
                self._on_key(self._key)
            return self._key

    def forget(self) -> None:
        """Forget the key, because the provider rejected it: the next request runs the command again."""
        self._valid_until = 0.0

    async def _run_command(self) -> str:
        from agentcli.settings.short_program import run_short_program

        words = split_command(self._command, self._make_error)
        try:
            end = await run_short_program(words, timeout_s=_MAX_RUN_S, max_bytes=_MAX_OUTPUT_BYTES, cwd=self._folder)
        except OSError as error:
            raise self._make_error(f"could not start the command ({error.strerror}).") from error
        if end.exit_code is None:
            raise self._make_error(f"the command did not finish within {_MAX_RUN_S:g} s.")
        if end.exit_code != 0:
            raise self._make_error(f"the command failed with exit code {end.exit_code}. Run it yourself to see why.")
        if not (key := end.stdout.decode(errors="replace").strip()):
            raise self._make_error("the command printed no key.")
        return sendable_key(key, self._make_error)


Key = str | KeyHelper  # a key, or the command that prints it


def split_command(command: str, make_error: Callable[[str], ConfigError]) -> list[str]:
    """Split a key helper's command into words as a shell does. Raises an error for an empty or invalid command."""
    import shlex

    try:
        program, *arguments = shlex.split(command)
    except ValueError as problem:
        raise make_error(f"this is not a valid command ({problem}).") from problem
    return [os.path.expanduser(program), *arguments]  # noqa: PTH111 - pathlib would drop `./`
