"""Defines the seam to the program that opens sessions for the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from agentcli.agent.commands.command import Commands
from agentcli.agent.interfaces import SessionInfo
from agentcli.agent.session import Session
from agentcli.conversation.entries import Entry
from agentcli.frontends.session_opener import SessionOpener


class Wanted(Struct, frozen=True):
    """A session to open: a new one, or a stored one by `id`. Empty `model` and `mode` are those of the settings.

    `budget_usd` is what all sessions of `user_id` may cost on a day.
    """

    cwd: Path
    id: str = ""
    model: str = ""
    mode: str = ""
    user_id: str = ""
    take_over: bool = False
    budget_usd: float | None = None
    name: str = ""


class Opened(Struct, frozen=True):
    """An open session; call `aclose` once it is closed."""

    session: Session
    opener: SessionOpener
    commands: Commands
    aclose: Callable[[], Awaitable[None]]


class Sessions(Protocol):
    """The stored sessions, and a way to open them. Methods raise `UserError`."""

    async def open(self, wanted: Wanted) -> Opened: ...

    async def list(self, user_id: str | None, limit: int) -> Sequence[SessionInfo]:
        """Newest first; those of one user, or of all (None)."""
        ...

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, Sequence[Entry]]: ...

    async def holder(self, session_id: str) -> str | None:
        """Where the program is reached that has the session open ("" for one that is not a server)."""
        ...

    async def remove(self, session_id: str) -> None: ...

    async def usage(self, *, since: float, session_id: str, user_id: str | None) -> dict[str, Any]:
        """The report of `agentcli usage`."""
        ...

    async def aclose(self) -> None: ...
