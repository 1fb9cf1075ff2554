"""Finds why a command stalls: it waits for input, a password, a lock or the network, or it is a listening server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from agentcli.infra.sandbox.processes import waits
from agentcli.infra.sandbox.processes.process_tree import processes_below
from agentcli.infra.sandbox.processes.waits import Socket, Usage, Waiting

Kind = Literal["password", "input", "lock", "listens", "network", "sleeps"]

# Seconds without output until it is said. What never goes on by itself is said soon; ordinary waiting, late.
QUIET_S: Mapping[Kind, float] = {
    "password": 2.0, "input": 2.0, "lock": 3.0, "listens": 2.5, "network": 10.0, "sleeps": 20.0,
}  # fmt: skip
LISTENS_AMONG_OTHERS_S = 15.0  # a server whose tree also sleeps or waits for answers may be part of a test run
SOONEST_S = min(QUIET_S.values())

_BUSY = 0.03  # of one processor; above it a command works
_BUSY_SERVER = 0.25  # a server may watch files for changes
_LONGEST_COMMAND = 60  # characters
_PROMPT = re.compile(r"(password|passphrase|passcode|\bPIN)\b[^\n]{0,80}:\s*$", re.IGNORECASE)
_ASKS_FOR_PASSWORDS = re.compile(r"^(sudo|su|ssh|ssh-add|scp|sftp|gpg|gpg2|passwd|pinentry[\w-]*|doas)\b")
_LOCK_SAID = re.compile(
    r"(?:could not get|waiting for|unable to (?:acquire|create|lock))[^\n]*?\block\b[^\n]*", re.IGNORECASE
)
# How a shell that is started here tells that it has begun (shell.py); its command stands behind it.
_AHEAD_OF_A_COMMAND = re.compile(r"^.*?\{ printf \. >/dev/fd/\d+; \} 2>/dev/null; (trap '.*?' EXIT; )?", re.DOTALL)
_LOCK_FILE = re.compile(r"[\w./@+-]*[\w@+-]\.lock\b")


class Stall(Struct, frozen=True):
    """One reason, as a sentence without a full stop: `waits for input: cat (PID 7) reads the FIFO in`."""

    kind: Kind
    text: str


class Watcher:
    """Looks at everything below a process, again and again; Linux only, elsewhere it never sees anything.

    A tree that has used the processor since the last look is never called stalled, nor one that reads or writes files
    and only seems to wait.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._before: tuple[float, Usage] | None = None

    def look(self, quiet_s: float, last_words: str) -> Stall | None:
        """Find what it waits for, after `quiet_s` seconds without output. Blocks for some milliseconds."""
        pids = [process.pid for process in processes_below(self._root)]
        now, usage = time.monotonic(), waits.usage_of([self._root, *pids])
        before, self._before = self._before, (now, usage)
        if before is None or not pids:
            return None
        share = (usage.cpu_s - before[1].cpu_s) / max(now - before[0], 0.05)
        if share > _BUSY_SERVER:
            return None
        reads_or_writes = usage.io != before[1].io
        for stall in Tree(pids, last_words).stalls(quiet_s):
            if stall.kind != "listens" and share > _BUSY:
                continue
            if stall.kind in ("network", "sleeps") and reads_or_writes:
                continue
            if quiet_s >= QUIET_S[stall.kind]:
                return stall
        return None


