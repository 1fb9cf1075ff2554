"""Finds the hooks that settings and trust let a session have; nothing of them is loaded where there are none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.errors import ConfigError
from agentcli.extensions.programs import WorkspacePrograms
from agentcli.settings.files import is_file, read_small_file
from agentcli.settings.load import Config
from agentcli.settings.paths import project_root
from agentcli.settings.trust import HOOKS_FILE

if TYPE_CHECKING:
    from agentcli.extensions.hooks.run import CommandHooks
    from agentcli.extensions.hooks.specs import HookSpec


class Hooks:
    """The command hooks of one configuration, whose `programs` are trusted as they are.

    `tell` hears of what cannot be used.
    """

    def __init__(
        self,
        config: Config,
        *,
        is_bare: bool,
        tell: Callable[[str], None],
        programs: WorkspacePrograms | None = None,
    ) -> None:
        self._config = config
        self._programs = programs or WorkspacePrograms(config)
        self._is_bare = is_bare
        self._tell = tell

    @cached_property
    def specs(self) -> list[HookSpec]:
        """Those of the person first, then those of the project."""
        tables = [(layer.values["hooks"], layer.source) for layer in self._config.layers if "hooks" in layer.values]
        if self._config.uses_project and (table := self._of_project()) is not None:
            tables.append((table, str(self._project_file)))
        if self._is_bare or not tables:
            return []
        from agentcli.extensions.hooks.specs import read_hooks as read

        problems: list[str] = []
        specs = [spec for table, source in tables for spec in read(table, source, problems)]
        for problem in problems:
            self._tell(problem)
        for spec in specs:
            self._programs.add_hook(spec)
        return specs

    def of_session(self, session_id: str, mode: Callable[[], str]) -> CommandHooks | None:
        """Those of a session; None where there are none."""
        if not self.specs:
            return None
        from agentcli.extensions.hooks.run import CommandHooks

        cwd = self._config.cwd
        return CommandHooks(
            self.specs,
            self.runner(session_id),
            self._programs.pins,
            session_id=session_id,
            cwd=cwd,
            mode=mode,
        )

    def runner(self, session_id: str) -> Any:
        """What runs one command: with the environment of commands, without credentials."""
        from agentcli.infra.sandbox.processes.environment import command_environment

        environment = command_environment(self._config.environment, session_id)
        root = str(project_root(self._config.cwd))
        environment |= {"AGENTCLI_PROJECT_DIR": root, "CLAUDE_PROJECT_DIR": root}
        from agentcli.extensions.hooks.run import run_hook

        run = partial(run_hook, cwd=self._config.cwd)
        return lambda command, given, timeout_s: run(command, given, environment=environment, timeout_s=timeout_s)

    @property
    def _project_file(self) -> Path:
        return project_root(self._config.cwd) / HOOKS_FILE

    def _of_project(self) -> Any:
        """The table of the project's own file. Raises `ConfigError` for one that cannot be read."""
        file = self._project_file
        if not is_file(file):
            return None
        try:
            return msgspec.json.decode(read_small_file(file), type=dict[str, Any]).get("hooks", {})
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"could not be read ({error}).", file=str(file)) from error
