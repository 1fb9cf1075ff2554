"""Opens sessions as flags and settings say, also for clients, and answers commands about models and settings."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agentcli.agent.interfaces import SessionInfo, SessionStore
from agentcli.agent.ops import SetMode
from agentcli.agent.session import Session
from agentcli.app import Builder
from agentcli.cli.options import load_for, text_or_file
from agentcli.conversation.mentions import with_attachments
from agentcli.errors import UsageError, UserError
from agentcli.frontends.hosts import OpenRequest, OpenSession, UsageStore
from agentcli.infra.sessions.sqlite import MemorySessions, SqliteSessions
from agentcli.llm.messages import Block
from agentcli.llm.models import ModelInfo
from agentcli.models.choice import EMBEDDED
from agentcli.settings.load import Config
from agentcli.settings.write import readable_settings, store_setting
from agentcli.setup.options import McpOptions, SessionChoice, SessionOptions

if TYPE_CHECKING:
    from agentcli.agent.commands.command import CommandSet, Topic


class ConfiguredOpener:
    """Implements `SessionOpener` with one builder."""

    def __init__(self, config: Config, builder: Builder) -> None:
        self._config = config
        self._builder = builder
        self.models = builder.models
        self.model_info = builder.models.info
        self.stored_sessions = builder.store
        self.shows_claims = config.settings.evidence.show

    async def open(self, session_id: str | None, *, model: str, fork: bool = False, take_over: bool = False) -> Session:
        choice = SessionChoice("id", session_id, fork, take_over=take_over) if session_id else SessionChoice()
        return await self._builder.build_session(choice, model=model)

    async def list(self) -> Sequence[SessionInfo]:
        return await self.stored_sessions.list(cwd=self._config.cwd)

    def check_model(self, name: str) -> str:
        info = self.models.info(name)
        self.models.require_key(name)
        self.models.provider(name)
        known = "" if info.is_known else " It is in no table: its window and price are guesses."
        return f"From the next request on: {name}, window {info.window:,} tokens.{known}"

    async def list_models(self, *, with_key: bool = False) -> Sequence[tuple[str, str]]:
        here = [*await self.models.running(), *([EMBEDDED] if self.models.embedded_path().is_file() else [])]
        known = await asyncio.to_thread(self.known_models, with_key=with_key)
        others = (row for row in known if not row[0].startswith("local/"))
        return [*((name, "on this machine") for name in here), *others]

    def known_models(self, *, with_key: bool = False) -> Sequence[tuple[str, str]]:
        """The models of the table, those with a key first, or only those."""
        infos, keys = list(self.models.table()), self.models.keys
        has_key = {name: keys.has(name) for name in {info.provider for info in infos}}
        if with_key:
            infos = [info for info in infos if has_key[info.provider] and keys.variables(info.provider)]
        infos.sort(key=lambda info: not has_key[info.provider])
        return [(f"{info.provider}/{info.id}", _in_columns(info, has_key=has_key[info.provider])) for info in infos]

    def commands(self, on_notice: Callable[[str], None]) -> CommandSet:
        """Return all slash commands; agentcli's own keep their names."""
        from agentcli.agent.commands.session import conversation_commands  # a one-shot seldom runs any
        from agentcli.extensions.commands.user_commands import add_user_commands
        from agentcli.extensions.mcp.slash_commands import add_mcp_commands
        from agentcli.extensions.skills.slash_commands import add_skill_commands
        from agentcli.extensions.subagents.slash_commands import add_agent_commands

        commands = conversation_commands()
        add_user_commands(commands, self._config.command_folders, on_notice)
        add_skill_commands(commands, self._builder.skills.catalog)
        add_mcp_commands(commands, self._builder.servers)
        if self._config.settings.agents.enabled:
            add_agent_commands(commands, self._builder.agents.definitions.values())
        return commands

    def store_setting(self, key: str, value: Any) -> str:
        return store_setting(self._config, key, value)

    def attach(self, text: str, session: Session, *, typed: str) -> tuple[Block, ...]:
        shown = session.snapshot()
        small = False
        with suppress(UserError):  # a model that does not exist fails the prompt when it is asked
            small = self.models.info(shown.model).small
        return with_attachments(text, shown.workspace, bare_names=small, typed=typed)

    def describe(self, topic: Topic) -> str:
        if topic == "config":
            from agentcli.safety.secrets.masking import mask

            files = "".join(f"# {file}\n" for file in self._config.files)
            keys = "".join(f"# {line}\n" for line in self.models.keys.lines())
            return files + keys + mask(readable_settings(self._config.settings))
        from agentcli.cli.doctor.checks import Subject
        from agentcli.cli.subcommands.doctor import examine, lines

        return "\n".join(lines(list(examine(Subject(self._config)))))


