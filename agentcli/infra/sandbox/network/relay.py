"""Relays from a port on the command's own loopback interface to the proxy outside.

Programs know proxies by host and port, and the way out is a unix socket. This file is also a program, which
`python -I -S` runs inside before the command, so it needs the standard library alone. It costs the start of a Python,
and only where hosts have been granted.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path

RELAY_NAME = "agentcli-relay"  # of its process
PORT = 3128  # the traditional port of proxies, on an interface that nobody else has
LOOPBACK = "127.0.0.1"


def relay_command(script: str, proxy_socket: str) -> list[str]:
    """Return the arguments that start the relay, to precede the command's own; `script` is this file's path inside."""
    return [os.path.realpath(sys.executable), "-I", "-S", script, proxy_socket]


def relay_environment() -> dict[str, str]:
    """Return the variables that name the proxy; curl, git, pip, npm, cargo, Go and newer Nodes each read some."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    others = dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1") | {"NODE_USE_ENV_PROXY": "1"}
    return {spelling: f"http://{LOOPBACK}:{PORT}" for name in names for spelling in (name, name.lower())} | others


def python_folders() -> list[str]:
    """Return the folders that must be visible inside for the relay to run; the whole prefix may be `~/.local`."""
    prefix = os.path.realpath(sys.base_prefix)
    programs = str(Path(os.path.realpath(sys.executable)).parent)
    return list(dict.fromkeys((programs, f"{prefix}/lib", f"{prefix}/{sys.platlibdir}")))


def main() -> None:
    proxy_socket, *command = sys.argv[1:]
    with socket.create_server((LOOPBACK, PORT), backlog=128) as server:
        _start_relay(server, proxy_socket)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a command would inherit that
        signal.signal(number, signal.SIG_DFL)
    # Python adds LC_CTYPE to what os.environ holds.
    environment = dict(
        line.split(b"=", 1) for line in Path("/proc/self/environ").read_bytes().split(b"\0") if b"=" in line
    )
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  # the arguments are the command
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def _start_relay(server: socket.socket, proxy_socket: str) -> None:
    """Start the relay in a process that is no child of the command and holds none of its descriptors."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    Path("/proc/self/comm").write_text(RELAY_NAME)
    listening = os.dup2(server.fileno(), 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    _relay(socket.socket(fileno=listening), proxy_socket)


def _relay(server: socket.socket, proxy_socket: str) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:  # too many descriptors
            continue
        threading.Thread(target=_connect, args=(client, proxy_socket), daemon=True).start()


def _connect(client: socket.socket, proxy_socket: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as proxy:
        try:
            proxy.connect(proxy_socket)
        except OSError:
            return
        upwards = threading.Thread(target=_copy_and_shut_down, args=(client, proxy), daemon=True)
        upwards.start()
        _copy_and_shut_down(proxy, client)
        upwards.join()


def _copy_and_shut_down(source: socket.socket, target: socket.socket) -> None:
    # Either end may break off the connection.
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
