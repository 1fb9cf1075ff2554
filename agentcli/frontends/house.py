"""Names what a front end needs of whoever starts it: sessions, models, the files of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from agentcli.agent.commands.command import Topic
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.session import Session
from agentcli.llm.messages import Block


class SessionHouse(Protocol):
    """Opens sessions and knows the settings."""

    @property
    def stored_sessions(self) -> SessionStore: ...

    async def open(self, session_id: str | None, *, model: str, fork: bool = False) -> Session: ...

    async def list(self) -> Sequence[SessionInfo]: ...

    def check_model(self, name: str) -> str: ...

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        """A prompt with the files that the part of it that was typed names."""
        ...

    def describe(self, topic: Topic) -> str: ...
