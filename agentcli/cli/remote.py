"""Defines `/remote`, which shows the session of this terminal on a web page."""

import asyncio
import io
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from agentcli.agent.commands.command import CommandHost, SlashCommand
from agentcli.agent.commands.session import PROGRAM
from agentcli.cli.session_opener import ConfiguredOpener
from agentcli.errors import UserError
from agentcli.frontends.hosts import OpenSession, UsageStore
from agentcli.frontends.http.server import import_server

if TYPE_CHECKING:
    from agentcli.frontends.http.shared import Remote

LOOPBACK = "127.0.0.1"


class RemoteCommand:
    """Opens and closes the page of the terminal's session; there is one page at a time."""

    def __init__(
        self,
        opener: ConfiguredOpener,
        store: UsageStore,
        *,
        on_notice: Callable[[str], None],
        on_prompt: Callable[[str], None],
    ) -> None:
        self._opener, self._store = opener, store
        self._on_notice, self._on_prompt = on_notice, on_prompt
        self._remote: Remote | None = None
        self._lock = asyncio.Lock()  # two commands at once could leave a page that nobody can close
        about = "show this session on a web page"
        self.command = SlashCommand("remote", about, self._run, "[lan|ADDRESS|off]", is_aside=True, group=PROGRAM)

    async def _run(self, host: CommandHost, argument: str) -> str:
        async with self._lock:
            if argument == "off":
                return "The page is closed." if await self.aclose() else "This session has no page."
            address = await asyncio.to_thread(_lan_address) if argument == "lan" else argument or LOOPBACK
            link = (await self._serve(host, address)).new_link()
        about = "Open it in a browser{}. The link works once. /remote makes a new one, /remote off closes the page."
        if address == LOOPBACK:
            return f"{link}\n{about.format(' on this machine')}\nFor a phone in the same network: /remote lan"
        more = "It is plain HTTP: whoever reads this network's traffic can read and steer the session."
        return "\n".join([_qr_code(link), link, about.format(""), more])

    async def _serve(self, host: CommandHost, address: str) -> "Remote":
        """Serve the open session at an address of this machine, and return the page. Raises `UserError`."""
        session = host.session
        if self._remote is not None and (self._remote.session_id, self._remote.address) == (session.id, address):
            return self._remote
        await self.aclose()
        await asyncio.to_thread(import_server)
        from agentcli.frontends.http.shared import Remote
        from agentcli.infra.event_log import MemoryEvents

        commands = ConfiguredOpener.commands(self._opener, self._on_notice)  # without `/remote` itself
        # Closing the page does not close the session: the terminal does that.
        opened = OpenSession(session, self._opener, commands, lambda: asyncio.sleep(0))
        remote = Remote(opened, self._store, MemoryEvents(), on_notice=self._on_notice, on_prompt=self._on_prompt)
        await remote.start(address)
        self._remote = remote
        return remote

    async def aclose(self) -> bool:
        """End the page; return False if there is none."""
        remote, self._remote = self._remote, None
        if remote is not None:
            await remote.aclose()
        return remote is not None


def _lan_address() -> str:
    """Return this machine's address in its local network: the one that it would send from. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # an address reserved for documentation
        return str(probe.getsockname()[0])
    raise UserError("This machine has no address in a network. Name one: /remote ADDRESS")


def _qr_code(text: str) -> str:
    """Draw a QR code, two of its rows per line. The light squares are drawn, because most terminals are dark."""
    import segno  # part of the same extra as the server

    drawing = io.StringIO()
    segno.make(text, error="l").terminal(drawing, border=2, compact=True)
    return drawing.getvalue().removesuffix("\n")
