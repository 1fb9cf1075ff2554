"""Runs as a small process that starts commands and leaves none of their processes behind, even when agentcli is killed.

`keeper_client.py` starts it in a Python of its own. It imports little, because a session's first command waits for it.

For each simultaneous command it forks a *supervisor*, which becomes the reaper of all orphans below it
(PR_SET_CHILD_SUBREAPER): no process can leave the tree by a double fork, setsid or nohup. A supervisor without children
knows that no process is left, and is ready for the next command. A supervisor ends its tree when it is asked to, when
the time limit is over, when the tree is a fork bomb, and when the other end of its socket closes, which happens however
agentcli ends.

After agentcli was killed and the last supervisor has ended, the keeper reverts commands' changes to protected files.

Each supervisor has a socket. On it agentcli sends orders of one byte: `START` with the descriptors of a command, its
length and its request (a tuple in marshal's format); later `END_TREE`, or `KEEP_OUTPUT` with the descriptors of a pipe,
of the file for the pipe's output, and of others that must stay open. The supervisor answers with lines:
`pid MAIN SUPERVISOR` or `error ERRNO`; `exit CODE`, negative for a signal; `kept` for a pipe; `late`; `swarm`; finally
`gone TIME`, by the clock of `time.monotonic`.

Outside Linux there is no such reaper: a process that forks twice and leaves its session escapes there.
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

from agentcli.infra.sandbox.processes.process_tree import ask_below, kill_below, processes_below, threads_of_machine

GRACE_S = 2.0  # between SIGTERM and SIGKILL
GRACE_WITHOUT_PARENT_S = 1.0  # the same after agentcli has gone: shorter, because nobody may wait for us
PATIENCE_S = 10.0  # after SIGKILL; a process that is left then is stuck in the kernel, or not ours to end
MAX_PROCESSES = 3_000  # of one command; more could make the machine unusable
MAX_OUTPUT_BYTES = 1_000_000_000  # of a command's output in its file
START, END_TREE, KEEP_OUTPUT = b"S", b"T", b"F"  # orders to a supervisor
_COUNT_EVERY_S = 0.5
_GROWTH = 20  # a tree with this many processes more than were asked to end multiplies instead of ending
_CHUNK = 65_536
_MAX_DESCRIPTORS = 253  # in one message: SCM_MAX_FD, unix(7)
_IS_LINUX = sys.platform == "linux"
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
_RESET = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

_CLEAN_UP = (
    "import sys; sys.path.append(sys.argv[2]); from agentcli.infra.sandbox.protection.snapshot import main; main()"
)


def main(requests: socket.socket) -> None:
    """Fork a supervisor for each socket that arrives until agentcli is gone, then wait for the supervisors' ends."""
    for number in _IGNORED:  # signals that may be sent to all processes of a name or of a terminal
        signal.signal(number, signal.SIG_IGN)
    _adopt_orphans()
    wakeup = _open_wakeup_on_child_end()
    supervisors: set[int] = set()
    notes: list[int] = []  # the descriptor of the session's note, if it has one
    has_children = False
    ends_at: float | None = None  # set once agentcli is gone: when to stop waiting for supervisors
    listening = select.poll()
    listening.register(requests, select.POLLIN)
    listening.register(wakeup, select.POLLIN)
    while ends_at is None or (has_children and time.monotonic() < ends_at):
        ready = {descriptor for descriptor, _ in listening.poll(100 if ends_at else None)}  # milliseconds
        if requests.fileno() in ready and not _fork_supervisor(requests, supervisors, notes):
            listening.unregister(requests)
            ends_at = time.monotonic() + GRACE_WITHOUT_PARENT_S + PATIENCE_S
        if wakeup in ready:
            os.read(wakeup, _CHUNK)
        ended, has_children = _reap()
        supervisors.difference_update(ended)
        if any(ended.values()) or ends_at:  # this process has inherited the tree of a supervisor that was killed
            kill_below(os.getpid(), spare=supervisors)
    for descriptor in notes:
        _clean_up(descriptor)


