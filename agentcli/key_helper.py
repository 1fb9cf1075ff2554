"""Gets a provider's key from a command of the person's, and keeps it for five minutes."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from agentcli.errors import ConfigError
from agentcli.kept_keys import sendable_key
from agentcli.short_program import run_short_program

LONGEST_RUN_S = 10.0
KEPT_S = 300.0
LARGEST = 64 * 1024  # bytes of output


class KeyHelper:
    """The key that `command` prints. It runs in `folder`, without a shell and without a terminal.

    `error` makes an error about the setting of a sentence, which never shows what was printed. `on_key` is told each
    new key, for keeping it out of sight.
    """

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


def split_command(command: str, error: Callable[[str], ConfigError]) -> list[str]:
    """Its words, as a shell would part them. Raises the `error`."""
    try:
        program, *arguments = shlex.split(command)
    except ValueError as wrong:
        raise error(f"this is no command ({wrong}).") from wrong
    return [os.path.expanduser(program), *arguments]  # noqa: PTH111 - a bare name must stay one
