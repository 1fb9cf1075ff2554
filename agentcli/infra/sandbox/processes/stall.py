"""Finds out why a command is silent: it asks for a password, waits for a lock, or is a server that listens.

Linux only: /proc shows in which system call each thread waits (proc(5)). Reading that needs the right to trace the
process, which a parent has over its descendants unless a program (sudo, ssh-agent) forbids it.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from agentcli.infra.sandbox.network.relay import RELAY_NAME
from agentcli.infra.sandbox.processes.process_tree import processes_below
from agentcli.patterns import lazy_pattern

QUIET_S = 2.5  # without output, before a stall is reported
BUSY_SERVER_QUIET_S = 15.0  # a server with connections may be part of a test run

_MAX_CPU_SHARE = 0.03  # of one processor; a command that uses more is working
_MAX_SERVER_CPU_SHARE = 0.25  # a server may watch files for changes
_MAX_COMMAND_CHARS = 60
_PROMPT = lazy_pattern(r"(password|passphrase|passcode|\bPIN)\b[^\n]{0,80}:\s*$", re.IGNORECASE)
# The script of shell.py, which precedes each command in the arguments of its shell.
_SHELL_PREFIX = lazy_pattern(r"^.*?\{ printf \. >/dev/fd/\d+; \} 2>/dev/null; (trap '.*?' EXIT; )?", re.DOTALL)

# Numbers of the calls flock and fcntl: the kernel's syscall_64.tbl and asm-generic/unistd.h.
_FLOCK, _FCNTL = (73, 72) if os.uname().machine == "x86_64" else (32, 25)
_BLOCKING_LOCKS = {7, 38}  # F_SETLKW, F_OFD_SETLKW
_LISTENING, _CLOSED = "0A", "07"  # states in /proc/net/tcp


class Stall(Struct, frozen=True):
    """A reason as a sentence without a full stop: `waits for a lock on /tmp/lock: flock (PID 7)`."""

    text: str
    is_server: bool = False


class _Sockets(NamedTuple):
    ports: list[int]  # with a listening socket
    has_connections: bool


class StallDetector:
    """Examines the processes below `root` repeatedly; while they use the processor, they are not stalled."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._previous: tuple[float, float] | None = None  # the time of the last call, and the CPU seconds until then

    def find(self, quiet_s: float, last_output: str) -> Stall | None:
        """Find what the tree waits for after `quiet_s` seconds without output. Blocks for some milliseconds."""
        pids = [process.pid for process in processes_below(self._root)]
        # The root's CPU time includes that of processes that have ended.
        now, cpu_s = time.monotonic(), sum(map(_cpu_seconds, [self._root, *pids]))
        previous, self._previous = self._previous, (now, cpu_s)
        if previous is None or not pids:
            return None
        last_at, last_cpu_s = previous
        cpu_share = (cpu_s - last_cpu_s) / max(now - last_at, 0.05)  # the last call may have been just now
        if cpu_share > _MAX_SERVER_CPU_SHARE:
            return None
        stalls = _possible_stalls(pids, quiet_s, last_output) if quiet_s >= QUIET_S else ()
        return next((stall for stall in stalls if stall.is_server or cpu_share <= _MAX_CPU_SHARE), None)


def _possible_stalls(pids: Sequence[int], quiet_s: float, last_output: str) -> Iterator[Stall]:
    """Yield all reasons why processes may be waiting, the most certain first."""
    targets = {pid: _open_targets(pid) for pid in pids}
    if _PROMPT.search(last_output):
        yield Stall(f"asks for a password: {_describe(pids[-1])}")  # probably the newest process
    for pid in pids:
        for descriptor in _awaited_locks(pid):
            yield Stall(f"waits for a lock on {targets[pid].get(descriptor, 'a file')}: {_describe(pid)}")
    sockets = _find_sockets(targets)
    if sockets.ports and (quiet_s >= BUSY_SERVER_QUIET_S or not sockets.has_connections):
        yield Stall(f"listens on {', '.join(f':{port}' for port in sockets.ports[:3])}", is_server=True)


def _find_sockets(targets: Mapping[int, Mapping[int, str]]) -> _Sockets:
    found: set[tuple[str, int]] = set()  # states and local ports
    for pid, descriptors in targets.items():  # each process may be in its own network namespace
        sockets = {target for target in descriptors.values() if target.startswith("socket:")}
        if sockets and _read(f"/proc/{pid}/comm").strip() != RELAY_NAME:  # the sandbox's relay is not the command's
            found.update((state, port) for state, port, inode in _tcp_sockets(pid) if f"socket:[{inode}]" in sockets)
    ports = {port for state, port in found if state == _LISTENING}
    return _Sockets(sorted(ports), any(state not in (_LISTENING, _CLOSED) for state, _ in found))


def _tcp_sockets(pid: int | str) -> Iterator[tuple[str, int, str]]:
    """Yield the state, the local port and the inode of each socket in the network of a process."""
    for table in ("tcp", "tcp6"):
        # `0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 34567`, below a header
        for line in _read(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            yield state, int(local.rpartition(":")[2], 16), inode


def is_listened_on(port: int) -> bool:
    """Return True if a server of this machine, outside all sandboxes, listens on a port."""
    return any((state, number) == (_LISTENING, port) for state, number, _ in _tcp_sockets("self"))


def find_listener(root: int, port: int) -> int | None:
    """Return the PID of a process below `root` that listens on a port; relays of the sandbox are left out."""
    pids: list[int] = [process.pid for process in processes_below(root)]
    return next((pid for pid in pids if port in _find_sockets({pid: _open_targets(pid)}).ports), None)


def _describe(pid: int) -> str:
    """Describe a process by its command, without the script of shell.py, and its PID."""
    command = " ".join(_SHELL_PREFIX.sub("", _command(pid)).split())[:_MAX_COMMAND_CHARS]
    return f"{command} (PID {pid})" if command else f"PID {pid}"


def _command(pid: int) -> str:
    """Return the words of a command, the program without its folder; only its name if they cannot be read."""
    words = _read(f"/proc/{pid}/cmdline").split("\0")[:-1]
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else _read(f"/proc/{pid}/comm").strip()


def _awaited_locks(pid: int) -> Iterator[int]:
    """Yield the descriptor of each file for whose lock a thread waits."""
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        # `0 0x3 0x7ffd20 0x400 0x0 0x0 0x0 0x7ffd18 0x7f2a40`: the call's number, its six arguments, two pointers
        words = _read(f"{thread}/syscall").split()
        call = int(words[0]) if len(words) >= 7 else None  # else it runs, or is not in a call
        if call == _FLOCK or (call == _FCNTL and int(words[2], 16) in _BLOCKING_LOCKS):
            yield int(words[1], 16)


def _open_targets(pid: int) -> dict[int, str]:
    """Return the target of each open descriptor: a path, `socket:[7]`, `pipe:[7]`."""
    try:
        return {int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return {}


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of the ended children it has waited for: utime, stime, cutime, cstime."""
    return sum(map(int, _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
