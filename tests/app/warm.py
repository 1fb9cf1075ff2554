"""Start agentcli at a tenth of the cost: fork a process that has imported it, and let its main run there.

Run as a program, this file is that process. All workers of a test run share one. Each connection to its socket brings
the descriptors of a program and how to start it, and takes back its process id and, later, its exit code. A connection
without descriptors is a lease: the process ends with the last of them.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, NoReturn, Self

# Modules that need extras, or that are programs of their own.
LEFT_OUT = (
    "agentcli.langchain", "agentcli.infra.telemetry.", "agentcli.infra.sessions.postgres",
)  # fmt: skip


class Process:
    """A program that was forked; like `subprocess.Popen`, as far as tests need it."""

    def __init__(
        self,
        arguments: Sequence[str | bytes],
        cwd: Path,
        env: Mapping[str, str],
        descriptors: Sequence[int],
        *,
        has_terminal: bool = False,
    ) -> None:
        """Start it with its stdin, stdout and stderr, which the caller closes."""
        self.stdin: BinaryIO | None = None
        self.stdout: BinaryIO | None = None
        self.stderr: BinaryIO | None = None
        self.returncode: int | None = None
        request = {
            "arguments": [os.fsdecode(one) for one in arguments],
            "cwd": str(cwd),
            "env": dict(env),
            "has_terminal": has_terminal,
        }
        self._channel = socket.socket(socket.AF_UNIX)
        self._channel.connect(str(_server()))
        socket.send_fds(self._channel, [b"r"], list(descriptors))
        self._channel.sendall(json.dumps(request).encode() + b"\n")
        self._answers = self._channel.makefile("rb")
        self.pid = int(self._answers.readline())

    @classmethod
    def with_pipes(cls, arguments: Sequence[str | bytes], cwd: Path, env: Mapping[str, str], *, stdin: bool) -> Process:
        """Start it with pipes; without `stdin` that is /dev/null."""
        their_in, in_ = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), None)
        out, their_out = os.pipe()
        err, their_err = os.pipe()
        process = cls(arguments, cwd, env, (their_in, their_out, their_err))
        for descriptor in (their_in, their_out, their_err):
            os.close(descriptor)
        process.stdin = None if in_ is None else os.fdopen(in_, "wb")
        process.stdout, process.stderr = os.fdopen(out, "rb"), os.fdopen(err, "rb")
        return process

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; gives its exit code, or minus the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("agentcli", timeout or 0)
            self.returncode = int(self._answers.readline())
            self._channel.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, input: bytes | None = None, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Feed it, read all that it writes, and wait for its end."""
        written: dict[int, bytes] = {}
        readers = [
            threading.Thread(target=lambda i=i, pipe=pipe: written.update({i: pipe.read()}), daemon=True)
            for i, pipe in enumerate((self.stdout, self.stderr))
            if pipe is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with suppress(BrokenPipeError), self.stdin:  # it need not read to the end
                self.stdin.write(input or b"")
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return written.get(0, b""), written.get(1, b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close its pipes; a program that still runs is killed."""
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended; the server's word of that is still on its way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


@cache
def _server() -> Path:
    """Return the socket of this test run's server, which is started if need be; it ends with the last worker."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    path = Path(tempfile.gettempdir(), f"agentcli-warm-{os.getuid()}-{run[:16]}")
    lease = socket.socket(socket.AF_UNIX)
    with Path(f"{path}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            lease.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            path.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
                listener.listen(64)
                subprocess.Popen(
                    [sys.executable, "-P", __file__, str(listener.fileno()), str(path)],
                    env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},  # the interpreter's; programs get their own
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[listener.fileno()],
                )
            lease.connect(str(path))
    lease.sendall(b"l")
    atexit.register(lease.close)
    return path


# In the server


def _serve(listener: socket.socket, path: Path) -> None:
    """Return in a process that is to become the program; never in this one."""
    package = import_module("agentcli")
    for module in pkgutil.walk_packages(package.__path__, "agentcli."):
        if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
            import_module(module.name)
    if find_spec("boto3") is not None:  # the cloud extra: each program that needs it would import it for seconds
        import_module("anthropic")
        import_module("boto3")
    gc.freeze()
    wakeup, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake)
    leases: set[socket.socket] = set()
    running: dict[int, socket.socket] = {}
    while True:
        for ready in select.select([listener, wakeup, *leases], [], [])[0]:
            if ready == wakeup:
                os.read(wakeup, 4096)
                _tell_ends(running)
            elif ready is not listener:  # whoever held it is gone
                leases.discard(ready)
                ready.close()
                if not leases:
                    _leave_unless_wanted(listener, path)
            else:
                channel, _ = listener.accept()
                kind, descriptors, _, _ = socket.recv_fds(channel, 1, 3)
                if kind == b"l":
                    leases.add(channel)
                elif pid := os.fork():
                    running[pid] = channel
                    channel.sendall(b"%d\n" % pid)
                    for descriptor in descriptors:
                        os.close(descriptor)
                else:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in (wakeup, wake):
                        os.close(other)
                    for other in (listener, *leases, *running.values()):
                        other.close()
                    return _become(channel, descriptors)


def _tell_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as channel, suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for it
            channel.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _leave_unless_wanted(listener: socket.socket, path: Path) -> None:
    with Path(f"{path}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # nobody is just connecting
        if not select.select([listener], [], [], 0)[0]:
            path.unlink(missing_ok=True)
            Path(lock.name).unlink()
            os._exit(0)


def _become(channel: socket.socket, descriptors: list[int]) -> None:
    with channel, channel.makefile() as lines:
        request = json.loads(lines.readline())
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request["has_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in a terminal, also where the tests run under nohup
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    tempfile.tempdir = None  # it was found in the environment of before
    sys.argv = ["agentcli", *request["arguments"]]


def _run_main() -> NoReturn:
    """Run the program and leave without finalization, which would copy the whole heap that was forked."""
    code: object = 0
    try:
        import_module("agentcli.__main__").main()
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as the interpreter has it
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
    _run_main()
