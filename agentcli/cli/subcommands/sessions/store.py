"""Opens the session store for a subcommand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentcli.agent.interfaces import SessionStore
from agentcli.cli.output import warn
from agentcli.cli.subcommands.shared import configuration
from agentcli.infra.sessions.sqlite import SqliteSessions

T = TypeVar("T")


async def with_store(work: Callable[[SessionStore], Awaitable[T]]) -> T:
    """What `work` gives; the store is closed after it."""
    store = SqliteSessions(configuration().paths.sessions, on_notice=warn)
    try:
        return await work(store)
    finally:
        await store.close()
