"""Opens sessions for a server, each with the configuration of its folder."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from agentcli.agent.accounting.usage import UsageCollector
from agentcli.agent.commands.session import conversation_commands
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.ops import SetMode
from agentcli.app import Builder
from agentcli.cli.acp_sessions import load_for
from agentcli.cli.one_shot import extras_from
from agentcli.cli.own_commands import add_own_commands
from agentcli.cli.session_opener import ConfiguredOpener
from agentcli.conversation.entries import Entry
from agentcli.errors import UserError
from agentcli.frontends.http.opening import Opened, Wanted
from agentcli.infra.day_account import DayAccount
from agentcli.settings.files import make_private_folder
from agentcli.setup.options import SessionChoice

log = logging.getLogger(__name__)


class UsageStore(SessionStore, Protocol):
    """A store that also tells what its sessions used."""

    async def usage(self, *, since: float = 0.0, session: str = "", user_id: str | None = None) -> UsageCollector: ...


class HttpSessions:
    """Implements `Sessions` with the flags of `agentcli serve`. `budgets` is a folder for what users have spent."""

    def __init__(self, options: argparse.Namespace, store: UsageStore, *, budgets: Path) -> None:
        self._options = options
        self._store = store
        self._budgets = budgets

    async def open(self, wanted: Wanted) -> Opened:
        config = await asyncio.to_thread(load_for, self._options, wanted.cwd)
        for notice in config.notices:
            log.warning("%s", notice)
        builder = Builder(
            config,
            store=self._store,
            extras=replace(extras_from(self._options), brings_tools=True),
            can_ask=True,
            goes_on=True,
            owns_store=False,
            on_notice=log.warning,
        )
        opener = ConfiguredOpener(config, builder)
        try:
            model = self._usable(opener, wanted) or (await builder.models.default() if wanted.id else "")
            choice = SessionChoice(user_id=wanted.user_id, name=wanted.name)
            if wanted.id:
                choice = SessionChoice("id", wanted.id, take_over=wanted.take_over)
            session = await builder.build_session(choice, model=model)
            commands = conversation_commands()
            add_own_commands(commands, config, builder, log.warning)
        except BaseException:
            await builder.aclose()
            raise
        if wanted.mode:
            session.submit(SetMode(wanted.mode))
        if wanted.budget_usd is not None:
            session.state.budgets = session.state.budgets.within(self._account(wanted.user_id, wanted.budget_usd))
        return Opened(session, opener, commands, builder.aclose)

    @staticmethod
    def _usable(opener: ConfiguredOpener, wanted: Wanted) -> str:
        """The model that is wanted; a stored session goes on with the usual one where its own is not there any more."""
        try:
            if wanted.model:
                opener.check_model(wanted.model)
        except UserError as error:
            if not wanted.id:
                raise
            log.warning("session %s goes on with another model: %s", wanted.id, error)
            return ""
        return wanted.model

    def _account(self, user_id: str, most_usd: float) -> DayAccount:
        make_private_folder(self._budgets)
        name = hashlib.sha256(user_id.encode()).hexdigest()[:16] if user_id else "owner"
        return DayAccount(self._budgets / f"{name}.db", {"usd": most_usd})

    async def list(self, user_id: str | None, limit: int) -> Sequence[SessionInfo]:
        return await self._store.list(limit=limit, user_id=user_id)

    async def load(
        self, session_id: str, *, after: int = 0, user_id: str | None = None
    ) -> tuple[SessionInfo, Sequence[Entry]]:
        return await self._store.load(session_id, after=after, user_id=user_id)

    async def holder(self, session_id: str) -> str | None:
        return await self._store.holder(session_id)

    async def remove(self, session_id: str) -> None:
        await self._store.remove(session_id)

    async def usage(self, *, since: float, session_id: str, user_id: str | None) -> dict[str, Any]:
        return (await self._store.usage(since=since, session=session_id, user_id=user_id)).report()

    async def aclose(self) -> None:
        await self._store.close()
