"""A person at a terminal: the program in a pseudo-terminal, its screen in an emulator."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

KEYS = (
    "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "DEEPSEEK_API_KEY", "OPENROUTER_API_KEY",
    "GROQ_API_KEY", "TAVILY_API_KEY", "NO_COLOR", "FORCE_COLOR",
)  # fmt: skip
NO_KEYRING = "keyring.backends.null.Keyring"  # the machine's own is left alone
PATIENCE_S = 60.0  # for what never comes; a loaded machine may take long


class Terminal:
    """A person at a screen: `type` keys, `see` text."""

    def __init__(self, cwd: Path, *flags: str, columns: int = 100, rows: int = 40, **env: str) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""
        kept = {name: value for name, value in os.environ.items() if name not in KEYS}
        home = {"AGENTCLI_HOME": str(cwd.parent / "home"), "OLLAMA_HOST": "127.0.0.1:9", "TERM": "xterm-256color"}
        home["PYTHON_KEYRING_BACKEND"] = NO_KEYRING
        self._child = pexpect.spawn(
            sys.executable,
            ["-m", "agentcli", *flags],
            cwd=cwd,
            env={**kept, **home, **env},
            dimensions=(rows, columns),
            timeout=10,
        )
        self.screen.write_process_input = self._child.send  # a terminal answers where its cursor is

    def type(self, keys: str) -> None:
        self._child.send(keys)

    def send(self, data: bytes) -> None:
        self._child.send(data)

    def asked(self) -> str:
        """Wait for a question and for as long as nobody could have answered it."""
        self.see("Allow it|Keep it")
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
        self._child.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def kill(self, number: signal.Signals) -> None:
        self._child.kill(number)

    def settle(self, seconds: float = 0.4) -> str:
        """Read for a while; gives the screen."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read()
        return self.text()

    def _read(self) -> None:
        try:
            data = self._child.read_nonblocking(65_536, timeout=0.1)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self._child.wait()
            return
        self.written += data
        self._stream.feed(data)

    def exit_code(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while self._child.isalive() and time.monotonic() < deadline:
            self._read()
        self._child.close()
        return int(self._child.exitstatus if self._child.exitstatus is not None else -1)

    def close(self) -> None:
        self._child.close(force=True)


Open = Callable[..., Terminal]
