"""Opens sessions as flags and settings say, also for clients, and answers commands about models and settings."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec.structs import replace

from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.ops import SetMode
from agentcli.agent.session import Session
from agentcli.app import Builder
from agentcli.cli.options import FLAG_OF, settings_from, text_or_file
from agentcli.conversation.mentions import with_attachments
from agentcli.errors import UsageError, UserError
from agentcli.frontends.session_opener import OpenRequest, OpenSession, UsageStore
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.llm.messages import Block
from agentcli.llm.models import ModelInfo
from agentcli.models.choice import EMBEDDED
from agentcli.settings.load import Config, load_config
from agentcli.settings.paths import find_paths
from agentcli.settings.write import readable_settings, store_setting
from agentcli.setup.options import Extras, SessionChoice

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


class ClientSessions:
    """Implements `Sessions` with the flags of a program.

    For a server, clients bring tools, and a stored session whose model is gone goes on with the usual one.
    """

    def __init__(
        self, options: argparse.Namespace, store: UsageStore, *, is_server: bool, on_notice: Callable[[str], None]
    ) -> None:
        self._options = options
        self.store = store
        self._is_server = is_server
        self._on_notice = on_notice

    async def open(self, request: OpenRequest) -> OpenSession:
        from agentcli.agent.commands.session import conversation_commands  # a one-shot seldom runs any

        editor = request.editor
        config = await asyncio.to_thread(load_for, self._options, request.cwd, editor.folders)
        for notice in config.notices:
            self._on_notice(notice)
        extras = replace(extras_from(self._options), brings_tools=self._is_server)
        extras = replace(extras, mcp_servers=editor.servers, client_files=editor.files)
        builder = Builder(
            config,
            store=self.store,
            extras=extras,
            can_ask=True,
            goes_on=True,
            owns_store=False,
            on_notice=self._on_notice,
        )
        opener = ConfiguredOpener(config, builder)
        choice = SessionChoice(user_id=request.user_id, name=request.name)
        if request.id:
            choice = SessionChoice("id", request.id, take_over=request.take_over)
        try:
            model = self._usable_model(opener, request)
            if self._is_server and request.id:
                model = model or await builder.models.default()
            session = await builder.build_session(choice, model=model)
            commands = conversation_commands()
            opener.add_own_commands(commands, self._on_notice)
        except BaseException:
            await builder.aclose()
            raise
        if request.mode:
            session.submit(SetMode(request.mode))
        return OpenSession(session, opener, commands, builder.aclose)

    def _usable_model(self, opener: ConfiguredOpener, request: OpenRequest) -> str:
        try:
            if request.model:
                opener.check_model(request.model)
        except UserError as error:
            if not request.id:
                raise
            self._on_notice(f"session {request.id} goes on with another model: {error}")
            return ""
        return request.model


def load_for(options: argparse.Namespace, cwd: Path, folders: Sequence[Path] = ()) -> Config:
    """The settings of sessions in a folder, with the flags on top. Raises `ConfigError` and `UsageError`."""
    flags = settings_from(options)
    if folders:
        added = flags["permissions"].get("additional_directories", [])
        flags["permissions"]["additional_directories"] = [*added, *map(str, folders)]
    return load_config(
        find_paths(os.environ.get("AGENTCLI_HOME")),
        cwd,
        os.environ,
        flags=flags,
        flag_names={key: f"{flag} ({key})" for key, flag in FLAG_OF.items()},
        extra_file=Path(options.settings).absolute() if options.settings else None,
        trust=options.trust,
    )


def make_store(config: Config, options: argparse.Namespace, on_notice: Callable[[str], None]) -> SessionStore:
    return MemorySessions() if options.no_session else SqliteSessions(config.paths.sessions, on_notice=on_notice)


def extras_from(options: argparse.Namespace) -> Extras:
    return Extras(
        text_or_file(options, "system-prompt"),
        text_or_file(options, "append-system-prompt") or "",
        options.bare,
        brings_tools=options.input_format == "stream-json",
        mcp_config=options.mcp_config or "",
        is_strict_mcp=options.strict_mcp_config,
    )


def session_choice(options: argparse.Namespace) -> SessionChoice:
    """Which session the flags mean. Raises `UsageError` for flags that exclude each other."""
    if options.continue_ and options.resume is not None:
        raise UsageError("--continue and --resume exclude each other.")
    if options.fork_session and not (options.continue_ or options.resume):
        raise UsageError("--fork-session goes with --continue or --resume.")
    if options.session_id is not None and (options.continue_ or options.resume) and not options.fork_session:
        raise UsageError("--session-id is for a new session: leave it out, or continue a copy with --fork-session.")
    if options.no_session and (options.continue_ or options.resume):
        raise UsageError("--no-session stores nothing, so there is nothing to continue.")
    how: Literal["newest", "id", "new"] = "newest" if options.continue_ else "id" if options.resume else "new"
    if options.take_over and (options.fork_session or not (options.continue_ or options.resume)):
        raise UsageError("--take-over goes with --continue or --resume, without --fork-session.")
    return SessionChoice(
        how,
        options.resume or "",
        options.fork_session,
        new_id=_uuid(options.session_id),
        name=options.name,
        take_over=options.take_over,
    )


def _uuid(text: str | None) -> str | None:
    if text is None:
        return None
    import uuid

    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise UsageError(f"--session-id takes a UUID, not {text!r}.") from error
