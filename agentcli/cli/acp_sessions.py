"""Opens sessions for an editor, each with the configuration of its own folder."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from agentcli.agent.commands.session import conversation_commands
from agentcli.agent.interfaces import SessionInfo
from agentcli.app import Builder
from agentcli.cli.one_shot import extras_from
from agentcli.cli.options import FLAG_OF, settings_from
from agentcli.cli.output import warn
from agentcli.cli.own_commands import add_own_commands
from agentcli.cli.session_opener import ConfiguredOpener
from agentcli.errors import NoKey
from agentcli.frontends.acp.client import Client
from agentcli.frontends.acp.client_files import ClientFiles
from agentcli.frontends.acp.opening import Opened, Wanted
from agentcli.frontends.acp.rpc import AUTH_REQUIRED, RpcError
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.models.choice import EMBEDDED, Models, NoModel
from agentcli.settings.load import Config, load_config
from agentcli.settings.paths import find_paths
from agentcli.setup.options import NEW, SessionChoice


class AcpSessions:
    """Implements `Sessions` with the flags of `agentcli acp`. Notices go to stderr, which editors keep as a log."""

    def __init__(self, options: argparse.Namespace, config: Config) -> None:
        self._options = options
        self._store = SqliteSessions(config.paths.sessions, on_notice=warn)

    async def open(self, wanted: Wanted, client: Client) -> Opened:
        config = await asyncio.to_thread(load_for, self._options, wanted.cwd, wanted.folders)
        for notice in config.notices:
            warn(notice)
        extras = replace(
            extras_from(self._options), mcp_servers={server.name: server.entry for server in wanted.servers}
        )
        if client.can.has_files:
            extras = replace(extras, client_files=partial(ClientFiles, client, wanted.cwd))
        builder = Builder(
            config, store=self._store, extras=extras, can_ask=True, goes_on=True, owns_store=False, on_notice=warn
        )
        try:
            session = await builder.build_session(SessionChoice("id", wanted.id) if wanted.id else NEW)
            models = await _usable(builder.models)
        except (NoModel, NoKey) as error:
            await builder.aclose()
            raise RpcError(AUTH_REQUIRED, str(error)) from error
        except BaseException:
            await builder.aclose()
            raise
        commands = conversation_commands()
        add_own_commands(commands, config, builder, warn)
        return Opened(
            session,
            ConfiguredOpener(config, builder),
            commands,
            models,
            lambda name: builder.models.info(name).window,
            config.settings.evidence.show,
            builder.aclose,
        )

    async def list(self, cwd: Path | None, limit: int) -> Sequence[SessionInfo]:
        return await self._store.list(cwd=cwd, limit=limit)

    async def remove(self, session_id: str) -> None:
        await self._store.remove(session_id)

    async def aclose(self) -> None:
        await self._store.close()


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


async def _usable(models: Models) -> tuple[tuple[str, str], ...]:
    """List the models on this machine and those whose provider has a key, each with a few words."""
    here = [(name, "on this machine") for name in await models.running()]
    if models.embedded_path().is_file():
        here.append((EMBEDDED, "on this machine"))
    return (*here, *await asyncio.to_thread(_with_key, models))


def _with_key(models: Models) -> list[tuple[str, str]]:
    infos = list(models.table())
    providers = {info.provider for info in infos}
    keyed = {name for name in providers if models.keys.variables(name) and models.keys.has(name)}
    return [(f"{info.provider}/{info.id}", f"{info.window:,} tokens") for info in infos if info.provider in keyed]
