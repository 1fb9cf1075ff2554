"""Starts commands through a keeper, waits for them, and ends them with all their processes."""

import asyncio
import marshal
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from agentcli.infra.sandbox.confinement import Launch
from agentcli.infra.sandbox.processes.keeper import END_TREE, GRACE_S, KEEP_OUTPUT, MAX_PROCESSES, PATIENCE_S, START

# Empty packages replace the real ones, which import `typing`: that would take another 10 ms.
_START = """
import sys
for name in ("agentcli", "agentcli.infra", "agentcli.infra.sandbox"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [sys.argv[1]]
from agentcli.infra.sandbox.processes import keeper
keeper.main(keeper.socket.socket(fileno=int(sys.argv[2])))
"""

SWARMED = "it was ended because it started processes without end"


class Process:
    """A command and all that it starts, in the state that its supervisor had reported at the last `read_reports`."""

    def __init__(self, control: socket.socket, launch: Launch, on_idle: Callable[[socket.socket], object]) -> None:
        self.launch = launch
        self._on_idle = on_idle  # receives `control` once its supervisor can run another command
        self.confinement = ExitStack()  # closed once all processes of the command have ended
        self.pid = self.supervisor = 0  # the process ids of the command and of its supervisor; 0: not started yet
        self.exit_code: int | None = None  # negative for a signal
        self.reported_gone = False  # True once the supervisor has reported that no process of the command is left
        self.was_late = self.was_swarm = False  # True if it was ended at its time limit, or for too many processes
        self.started_at = self.ended_at = time.monotonic()
        self._keeps_output = False  # True once the supervisor copies a job's output to its file
        self._control = control
        self._unfinished_line = b""
        self._waiters: set[asyncio.Future[None]] = set()  # each ends a `wait_until`, whichever task reads a report
        self.error = OSError(0, "no process could be made for it")  # why the command did not start; unused if it did

    async def wait_until_gone(self) -> None:
        await self.wait_until(lambda: self.reported_gone)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Read reports until the state fulfils a condition, which must not call `read_reports` itself."""
        self.read_reports()
        while not condition():
            self._waiters.add(ready := asyncio.get_running_loop().create_future())
            try:
                await wait_until_readable(self._control.fileno(), ready)
            finally:
                self._waiters.discard(ready)
            self.read_reports()

    def is_gone(self) -> bool:
        """Read the reports, and return True if no process of the command is left now."""
        self.read_reports()
        return self.reported_gone

    async def end(self) -> None:
        """Let the supervisor end all processes, by SIGTERM and two seconds later SIGKILL. Safe to call twice."""
        if self.is_gone():
            return
        with suppress(OSError):
            self._control.send(END_TREE)
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S + PATIENCE_S):
                await self.wait_until_gone()
        if not self.reported_gone:  # SIGKILL did not end a process: it is given up
            self._mark_gone()
        self.confinement.close()

    async def keep_output(self, pipe: int, file: int, *open_ends: int) -> bool:
        """Let the supervisor copy the command's output from a pipe to a file; return False if no process is left.

        The supervisor also keeps `open_ends` of pipes open: without a reader, writing to one would kill the command.
        """
        with suppress(OSError):
            if not self.is_gone():
                socket.send_fds(self._control, [KEEP_OUTPUT], [pipe, file, *open_ends])
        await self.wait_until(lambda: self._keeps_output or self.reported_gone)
        return self._keeps_output

    def read_reports(self) -> None:
        """Read the supervisor's reports, without waiting."""
        while not self.reported_gone:
            try:
                data = self._control.recv(4_096)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._mark_gone()
                break
            *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
            for line in lines:
                self._apply_report(line.split())
            for waiter in [*self._waiters]:  # perhaps of another thread's loop
                waiter.get_loop().call_soon_threadsafe(_finish, waiter)
        self.confinement.close()  # not while processes run, because their protection depends on it

    def _apply_report(self, words: list[bytes]) -> None:
        """Update the state by one line of the supervisor; keeper.py describes the lines."""
        match words:
            case [b"pid", pid, supervisor]:
                self.pid, self.supervisor = int(pid), int(supervisor)
            case [b"error", number]:
                self.error = OSError(int(number), os.strerror(int(number)))
                self._mark_gone()
            case [b"exit", code]:
                self.exit_code = int(code)
            case [b"kept"]:
                self._keeps_output = True
            case [b"late"]:
                self.was_late = True
            case [b"swarm"]:
                self.was_swarm = True
            case [b"gone", at]:
                # A supervisor that copied output still holds the job's pipes and file, so it gets no other command.
                self._mark_gone(is_supervisor_idle=not self._keeps_output)
                self.ended_at = float(at)

    def _mark_gone(self, *, is_supervisor_idle: bool = False) -> None:
        """Mark the command as ended. If its supervisor was killed, the keeper ends the remaining processes."""
        self.reported_gone, self.ended_at = True, time.monotonic()
        if self.exit_code is None:  # the supervisor was killed before it could report one
            self.exit_code = -9
        if is_supervisor_idle:
            self._on_idle(self._control)
        else:
            self._control.close()


class ShellProcess(NamedTuple):
    """A started shell, with the descriptors from which its output and its report are read."""

    process: Process
    output: int
    report: int