def _adopt_orphans() -> None:
    """Make this process the reaper of orphans below it. Its children do not inherit this: see prctl(2)."""
    if not _IS_LINUX:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    set_name, set_child_subreaper = 15, 36
    libc.prctl(set_name, b"agentcli-keeper", 0, 0, 0)
    if libc.prctl(set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _open_wakeup_on_child_end() -> int:
    """Return a pipe that becomes readable when a child has ended."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def _clean_up(note: int) -> None:
    """If agentcli was killed before it removed the session's note, become a Python that reverts by it (snapshot.py)."""
    if not os.fstat(note).st_nlink:
        return
    os.set_inheritable(note, True)
    root = __file__.rpartition("/agentcli/")[0]
    os.execv(sys.executable, [sys.executable, "-I", "-c", _CLEAN_UP, str(note), root])  # noqa: S606


def _fork_supervisor(requests: socket.socket, supervisors: set[int], notes: list[int]) -> bool:
    """Receive a socket and fork a supervisor that reads it; return False if agentcli is gone.

    If a note of the session comes with the socket, it replaces the one in `notes`.
    """
    _, descriptors = _receive(requests, 1, max_descriptors=2)  # the socket and perhaps the note
    if not descriptors:
        return False
    if descriptors[1:]:
        for old in notes:
            os.close(old)
        notes[:] = descriptors[1:]
    try:
        pid = os.fork()
    except OSError:  # no more processes; only this command fails, because its socket is closed without an answer
        os.close(descriptors[0])
        return True
    if pid == 0:
        code = 1
        try:
            requests.close()
            code = _supervise(socket.socket(fileno=descriptors[0]))
        finally:
            os._exit(code)
    supervisors.add(pid)
    os.close(descriptors[0])
    return True


def _receive(channel: socket.socket, size: int, *, max_descriptors: int) -> tuple[bytes, list[int]]:
    """Receive up to `size` bytes, with descriptors; no bytes mean that the other end is closed."""
    data, descriptors, _, _ = socket.recv_fds(channel, size, max_descriptors, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, list(descriptors)


def _supervise(control: socket.socket) -> int:
    """Run the commands from a socket until agentcli closes it; return the exit code, 0 if no process is left."""
    _adopt_orphans()
    wakeup = _open_wakeup_on_child_end()
    code, order = 0, START
    while order and not code:
        try:
            order, descriptors = _receive(control, 1, max_descriptors=_MAX_DESCRIPTORS)
        except OSError:  # agentcli was killed before it read everything that was sent to it
            break
        if order == START:
            code = Supervisor(control, wakeup).run(descriptors)
            continue
        for descriptor in descriptors:  # of an order that was sent before the command's end was known
            os.close(descriptor)
    return code


class Supervisor:
    """Starts one command, and watches its tree until no process is left."""

    def __init__(self, control: socket.socket, wakeup: int) -> None:
        self._control = control  # the socket to agentcli
        self._wakeup = wakeup  # becomes readable when a child has ended
        self._main = 0  # the id of the command's own process
        self._has_children = True  # False once no process of the command is left
        self._pipe = self._file = -1  # of a job: its output is copied from the pipe to the file
        # Monotonic times: the command's time limit, when its tree is killed, when surviving processes are given up.
        self._limit_at = self._kill_at = self._give_up_at = float("inf")
        self._asked = 0  # how many processes were asked to end
        self._max_processes = MAX_PROCESSES
        self._machine_threads = threads_of_machine()  # on the whole machine, when the command or its end began

    def run(self, descriptors: list[int]) -> int:
        """Supervise a command until its end; return the exit code for the keeper, 0 if no process is left."""
        self._poll = select.poll()
        for descriptor in (self._control.fileno(), self._wakeup):
            self._poll.register(descriptor, select.POLLIN)
        try:
            self._main = self._start_command(descriptors)
        except OSError as error:
            self._report(f"error {error.errno or 0}")
            return 0
        self._report(f"pid {self._main} {os.getpid()}")
        # Only on Linux are the command's orphans children of the supervisor.
        while self._has_children or (not _IS_LINUX and processes_below(self._main)):
            if time.monotonic() > self._give_up_at:
                return 1
            self._wait()
        while self._pipe >= 0 and self._copy():
            pass
        self._report(f"gone {time.monotonic()}")
        return 0

    def _start_command(self, descriptors: list[int]) -> int:
        """Read a request and start its command; return the id of the process. Raises `OSError`."""
        size = int.from_bytes(self._control.recv(8, socket.MSG_WAITALL), "big")
        request = self._control.recv(size, socket.MSG_WAITALL)
        options = marshal.loads(request)  # noqa: S302  # written by agentcli itself
        argv, environment, cwd, wanted, launcher_words, terminal, limit_s, self._max_processes = options
        output, *passed = descriptors
        # The command expects each passed descriptor under a number in `wanted`. First, all get numbers above these and
        # above the standard streams, so that none is overwritten before it is moved to its number.
        sources = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(wanted, default=0) + 3) for descriptor in passed]
        os.chdir(cwd)
        main_output = 0 if terminal else output  # a terminal is opened as 0, and is all three streams
        streams = [(main_output, 1), (main_output, 2), *zip(sources, wanted, strict=True)]
        if launcher_words is not None:  # the launcher is called directly, so skip the arguments that would start it
            main = _fork_bounded(argv[launcher_words:], environment, streams, plan=wanted[-1])
        else:
            main = _spawn(argv, environment, streams, terminal or b"/dev/null")
        os.chdir("/")
        for descriptor in (output, *passed, *sources):
            os.close(descriptor)
        if limit_s:
            self._limit_at = time.monotonic() + limit_s
        return main

    def _wait(self) -> None:
        """Wait for the next event and handle it: an order from agentcli, output, the end of a process, a time limit."""
        now = time.monotonic()
        pause_s = min(self._limit_at - now, self._kill_at - now, _COUNT_EVERY_S)
        if self._kill_at < float("inf"):  # while the tree is ending, check more often
            pause_s = min(pause_s, 0.1) if self._kill_at > now else 0.02
        ready = {descriptor for descriptor, _ in self._poll.poll(max(0, pause_s * 1000))}
        if self._wakeup in ready:
            os.read(self._wakeup, _CHUNK)
        if self._control.fileno() in ready:
            self._take_order()
        if self._pipe in ready:
            self._copy()
        ended, self._has_children = _reap()
        if self._main in ended:
            self._report(f"exit {ended[self._main]}")
        now = time.monotonic()
        if now >= self._limit_at:
            self._limit_at = float("inf")
            self._report("late")
            self._end(GRACE_S)
        if self._kill_at == float("inf") and self._has_more_processes(self._max_processes, than=0):
            self._report("swarm")
            self._end(0)
        if self._asked and self._has_more_processes(_GROWTH, than=self._asked):  # the tree multiplies instead of ending
            self._kill_at = now
        if now >= self._kill_at:
            kill_below(os.getpid())

    def _take_order(self) -> None:
        """Carry out an order from agentcli. An empty order means that agentcli is gone."""
        try:
            order, descriptors = _receive(self._control, 1, max_descriptors=8)
        except OSError:
            order, descriptors = b"", []
        if order == KEEP_OUTPUT:
            self._pipe, self._file, *_ = descriptors
            os.set_blocking(self._pipe, False)
            self._poll.register(self._pipe, select.POLLIN)
            self._report("kept")
        elif order == END_TREE:
            self._end(GRACE_S)
        elif not order:
            self._poll.unregister(self._control)
            self._end(GRACE_WITHOUT_PARENT_S)

    def _end(self, grace_s: float) -> None:
        """Ask the tree to end. It is killed after `grace_s`, and given up `PATIENCE_S` later."""
        if self._kill_at < float("inf"):  # the tree is already ending
            self._kill_at = min(self._kill_at, time.monotonic() + grace_s)
            return
        self._asked = ask_below(os.getpid())
        self._machine_threads = threads_of_machine()
        self._limit_at = float("inf")
        self._kill_at = time.monotonic() + grace_s
        self._give_up_at = self._kill_at + PATIENCE_S

    def _has_more_processes(self, growth: int, *, than: int) -> bool:
        """Return True if the tree has at least `growth` processes more than `than`.

        Processes are counted only if the machine has gained as many threads, because counting is slow.
        """
        return (
            threads_of_machine() >= self._machine_threads + growth
            and len(processes_below(os.getpid())) >= than + growth
        )

    def _copy(self) -> bool:
        """Copy one piece of a job's output from the pipe to the file; return False if nothing could be read."""
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._poll.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
            return False
        if self._file >= 0:
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
        except OSError:  # agentcli is gone, so the tree is ending anyway
            pass


