"""Defines the seam to the program that opens sessions for a client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from agentcli.agent.commands.command import Commands
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.session import Session
from agentcli.frontends.acp.client import Client
from agentcli.frontends.acp.messages import McpServer
from agentcli.frontends.session_opener import SessionOpener


class Wanted(Struct, frozen=True):
    """A session that a client asks for: a new one, or a stored one by `id`. `servers` are MCP servers of the client."""

    cwd: Path
    folders: tuple[Path, ...] = ()
    id: str = ""
    servers: tuple[McpServer, ...] = ()


class Opened(Struct, frozen=True):
    """An open session. `models` lists those that can be used, each with a short description.

    `window` gives the window of `provider/model` in tokens. Call `aclose` once the session is closed.
    """

    session: Session
    opener: SessionOpener
    commands: Commands
    models: tuple[tuple[str, str], ...]
    window: Callable[[str], int]
    shows_claims: bool
    aclose: Callable[[], Awaitable[None]]


class Sessions(Protocol):
    """Opens sessions with the flags and with the settings of each folder. Methods raise `UserError`."""

    async def open(self, wanted: Wanted, client: Client) -> Opened:
        """Raises `RpcError` (auth required) where there is no model, or no key for it."""
        ...

    async def list(self, cwd: Path | None, limit: int) -> Sequence[SessionInfo]:
        """List stored sessions, newest first."""
        ...

    async def remove(self, session_id: str) -> None: ...

    async def aclose(self) -> None: ...
