"""Defines a front end's seam to the program that starts it: sessions, models, the files of a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from agentcli.agent.commands.command import Topic
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.ops import SetEffort, SetMode
from agentcli.agent.session import Session
from agentcli.errors import UsageError
from agentcli.llm.messages import Block


class SessionOpener(Protocol):
    """Opens sessions and knows the settings."""

    @property
    def stored_sessions(self) -> SessionStore: ...

    async def open(
        self, session_id: str | None, *, model: str, fork: bool = False, take_over: bool = False
    ) -> Session: ...

    async def list(self) -> Sequence[SessionInfo]: ...

    def check_model(self, name: str) -> str:
        """A sentence on `provider/model`. Raises `NoKey`, and other `UserError`s."""
        ...

    async def models(self) -> Sequence[tuple[str, str]]: ...

    def store_setting(self, key: str, value: Any) -> str: ...

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        """A prompt with the files that its typed part names."""
        ...

    def describe(self, topic: Topic) -> str: ...


class OpenerHost:
    """The part of `CommandHost` that a `SessionOpener` does for every front end."""

    def __init__(self, opener: SessionOpener) -> None:
        self._opener = opener

    @property
    def session(self) -> Session:
        raise NotImplementedError

    @property
    def stored_sessions(self) -> SessionStore:
        return self._opener.stored_sessions

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self._opener.list()

    async def models(self) -> Sequence[tuple[str, str]]:
        return await self._opener.models()

    async def store_setting(self, key: str, value: Any) -> str:
        return await asyncio.to_thread(self._opener.store_setting, key, value)

    async def describe(self, topic: Topic) -> str:
        return await asyncio.to_thread(self._opener.describe, topic)

    async def document(self, file: str) -> str:
        from agentcli.frontends.export import documents  # 40 ms that only an export needs

        return await documents.live_document(self.session, file, await self.sessions())

    async def edit(self, text: str) -> str | None:
        return None

    async def confirm(self, shown: str, question: str) -> bool | None:
        return None


async def open_after(
    opener: SessionOpener, before: Session, session_id: str | None, *, fork: bool, take_over: bool = False
) -> Session:
    """Open the session that follows another one. A new one, or a copy, keeps its mode, model and effort.

    Raises `UsageError` for the very session it is to follow.
    """
    if session_id is not None and before.id.startswith(session_id) and not fork:
        raise UsageError("That is this conversation.")
    chosen = before.snapshot()
    opened = await opener.open(session_id, model=chosen.model, fork=fork, take_over=take_over)
    if session_id is None or fork:
        if chosen.mode == "plan":
            opened.submit(SetMode(chosen.mode_before_plan))
        opened.submit(SetMode(chosen.mode))
        opened.submit(SetEffort(chosen.effort))
    return opened