class Keeper:
    """The small process that starts commands; its `environment` must hold no secrets, because commands can read it."""

    def __init__(self, environment: Mapping[str, str], *, max_processes: int = MAX_PROCESSES) -> None:
        self._environment = environment
        self._max_processes = max_processes
        self._process: subprocess.Popen[bytes] | None = None  # the keeper, once it is started
        self._keeper_channel: socket.socket | None = None  # sends the sockets of new supervisors to the keeper
        self._encoded_from: Mapping[str, str] = {}  # the variables of the newest command
        self._encoded: dict[bytes, bytes] = {}  # the same as bytes
        self._idle: list[socket.socket] = []  # the sockets of supervisors that wait for a command
        self._cleanup_note: int | None = None  # the descriptor of the session's `CleanupNote` that the keeper has

    async def start(
        self,
        launch: Launch,
        *,
        cwd: Path,
        environment: Mapping[str, str],
        output: int,
        time_limit_s: float | None = None,
        terminal: str = "",
    ) -> Process:
        """Start a program in a new session, on a `terminal` or without input. Raises `OSError`, `ValueError`."""
        argv = [os.fsencode(shutil.which(launch.argv[0]) or launch.argv[0]), *map(os.fsencode, launch.argv[1:])]
        if environment != self._encoded_from:  # commands nearly always have the same variables
            self._encoded_from, self._encoded = {**environment}, _encode_variables(environment)
        variables = self._encoded | _encode_variables(launch.environment)
        folder = os.fsencode(cwd)
        if any(b"\0" in text for text in (folder, *argv)):
            raise ValueError("embedded null byte")
        options = (launch.pass_fds, launch.launcher_words, os.fsencode(terminal), time_limit_s, self._max_processes)
        request = marshal.dumps((argv, variables, folder, *options))
        control = self._open_supervisor(launch.cleanup_note)
        try:
            socket.send_fds(control, [START, len(request).to_bytes(8, "big")], [output, *launch.pass_fds])
            await asyncio.get_running_loop().sock_sendall(control, request)
        except BaseException:
            control.close()
            raise
        process = Process(control, launch, self._idle.append)
        try:
            await process.wait_until(lambda: bool(process.pid) or process.reported_gone)
        except asyncio.CancelledError:  # the command may already be running
            await asyncio.shield(process.end())
            raise
        if not process.pid:
            raise process.error
        return process

    def _open_supervisor(self, note: int | None) -> socket.socket:
        """Return the socket of an idle or a new supervisor; its keeper gets the cleanup note. Raises `OSError`."""
        is_running = self._process is not None and self._process.poll() is None
        # The keeper gets a note only together with the socket of a new supervisor.
        keeper_has_note = note in (None, self._cleanup_note)
        while self._idle and is_running and keeper_has_note:
            control = self._idle.pop()
            try:
                control.recv(1)
            except BlockingIOError:  # its supervisor is alive; the socket of a killed one would be at its end
                return control
            control.close()
        control, supervisors_end = socket.socketpair()
        control.setblocking(False)
        with supervisors_end:
            channel = self._keeper_channel if self._keeper_channel is not None and is_running else self._start_keeper()
            descriptors = [supervisors_end.fileno()] if note is None else [supervisors_end.fileno(), note]
            socket.send_fds(channel, [b"n"], descriptors)  # any byte, because descriptors cannot be sent alone
            self._cleanup_note = self._cleanup_note if note is None else note
        return control

    def _start_keeper(self) -> socket.socket:
        """Start a keeper, and return the socket on which it receives the sockets of new supervisors."""
        self._close_sockets()
        self._keeper_channel, keepers_end = socket.socketpair()
        with keepers_end:
            channel, nothing = keepers_end.fileno(), subprocess.DEVNULL
            argv = [sys.executable, "-I", "-S", "-c", _START, str(Path(__file__).parents[1]), str(channel)]
            self._process = subprocess.Popen(
                argv,
                stdin=nothing,
                stdout=nothing,
                stderr=nothing,
                cwd="/",
                env=self._environment,
                pass_fds=(channel,),
                start_new_session=True,
            )
        return self._keeper_channel

    def _close_sockets(self) -> None:
        for channel in filter(None, (self._keeper_channel, *self._idle)):
            channel.close()
        self._keeper_channel = self._cleanup_note = None
        self._idle.clear()

    async def aclose(self) -> None:
        """Close all sockets, and wait until the keeper has ended the remaining processes and itself."""
        self._close_sockets()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, PATIENCE_S)


def _encode_variables(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
    if any(b"\0" in text for text in (*variables, *variables.values())):
        raise ValueError("embedded null byte")
    return variables


async def wait_until_readable(descriptor: int, ready: "asyncio.Future[None] | None" = None) -> None:
    """Wait until something can be read, the other end is closed, or `ready` is done. Several tasks may wait at once."""
    loop = asyncio.get_running_loop()
    copy = os.dup(descriptor)  # a loop accepts only one reader for each number
    ready = ready or loop.create_future()
    loop.add_reader(copy, _finish, ready)
    try:
        await ready
    finally:
        loop.remove_reader(copy)
        os.close(copy)


def _finish(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
