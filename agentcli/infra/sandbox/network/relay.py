"""Relays from a port on the command's own loopback interface to the proxy outside.

Programs find a proxy by host and port, but the sandbox has only a unix socket to it. Granted ports of this machine are
relayed too, so that every program reaches them as usual. If hosts were granted, `python -I -S` runs this file as a
program in the sandbox before the command, so it uses only the standard library.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

RELAY_NAME = "agentcli-relay"  # the name of its process
PORT = 3128  # the traditional port of proxies; the interface is the command's own, so the port is free
LOOPBACK = "127.0.0.1"
_FIRST_FREE = 1_024  # the first port that programs may open without privileges


def relay_command(script: str, proxy_socket: str, ports: Sequence[str] = ()) -> list[str]:
    """Return the arguments that start the relay, to precede the command's; `ports` are such as `127.0.0.1:8000`."""
    return [os.path.realpath(sys.executable), "-I", "-S", script, proxy_socket, ",".join(ports)]


def relay_environment(ports: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables that name the proxy; curl, git, pip, npm, cargo, Go and newer Nodes each read some."""
    targets = [target.rpartition(":") for target in ports]
    # Granted ports that the relay may not open are reached through the proxy instead of directly.
    through_proxy = [host.strip("[]") for host, _, port in targets if int(port) < _FIRST_FREE]
    direct = ",".join(host for host in ("localhost", LOOPBACK, "::1") if host not in through_proxy)
    proxy = f"http://{LOOPBACK}:{PORT}"
    variables = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": direct}
    return variables | {name.lower(): value for name, value in variables.items()} | {"NODE_USE_ENV_PROXY": "1"}


def main() -> None:
    """Start the relay in the sandbox, then become the command; the arguments are those of `relay_command`."""
    proxy_socket, ports, *command = sys.argv[1:]
    # Listening socket: the request to send to the proxy before a client's data; empty if clients talk to the proxy.
    servers = {socket.create_server((LOOPBACK, PORT), backlog=128): b""}
    for target in filter(None, ports.split(",")):
        request, port = f"CONNECT {target} HTTP/1.1\r\n\r\n".encode(), int(target.rpartition(":")[2])
        for family, address in ((socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1")):
            with contextlib.suppress(OSError):  # a port below 1024, or one that is open already by another name
                servers[socket.create_server((address, port), family=family, backlog=128)] = request
    _start_relay(servers, proxy_socket)
    for server in servers:
        server.close()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    lines = Path("/proc/self/environ").read_bytes().split(b"\0")  # Python adds LC_CTYPE to os.environ
    environment = dict(line.split(b"=", 1) for line in lines if b"=" in line)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606  # the arguments are the command
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


def _start_relay(servers: dict[socket.socket, bytes], proxy_socket: str) -> None:
    """Start the relay in a process that the command's `wait` ignores, and that holds none of its descriptors."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():  # the second fork is adopted by the first process of the sandbox
        os._exit(0)
    Path("/proc/self/comm").write_text(RELAY_NAME)
    listening = {server.fileno() for server in servers}
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  # only numbers
        if number < 3:
            os.dup2(nothing, number)
        elif number not in listening:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is already closed
                os.close(number)
    *others, last = [threading.Thread(target=_relay, args=(*item, proxy_socket)) for item in servers.items()]
    for thread in others:
        thread.start()
    last.run()  # in this thread; `_relay` never returns


def _relay(server: socket.socket, request: bytes, proxy_socket: str) -> None:
    """Serve each client of a port in a thread of its own, for as long as the process lives."""
    while True:
        try:
            client, _ = server.accept()
        except OSError:  # no more descriptors: try again
            continue
        threading.Thread(target=_serve_client, args=(client, request, proxy_socket), daemon=True).start()


def _serve_client(client: socket.socket, request: bytes, proxy_socket: str) -> None:
    """Copy between a client and the proxy until both sides have closed; a `request` makes the proxy connect first."""
    with client, socket.socket(socket.AF_UNIX) as proxy:
        try:
            proxy.connect(proxy_socket)
            if request and not _open_tunnel(proxy, request):
                return
        except OSError:
            return
        upwards = threading.Thread(target=_copy_and_shut_down, args=(client, proxy), daemon=True)
        upwards.start()
        _copy_and_shut_down(proxy, client)
        upwards.join()


def _open_tunnel(proxy: socket.socket, request: bytes) -> bool:
    """Ask the proxy for a connection; return True if it has made one."""
    proxy.sendall(request)
    head = b""
    while not head.endswith(b"\r\n\r\n") and (byte := proxy.recv(1)):
        head += byte
    return head.startswith(b"HTTP/1.1 200 ")


def _copy_and_shut_down(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either end may close the connection
        while data := source.recv(65_536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main()
