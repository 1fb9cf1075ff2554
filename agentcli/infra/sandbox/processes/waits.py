"""Reads from /proc (proc(5)) what the threads of a process wait for; off Linux nothing is known.

Numbers of system calls: the kernel's syscall_64.tbl and asm-generic/unistd.h. Reading them needs the right to trace the
process, which a parent has over its descendants unless a program (sudo, ssh-agent) forbids it.
"""

from __future__ import annotations

import os
import platform
import re
import struct
from pathlib import Path
from typing import Literal

from msgspec import Struct

Call = Literal[
    "read", "open", "poll", "select", "epoll", "connect", "accept", "flock", "fcntl", "child", "sleep", "other"
]

_X86_64: dict[int, Call] = {
    0: "read", 19: "read", 45: "read", 47: "read", 299: "read", 2: "open", 257: "open", 7: "poll", 271: "poll",
    23: "select", 270: "select", 232: "epoll", 281: "epoll", 441: "epoll", 42: "connect", 43: "accept", 288: "accept",
    73: "flock", 72: "fcntl", 61: "child", 247: "child", 35: "sleep", 230: "sleep",
}  # fmt: skip
_GENERIC: dict[int, Call] = {
    63: "read", 65: "read", 207: "read", 212: "read", 243: "read", 56: "open", 73: "poll", 72: "select", 22: "epoll",
    441: "epoll", 203: "connect", 202: "accept", 242: "accept", 32: "flock", 25: "fcntl", 260: "child", 95: "child",
    101: "sleep", 115: "sleep",
}  # fmt: skip
_CALLS = {"x86_64": _X86_64, "aarch64": _GENERIC, "riscv64": _GENERIC}.get(platform.machine(), {})
_OPEN_AT = {257, 56}  # the path is the second argument
_WAITING_FOR_LOCK = {7, 38}  # F_SETLKW, F_OFD_SETLKW

_LISTENING, _CONNECTING, _CONNECTED = "0A", "02", "01"  # states in /proc/net/tcp
_TERMINAL = re.compile(r"/dev/(tty\d*|pts/\d+|console)$")


class Waiting(Struct, frozen=True):
    """One thread in one system call: on which descriptors, or for `path` to be opened."""

    call: Call
    descriptors: tuple[int, ...] = ()
    path: str = ""


class Usage(Struct, frozen=True):
    """Resources used so far: processor seconds, and bytes read or written."""

    cpu_s: float = 0.0
    io: int = 0


class Socket(Struct, frozen=True):
    """A network socket as /proc/net knows it; `remote` is HOST:PORT, empty for one that only listens."""

    port: int
    remote: str
    is_listening: bool
    is_connecting: bool


def waits_of(pid: int) -> list[Waiting]:
    """One for each thread that waits for something known; none where that may not be read."""
    return [found for thread in _threads(pid) if (found := _wait_of(pid, thread)) is not None]


def threads_of(pid: int) -> int:
    """Count its threads."""
    return len(_threads(pid))