def _spawn(argv: list[bytes], environment: dict[bytes, bytes], streams: list[tuple[int, int]], stdin: bytes) -> int:
    """Start a program in its own session, and return its process id. If `stdin` is a terminal, it controls it."""
    return os.posix_spawn(
        argv[0],
        argv,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY if stdin == b"/dev/null" else os.O_RDWR, 0),
            *((os.POSIX_SPAWN_DUP2, source, target) for source, target in streams),
        ],
        setsid=True,
        setsigmask=(),
        setsigdef=_RESET,
    )


def _fork_bounded(
    argv: list[bytes], environment: dict[bytes, bytes], streams: list[tuple[int, int]], *, plan: int
) -> int:
    """Fork; the child confines itself by the plan in the descriptor `plan`, and becomes the command `argv`.

    Return the id of the process. If the command cannot be started, the child writes the reason to its stderr.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 126
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)  # the pipe belongs to the supervisor
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for source, target in ((os.open("/dev/null", os.O_RDONLY), 0), *streams):
            os.dup2(source, target)
        from agentcli.infra.sandbox.backends.launcher import bound_and_become  # here, because few commands need it

        bound_and_become(parent, plan, argv, environment)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else code
    except BaseException as error:  # noqa: BLE001  # nothing else could report the error
        print(f"agentcli: the command was not started: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def _reap() -> tuple[dict[int, int], bool]:
    """Return the exit codes of ended children (negative for a signal) by id, and True if there are other children."""
    ended: dict[int, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return ended, True
            ended[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return ended, False