class Tree:
    """The processes of a command at one moment."""

    def __init__(self, pids: Sequence[int], last_words: str) -> None:
        self._pids = pids
        self._last_words = last_words
        self._waits = {pid: waits.waits_of(pid) for pid in pids}
        self._targets = {pid: waits.targets_of(pid) for pid in pids}
        self._sockets: dict[str, Socket] = {}
        for pid in pids:  # they may be in networks of their own; the numbers of sockets are the kernel's
            if any(
                target.startswith("socket:") and target not in self._sockets for target in self._targets[pid].values()
            ):
                self._sockets |= waits.sockets_seen_by(pid)

    def stalls(self, quiet_s: float) -> Iterator[Stall]:
        """Every reason found, the most telling first."""
        inputs = list(self._inputs())
        if inputs or _PROMPT.search(self._last_words):
            yield from self._passwords()
        yield from inputs
        yield from self._locks()
        network, sleeps = list(self._network()), list(self._sleeps())
        ports = self._listening_ports()
        if ports and (quiet_s >= LISTENS_AMONG_OTHERS_S or not (network or sleeps)):
            yield Stall("listens", f"listens on {', '.join(f':{port}' for port in ports[:3])}")
        yield from network
        yield from sleeps

    def _each(self) -> Iterator[tuple[int, Waiting]]:
        for pid, found in self._waits.items():
            for waiting in found:
                yield pid, waiting

    def _passwords(self) -> Iterator[Stall]:
        asking = [pid for pid in self._pids if _ASKS_FOR_PASSWORDS.match(waits.command_of(pid))]
        readers = [pid for pid, waiting in self._each() if self._reads_terminal(pid, waiting)]
        if asking:
            yield Stall("password", f"asks for a password: {_named(asking[0])}")
        elif _PROMPT.search(self._last_words):
            yield Stall("password", f"asks for a password: {_named((readers or [self._pids[-1]])[0])}")

    def _inputs(self) -> Iterator[Stall]:
        for pid, waiting in self._each():
            if self._reads_terminal(pid, waiting):
                yield Stall("input", f"waits for input: {_named(pid)} reads a terminal")
            elif waiting.call == "read" and (source := self._source_without_writer(pid, waiting.descriptors[0])):
                yield Stall("input", f"waits for input: {_named(pid)} reads {source}, which nobody writes to")
            elif waiting.call == "open" and waits.is_fifo(pid, str(self._absolute(pid, waiting.path))):
                yield Stall(
                    "input", f"waits for input: {_named(pid)} opens the FIFO {waiting.path}, the other end is closed"
                )

    def _reads_terminal(self, pid: int, waiting: Waiting) -> bool:
        targets = [self._targets[pid].get(descriptor, "") for descriptor in waiting.descriptors]
        return (
            waiting.call in ("read", "poll", "select", "epoll")
            and any(map(waits.is_terminal, targets))
            and not any(target in self._sockets and self._sockets[target].is_listening for target in targets)
        )

    def _source_without_writer(self, pid: int, descriptor: int) -> str:
        """The pipe a process reads that nobody else of the command can write to; empty when somebody can.

        A process of several threads may well write to itself.
        """
        target = self._targets[pid].get(descriptor, "")
        is_named = waits.is_fifo(pid, target)
        if waits.threads_of(pid) > 1 or not (is_named or target.startswith("pipe:")):
            return ""
        for other, targets in self._targets.items():
            for number, held in targets.items():
                if other != pid and held == target and waits.is_writable(other, number):
                    return ""
        return f"the FIFO {target}" if is_named else "a pipe"

    def _absolute(self, pid: int, path: str) -> Path:
        folder = waits.folder_of(pid)
        return Path(path) if path.startswith("/") else folder.resolve() / path

    def _locks(self) -> Iterator[Stall]:
        for pid, waiting in self._each():
            if waiting.call in ("flock", "fcntl"):
                path = self._targets[pid].get(waiting.descriptors[0], "a file")
                holder = waits.lock_holder(pid)
                by = f", held by {_named(holder)}" if holder else ""
                yield Stall("lock", f"waits for a lock on {path}: {_named(pid)}{by}")
        if said := _LOCK_SAID.search(self._last_words):
            yield Stall("lock", f"waits for a lock: {said[0].strip()}")
        if any(waiting.call == "sleep" for _, waiting in self._each()):
            for pid in self._pids:
                for name in _LOCK_FILE.findall(waits.command_of(pid)):
                    if (waits.folder_of(pid) / name).exists():
                        yield Stall("lock", f"waits for a lock on {name}: {_named(pid)}")

    def _listening_ports(self) -> list[int]:
        """The ports where some thread waits for connections."""
        found = set()
        for pid, waiting in self._each():
            for descriptor in waiting.descriptors:
                socket = self._sockets.get(self._targets[pid].get(descriptor, ""))
                if socket is not None and socket.is_listening:
                    found.add(socket.port)
        return sorted(found)

    def _network(self) -> Iterator[Stall]:
        for pid, waiting in self._each():
            sockets = [self._sockets.get(self._targets[pid].get(number, "")) for number in waiting.descriptors]
            known = [socket for socket in sockets if socket is not None]
            if not known or any(socket.is_listening for socket in known):
                continue
            connects = waiting.call == "connect" or known[0].is_connecting
            does = f"connects to {known[0].remote}" if connects else f"waits for an answer of {known[0].remote}"
            yield Stall("network", f"waits for the network: {_named(pid)} {does}")

    def _sleeps(self) -> Iterator[Stall]:
        for pid, waiting in self._each():
            if waiting.call == "sleep":
                yield Stall("sleeps", f"waits for {_named(pid)}, which sleeps")


def _named(pid: int) -> str:
    """Its command, without what a shell of ours puts ahead of it, and its number: the latter alone once it is gone."""
    command = " ".join(_AHEAD_OF_A_COMMAND.sub("", waits.command_of(pid)).split())
    if not command:
        return f"PID {pid}"
    return f"{command[: _LONGEST_COMMAND - 1] + '…' if len(command) > _LONGEST_COMMAND else command} (PID {pid})"
