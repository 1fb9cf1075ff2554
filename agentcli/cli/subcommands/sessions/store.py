"""Opens the session store for a subcommand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from agentcli.agent.interfaces import SessionStore
from agentcli.cli.output import warn
from agentcli.cli.subcommands.shared import configuration
from agentcli.extensions.subagents.config import AGENTS_FILE
from agentcli.infra.sessions.sqlite import SqliteSessions

T = TypeVar("T")
_EVERY = 1_000_000


async def with_store(work: Callable[[SessionStore], Awaitable[T]]) -> T:
    """What `work` gives; the store is closed after it."""
    return await _with(configuration().paths.sessions, work)


async def with_agents(session_id: str, work: Callable[[SessionStore, str], Awaitable[T]]) -> list[T]:
    """What `work` gives for each subagent of a session, by its id."""
    file = configuration().paths.state / AGENTS_FILE
    if not file.exists():
        return []

    async def each(store: SessionStore) -> list[T]:
        agents = await store.list(user_id=session_id, limit=_EVERY)
        return [await work(store, agent.id) for agent in agents]

    return await _with(file, each)


async def _with(file: Path, work: Callable[[SessionStore], Awaitable[T]]) -> T:
    store = SqliteSessions(file, on_notice=warn)
    try:
        return await work(store)
    finally:
        await store.close()
