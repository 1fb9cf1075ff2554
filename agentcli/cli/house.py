"""Opens sessions as the flags and settings say, and knows what commands ask about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.session import Session
from agentcli.app import Builder, SessionChoice
from agentcli.config import Config, to_toml
from agentcli.conversation.mentions import with_attachments
from agentcli.llm.messages import Block

if TYPE_CHECKING:
    from agentcli.agent.commands.command import Topic


class ConfiguredHouse:
    """Implements `SessionHouse` with one builder."""

    def __init__(self, config: Config, builder: Builder) -> None:
        self._config = config
        self._builder = builder

    @property
    def stored_sessions(self) -> SessionStore:
        return self._builder.store

    async def open(self, session_id: str | None, *, model: str, fork: bool = False) -> Session:
        choice = SessionChoice("id", session_id, fork) if session_id else SessionChoice()
        return await self._builder.build_session(choice, model=model)

    async def list(self) -> Sequence[SessionInfo]:
        return await self._builder.store.list(cwd=self._config.cwd)

    def check_model(self, name: str) -> str:
        info = self._builder.models.info(name)
        self._builder.models.provider(name)
        known = "" if info.is_known else " It is in no table: its window and price are guesses."
        return f"From the next request on: {name}, window {info.window:,} tokens.{known}"

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        small = self._builder.models.info(session.state.model).small
        return with_attachments(text, session.runtime.calls.workspace, bare_names=small, typed=typed)

    def describe(self, topic: Topic) -> str:
        if topic == "config":
            files = "".join(f"# {file}\n" for file in self._config.files)
            return files + (to_toml(self._config.settings) or "# Every setting has its default.")
        from agentcli.cli.doctor import checks  # typer: 50 ms that only this needs

        return "\n".join(f"{mark} {name:<12} {text}" for name, mark, text in checks(self._config))
