"""A SOCKS5 proxy on loopback (RFC 1928, RFC 1929): whatever name is asked for, it leads to one server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class SocksServer:
    """`asked_for` holds the `host:port` of each connection. `login` is the `name:password` it wants, if any.

    With `answers` it is no SOCKS proxy: it says that and hangs up. With `silent` it says nothing at all.
    """

    leads_to: int
    login: str = ""
    refuses: bool = False
    answers: bytes | None = None
    silent: bool = False
    asked_for: list[str] = field(default_factory=list)
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as asked:
            if self.silent:
                asked.read()
                return
            if self.answers is not None:
                asked.read(3)
                client.sendall(self.answers)
                return
            methods = asked.read(asked.read(2)[1])
            method = 2 if self.login else 0
            if method not in methods:
                client.sendall(b"\x05\xff")
                return
            client.sendall(bytes([5, method]))
            if self.login:
                name = asked.read(asked.read(2)[1]).decode()
                password = asked.read(asked.read(1)[0]).decode()
                client.sendall(b"\x01\x00" if f"{name}:{password}" == self.login else b"\x01\x01")
                if f"{name}:{password}" != self.login:
                    return
            kind = asked.read(4)[3]
            host = {1: lambda: asked.read(4).hex(), 3: lambda: asked.read(asked.read(1)[0]).decode()}[kind]()
            self.asked_for.append(f"{host}:{int.from_bytes(asked.read(2), 'big')}")
            client.sendall(bytes([5, 5 if self.refuses else 0, 0, 1, 0, 0, 0, 0, 0, 0]))
            if not self.refuses:
                with socket.create_connection(("127.0.0.1", self.leads_to)) as server:
                    threading.Thread(target=_pump, args=(server, client), daemon=True).start()
                    _pump(client, server)


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def socks_server(leads_to: int, **options: object) -> Iterator[SocksServer]:
    server = SocksServer(leads_to, **options)  # type: ignore[arg-type]
    threading.Thread(target=server.accept, daemon=True).start()
    try:
        yield server
    finally:
        server.listener.shutdown(socket.SHUT_RDWR)
        server.listener.close()
