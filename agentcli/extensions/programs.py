"""Finds the programs in the workspace that commands of the settings run, so that their contents are pinned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentcli.settings.files import from_home, project_root
from agentcli.settings.load import Config
from agentcli.settings.trust import HOOKS_FILE, remember_trust, trusted_digests

if TYPE_CHECKING:
    from agentcli.extensions.hooks.run import HookSpec
    from agentcli.extensions.mcp.tools import ServerSpec
    from agentcli.extensions.program_pins import ProgramPins


def program_environment(config: Config, session_id: str = "") -> dict[str, str]:
    """Return the environment of hooks and servers: that of commands, without credentials, and the project's folder."""
    from agentcli.infra.sandbox.environment import command_environment

    root = str(project_root(config.cwd))
    names = {"AGENTCLI_PROJECT_DIR": root, "CLAUDE_PROJECT_DIR": root}
    return {**command_environment(config.environment, session_id), **names}


class WorkspacePrograms:
    """The programs that hooks, MCP servers and other commands of one configuration run."""

    def __init__(self, config: Config) -> None:
        self._config = config

    @cached_property
    def pins(self) -> ProgramPins:
        """The pins, imported when they are first needed: most projects have none of these commands."""
        from agentcli.extensions.program_pins import ProgramPins

        config = self._config
        pins = ProgramPins(
            cwd=config.cwd,
            root=project_root(config.cwd),
            added=[config.cwd / from_home(name) for name in config.settings.permissions.additional_directories],
            trusted=None if config.project.is_trusted_now else partial(trusted_digests, config.paths),
            keep=partial(remember_trust, config.paths),
        )
        for command in _own_commands(config):
            pins.add(command, variables=config.environment)
        return pins

    def add_hook(self, spec: HookSpec) -> None:
        is_of_project = Path(spec.source).is_relative_to(project_root(self._config.cwd) / Path(HOOKS_FILE).parent)
        self.pins.add(spec.command, is_of_project=is_of_project, variables=self._config.environment)

    def add_server(self, spec: ServerSpec) -> None:
        if command := spec.start_command:
            variables = {**self._config.environment, **getattr(spec.transport, "env", {})}
            self.pins.add(command, is_of_project=spec.is_of_project, variables=variables)

    def files(self, roots: Sequence[Path]) -> list[Path]:
        """Return the existing programs in these folders."""
        if "pins" in vars(self) or any(_own_commands(self._config)):
            self.pins.cover(roots)
            return self.pins.files()
        return []


def _own_commands(config: Config) -> Iterator[str]:
    """Yield the person's own commands: that of the status line, and those that print keys."""
    if command := config.settings.terminal.status_command:
        yield command
    yield from (server.api_key_helper for server in config.settings.providers.values() if server.api_key_helper)