def _threads(pid: int) -> list[str]:
    try:
        return [entry.name for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []


def _wait_of(pid: int, thread: str) -> Waiting | None:
    words = _text(f"/proc/{pid}/task/{thread}/syscall").split()
    if len(words) < 7:  # it runs, or waits outside of a call
        return None
    number, *arguments = int(words[0]), *(int(word, 16) for word in words[1:7])
    call = _CALLS.get(number)
    match call:
        case None:
            return None
        case "read" | "connect" | "accept" | "flock":
            return Waiting(call, (arguments[0],))
        case "fcntl":
            return Waiting(call, (arguments[0],)) if arguments[1] in _WAITING_FOR_LOCK else None
        case "open":
            return Waiting(call, path=_string(pid, arguments[number in _OPEN_AT]))
        case "poll":
            return Waiting(call, _polled(pid, arguments[0], arguments[1]))
        case "select":
            return Waiting(call, _selected(pid, arguments[0], arguments[1:3]))
        case "epoll":
            return Waiting(call, _in_epoll(pid, arguments[0]))
        case _:
            return Waiting(call)


def _polled(pid: int, address: int, count: int) -> tuple[int, ...]:
    """The descriptors of an array of `struct pollfd`."""
    data = _memory(pid, address, 8 * min(count, 4_096))
    entries = struct.iter_unpack("ihh", data[: len(data) // 8 * 8])
    return tuple(descriptor for descriptor, _, _ in entries if descriptor >= 0)


def _selected(pid: int, count: int, addresses: list[int]) -> tuple[int, ...]:
    """The descriptors in the sets for reading and writing."""
    count, bits = min(count, 1_024), 0
    for address in addresses:
        bits |= int.from_bytes(_memory(pid, address, (count + 7) // 8), "little") if address else 0
    return tuple(number for number in range(count) if bits >> number & 1)


def _in_epoll(pid: int, descriptor: int) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"^tfd:\s*(\d+)", _info(pid, descriptor), re.MULTILINE))


def _string(pid: int, address: int) -> str:
    return os.fsdecode(_memory(pid, address, 4_096).partition(b"\0")[0])


def _memory(pid: int, address: int, size: int) -> bytes:
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as file:
            file.seek(address)
            return file.read(size) or b""
    except (OSError, OverflowError, ValueError):
        return b""


def targets_of(pid: int) -> dict[int, str]:
    """The target of each open descriptor: a path, `socket:[7]`, `pipe:[7]`, `anon_inode:[eventpoll]`."""
    found = {}
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found[int(entry.name)] = str(entry.readlink())
    except OSError:
        pass
    return found


def is_writable(pid: int, descriptor: int) -> bool:
    found = re.search(r"^flags:\s*([0-7]+)", _info(pid, descriptor), re.MULTILINE)
    return found is not None and int(found[1], 8) & os.O_ACCMODE != os.O_RDONLY


def is_terminal(target: str) -> bool:
    return _TERMINAL.match(target) is not None


def is_fifo(pid: int, target: str) -> bool:
    """True if a target is a pipe with a name, as the process sees paths."""
    return target.startswith("/") and Path(f"/proc/{pid}/root{target}").is_fifo()


def sockets_seen_by(pid: int) -> dict[str, Socket]:
    """The TCP and UDP sockets of a process's network, by what its descriptors stand for: `socket:[7]`."""
    found = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in _text(f"/proc/{pid}/net/{table}").splitlines()[1:]:
            _, local, remote, state, *_, inode = line.split()[:10]
            is_tcp = table.startswith("tcp")
            if state in (_LISTENING, _CONNECTING, _CONNECTED):
                listens = is_tcp and state == _LISTENING
                found[f"socket:[{inode}]"] = Socket(
                    int(local.rpartition(":")[2], 16),
                    "" if listens else _address(remote),
                    listens,
                    is_tcp and state == _CONNECTING,
                )
    return found


def _address(coded: str) -> str:
    """`0100007F:0BB8` is 127.0.0.1:3000: words of four bytes, each as the machine orders them."""
    host, _, port = coded.partition(":")
    words = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
    if len(words) == 4 or words.startswith(bytes(10) + b"\xff\xff"):
        return f"{'.'.join(map(str, words[-4:]))}:{int(port, 16)}"
    groups = ":".join(f"{int.from_bytes(words[at : at + 2], 'big'):x}" for at in range(0, 16, 2))
    return f"[{groups}]:{int(port, 16)}"


def lock_holder(pid: int) -> int | None:
    """The process that holds the lock which `pid` waits for, from /proc/locks."""
    lines = [line.split() for line in _text("/proc/locks").splitlines()]
    waited = {line[0] for line in lines if len(line) > 5 and line[1] == "->" and line[5] == str(pid)}
    holders = [int(line[4]) for line in lines if line[0] in waited and line[1] != "->"]
    return holders[0] if holders and holders[0] > 0 else None


def usage_of(pids: list[int]) -> Usage:
    """Of the processes, and of the children they have waited for."""
    ticks = io = 0
    for pid in pids:
        fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
        io += sum(map(int, re.findall(r"^[rw]char: (\d+)", _text(f"/proc/{pid}/io"), re.MULTILINE)))
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), io)


def command_of(pid: int) -> str:
    """Its words as they were given, the program without its folder; the short name where they are not told."""
    words = _text(f"/proc/{pid}/cmdline").split("\0")[:-1]
    if not words:
        return _text(f"/proc/{pid}/comm").strip()
    return " ".join([words[0].rpartition("/")[2], *words[1:]])


def folder_of(pid: int) -> Path:
    """The working directory of a process, as a path that can be opened from here."""
    return Path(f"/proc/{pid}/cwd")


def _info(pid: int, descriptor: int) -> str:
    return _text(f"/proc/{pid}/fdinfo/{descriptor}")


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""
