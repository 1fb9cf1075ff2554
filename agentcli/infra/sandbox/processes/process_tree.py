"""Finds and signals all descendants of a process, with /proc or ps(1). Part of the keeper, so it imports little."""

import os
import signal
import sys
from collections import namedtuple
from collections.abc import Collection

_IS_LINUX = sys.platform == "linux"
# `started` tells a process from a later one with the same number. (`typing` would slow the start.)
ProcessInfo = namedtuple("ProcessInfo", "pid parent group started has_ended")  # noqa: PYI024


def terminate_below(root: int) -> None:
    """Send SIGTERM to a tree. All processes are stopped first, so that none can fork.

    A process whose children are in a PID namespace of their own, such as bubblewrap, gets no signal: it ends after
    its children, and if it ended first, they would be killed before they could handle the signal.
    """
    found = _freeze_below(root)
    for process in found:
        depth = _namespace_depth(process.pid)
        children = [each.pid for each in found if each.parent == process.pid]
        if not depth or all(_namespace_depth(child) <= depth for child in children):
            _send(process, signal.SIGTERM)
    for process in found:
        _send(process, signal.SIGCONT)


def kill_below(root: int, spare: Collection[int] = ()) -> None:
    """Send SIGKILL to a tree."""
    _send_to_all(_freeze_below(root, spare), signal.SIGKILL)


def _freeze_below(root: int, spare: Collection[int] = ()) -> list[ProcessInfo]:
    """Stop a tree by SIGSTOP until it has no new processes; return all that were found."""
    frozen: dict[tuple[int, int], ProcessInfo] = {}
    for _ in range(100):  # if the tree still grows after that, the processes found so far are returned
        found = {(each.pid, each.started): each for each in processes_below(root, spare)}
        if not found.keys() - frozen.keys():
            break
        _send_to_all([process for key, process in found.items() if key not in frozen], signal.SIGSTOP)
        frozen |= found
    return list(frozen.values())


def _send_to_all(processes: Collection[ProcessInfo], number: signal.Signals) -> None:
    """Send a signal to processes of a tree and to their groups, which also reaches processes not yet found."""
    # The tree's first process began a session, so no other process is in these groups. Before that it was in our own
    # group. To killpg(2), 0 means our own group, and 1 means every process.
    for group in {process.group for process in processes} - {os.getpgrp(), 0, 1}:
        try:
            os.killpg(group, number)
        except OSError:  # it has ended, or belongs to another user
            pass
    for process in processes:
        _send(process, number)


def processes_below(root: int, spare: Collection[int] = ()) -> list[ProcessInfo]:
    """Return the living descendants of a process, parents first, without those in `spare` and their descendants."""
    children: dict[int, list[ProcessInfo]] = {}
    try:
        processes = [read_process(int(name)) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208  # pathlib is slow
    except FileNotFoundError:
        processes = [*_list_with_ps()]
    for process in filter(None, processes):
        children.setdefault(process.parent, []).append(process)
    found: list[ProcessInfo] = []
    waiting = [root]
    while waiting:
        below = [child for child in children.pop(waiting.pop(0), []) if child.pid not in spare]
        found += [child for child in below if not child.has_ended]
        waiting += [child.pid for child in below]
    return found


def read_process(pid: int) -> ProcessInfo | None:
    """Read one process from /proc/PID/stat (proc(5)); return None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123  pathlib would slow the start
            # `PID (NAME) STATE PARENT GROUP …`, with any character in the name; the 22nd field is the start time.
            fields = file.read(4_096).rpartition(b")")[2].split()
        return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[19]), has_ended=fields[0] in (b"Z", b"X"))
    except (OSError, IndexError):
        return None


def _list_with_ps() -> list[ProcessInfo]:
    """List processes by ps(1) on macOS, orphans as children of their session's first process."""
    from subprocess import PIPE, run  # here, because Linux does not need it

    output = run(["ps", "-axo", "pid=,ppid=,pgid=,stat="], stdout=PIPE, encoding="ascii", check=False).stdout
    found = []
    for line in output.splitlines():
        pid, parent, group, state = line.split(maxsplit=3)
        if parent == "1":
            try:
                parent = str(os.getsid(int(pid)))
            except OSError:  # it has ended meanwhile, or belongs to another user
                continue
        found.append(ProcessInfo(int(pid), int(parent), int(group), 0, has_ended=state.startswith("Z")))
    return found


def _namespace_depth(pid: int) -> int:
    """Return the number of PID namespaces that a process is in; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:  # noqa: PTH123
            (numbers,) = [line for line in file.read().split(b"\n") if line.startswith(b"NSpid:")]
    except (OSError, ValueError):
        return 0
    return len(numbers.split()) - 1  # `NSpid: 4711 12 1`: its number in each namespace


def _send(process: ProcessInfo, number: signal.Signals) -> None:
    """Send a signal to a process, never to a later one that got its number."""
    try:
        if not _IS_LINUX:
            os.kill(process.pid, number)
            return
        descriptor = os.pidfd_open(process.pid)
        try:
            now = read_process(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except OSError:  # it has ended, or belongs to another user
        pass


def count_threads() -> int:
    """Return the number of threads on the machine, from /proc/loadavg; 0 if unknown."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:  # noqa: PTH123  see `read_process`
            return int(file.read(100).split()[3].partition(b"/")[2])
    except (OSError, IndexError, ValueError):
        return 0
