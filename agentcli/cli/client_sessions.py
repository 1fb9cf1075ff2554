"""Opens sessions for the clients of an editor's program or of a server, each with the settings of its folder."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from agentcli.agent.commands.session import conversation_commands
from agentcli.agent.ops import SetMode
from agentcli.app import Builder
from agentcli.cli.one_shot import extras_from
from agentcli.cli.options import FLAG_OF, settings_from
from agentcli.cli.session_opener import ConfiguredOpener
from agentcli.errors import UserError
from agentcli.frontends.session_opener import OpenRequest, OpenSession, UsageStore
from agentcli.settings.load import Config, load_config
from agentcli.settings.paths import find_paths
from agentcli.setup.options import SessionChoice


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
        editor = request.editor
        config = await asyncio.to_thread(load_for, self._options, request.cwd, editor.folders)
        for notice in config.notices:
            self._on_notice(notice)
        extras = replace(
            extras_from(self._options),
            brings_tools=self._is_server,
            mcp_servers=editor.servers,
            client_files=editor.files,
        )
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
