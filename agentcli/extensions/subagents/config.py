"""Finds the kinds of subagents that settings, trust and flags let a session have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from agentcli.agent.interfaces import SessionStore
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.settings.load import Config
from agentcli.settings.paths import home_of
from agentcli.settings.trust import AGENT_FOLDERS, project_places

if TYPE_CHECKING:
    from agentcli.extensions.subagents.definitions import Definitions

AGENTS_FILE = "agents.db"  # in the state folder


class Agents:
    """The kinds of subagents that settings and trust let a session have, and where their conversations are kept.

    They are looked for when they are asked for; a lasting store is a file beside that of people's conversations.
    """

    def __init__(self, config: Config, *, is_bare: bool, is_lasting: bool, tell: Callable[[str], None]) -> None:
        self._config = config
        self._is_bare = is_bare
        self._is_lasting = is_lasting
        self._tell = tell

    @cached_property
    def places(self) -> list[tuple[Path, str]]:
        """The folders that are there, that which counts most first."""
        if self._is_bare:
            return []
        config = self._config
        places = project_places(config.cwd, AGENT_FOLDERS) if config.uses_project else []
        found = [(place, "project") for place in places]
        users = (config.paths.config / "agents", home_of(config.environment) / ".claude/agents")
        return found + [(folder, "user") for folder in users if folder.is_dir()]

    @cached_property
    def definitions(self) -> Definitions:
        from agentcli.extensions.subagents import definitions as module

        definitions: Definitions = module.find_definitions(self.places, self._config.paths.cache / "agents")
        for one in definitions.left_out:
            self._tell(f"{one.file} defines no agent: {one.why}.")
        return definitions

    @cached_property
    def store(self) -> SessionStore:
        if not self._is_lasting:
            return MemorySessions()
        return SqliteSessions(self._config.paths.state / AGENTS_FILE, on_notice=self._tell)

    async def aclose(self) -> None:
        if "store" in vars(self):
            await self.store.close()

    def listing(self) -> str:
        """What the model is told of those that are not built in."""
        return self.definitions.listing() if self.places else ""
