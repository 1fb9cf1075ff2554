"""Runs as a small process that starts commands and leaves none of their processes behind, even when agentcli is killed.

`keeper_client.py` starts it in a Python of its own. It imports little, because a session's first command waits for it.

For each command that runs at the same time it forks a *supervisor*, which becomes the parent of all orphans below it
(PR_SET_CHILD_SUBREAPER): no process can leave the tree by a double fork, setsid or nohup, and a supervisor without
children knows that nothing is left, and takes the next command. It ends its tree when asked to, after the time limit,
when the tree swarms (a fork bomb), and when agentcli ends, which closes the other end of its socket. After agentcli was
killed and the last supervisor has ended, the keeper reverts changes of protected files. Outside Linux orphans are not
adopted: a process that forks twice and leaves its session is not ended.

agentcli sends orders of one byte on a supervisor's socket: `START` with the descriptors of a command, and the length of
its request, which follows as a tuple in marshal's format; `END_TREE`; or `KEEP_OUTPUT` with the descriptors of a pipe,
of the file to copy it to, and of others that are to stay open. The supervisor answers with lines: `pid MAIN SUPERVISOR`
or `error ERRNO`; `exit CODE`, negative for a signal; `kept` once it copies the pipe; `late`; `swarm`; at last
`gone TIME`, a time of `time.monotonic`.
"""

import ctypes
import fcntl
import marshal
import os
import select
import signal
import socket
import sys
import time

from agentcli.infra.sandbox.processes.process_tree import count_threads, kill_below, processes_below, terminate_below

GRACE_S = 2.0  # between SIGTERM and SIGKILL
GRACE_WITHOUT_PARENT_S = 1.0  # the same after agentcli has ended
PATIENCE_S = 10.0  # a process that SIGKILL has not ended by then hangs in the kernel, or belongs to another user
MAX_PROCESSES = 3_000  # of one command, before they slow the machine down for its owner
MAX_OUTPUT_BYTES = 1_000_000_000  # of a command's output in its file
START, END_TREE, KEEP_OUTPUT = b"S", b"T", b"F"  # orders to a supervisor
_COUNT_EVERY_S = 0.5
_CHUNK = 65_536
_MAX_DESCRIPTORS = 253  # in one message: SCM_MAX_FD, unix(7)
_IS_LINUX = sys.platform == "linux"
_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
_SIGNALS_TO_RESET = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

_CLEANUP = "import sys; sys.path += sys.argv[2:]; from agentcli.infra.sandbox.protection.snapshot import main; main()"


def main(channel: socket.socket) -> None:
    """Fork a supervisor for each socket that arrives on `channel`; once agentcli is gone, await them and clean up."""
    for number in _IGNORED_SIGNALS:  # they may be sent to all processes of a name or of a terminal
        signal.signal(number, signal.SIG_IGN)
    _adopt_orphans()
    wakeup = _open_wakeup_on_child_end()
    supervisors: set[int] = set()
    notes: list[int] = []  # only the descriptor of the session's `CleanupNote`, once it has one
    has_children = False
    ends_at: float | None = None  # set once agentcli is gone: when to stop waiting for processes
    listening = select.poll()
    listening.register(channel, select.POLLIN)
    listening.register(wakeup, select.POLLIN)
    while ends_at is None or (has_children and time.monotonic() < ends_at):
        ready = {descriptor for descriptor, _ in listening.poll(100 if ends_at else None)}  # milliseconds
        if channel.fileno() in ready and not _fork_supervisor(channel, supervisors, notes):
            listening.unregister(channel)
            ends_at = time.monotonic() + GRACE_WITHOUT_PARENT_S + PATIENCE_S
        if wakeup in ready:
            os.read(wakeup, _CHUNK)
        ended, has_children = _reap()
        supervisors.difference_update(ended)
        # If a supervisor ended with an error, its orphans are our children now, and must end. Once agentcli is gone,
        # everything must end.
        if any(ended.values()) or ends_at:
            kill_below(os.getpid(), spare=supervisors)
    for descriptor in notes:  # at most one; the call returns only if agentcli has removed the note
        _exec_cleanup(descriptor)


