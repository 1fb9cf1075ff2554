"""Finds why a silent command stalls: it waits for input, a password or a lock, or it is a server that listens.

Linux only: /proc tells in which system call each thread waits (proc(5)). The numbers of system calls are those of the
kernel's syscall_64.tbl and asm-generic/unistd.h. Reading them needs the right to trace the process, which a parent has
over its descendants unless a program (sudo, ssh-agent) forbids it.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from agentcli.infra.sandbox.processes.process_tree import processes_below

Kind = Literal["password", "input", "lock", "listens"]
Call = Literal["read", "poll", "flock", "fcntl", "sleep"]

# Seconds without output until a stall is reported.
QUIET_S: Mapping[Kind, float] = {"password": 2.0, "input": 2.0, "lock": 3.0, "listens": 2.5}
MIN_QUIET_S = min(QUIET_S.values())
BUSY_SERVER_QUIET_S = 15.0  # a server with connections, or beside what sleeps, may be part of a test run

_MAX_CPU_SHARE = 0.03  # of one processor; above it a command works
_MAX_SERVER_CPU_SHARE = 0.25  # a server may watch files for changes
_MAX_COMMAND_CHARS = 60
_PROMPT = re.compile(r"(password|passphrase|passcode|\bPIN)\b[^\n]{0,80}:\s*$", re.IGNORECASE)
_PASSWORD_PROGRAM = re.compile(r"^(sudo|su|ssh|ssh-add|scp|sftp|gpg|gpg2|passwd|pinentry[\w-]*|doas)\b")
_TERMINAL = re.compile(r"/dev/(tty\d*|pts/\d+|console)$")
# The report of a shell started here that it runs (shell.py); the command follows it.
_SHELL_PREFIX = re.compile(r"^.*?\{ printf \. >/dev/fd/\d+; \} 2>/dev/null; (trap '.*?' EXIT; )?", re.DOTALL)

_X86_64: dict[int, Call] = {
    0: "read", 19: "read", 45: "read", 47: "read", 7: "poll", 271: "poll", 23: "poll", 270: "poll", 232: "poll",
    281: "poll", 441: "poll", 73: "flock", 72: "fcntl", 35: "sleep", 230: "sleep",
}  # fmt: skip
_GENERIC: dict[int, Call] = {
    63: "read", 65: "read", 207: "read", 212: "read", 73: "poll", 72: "poll", 22: "poll", 441: "poll", 32: "flock",
    25: "fcntl", 101: "sleep", 115: "sleep",
}  # fmt: skip
_CALLS = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}.get(platform.machine(), {})
_BLOCKING_LOCKS = {7, 38}  # F_SETLKW, F_OFD_SETLKW
_LISTENING, _CLOSED = "0A", "07"  # states in /proc/net/tcp


class Stall(Struct, frozen=True):
    """One reason, as a sentence without a full stop: `waits for input: cat (PID 7) reads a terminal`."""

    kind: Kind
    text: str


class StallDetector:
    """Looks at everything below a process, again and again. A tree that uses the processor is never called stalled."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._previous: tuple[float, float] | None = None  # the time and the CPU seconds of the last look

    def find(self, quiet_s: float, last_output: str) -> Stall | None:
        """Find what the tree waits for, after `quiet_s` seconds without output. Blocks for some milliseconds."""
        pids = [process.pid for process in processes_below(self._root)]
        now, cpu_s = time.monotonic(), sum(map(_cpu_seconds, [self._root, *pids]))
        previous, self._previous = self._previous, (now, cpu_s)
        if previous is None or not pids:
            return None
        share = (cpu_s - previous[1]) / max(now - previous[0], 0.05)
        if share > _MAX_SERVER_CPU_SHARE:
            return None
        for stall in _ProcessTree(pids, last_output).stalls(quiet_s):
            if (stall.kind == "listens" or share <= _MAX_CPU_SHARE) and quiet_s >= QUIET_S[stall.kind]:
                return stall
        return None


