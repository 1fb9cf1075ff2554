"""Runs other programs in the terminal, once our screen has released it: the person's commands, pagers, editors.

A command gets a pseudo-terminal; keys and output pass unchanged.
"""

import asyncio
import fcntl
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import termios
import tty
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from agentcli.errors import UserError
from agentcli.frontends.printable import printable
from agentcli.patterns import lazy_pattern
from agentcli.settings.short_program import run_short_program
from agentcli.tools.observation import as_shown

CLIPBOARD_TIMEOUT_S = 2.0
LAST_OUTPUT_S = 0.3  # how long to wait for the last output when a command has ended
MAX_KEPT_BYTES = 200_000  # kept of the output's beginning, and as many of its end
_CHUNK = 65_536
# The alternate screen: `h` enters it, `l` leaves it. A program's whole stay on it.
_FULL_SCREEN = lazy_pattern(rb"\x1b\[\?(?:1049|1047|47)([hl])")
_SCREENS = lazy_pattern(r"\x1b\[\?(?:1049|1047|47)h.*?(?:\x1b\[\?(?:1049|1047|47)l|\Z)", re.DOTALL)
# Undo what a killed program may leave: colours and a hidden cursor; the alternate screen, mouse and paste reports.
_PLAIN = b"\x1b[0m\x1b[?25h"
_ONE_SCREEN = b"\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l"


async def run_in_pty(run_command: Callable[[str], Awaitable[str]]) -> tuple[str, str]:
    """Run a command in a pseudo-terminal that is connected to ours; return its output and the result of `run_command`.

    `run_command` gets the pseudo-terminal's path.
    """
    session = _PtySession(sys.__stdin__.fileno(), sys.__stdout__.fileno())  # type: ignore[union-attr]  # the screen has them
    with closing(session):
        result = await session.run(run_command)
    return session.output.text, result


