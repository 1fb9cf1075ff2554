"""Defines a front end's seam to the program that starts it: stored and open sessions, models, files of a prompt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from agentcli.agent.commands.command import CommandHost, CommandSet, Outcome, SlashCommand, Topic
from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.ops import SetEffort, SetMode
from agentcli.agent.session import Session
from agentcli.errors import UsageError
from agentcli.llm.messages import Block
from agentcli.llm.models import ModelInfo

if TYPE_CHECKING:
    from agentcli.agent.accounting.usage import UsageCollector


class SessionOpener(Protocol):
    """Opens sessions and knows the settings."""

    stored_sessions: SessionStore
    shows_claims: bool

    async def open(
        self, session_id: str | None, *, model: str, fork: bool = False, take_over: bool = False
    ) -> Session: ...

    async def list(self) -> Sequence[SessionInfo]: ...

    async def list_models(self, *, with_key: bool = False) -> Sequence[tuple[str, str]]:
        """List the models on this machine and those of the table, each with what is known of it."""

    @property
    def model_info(self) -> Callable[[str], ModelInfo]: ...

    def check_model(self, name: str) -> str:
        """A sentence on `provider/model`. Raises `NoKey`, and other `UserError`s."""

    def store_setting(self, key: str, value: Any) -> str: ...

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        """A prompt with the files that its typed part names."""

    def describe(self, topic: Topic) -> str: ...


class UsageStore(SessionStore, Protocol):
    """A store that also sums up what its sessions used."""

    async def usage(self, *, since: float = 0.0, session: str = "", user_id: str | None = None) -> UsageCollector: ...


class Editor(Struct, frozen=True):
    """An editor's part of a session: folders, MCP servers by name, and its own files, by the session's id."""

    folders: tuple[Path, ...] = ()
    servers: Mapping[str, Any] = {}
    files: Callable[[str], Any] | None = None


class OpenRequest(Struct, frozen=True, kw_only=True):
    """A session to open: a new one, or a stored one by `id`. Empty `model` and `mode` are those of the settings."""

    cwd: Path
    id: str = ""
    model: str = ""
    mode: str = ""
    name: str = ""
    user_id: str = ""
    take_over: bool = False
    editor: Editor = Editor()


class OpenSession(Struct, frozen=True):
    """An open session; call `aclose` once it is closed."""

    session: Session
    opener: SessionOpener
    commands: CommandSet
    aclose: Callable[[], Awaitable[None]]


OpenForClient = Callable[[OpenRequest], Awaitable[OpenSession]]  # with its folder's settings; raises `UserError`


class OpenerHost(CommandHost):
    """The part of `CommandHost` that is the same in every front end."""

    def __init__(self, opener: SessionOpener) -> None:
        self._opener = opener
        self._running: set[asyncio.Future[Outcome]] = set()

    async def run_command(self, command: SlashCommand, argument: str) -> Outcome | None:
        """Run a command; gives None once `interrupt_commands` has ended it. Raises what the command raises."""
        task = asyncio.ensure_future(command.execute(self, argument))
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled():
                return None
            task.cancel()
            raise
        finally:
            self._running.discard(task)

    def interrupt_commands(self) -> None:
        for task in self._running:
            task.cancel()

    @property
    def stored_sessions(self) -> SessionStore:
        return self._opener.stored_sessions

    async def sessions(self) -> Sequence[SessionInfo]:
        return await self._opener.list()

    async def models(self) -> Sequence[tuple[str, str]]:
        return await self._opener.list_models()

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
    """Open the session that follows another one; a new one, or a copy, keeps its mode, model and effort."""
    if session_id is not None and before.id.startswith(session_id) and not fork:
        raise UsageError("That is this conversation.")
    chosen = before.snapshot()
    opened = await opener.open(session_id, model=chosen.model, fork=fork, take_over=take_over)
    if session_id is None or fork:
        if chosen.mode == "plan":
            opened.submit(SetMode(before.state.mode_before_plan))
        opened.submit(SetMode(chosen.mode))
        opened.submit(SetEffort(chosen.effort))
    return opened


def absolute_path(name: str) -> Path:
    """Raises `UsageError`."""
    if not name.startswith("/") or "\0" in name:
        raise UsageError(f"{name[:200]!r} is no absolute path.")
    return Path(name)


def working_folder(name: str) -> Path:
    """The folder that a client names. Raises `UsageError`."""
    folder, why = absolute_path(name), "there is no such folder"
    try:
        if folder.is_dir():
            return folder
    except OSError as error:
        why = error.strerror or why
    raise UsageError(f"Could not work in {name[:200]}: {why}.")