class _ProcessTree:
    """The processes of a command at one moment: what each of their threads waits for, and what they have open."""

    def __init__(self, pids: Sequence[int], last_output: str) -> None:
        self._last_output = last_output
        self._waits = [(pid, call, descriptor) for pid in pids for call, descriptor in _waits(pid)]
        self._targets = {pid: _open_targets(pid) for pid in pids}

    def stalls(self, quiet_s: float) -> Iterator[Stall]:
        """Every reason found, the most certain first."""
        readers = [pid for pid, call, descriptor in self._waits if self._reads_terminal(pid, call, descriptor)]
        if readers or _PROMPT.search(self._last_output):
            yield from self._password_stalls(readers)
        for pid in readers:
            yield Stall("input", f"waits for input: {_describe(pid)} reads a terminal")
        for pid, call, descriptor in self._waits:
            if call == "read" and self._has_no_writer(pid, descriptor):
                yield Stall("input", f"waits for input: {_describe(pid)} reads a pipe that nobody writes to")
        yield from self._lock_stalls()
        ports, has_connections = self._sockets()
        sleeps = any(call == "sleep" for _, call, _ in self._waits)
        if ports and (quiet_s >= BUSY_SERVER_QUIET_S or not (has_connections or sleeps)):
            yield Stall("listens", f"listens on {', '.join(f':{port}' for port in ports[:3])}")

    def _reads_terminal(self, pid: int, call: Call, descriptor: int) -> bool:
        """With poll and the like the descriptors are unknown: then standard input counts, if it is no server."""
        targets = self._targets[pid]
        if call == "poll":
            return bool(_TERMINAL.match(targets.get(0, ""))) and not any(map(_is_socket, targets.values()))
        return call == "read" and bool(_TERMINAL.match(targets.get(descriptor, "")))

    def _has_no_writer(self, pid: int, descriptor: int) -> bool:
        """A process of several threads may write to itself."""
        target = self._targets[pid].get(descriptor, "")
        if len(_threads(pid)) > 1 or not (target.startswith("pipe:") or _is_fifo(pid, target)):
            return False
        return not any(
            other != pid and held == target and _is_writable(other, number)
            for other, targets in self._targets.items()
            for number, held in targets.items()
        )

    def _password_stalls(self, readers: Sequence[int]) -> Iterator[Stall]:
        asking = [pid for pid in self._targets if _PASSWORD_PROGRAM.match(_command(pid))]
        if not asking and _PROMPT.search(self._last_output):
            asking = [*readers, *reversed(self._targets)]
        if asking:
            yield Stall("password", f"asks for a password: {_describe(asking[0])}")

    def _lock_stalls(self) -> Iterator[Stall]:
        for pid, call, descriptor in self._waits:
            if call in ("flock", "fcntl"):
                path, holder = self._targets[pid].get(descriptor, "a file"), _lock_holder(pid)
                by = f", held by {_describe(holder)}" if holder else ""
                yield Stall("lock", f"waits for a lock on {path}: {_describe(pid)}{by}")

    def _sockets(self) -> tuple[list[int], bool]:
        """The ports that the tree listens on, and whether it has connections."""
        ports, has_connections = set(), False
        for pid, targets in self._targets.items():  # each may be in a network of its own
            sockets = {target for target in targets.values() if _is_socket(target)}
            tables = ("tcp", "tcp6") if sockets else ()
            for line in [line for table in tables for line in _read(f"/proc/{pid}/net/{table}").splitlines()[1:]]:
                _, local, _, state, *_, inode = line.split()[:10]
                if f"socket:[{inode}]" not in sockets:
                    continue
                if state == _LISTENING:
                    ports.add(int(local.rpartition(":")[2], 16))
                elif state != _CLOSED:
                    has_connections = True
        return sorted(ports), has_connections


def _describe(pid: int) -> str:
    """A command and its PID, without what a shell of ours puts in front of it; only the PID once it has ended."""
    command = " ".join(_SHELL_PREFIX.sub("", _command(pid)).split())
    if len(command) > _MAX_COMMAND_CHARS:
        command = f"{command[: _MAX_COMMAND_CHARS - 1]}…"
    return f"{command} (PID {pid})" if command else f"PID {pid}"


def _command(pid: int) -> str:
    """The words of a command, the program without its folder; its short name where they cannot be read."""
    words = _read(f"/proc/{pid}/cmdline").split("\0")[:-1]
    return " ".join([words[0].rpartition("/")[2], *words[1:]]) if words else _read(f"/proc/{pid}/comm").strip()


def _threads(pid: int) -> list[str]:
    try:
        return [entry.name for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def _waits(pid: int) -> Iterator[tuple[Call, int]]:
    """The system call that each waiting thread is in, with its first argument: the descriptor, where it has one."""
    for thread in _threads(pid):
        words = _read(f"/proc/{pid}/task/{thread}/syscall").split()
        call = _CALLS.get(int(words[0])) if len(words) >= 7 else None  # else it runs, or waits outside of a call
        if call is not None and (call != "fcntl" or int(words[2], 16) in _BLOCKING_LOCKS):
            yield call, int(words[1], 16)


def _open_targets(pid: int) -> dict[int, str]:
    """The target of each open descriptor: a path, `socket:[7]`, `pipe:[7]`."""
    try:
        return {int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
    except OSError:
        return {}


def _is_socket(target: str) -> bool:
    return target.startswith("socket:")


def _is_fifo(pid: int, target: str) -> bool:
    return target.startswith("/") and Path(f"/proc/{pid}/root{target}").is_fifo()


def _is_writable(pid: int, descriptor: int) -> bool:
    flags = re.search(r"^flags:\s*([0-7]+)", _read(f"/proc/{pid}/fdinfo/{descriptor}"), re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _lock_holder(pid: int) -> int | None:
    """The process that holds the lock which `pid` waits for, from /proc/locks."""
    lines = [line.split() for line in _read("/proc/locks").splitlines()]
    awaited = {line[0] for line in lines if len(line) > 5 and line[1] == "->" and line[5] == str(pid)}
    holders = [int(line[4]) for line in lines if line[0] in awaited and line[1] != "->"]
    return holders[0] if holders and holders[0] > 0 else None


def _cpu_seconds(pid: int) -> float:
    """CPU time so far, with that of the children it has waited for."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
