"""agentcli as a program of its own: started, fed, listened to, killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.app import warm

PATIENCE_S = 60.0  # for what never comes; a loaded machine may take long
# The interpreter heeds these as it starts. Coverage begins there too.
INTERPRETER_S = {
    "PYTHONPATH",
    "PYTHONPYCACHEPREFIX",
    "PYTHONIOENCODING",
    "LC_ALL",
    "COVERAGE_PROCESS_START",
    "COVERAGE_PROCESS_CONFIG",
}

Process = subprocess.Popen[bytes] | warm.Process


@dataclass(frozen=True)
class Ran:
    """How a run ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The JSON objects on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        """The last object, which is the result."""
        last = self.lines[-1]
        assert last["type"] == "result", self.out
        return last

    def of(self, type: str, subtype: str = "") -> list[dict[str, Any]]:
        return [line for line in self.lines if line["type"] == type and subtype in ("", line.get("subtype"))]


class Place:
    """A project folder and a home, with nothing of the outer environment but where programs are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.home = folder / "home"
        self.folder.mkdir()
        self.user: int | None = None  # who runs the program, if not who runs the tests
        self.is_warm = True  # if it may be forked; then /proc/PID/environ is not what it was given
        self._scripts = 0
        self.environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "AGENTCLI_HOME": str(self.home),
            "OLLAMA_HOST": "127.0.0.1:9",
            "LANG": "C.UTF-8",
            "AGENTCLI_RETRY_INITIAL_DELAY": "0.01",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",  # the machine's own is left alone
        } | {name: value for name, value in os.environ.items() if name.startswith("COV")}

    def script(self, *replies: Mapping[str, Any]) -> str:
        """A scripted model that gives these replies."""
        self._scripts += 1
        file = self.folder.parent / f"script-{self._scripts}.jsonl"
        file.write_text("".join(json.dumps(reply) + "\n" for reply in replies), "utf-8")
        return f"scripted/{file}"

    def run(
        self, *arguments: str | bytes, stdin: str | bytes | None = None, env: Mapping[str, str] | None = None
    ) -> Ran:
        """Run to the end; without `stdin` it is /dev/null."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        environment = {**self.environment, **(env or {})}
        if self._may_fork(environment):
            with warm.Process.with_pipes(arguments, self.folder, environment, stdin=given is not None) as process:
                out, err = process.communicate(given, PATIENCE_S)
            return Ran(process.wait(), out.decode(), err.decode())
        done = subprocess.run(
            self._command(arguments),
            cwd=self.folder,
            env=environment,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
            **self._who(),
            **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),  # type: ignore[arg-type]
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, stdin: bool = False) -> Running:
        return Running(self.process(*arguments, env=env, stdin=stdin))

    def talk(self, model: str, *flags: str) -> Running:
        """Start a conversation in JSON lines, both ways."""
        both = ("--output-format", "stream-json", "--input-format", "stream-json")
        return self.start("-p", *both, "-m", model, *flags, stdin=True)

    def kill_once(self, is_time: Callable[[], object], *arguments: str) -> None:
        """Start it, and kill it as soon as something is so."""
        with self.start(*arguments) as running:
            while not is_time():
                assert not running.has_ended
            running.signal(signal.SIGKILL)
            assert running.left().code == -signal.SIGKILL

    def process(self, *arguments: str, env: Mapping[str, str] | None = None, stdin: bool = False) -> Process:
        environment = {**self.environment, **(env or {})}
        if self._may_fork(environment):
            return warm.Process.with_pipes(arguments, self.folder, environment, stdin=stdin)
        return subprocess.Popen(
            self._command(arguments),
            cwd=self.folder,
            env=environment,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_hear_hangups,  # noqa: PLW1509  # it takes no lock
            **self._who(),
        )

    def _may_fork(self, environment: Mapping[str, str]) -> bool:
        return self.is_warm and self.user is None and not INTERPRETER_S & environment.keys()

    def _who(self) -> dict[str, Any]:
        return {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}

    @staticmethod
    def _command(arguments: tuple[str | bytes, ...]) -> list[str | bytes]:
        return [sys.executable, "-m", "agentcli", *arguments]


def _hear_hangups() -> None:
    """As in a terminal, also where the tests run under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Running:
    """A program that is still running; its lines are read as they come."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._out: list[str] = []
        self._err: list[bytes] = []
        self._news = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read_out, daemon=True),
            threading.Thread(target=lambda: self._err.append(process.stderr.read()), daemon=True),  # type: ignore[union-attr]
        ]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._out.append(line.decode())
                self._news.notify_all()

    def wait_for(self, found: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first JSON line for which `found` holds."""
        return dict(json.loads(self.wait_for_line(lambda line: found(json.loads(line)))))

    def wait_for_line(self, found: Callable[[str], bool]) -> str:
        """The first line for which `found` holds."""
        deadline = time.monotonic() + PATIENCE_S
        with self._news:
            while True:
                for line in self._out:
                    if found(line):
                        return line
                if not self._news.wait(deadline - time.monotonic()):
                    raise AssertionError(f"the line did not come: {self._out} {self._err}")

    def wait_for_type(self, type: str, subtype: str = "") -> dict[str, Any]:
        return self.wait_for(lambda line: line["type"] == type and subtype in ("", line.get("subtype")))

    def send(self, *objects: Mapping[str, Any] | str) -> None:
        for one in objects:
            self.send_bytes((one if isinstance(one, str) else json.dumps(one)).encode())

    def send_bytes(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()

    def say(self, text: str) -> None:
        self.send({"type": "user", "message": {"role": "user", "content": text}})

    def control(self, subtype: str, **fields: Any) -> None:
        self.send({"type": "control", "subtype": subtype, **fields})

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> Ran:
        """Close its stdin and wait until it has ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self.left()

    def left(self) -> Ran:
        """Wait until it has ended by itself, its stdin left open."""
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"it goes on and on: {self._out}") from None
        for reader in self._readers:
            reader.join(5)
        return Ran(code, "".join(self._out), b"".join(self._err).decode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class Commanded:
    """A program that takes prompts and slash commands as JSON lines."""

    def __init__(self, running: Running, *, answered: int = 0) -> None:
        self._running = running
        self.count = answered

    def say(self, text: str, answer: str) -> None:
        self._running.say(text)
        self._running.wait_for(lambda line: line.get("result") == answer)

    def command(self, text: str) -> str:
        """Run a slash command; gives its output. Answers are counted: each looks like the one before."""
        self.count += 1
        name, position = text.split()[0], self.count
        self._running.control("command", text=text)
        seen = 0

        def found(line: dict[str, Any]) -> bool:
            nonlocal seen
            seen = 0 if line.get("subtype") == "init" else seen + (line.get("subtype") == "command")
            return seen == position and line.get("command") == name

        return str(self._running.wait_for(found)["output"])


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.01)


def call(tool: str, **input: Any) -> dict[str, Any]:
    return {"name": tool, "input": input}
