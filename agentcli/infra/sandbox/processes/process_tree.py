"""Finds and signals all descendants of a process, with /proc or ps(1). Part of the keeper, so it imports little."""

import os
import signal
import sys
from collections import namedtuple
from collections.abc import Collection

_IS_LINUX = sys.platform == "linux"


# A process. `started` distinguishes it from a later process with the same id. (Importing `typing` would be slow.)
ProcessInfo = namedtuple("ProcessInfo", "pid parent group started has_ended")  # noqa: PYI024


def ask_below(root: int) -> int:
    """Send SIGTERM to a tree, and return the number of its processes. All are stopped first, so that none can fork.

    A process whose children are in their own PID namespace (bubblewrap with --die-with-parent) gets no signal: its end
    would kill the children before they can handle theirs, and it ends by itself when they end.
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
    """Send SIGSTOP to a tree, in rounds until no new process is found; return all processes."""
    frozen: dict[tuple[int, int], ProcessInfo] = {}
    for _ in range(100):  # if the tree still grows then, only the processes found so far are signalled
        found = {(each.pid, each.started): each for each in processes_below(root, spare)}
        if not found.keys() - frozen.keys():
            break
        _send_to_all([process for key, process in found.items() if key not in frozen], signal.SIGSTOP)
        frozen |= found
    return list(frozen.values())


def _send_to_all(processes: Collection[ProcessInfo], number: signal.Signals) -> None:
    """Send a signal to processes of a tree and to their groups, which reaches processes that fork too fast to be found.

    The tree's first process started a session, so processes outside the tree are in none of these groups.
    """
    # A new process is in our group until its `setsid`. For killpg(2), 0 is our own group, and 1 means every process.
    for group in {process.group for process in processes} - {os.getpgrp(), 0, 1}:
        try:
            os.killpg(group, number)
        except OSError:  # it has ended, or belongs to somebody else
            pass
    for process in processes:
        _send(process, number)


def processes_below(root: int, spare: Collection[int] = ()) -> list[ProcessInfo]:
    """Return the living descendants of a process, parents first, without those in `spare` and their descendants."""
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
    """Read one process from /proc/PID/stat (proc(5)); return None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123  pathlib would slow the start
            # `PID (NAME) STATE PARENT GROUP …`; the name may contain any character. The 22nd field is the start time.
            fields = file.read(4_096).rpartition(b")")[2].split()
        return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[19]), has_ended=fields[0] in (b"Z", b"X"))
    except (OSError, IndexError):
        return None


def _listed_by_ps() -> list[ProcessInfo]:
    """Ask ps(1) on macOS. A process whose parent has ended is listed as a child of its session's first process."""
    from subprocess import PIPE, run  # imported here, because Linux does not need it

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
    return len(numbers.split()) - 1  # `NSpid: 4711 12 1`: the ids of a process in each of its PID namespaces


def _send(process: ProcessInfo, number: signal.Signals) -> None:
    """Send a signal to exactly this process, not to a later one with the same id."""
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
    """Return the number of threads on the machine, from /proc/loadavg, which is fast; 0 if that does not exist."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:  # noqa: PTH123  see `look_at`
            return int(file.read(100).split()[3].partition(b"/")[2])
    except (OSError, IndexError, ValueError):
        return 0
