"""Finds and signals the processes below another, by /proc or ps(1). Part of the keeper, so it imports little."""

import os
import signal
import sys
from collections import namedtuple
from collections.abc import Collection

_IS_LINUX = sys.platform == "linux"


# One process of a walk: `started` tells it from a later one of the same number. (`typing` would slow the start.)
ProcessInfo = namedtuple("ProcessInfo", "pid parent group started has_ended")  # noqa: PYI024


def ask_below(root: int) -> int:
    """Send SIGTERM to a tree, and return the number of its processes. Meanwhile all are stopped, so that none is born.

    A process whose children live in a PID namespace of their own (bubblewrap with --die-with-parent) gets no signal:
    its end would kill the children before they could act on theirs, and when they end it ends by itself.
    """
    found = _freeze_below(root)
    for process in found:
        depth, children = _namespace_depth(process.pid), (each.pid for each in found if each.parent == process.pid)
        if not depth or all(_namespace_depth(child) <= depth for child in children):
            _send(process, signal.SIGTERM)
    for process in found:
        _send(process, signal.SIGCONT)
    return len(found)


def kill_below(root: int, spare: Collection[int] = ()) -> None:
    """Send SIGKILL to a tree."""
    _send_to_all(_freeze_below(root, spare), signal.SIGKILL)


def _freeze_below(root: int, spare: Collection[int] = ()) -> list[ProcessInfo]:
    """Send SIGSTOP to a tree, walk by walk, until no walk finds anything new; return all that were found."""
    frozen: dict[tuple[int, int], ProcessInfo] = {}
    for _ in range(100):  # a tree that still grows then is signalled as far as it was found
        found = {(each.pid, each.started): each for each in processes_below(root, spare)}
        if not found.keys() - frozen.keys():
            break
        _send_to_all([process for key, process in found.items() if key not in frozen], signal.SIGSTOP)
        frozen |= found
    return list(frozen.values())


def _send_to_all(processes: Collection[ProcessInfo], number: signal.Signals) -> None:
    """Send a signal to processes of a tree and to their groups: that reaches what forks faster than it is found.

    The tree's first process began a session, so no other process is in these groups.
    """
    # Before its `setsid` a new process is in our group. To killpg(2), 0 is our own group, and 1 means every process.
    for group in {process.group for process in processes} - {os.getpgrp(), 0, 1}:
        try:
            os.killpg(group, number)
        except OSError:  # it has ended, or belongs to somebody else
            pass
    for process in processes:
        _send(process, number)


def processes_below(root: int, spare: Collection[int] = ()) -> list[ProcessInfo]:
    """Return the living descendants of a process, parents first, without those in `spare` and below them."""
    children: dict[int, list[ProcessInfo]] = {}
    try:
        # pathlib would slow the start
        processes = [look_at(int(name)) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    except FileNotFoundError:
        processes = [*_listed_by_ps()]
    for process in filter(None, processes):
        children.setdefault(process.parent, []).append(process)
    found: list[ProcessInfo] = []
    waiting = [root]
    while waiting:
        below = [child for child in children.pop(waiting.pop(0), []) if child.pid not in spare]
        found += [child for child in below if not child.has_ended]
        waiting += [child.pid for child in below]
    return found


def look_at(pid: int) -> ProcessInfo | None:
    """Return one process, from /proc/PID/stat (proc(5)); None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123  pathlib would slow the start
            # `PID (NAME) STATE PARENT GROUP …`, with any character in the name; the 22nd is when the process started.
            fields = file.read(4_096).rpartition(b")")[2].split()
        return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[19]), has_ended=fields[0] in (b"Z", b"X"))
    except (OSError, IndexError):
        return None


def _listed_by_ps() -> list[ProcessInfo]:
    """Ask ps(1) on macOS. A process whose parent has ended counts as a child of its session's first process."""
    from subprocess import PIPE, run  # here, because Linux does not need it

    listed = run(["ps", "-axo", "pid=,ppid=,pgid=,stat="], stdout=PIPE, encoding="ascii", check=False).stdout
    found = []
    for line in listed.splitlines():
        pid, parent, group, state = line.split(maxsplit=3)
        if parent == "1":
            try:
                parent = str(os.getsid(int(pid)))
            except OSError:  # ended meanwhile, or somebody else's
                continue
        found.append(ProcessInfo(int(pid), int(parent), int(group), 0, has_ended=state.startswith("Z")))
    return found


def _namespace_depth(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:  # noqa: PTH123
            (numbers,) = [line for line in file.read().split(b"\n") if line.startswith(b"NSpid:")]
    except (OSError, ValueError):
        return 0
    return len(numbers.split()) - 1  # `NSpid: 4711 12 1`: the numbers of a process in each namespace it is in


def _send(process: ProcessInfo, number: signal.Signals) -> None:
    """Send a signal to this very process, not to a later one that got its number."""
    try:
        if not _IS_LINUX:
            os.kill(process.pid, number)
            return
        descriptor = os.pidfd_open(process.pid)
        try:
            now = look_at(process.pid)
            if now is not None and now.started == process.started:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
    except OSError:  # it has ended, or belongs to somebody else
        pass


def threads_of_machine() -> int:
    """Return the number of threads on the machine, from /proc/loadavg: one short read; 0 where there is none."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:  # noqa: PTH123  see `look_at`
            return int(file.read(100).split()[3].partition(b"/")[2])
    except (OSError, IndexError, ValueError):
        return 0
