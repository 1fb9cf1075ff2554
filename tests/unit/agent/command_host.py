"""A front end of a test: lends its session to commands and notes what they ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from agentcli.agent.commands.command import AsDiff, CommandHost, CommandSet, Outcome, Topic
from agentcli.agent.commands.session import conversation_commands
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.session import Session
from agentcli.agent.state import AgentState, ModelChoice, restore_state
from agentcli.errors import UsageError
from agentcli.frontends.export.documents import live_document
from agentcli.infra.sessions.sqlite import MemorySessions
from tests.unit.agent.stage import Stage, on_stage


@dataclass
class FakeHost:
    """Implements `CommandHost`. `picks` are the answers of its picker; without one there is no picker."""

    stage: Stage
    store: MemorySessions
    commands: CommandSet = field(default_factory=conversation_commands)
    picks: list[int] = field(default_factory=list)
    asked: list[list[tuple[str, str]]] = field(default_factory=list)
    input: str = ""
    has_left: bool = False
    others: list[Session] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def session(self) -> Session:
        return self.others[-1] if self.others else self.stage.session

    @property
    def stored_sessions(self) -> SessionStore:
        return self.store

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self.store.list()

    async def open_session(self, session_id: str | None, *, fork: bool = False, take_over: bool = False) -> Session:
        cwd = self.stage.workspace
        before = self.session
        if session_id is None:
            log, entries = await self.store.create(cwd=cwd), []
        elif fork:
            log, entries = await self.store.fork(session_id, cwd=cwd)
        else:
            log, entries = await self.store.open(session_id, take_over=take_over)
        runtime = replace(before.runtime, log=log)
        self.others.append(
            Session(restore_state(AgentState(model=ModelChoice(name=before.state.model.name)), entries), runtime)
        )
        await before.close()
        return self.session

    async def check_model(self, name: str) -> str:
        if name not in ("scripted/script", "scripted/other"):
            raise UsageError(f"{name!r} is not a model.")
        return f"Starting with the next request: {name}."

    async def models(self) -> Sequence[tuple[str, str]]:
        return [("scripted/other", "here"), ("scripted/script", "here")]

    async def store_setting(self, key: str, value: Any) -> str:
        self.kept[key] = value
        return f"Kept {key}."

    async def choose(self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None) -> int | None:
        self.asked.append(list(options))
        if not self.picks:
            return None
        return self.picks.pop(0)

    async def confirm(self, shown: str, question: str) -> bool | None:
        return self.picks.pop(0) == 0 if self.picks else None

    async def describe(self, topic: Topic) -> str:
        return f"about {topic}"

    async def document(self, file: str) -> str:
        return await live_document(self.session, file, await self.sessions())

    async def edit(self, text: str) -> str | None:
        return None

    def put_into_input(self, text: str) -> None:
        self.input = text

    def leave(self) -> None:
        self.has_left = True

    async def outcome(self, typed: str) -> Outcome:
        """What a command that was typed gives."""
        found = self.commands.parse(typed)
        assert found is not None
        command, argument = found
        return await command.execute(self, argument)

    async def shows(self, typed: str) -> str:
        said = await self.outcome(typed)
        assert isinstance(said, AsDiff), said
        return said.text

    async def says(self, typed: str) -> str:
        said = await self.outcome(typed)
        assert isinstance(said, str), said
        return said


@asynccontextmanager
async def command_host(folder: Path, replies: Sequence[Mapping[str, Any]] = (), **how: Any) -> AsyncIterator[FakeHost]:
    (folder / "work").mkdir(exist_ok=True)
    store = MemorySessions()
    log = await store.create(cwd=folder / "work")
    async with on_stage(folder, replies, log=log, **how) as stage:
        host = FakeHost(stage, store)
        _: CommandHost = host
        try:
            yield host
        finally:
            for session in host.others:
                await session.close()
