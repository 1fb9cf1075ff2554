"""Hands the terminal to a pager or an editor, and takes it back."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agentcli.errors import UserError

_PAGERS = ("less -R", "more")


async def run_pager(text: str, environment: Mapping[str, str]) -> bool:
    """Show `text` in `$PAGER`, else in one that is there; False when there is none.

    The screen must have let go the terminal.
    """
    data = text.encode(errors="replace")
    for command in (environment.get("PAGER", ""), *_PAGERS):
        argv = _argv(command, environment)
        # Colours in the text are shown by a `less` that $PAGER names too; git has the same default.
        if argv:
            with suppress(OSError):
                await run_program(argv, {"LESS": "R", **environment}, data)
                return True
    return False


async def edit_text(text: str, environment: Mapping[str, str], suffix: str = ".md") -> str:
    """`text` as the person left it in `$VISUAL`, `$EDITOR` or vi; unchanged when the editor fails.

    Raises `UserError` when there is no such editor. The file is the person's alone and gone afterwards, with whatever
    the editor put beside it.
    """
    command = environment.get("VISUAL") or environment.get("EDITOR") or "vi"
    argv = _argv(command, environment)
    if not argv:
        raise UserError(f"The editor {command!r} was not found: set $EDITOR to one that is installed.")
    try:
        with tempfile.TemporaryDirectory(prefix="agentcli-") as folder:
            file = Path(folder) / f"prompt{suffix}"
            file.touch(mode=0o600)
            file.write_bytes(text.encode(errors="replace"))
            try:
                code = await run_program([*argv, str(file)], environment)
            except OSError as error:
                message = f"The editor {command!r} could not be started: set $EDITOR to one that is installed."
                raise UserError(message) from error
            if code != 0:
                return text
            return file.read_bytes().decode(errors="replace").replace("\r\n", "\n").removesuffix("\n")
    except OSError as error:
        raise UserError(f"The text could not be edited: {error.strerror}.") from error


def _argv(command: str, environment: Mapping[str, str]) -> list[str]:
    """The program and its arguments; empty when there is no such program."""
    try:
        name, *arguments = shlex.split(command)
    except ValueError:  # nothing in it, or an open quotation
        return []
    program = shutil.which(name, path=environment.get("PATH", ""))
    return [program, *arguments] if program else []


async def run_program(
    argv: Sequence[str], environment: Mapping[str, str] | None = None, data: bytes | None = None
) -> int | None:
    """Run a program that has the terminal, with `data` for its input; gives its exit code. Raises `OSError`.

    It stays in our process group, so that Ctrl-Z stops both.
    """
    stdin = None if data is None else asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, env=environment, stdin=stdin)
    try:
        with _keys_are_not_ours():
            await process.communicate(data)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode


@contextmanager
def _keys_are_not_ours() -> Iterator[None]:
    """Ctrl-C and Ctrl-\\ reach every process of the terminal; meanwhile they are meant for the other one.

    A program that is started while a signal is ignored ignores it too: start it before.
    """
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
