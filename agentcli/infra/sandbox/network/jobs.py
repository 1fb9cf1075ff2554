"""Connects to the servers of jobs, each of which has its own network.

`python -I -S` runs this file as a program, because only a process without threads can enter another's namespaces.
"""

import ctypes
import fcntl
import os
import socket
import subprocess
import sys

_TIMEOUT_S = 10.0
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000  # CLONE_NEWUSER and CLONE_NEWNET of setns(2)
_GET_OWNER = 0xB701  # NS_GET_USERNS of ioctl_nsfs(2)


def connect_to_process(pid: int, port: int) -> socket.socket:
    """Connect to a port on the loopback interface that a process sees. Blocks. Raises `OSError`."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:  # closed before `ours` is read, which then ends if the program fails
            channel = theirs.fileno()
            program = [os.path.realpath(sys.executable), "-I", "-S", __file__, *map(str, (channel, pid, port))]
            subprocess.run(program, pass_fds=(channel,), stdin=subprocess.DEVNULL, capture_output=True, check=False)
        _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
        if not descriptors:
            raise ConnectionRefusedError(0, f"nothing answers on port {port} of a job")
        return socket.socket(fileno=descriptors[0])


def main() -> None:
    """Connect to `port` in the network of the process `pid`, and send the socket to the parent over `channel`."""
    channel, pid, port = map(int, sys.argv[1:])
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    owner = fcntl.ioctl(network, _GET_OWNER)
    if not os.path.samestat(os.fstat(owner), os.stat("/proc/self/ns/user")):  # noqa: PTH116  # pathlib loads slowly
        _enter(owner, _NEW_USER)  # only root may enter the network from outside its user namespace
    _enter(network, _NEW_NETWORK)
    with socket.socket(fileno=channel) as parent, socket.create_connection(("localhost", port), _TIMEOUT_S) as server:
        server.setblocking(False)
        socket.send_fds(parent, [b"."], [server.fileno()])


def _enter(namespace: int, kind: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, kind):
        raise OSError(ctypes.get_errno(), "setns")


if __name__ == "__main__":
    main()