def _in_columns(info: ModelInfo, *, has_key: bool) -> str:
    """The key, the window, and the prices of a million tokens in and out."""
    prices = f"${info.prices.input:g} in, ${info.prices.output:g} out" if info.prices else ""
    window = f"{info.window // 1_000_000}M" if info.window % 1_000_000 == 0 else f"{info.window // 1_000}k"
    return f"{'✓ key' if has_key else 'no key':<6}  {window:>5}  {prices}".rstrip()


async def open_for_client(
    options: argparse.Namespace,
    store: UsageStore,
    request: OpenRequest,
    *,
    is_server: bool,
    on_notice: Callable[[str], None],
) -> OpenSession:
    """Open a session for an editor or a server's client; one whose model is gone goes on with the usual one."""
    editor = request.editor
    config = await asyncio.to_thread(load_for, options, request.cwd, editor.folders)
    for notice in config.notices:
        on_notice(notice)
    session_options = options_from(options)
    session_options = replace(
        session_options,
        accepts_client_tools=is_server,
        mcp=replace(session_options.mcp, servers=editor.servers),
        client_files=editor.files,
    )
    builder = Builder(
        config, store=store, options=session_options, can_ask=True, goes_on=True, owns_store=False, on_notice=on_notice
    )
    opener, model = ConfiguredOpener(config, builder), request.model
    choice = SessionChoice(user_id=request.user_id, name=request.name)
    if request.id:
        choice = SessionChoice("id", request.id, take_over=request.take_over)
    try:
        try:
            if model:
                opener.check_model(model)
        except UserError as error:
            if not request.id:
                raise
            on_notice(f"session {request.id} goes on with another model: {error}")
            model = ""
        if is_server and request.id:
            model = model or await builder.models.default()
        session = await builder.build_session(choice, model=model)
        commands = opener.commands(on_notice)
    except BaseException:
        await builder.aclose()
        raise
    if request.mode:
        session.submit(SetMode(request.mode))
    return OpenSession(session, opener, commands, builder.aclose)


def make_store(config: Config, options: argparse.Namespace, on_notice: Callable[[str], None]) -> SessionStore:
    return MemorySessions() if options.no_session else SqliteSessions(config.paths.sessions, on_notice=on_notice)


def options_from(options: argparse.Namespace) -> SessionOptions:
    appended = options.append_system_prompt, options.append_system_prompt_file
    return SessionOptions(
        system_prompt=text_or_file("--system-prompt", options.system_prompt, options.system_prompt_file),
        append_system_prompt=text_or_file("--append-system-prompt", *appended) or "",
        is_bare=options.bare,
        accepts_client_tools=options.input_format == "stream-json",
        mcp=McpOptions(options.mcp_config or "", is_strict=options.strict_mcp_config),
    )


def session_choice(options: argparse.Namespace) -> SessionChoice:
    """Which session the flags mean. Raises `UsageError` for flags that exclude each other."""
    goes_on, forks, has_id = options.continue_ or options.resume, options.fork_session, options.session_id is not None
    for is_wrong, why in (
        (options.continue_ and options.resume is not None, "--continue and --resume exclude each other."),
        (forks and not goes_on, "--fork-session goes with --continue or --resume."),
        (has_id and goes_on and not forks, "--session-id is for a new session: leave it out, or add --fork-session."),
        (options.no_session and goes_on, "--no-session stores nothing, so there is nothing to continue."),
        (options.take_over and (forks or not goes_on), "--take-over goes with --continue or --resume alone."),
    ):
        if is_wrong:
            raise UsageError(why)
    return SessionChoice(
        "newest" if options.continue_ else "id" if options.resume else "new",
        options.resume or "",
        forks,
        new_id=_uuid(options.session_id) if has_id else None,
        name=options.name,
        take_over=options.take_over,
    )


def _uuid(text: str) -> str:
    import uuid

    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        raise UsageError(f"--session-id takes a UUID, not {text!r}.") from error
