"""Finds out why a command is silent: it waits for input, a password or a lock, or it is a server that listens.

Linux only: /proc shows in which system call each thread waits (proc(5)). Reading that needs the right to trace the
process, which a parent has over its descendants unless a program (sudo, ssh-agent) forbids it.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import Struct

from agentcli.infra.sandbox.network.relay import RELAY_NAME
from agentcli.infra.sandbox.processes.process_tree import processes_below
from agentcli.patterns import lazy_pattern

Kind = Literal["password", "input", "lock", "listens"]

# The time without output after which a stall of each kind is reported.
QUIET_S: Mapping[Kind, float] = {"password": 2.0, "input": 2.0, "lock": 3.0, "listens": 2.5}
MIN_QUIET_S = min(QUIET_S.values())
BUSY_SERVER_QUIET_S = 15.0  # a server with connections may be part of a test run

_MAX_CPU_SHARE = 0.03  # of one processor; a command that uses more is working
_MAX_SERVER_CPU_SHARE = 0.25  # a server may watch files for changes
_MAX_COMMAND_CHARS = 60
_PROMPT = lazy_pattern(r"(password|passphrase|passcode|\bPIN)\b[^\n]{0,80}:\s*$", re.IGNORECASE)
_PASSWORD_PROGRAM = lazy_pattern(r"^(sudo|su|ssh|ssh-add|scp|sftp|gpg|gpg2|passwd|pinentry[\w-]*|doas)\b")
_TERMINAL = lazy_pattern(r"/dev/(tty\d*|pts/\d+|console)$")
# The script of shell.py, which precedes each command in the arguments of its shell.
_SHELL_PREFIX = lazy_pattern(r"^.*?\{ printf \. >/dev/fd/\d+; \} 2>/dev/null; (trap '.*?' EXIT; )?", re.DOTALL)

# Numbers of the calls that wait for something: the kernel's syscall_64.tbl and asm-generic/unistd.h.
_X86_64 = {"read": (0, 19, 45, 47), "poll": (7, 271, 23, 270, 232, 281, 441), "flock": (73,), "fcntl": (72,)}
_GENERIC = {"read": (63, 65, 207, 212), "poll": (73, 72, 22, 441), "flock": (32,), "fcntl": (25,)}
_NUMBERS = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}.get(os.uname().machine, {})
_CALLS = {number: call for call, numbers in _NUMBERS.items() for number in numbers}
_BLOCKING_LOCKS = {7, 38}  # F_SETLKW, F_OFD_SETLKW
_LISTENING, _CLOSED = "0A", "07"  # states in /proc/net/tcp


class Stall(Struct, frozen=True):
    """A reason as a sentence without a full stop: `waits for input: cat (PID 7) reads a terminal`."""

    kind: Kind
    text: str


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
        for stall in _possible_stalls(pids, quiet_s, last_output):
            if (stall.kind == "listens" or cpu_share <= _MAX_CPU_SHARE) and quiet_s >= QUIET_S[stall.kind]:
                return stall
        return None


def _possible_stalls(pids: Sequence[int], quiet_s: float, last_output: str) -> Iterator[Stall]:
    """Yield all reasons why processes may be waiting, the most certain first."""
    waits = [(pid, call, descriptor) for pid in pids for call, descriptor in _waiting_calls(pid)]
    targets = {pid: _open_targets(pid) for pid in pids}
    readers = [pid for pid, call, descriptor in waits if _reads_terminal(call, descriptor, targets[pid])]
    has_prompt = _PROMPT.search(last_output) is not None
    # A password program need not be among the readers, because /proc hides what sudo waits for.
    asking = [pid for pid in pids if _PASSWORD_PROGRAM.match(_command(pid))] if readers or has_prompt else []
    if not asking and has_prompt:  # another program asks: one that reads a terminal, or else the newest
        asking = [*readers, *reversed(pids)]
    if asking:
        yield Stall("password", f"asks for a password: {_describe(asking[0])}")
    for pid in readers:
        yield Stall("input", f"waits for input: {_describe(pid)} reads a terminal")
    for pid, call, descriptor in waits:
        target = targets[pid].get(descriptor, "a file")
        if call == "read" and target.startswith("pipe:") and not _has_writer(target, pid, targets):
            yield Stall("input", f"waits for input: {_describe(pid)} reads a pipe that nobody writes to")
        if call in ("flock", "fcntl"):
            by = f", held by {_describe(holder)}" if (holder := _lock_holder(pid)) else ""
            yield Stall("lock", f"waits for a lock on {target}: {_describe(pid)}{by}")
    sockets = _find_sockets(targets)
    if sockets.ports and (quiet_s >= BUSY_SERVER_QUIET_S or not sockets.has_connections):
        yield Stall("listens", f"listens on {', '.join(f':{port}' for port in sockets.ports[:3])}")


def _reads_terminal(call: str, descriptor: int, targets: Mapping[int, str]) -> bool:
    if call == "poll":  # its descriptors are unknown: most likely standard input, unless the process has sockets
        has_sockets = any(target.startswith("socket:") for target in targets.values())
        return bool(_TERMINAL.match(targets.get(0, ""))) and not has_sockets
    return call == "read" and bool(_TERMINAL.match(targets.get(descriptor, "")))


def _has_writer(pipe: str, reader: int, targets: Mapping[int, Mapping[int, str]]) -> bool:
    """Return True if some process may write to a pipe, or another thread of its reader."""
    return len(_threads(reader)) > 1 or any(
        pid != reader and target == pipe and _is_writable(pid, number)
        for pid, descriptors in targets.items()
        for number, target in descriptors.items()
    )


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
    command = " ".join(_SHELL_PREFIX.sub("", _command(pid)).split())
    if len(command) > _MAX_COMMAND_CHARS:
        command = f"{command[: _MAX_COMMAND_CHARS - 1]}…"
    return f"{command} (PID {pid})" if command else f"PID {pid}"


def _command(pid: int) -> str:
    """Return the words of a command, the program without its folder; only its name if they cannot be read."""
    words = _read(f"/proc/{pid}/cmdline").split("\0")[:-1]
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else _read(f"/proc/{pid}/comm").strip()


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  # only names
    except OSError:
        return []


def _waiting_calls(pid: int) -> Iterator[tuple[str, int]]:
    """Yield the system call in which each thread waits, and its first argument, for most calls a descriptor."""
    for thread in _threads(pid):
        # `0 0x3 0x7ffd20 0x400 0x0 0x0 0x0 0x7ffd18 0x7f2a40`: the call's number, its six arguments, two pointers
        words = _read(f"/proc/{pid}/task/{thread}/syscall").split()
        call = _CALLS.get(int(words[0])) if len(words) >= 7 else None  # else it runs, or is not in a call
        if call is not None and (call != "fcntl" or int(words[2], 16) in _BLOCKING_LOCKS):
            yield call, int(words[1], 16)


def _open_targets(pid: int) -> dict[int, str]:
    """Return the target of each open descriptor: a path, `socket:[7]`, `pipe:[7]`."""
    try:
        return {int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return {}


def _is_writable(pid: int, descriptor: int) -> bool:
    flags = re.search(r"^flags:\s*([0-7]+)", _read(f"/proc/{pid}/fdinfo/{descriptor}"), re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _lock_holder(pid: int) -> int | None:
    """Return the PID of the process that holds the lock for which `pid` waits, from /proc/locks."""
    # A lock is `1: POSIX ADVISORY WRITE HOLDER 08:02:77 0 EOF`, a waiting process `1: -> POSIX ADVISORY WRITE PID …`.
    lines = [line.split() for line in _read("/proc/locks").splitlines()]
    awaited = {line[0] for line in lines if len(line) > 5 and line[1] == "->" and line[5] == str(pid)}
    holders = [int(line[4]) for line in lines if line[0] in awaited and line[1] != "->"]
    return holders[0] if holders and holders[0] > 0 else None


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of the ended children it has waited for: utime, stime, cutime, cstime."""
    return sum(map(int, _read(f"/proc/{pid}/stat").rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
