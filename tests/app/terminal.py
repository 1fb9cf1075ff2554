"""A person at a terminal: the program in a pseudo-terminal, its screen in an emulator."""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.app import warm

KEYS = (
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "DEEPSEEK_API_KEY", "OPENROUTER_API_KEY",
    "GROQ_API_KEY", "TAVILY_API_KEY", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES",
)  # fmt: skip
NO_KEYRING = "keyring.backends.null.Keyring"  # the machine's own is left alone
PATIENCE_S = 40.0  # for what never comes; a loaded machine may take long


class Terminal:
    """A person at a screen: `type` keys, `see` text."""

    def __init__(self, cwd: Path, *flags: str, columns: int = 100, rows: int = 40, **env: str) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        kept = {name: value for name, value in os.environ.items() if name not in KEYS}
        home = {"AGENTCLI_HOME": str(cwd.parent / "home"), "OLLAMA_HOST": "127.0.0.1:9", "TERM": "xterm-256color"}
        home["PYTHON_KEYRING_BACKEND"] = NO_KEYRING
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (rows, columns))
        self._process = warm.Process(flags, cwd, {**kept, **home, **env}, (slave,) * 3, has_terminal=True)
        os.close(slave)
        self._is_open = True
        self.screen.write_process_input = self.type  # a terminal answers where its cursor is

    def type(self, keys: str) -> None:
        self.send(keys.encode())

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._master, data) :]

    def asked(self) -> str:
        """Wait for a question and for as long as nobody could have answered it."""
        verbs = "Run this command|Make this edit|Write this file|Allow this call|Apply these changes"
        self.see(rf"({verbs}|Run it again with the file)\?")
        return self.settle(0.5)

    def see(self, text: str, seconds: float = PATIENCE_S) -> str:
        """Read until the screen shows `text` (a regular expression); gives the screen."""
        deadline = time.monotonic() + seconds
        while not re.search(text, self.text()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{text!r} is not on the screen:\n{self.text()}")
            self._read()
        return self.text()

    def get(self, codes: bytes) -> None:
        """Read until the program has written these bytes."""
        deadline = time.monotonic() + PATIENCE_S
        while codes not in self.written:
            assert time.monotonic() < deadline, f"{codes!r} was not written"
            self._read()

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def row_of(self, text: str) -> int:
        return next(number for number, row in enumerate(self.screen.display) if row.startswith(text))

    def transcript(self) -> str:
        """Everything, also what has scrolled away."""
        above = ["".join(row[column].data for column in range(self.screen.columns)) for row in self.screen.history.top]
        return "\n".join([*(row.rstrip() for row in above), self.text()])

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self._master, (rows, columns))
        self.screen.resize(rows, columns)

    def kill(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def settle(self, seconds: float = 0.4) -> str:
        """Read for a while; gives the screen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read()
        return self.text()

    def rest(self) -> None:
        """Read until the turn has ended: some keys do something else while one runs."""
        deadline = time.monotonic() + PATIENCE_S
        while self.screen.title.endswith("working"):
            assert time.monotonic() < deadline, "the turn does not end"
            self._read()

    def leave(self) -> None:
        """Press Ctrl-D once the turn has ended."""
        self.rest()
        self.type("\x04")

    def _read(self) -> None:
        """Feed the screen what has been written, or what comes within a moment."""
        if not self._is_open:
            time.sleep(0.01)
        elif select.select([self._master], [], [], 0.1)[0]:
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # EIO: nobody has the terminal any more
                self._is_open = False
                return
            self.written += data
            self._stream.feed(data)

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            self._read()
        while self._is_open and select.select([self._master], [], [], 0)[0]:
            self._read()
        self.close()
        return -1 if code is None or code < 0 else code

    def close(self) -> None:
        if self._master >= 0:
            os.close(self._master)
            self._master = -1
            self._is_open = False
        self._process.kill()
        self._process.wait(PATIENCE_S)


def link_of(terminal: Terminal) -> str:
    """Type `/remote`, and return the link that it shows."""
    terminal.see("› Ask")
    known = terminal.text()
    terminal.type("/remote\r")
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for link in re.findall(r"http://127\.0\.0\.1:\d+/#once=[\w-]{24}", terminal.settle(0.1)):
            if link not in known:
                return str(link)
    raise AssertionError(f"no link:\n{terminal.text()}")


Open = Callable[..., Terminal]