def _adopt_orphans() -> None:
    """Make this process the parent of orphans below it. Its children do not inherit that: see prctl(2)."""
    if not _IS_LINUX:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    set_name, set_child_subreaper = 15, 36
    libc.prctl(set_name, b"agentcli-keeper", 0, 0, 0)
    if libc.prctl(set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _open_wakeup_on_child_end() -> int:
    read, write = os.pipe()
    for end in (read, write):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # without a handler nothing is written to the pipe
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _exec_cleanup(note: int) -> None:
    """Replace this process by a Python that cleans up after a killed session by its note (protection/snapshot.py)."""
    if not os.fstat(note).st_nlink:  # agentcli removed the note when the session closed
        return
    os.set_inheritable(note, True)
    root = __file__.rpartition("/agentcli/")[0]
    os.execv(sys.executable, [sys.executable, "-I", "-c", _CLEANUP, str(note), root])  # noqa: S606


def _fork_supervisor(channel: socket.socket, supervisors: set[int], notes: list[int]) -> bool:
    """Receive a socket and fork a supervisor that reads it; return False if agentcli is gone."""
    _, descriptors = _receive(channel)
    if not descriptors:
        return False
    control, *new_notes = descriptors
    if new_notes:  # the session has a cleanup note by now
        for old in notes:
            os.close(old)
        notes[:] = new_notes
    try:
        pid = os.fork()
    except OSError:  # too many processes; the command fails, because its socket is closed without an answer
        pid = -1
    if pid == 0:
        code = 1
        try:
            channel.close()
            code = _supervise(socket.socket(fileno=control))
        finally:
            os._exit(code)
    if pid > 0:
        supervisors.add(pid)
    os.close(control)
    return True


def _receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one byte and its descriptors; no byte means that agentcli has closed the other end, or is gone."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    try:
        byte, descriptors, _, _ = socket.recv_fds(channel, 1, _MAX_DESCRIPTORS, flags)
    except OSError:  # agentcli was killed before it had read all answers
        return b"", []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return byte, list(descriptors)


def _supervise(control: socket.socket) -> int:
    """Run the commands from a socket until agentcli closes it; return the exit code, 0 if no process is left."""
    _adopt_orphans()
    wakeup = _open_wakeup_on_child_end()
    code = 0
    while code == 0:
        order, descriptors = _receive(control)
        if not order:
            break
        if order == START:
            code = Supervisor(control, wakeup).run(descriptors)
            continue
        for descriptor in descriptors:  # an order for a command that had just ended
            os.close(descriptor)
    return code


class Supervisor:
    """Starts one command, and watches its tree of processes until none is left."""

    def __init__(self, control: socket.socket, wakeup: int) -> None:
        self._control = control  # the socket to agentcli
        self._wakeup = wakeup  # can be read from once a child has ended
        self._main_pid = 0  # of the command's own process
        self._has_children = True  # False once all processes of the command have ended
        self._pipe = self._file = -1  # of a job, else -1: its output is copied from the pipe to the file
        # The times when the command's limit is reached, its tree is killed, and processes that survive are given up.
        self._limit_at = self._kill_at = self._give_up_at = float("inf")
        self._max_processes = MAX_PROCESSES
        self._threads_before = count_threads()  # of the machine

    def run(self, descriptors: list[int]) -> int:
        """Supervise a command to its end; return the exit code of the supervisor, 0 when nothing is left."""
        self._poll = select.poll()
        for descriptor in (self._control.fileno(), self._wakeup):
            self._poll.register(descriptor, select.POLLIN)
        try:
            self._main_pid = self._start_command(descriptors)
        except OSError as error:
            self._report(f"error {error.errno or 0}")
            return 0
        self._report(f"pid {self._main_pid} {os.getpid()}")
        # Only on Linux are the command's orphans children of the supervisor.
        while self._has_children or (not _IS_LINUX and processes_below(self._main_pid)):
            if time.monotonic() > self._give_up_at:
                return 1
            self._handle_next_event()
        while self._pipe >= 0 and self._copy_output():  # what a job wrote last is still in the pipe
            pass
        self._report(f"gone {time.monotonic()}")
        return 0

    def _start_command(self, descriptors: list[int]) -> int:
        """Read a request and start its command; return the id of the process. Raises `OSError`."""
        size = int.from_bytes(self._control.recv(8, socket.MSG_WAITALL), "big")
        options = marshal.loads(self._control.recv(size, socket.MSG_WAITALL))  # noqa: S302  # written by agentcli itself
        argv, environment, cwd, numbers, launcher_words, terminal, limit_s, self._max_processes = options
        output, *passed = descriptors
        # The command expects the passed descriptors at these `numbers`. They are first moved above the numbers and the
        # three standard streams, so that none is overwritten before it is copied to its number.
        sources = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(numbers, default=0) + 3) for descriptor in passed]
        os.chdir(cwd)  # the command inherits it
        main_output = 0 if terminal else output  # a terminal is opened as 0, and is all three streams
        streams = [(main_output, 1), (main_output, 2), *zip(sources, numbers, strict=True)]
        if launcher_words is not None:  # the launcher runs in the fork, so the arguments that would start it are cut
            pid = _fork_confined(argv[launcher_words:], environment, streams, plan=numbers[-1])  # passed last
        else:
            pid = _spawn(argv, environment, streams, terminal or b"/dev/null")
        os.chdir("/")
        for descriptor in (output, *passed, *sources):
            os.close(descriptor)
        if limit_s:
            self._limit_at = time.monotonic() + limit_s
        return pid

    def _handle_next_event(self) -> None:
        """Wait for an order, output, the end of a process, a deadline or the next count of processes; then act."""
        now = time.monotonic()
        pause_s = min(self._limit_at - now, self._kill_at - now, _COUNT_EVERY_S)
        if self._is_ending:  # check more often: after `_kill_at`, each check kills what was forked since the last
            pause_s = min(pause_s, 0.1) if self._kill_at > now else 0.02
        ready = {descriptor for descriptor, _ in self._poll.poll(max(0, pause_s * 1000))}
        if self._wakeup in ready:
            os.read(self._wakeup, _CHUNK)
        if self._control.fileno() in ready:
            self._take_order()
        if self._pipe in ready:
            self._copy_output()
        ended, self._has_children = _reap()
        if self._main_pid in ended:
            self._report(f"exit {ended[self._main_pid]}")
        now = time.monotonic()
        if now >= self._limit_at:
            self._limit_at = float("inf")
            self._report("late")
            self._end(GRACE_S)
        if now < self._kill_at and self._is_swarm():  # a fork bomb gets no grace
            self._report("swarm")
            self._end(0)
        if now >= self._kill_at:
            kill_below(os.getpid())

    def _take_order(self) -> None:
        """Carry out an order from agentcli; if none can be read, agentcli is gone: end the tree."""
        order, descriptors = _receive(self._control)
        if order == KEEP_OUTPUT:
            self._pipe, self._file, *_ = descriptors  # the others only stay open
            os.set_blocking(self._pipe, False)
            self._poll.register(self._pipe, select.POLLIN)
            self._report("kept")
        elif order == END_TREE:
            self._end(GRACE_S)
        elif not order:
            self._poll.unregister(self._control)
            self._end(GRACE_WITHOUT_PARENT_S)

    @property
    def _is_ending(self) -> bool:
        return self._kill_at < float("inf")

    def _end(self, grace_s: float) -> None:
        """Ask the tree to end; it is killed after `grace_s`, and given up `PATIENCE_S` later."""
        if self._is_ending:  # a second order can only shorten the grace
            self._kill_at = min(self._kill_at, time.monotonic() + grace_s)
            return
        terminate_below(os.getpid())
        self._limit_at = float("inf")
        self._kill_at = time.monotonic() + grace_s
        self._give_up_at = self._kill_at + PATIENCE_S

    def _is_swarm(self) -> bool:
        # Processes are counted only if the machine has gained as many threads, because counting is slow.
        has_grown = count_threads() >= self._threads_before + self._max_processes
        return has_grown and len(processes_below(os.getpid())) >= self._max_processes

    def _copy_output(self) -> bool:
        """Read once from the pipe of a job's output, and write to its file; return False if nothing was read."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._poll.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
            return False
        if self._file >= 0:  # a full file is closed, but the pipe is read on: a full pipe would stop the command
            self._write_to_file(data)
        return True

    def _write_to_file(self, data: bytes) -> None:
        try:
            free = MAX_OUTPUT_BYTES - os.fstat(self._file).st_size
            while data and free > 0:
                written = os.write(self._file, data[:free])
                data, free = data[written:], free - written
            if data:
                os.write(self._file, b"\n[what came after 1 GB is not kept]\n")
                os.close(self._file)
                self._file = -1
        except OSError:  # probably a full disk: this piece is lost, but later ones may have room
            pass

    def _report(self, line: str) -> None:
        try:
            self._control.sendall(f"{line}\n".encode())
        except OSError:  # agentcli is gone
            pass


def _spawn(argv: list[bytes], environment: dict[bytes, bytes], streams: list[tuple[int, int]], stdin: bytes) -> int:
    """Start a program in a new session, whose controlling terminal is `stdin` if that is a terminal; return its PID."""
    open_stdin = (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY if stdin == b"/dev/null" else os.O_RDWR, 0)
    actions = [open_stdin, *((os.POSIX_SPAWN_DUP2, source, target) for source, target in streams)]
    return os.posix_spawn(
        argv[0], argv, environment, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_SIGNALS_TO_RESET
    )


def _fork_confined(
    argv: list[bytes], environment: dict[bytes, bytes], streams: list[tuple[int, int]], *, plan: int
) -> int:
    """Run `argv` in a fork that the launcher confines by the plan in the descriptor `plan`; return its PID.

    As a program of its own, the launcher would need the time to start another Python.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 126
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)  # only the supervisor is woken
        for number in _SIGNALS_TO_RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), *streams):
            os.dup2(source, target)
        from agentcli.infra.sandbox.backends.launcher import confine_and_exec  # here, because few commands need it

        confine_and_exec(parent, plan, argv, environment)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else code
    except BaseException as error:  # noqa: BLE001  # goes to the command's own stderr: nothing else could report it
        print(f"agentcli: the command was not started: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def _reap() -> tuple[dict[int, int], bool]:
    """Return the exit codes of ended children by PID, negative for a signal, and True if other children still run."""
    ended: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return ended, True
            ended[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return ended, False