class ProgramOutput:
    """The output of a command: all of it, or its beginning and its end."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._cut = 0  # bytes left out of the middle, after the first `MAX_KEPT_BYTES`
        self.is_full_screen = False  # True while the program shows the alternate screen

    def add(self, data: bytes) -> None:
        if changes := _FULL_SCREEN.findall(data):
            self.is_full_screen = changes[-1] == b"h"
        self._kept += data
        if len(self._kept) > 3 * MAX_KEPT_BYTES:  # not at each call, because a cut moves the bytes after it
            self._cut += len(self._kept) - 2 * MAX_KEPT_BYTES
            del self._kept[MAX_KEPT_BYTES:-MAX_KEPT_BYTES]

    @property
    def text(self) -> str:
        """The output as a terminal finally shows it, without the screens of full-screen programs."""
        cut = f"\n[{self._cut:,} bytes cut]\n" if self._cut else ""
        text = (self._kept[:MAX_KEPT_BYTES] + cut.encode() + self._kept[MAX_KEPT_BYTES:]).decode(errors="replace")
        return printable(as_shown(_SCREENS.sub("", text)))


class _PtySession:
    """Lends our terminal to a command, through a pseudo-terminal."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.output = ProgramOutput()
        self._stdin, self._stdout = stdin, stdout
        self._loop = asyncio.get_running_loop()
        self._modes = termios.tcgetattr(stdin)  # of our terminal, restored at the end
        self._pty, self._tty = os.openpty()  # our end and the command's
        os.set_blocking(self._pty, False)
        self._unsent = bytearray()  # keys that the command has not taken yet
        self._output_ended = asyncio.Event()  # set once the output has ended

    async def run(self, run_command: Callable[[str], Awaitable[str]]) -> str:
        """Return the result of `run_command`. `close` then restores the terminal."""
        from prompt_toolkit.application.application import attach_winch_signal_handler  # plain screens do not load it

        termios.tcsetattr(self._tty, termios.TCSANOW, self._modes)
        self._copy_window_size()
        tty.setraw(self._stdin, termios.TCSADRAIN)  # keys that were typed meanwhile go to the command
        self._loop.add_reader(self._stdin, self._read_keys)
        self._loop.add_reader(self._pty, self._read_output)
        with attach_winch_signal_handler(self._copy_window_size):
            try:
                return await run_command(os.ttyname(self._tty))
            finally:
                os.close(self._tty)
                self._tty = -1  # closed
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_OUTPUT_S):
                        await self._output_ended.wait()

    def close(self) -> None:
        """Restore the terminal, with the cursor at the start of a line."""
        self._loop.remove_reader(self._stdin)
        self._loop.remove_reader(self._pty)
        self._loop.remove_writer(self._pty)
        for end in (self._pty, self._tty):
            if end >= 0:
                os.close(end)
        is_mid_line = self.output.text and not self.output.text.endswith("\n")
        with suppress(OSError):  # the terminal may be gone
            leave_screen = _ONE_SCREEN if self.output.is_full_screen else b""
            _write_all(self._stdout, leave_screen + _PLAIN + (b"\r\n" if is_mid_line else b""))
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._modes)

    def _copy_window_size(self) -> None:
        """Give the pseudo-terminal the size of our window; the kernel then signals its programs."""
        with suppress(OSError):
            fcntl.ioctl(self._pty, termios.TIOCSWINSZ, fcntl.ioctl(self._stdout, termios.TIOCGWINSZ, bytes(8)))

    def _read_output(self) -> None:
        try:
            data = os.read(self._pty, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # the other end is closed
            data = b""
        if not data:
            self._loop.remove_reader(self._pty)
            self._output_ended.set()
            return
        self.output.add(data)
        with suppress(OSError):
            _write_all(self._stdout, data)

    def _read_keys(self) -> None:
        data = b""
        with suppress(OSError):
            data = os.read(self._stdin, _CHUNK)
        if not data:  # the terminal is gone, which a signal reports as well
            self._loop.remove_reader(self._stdin)
        self._send(data)

    def _send(self, data: bytes) -> None:
        self._unsent += data
        try:
            while self._unsent:
                del self._unsent[: os.write(self._pty, self._unsent)]
        except BlockingIOError:  # keys wait until the command reads
            self._loop.add_writer(self._pty, self._send, b"")
            return
        except OSError:  # the command has ended
            self._unsent.clear()
        self._loop.remove_writer(self._pty)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


async def run_clipboard_programs(
    programs: Iterable[Sequence[str]], environment: Mapping[str, str], *, max_bytes: int = 0, stdin: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Run the programs that are installed, one after another; yield the output of each that succeeds."""
    for name, *arguments in programs:
        if program := shutil.which(name, path=environment.get("PATH", "")):
            with suppress(OSError):
                end = await run_short_program(
                    (program, *arguments),
                    timeout_s=CLIPBOARD_TIMEOUT_S,
                    max_bytes=max_bytes,
                    environment=environment,
                    stdin=stdin,
                )
                if end.exit_code == 0:
                    yield end.stdout


async def run_pager(text: str, environment: Mapping[str, str], *, line: int = 1) -> None:
    """Show `text` from `line` on in `$PAGER`, else in an installed pager. Raises `UserError` if there is none.

    A pager that cannot start at a line gets only the text from there on.
    """
    for command in (environment.get("PAGER", ""), "less -R", "more"):
        if argv := _argv(command, environment):
            seeks = line > 1 and _can_start_at_line(argv[0])
            argv += [f"+{line}"] if seeks else []
            data = (text if seeks else text.split("\n", line - 1)[-1]).encode(errors="replace")
            with suppress(OSError):
                # LESS=R, as git sets it: a `less` that $PAGER names shows the text's colours.
                await run_program(argv, {"LESS": "R", **environment}, data)
                return
    raise UserError("No pager was found. Install less, or set $PAGER to one that is installed.")


def _can_start_at_line(pager: str) -> bool:
    """Return True for a pager that starts at line 9 if it gets `+9`; those of BusyBox do not."""
    return Path(pager).resolve().name in ("less", "more", "most", "vi", "vim", "view", "nvim")


async def edit_text(text: str, environment: Mapping[str, str]) -> str:
    """Return `text` as the person's editor left it, or unchanged if the editor fails. Raises `UserError`."""
    command = environment.get("VISUAL") or environment.get("EDITOR") or "vi"
    if not (argv := _argv(command, environment)):
        raise UserError(f"The editor {command!r} was not found. Set $EDITOR to one that is installed.")
    try:
        with tempfile.TemporaryDirectory(prefix="agentcli-") as folder:
            file = Path(folder) / "prompt.md"
            file.touch(mode=0o600)
            file.write_bytes(text.encode(errors="replace"))
            if await run_program([*argv, str(file)], environment) != 0:
                return text
            return file.read_bytes().decode(errors="replace").replace("\r\n", "\n").removesuffix("\n")
    except OSError as error:
        raise UserError(
            f"The editor {command!r} could not edit the text: {error.strerror}. To use another one, set $EDITOR."
        ) from error


def _argv(command: str, environment: Mapping[str, str]) -> list[str]:
    """Split a command, and find its program in `PATH`; empty if it cannot be split or found."""
    try:
        name, *arguments = shlex.split(command)
    except ValueError:  # empty, or with an open quotation
        return []
    program = shutil.which(name, path=environment.get("PATH", ""))
    return [program, *arguments] if program else []


async def run_program(
    argv: Sequence[str], env: Mapping[str, str] | None = None, data: bytes | None = None
) -> int | None:
    """Run a program in our process group, so that Ctrl-Z stops both; return its exit code. Raises `OSError`."""
    stdin = None if data is None else asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, env=env, stdin=stdin)
    # Ctrl-C and Ctrl-\ are for the program now. If it were started after this, it would inherit the ignored signals.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        await process.communicate(data)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode
