"""Opens sessions as the flags and settings say, and answers commands about models and settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.session import Session
from agentcli.app import Builder
from agentcli.conversation.mentions import with_attachments
from agentcli.errors import UserError
from agentcli.llm.messages import Block
from agentcli.llm.models import ModelInfo
from agentcli.models.choice import EMBEDDED
from agentcli.settings.load import Config
from agentcli.settings.write import readable_settings, store_setting
from agentcli.setup.options import SessionChoice

if TYPE_CHECKING:
    from agentcli.agent.commands.command import Commands, Topic


class ConfiguredOpener:
    """Implements `SessionOpener` with one builder."""

    def __init__(self, config: Config, builder: Builder) -> None:
        self._config = config
        self._builder = builder

    @property
    def stored_sessions(self) -> SessionStore:
        return self._builder.store

    async def open(self, session_id: str | None, *, model: str, fork: bool = False, take_over: bool = False) -> Session:
        choice = SessionChoice("id", session_id, fork, take_over=take_over) if session_id else SessionChoice()
        return await self._builder.build_session(choice, model=model)

    async def list(self) -> Sequence[SessionInfo]:
        return await self._builder.store.list(cwd=self._config.cwd)

    def check_model(self, name: str) -> str:
        info = self._builder.models.info(name)
        self._builder.models.require_key(name)
        self._builder.models.provider(name)
        known = "" if info.is_known else " It is in no table: its window and price are guesses."
        return f"From the next request on: {name}, window {info.window:,} tokens.{known}"

    async def models(self) -> Sequence[tuple[str, str]]:
        known = await asyncio.to_thread(self.known_models)
        return [*await self._models_here("here"), *(row for row in known if not row[0].startswith("local/"))]

    async def usable_models(self) -> Sequence[tuple[str, str]]:
        infos, keys = list(self._builder.models.table()), self._builder.models.keys
        names = {info.provider for info in infos}
        keyed = await asyncio.to_thread(lambda: {name for name in names if keys.variables(name) and keys.has(name)})
        rows = [(f"{info.provider}/{info.id}", f"{info.window:,} tokens") for info in infos if info.provider in keyed]
        return [*await self._models_here("on this machine"), *rows]

    async def _models_here(self, note: str) -> Sequence[tuple[str, str]]:
        models = self._builder.models
        embedded = [EMBEDDED] if models.embedded_path().is_file() else []
        return [(name, note) for name in (*await models.running(), *embedded)]

    def known_models(self) -> Sequence[tuple[str, str]]:
        """The models of the table, those with a key first."""
        models = self._builder.models
        infos = list(models.table())
        has_key = {name: models.keys.has(name) for name in {info.provider for info in infos}}
        infos.sort(key=lambda info: not has_key[info.provider])
        return [(f"{info.provider}/{info.id}", _in_columns(info, has_key=has_key[info.provider])) for info in infos]

    def window(self, model: str) -> int:
        return self._builder.models.info(model).window

    @property
    def shows_claims(self) -> bool:
        return self._config.settings.evidence.show

    def add_own_commands(self, commands: Commands, on_notice: Callable[[str], None]) -> None:
        """Add the slash commands that people bring; agentcli's own keep their names."""
        from agentcli.extensions.commands.user_commands import add_user_commands
        from agentcli.extensions.mcp.slash_commands import add_mcp_commands
        from agentcli.extensions.skills.slash_commands import add_skill_commands
        from agentcli.extensions.subagents.slash_commands import add_agent_commands

        add_user_commands(commands, self._config.command_folders, on_notice)
        add_skill_commands(commands, self._builder.skills.catalog)
        add_mcp_commands(commands, self._builder.servers)
        if self._config.settings.agents.enabled:
            add_agent_commands(commands, self._builder.agents.definitions)

    def store_setting(self, key: str, value: Any) -> str:
        return store_setting(self._config, key, value)

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        shown = session.snapshot()
        small = False
        with suppress(UserError):  # a model that does not exist fails the prompt when it is asked
            small = self._builder.models.info(shown.model).small
        return with_attachments(text, shown.workspace, bare_names=small, typed=typed)

    def describe(self, topic: Topic) -> str:
        if topic == "config":
            from agentcli.safety.secrets.masking import mask

            files = "".join(f"# {file}\n" for file in self._config.files)
            keys = "".join(f"# {line}\n" for line in self._builder.models.keys.lines())
            return files + keys + mask(readable_settings(self._config.settings))
        from agentcli.cli.doctor.checks import examine, lines  # typer: 50 ms that only this needs
        from agentcli.cli.doctor.subject import Subject

        return "\n".join(lines(list(examine(Subject(self._config)))))


def _in_columns(info: ModelInfo, *, has_key: bool) -> str:
    """The key, the window, and the prices of a million tokens in and out."""
    prices = f"${info.prices.input:g} in, ${info.prices.output:g} out" if info.prices else ""
    window = f"{info.window // 1_000_000}M" if info.window % 1_000_000 == 0 else f"{info.window // 1_000}k"
    return f"{'✓ key' if has_key else 'no key':<6}  {window:>5}  {prices}".rstrip()
