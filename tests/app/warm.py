"""Starts agentcli at a third of the cost: forks a process that has imported it, and lets its main run there.

Run as a program, this file is that process. It takes one byte for each start, with stdin, stdout, stderr and a channel,
which brings the rest and takes back the id of the new process and its exit code.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NoReturn

# Modules that no run without a terminal imports, or that are programs of their own.
LEFT_OUT = (
    "agentcli.frontends.terminal", "agentcli.cli.interactive", "agentcli.cli.terminal_opener", "agentcli.langchain",
    "agentcli.frontends.http.", "agentcli.infra.telemetry.", "agentcli.infra.event_log.redis",
    "agentcli.infra.sessions.postgres",
)  # fmt: skip


def run(
    arguments: Sequence[str | bytes], cwd: Path, env: Mapping[str, str], stdin: bytes | None, timeout: float
) -> tuple[int, bytes, bytes]:
    """Run it to the end; gives its exit code and what it wrote. Without `stdin` that is /dev/null."""
    channel, theirs = socket.socketpair()
    their_in, in_ = os.pipe()
    out, their_out = os.pipe()
    err, their_err = os.pipe()
    if stdin is None:
        os.close(their_in)
        their_in = os.open(os.devnull, os.O_RDONLY)
    with channel:
        with theirs:
            socket.send_fds(_server(env["PATH"]), [b"r"], [their_in, their_out, their_err, theirs.fileno()])
        for descriptor in (their_in, their_out, their_err):
            os.close(descriptor)
        request = {"arguments": [os.fsdecode(one) for one in arguments], "cwd": str(cwd), "env": dict(env)}
        channel.sendall(json.dumps(request).encode() + b"\n")
        written: dict[int, bytes] = {}
        threads = [
            threading.Thread(target=_write, args=(in_, stdin or b""), daemon=True),
            *(threading.Thread(target=_read, args=(one, written), daemon=True) for one in (out, err)),
        ]
        for thread in threads:
            thread.start()
        channel.settimeout(timeout)
        answers = channel.makefile()
        pid = int(answers.readline())
        try:
            code = int(answers.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(arguments), timeout) from None
    for thread in threads:
        thread.join(timeout)
    return code, written[out], written[err]


def _write(descriptor: int, data: bytes) -> None:
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
    except BrokenPipeError:
        pass  # it does not read to the end


def _read(descriptor: int, written: dict[int, bytes]) -> None:
    with open(descriptor, "rb") as file:
        written[descriptor] = file.read()


@cache
def _server(path: str) -> socket.socket:
    """Start it; it ends with this process, which closes the other end."""
    ours, theirs = socket.socketpair()
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            env={"PATH": path, "LANG": "C.UTF-8"},  # the interpreter's; the program gets its own
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours


def _serve(requests: socket.socket) -> None:
    """Return in a process that is to become the program; never in this one."""
    package = import_module("agentcli")
    for module in pkgutil.walk_packages(package.__path__, "agentcli."):
        if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
            import_module(module.name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    while True:
        byte, descriptors, _, _ = socket.recv_fds(requests, 1, 4)
        if not byte:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _become(descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(descriptors: list[int]) -> None:
    """Watch the program from outside, in its parent, and tell how it ended."""
    with socket.socket(fileno=descriptors.pop()) as channel:
        with channel.makefile() as lines:
            request = json.loads(lines.readline())
        if pid := os.fork():
            channel.sendall(b"%d\n" % pid)
            for descriptor in descriptors:
                os.close(descriptor)
            channel.sendall(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os._exit(0)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
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
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _run_main()
