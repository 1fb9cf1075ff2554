"""Finds the hooks that the settings of a session name; the code that runs them is loaded only if there are some."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.errors import ConfigError
from agentcli.extensions.programs import WorkspacePrograms, program_environment
from agentcli.settings.files import is_file, project_root, read_small_file
from agentcli.settings.load import Config
from agentcli.settings.trust import HOOKS_FILE

if TYPE_CHECKING:
    from agentcli.extensions.hooks.run import CommandHooks, HookSpec


class Hooks:
    """The command hooks of one configuration; the programs that they run are pinned in `programs`."""

    def __init__(
        self,
        config: Config,
        *,
        is_bare: bool,
        on_notice: Callable[[str], None],
        programs: WorkspacePrograms | None = None,
    ) -> None:
        self._config, self._is_bare, self._on_notice = config, is_bare, on_notice
        self._programs = programs or WorkspacePrograms(config)

    @cached_property
    def specs(self) -> list[HookSpec]:
        """List the person's hooks, then those of the project. Raises `ConfigError` for a file that cannot be read."""
        config = self._config
        tables = [(layer.values["hooks"], layer.source) for layer in config.layers if "hooks" in layer.values]
        if config.project.is_allowed and is_file(file := project_root(config.cwd) / HOOKS_FILE):
            try:
                content = msgspec.json.decode(read_small_file(file), type=dict[str, Any])
            except (OSError, msgspec.MsgspecError) as error:
                raise ConfigError(f"could not be read ({error}).", file=str(file)) from error
            tables.append((content.get("hooks", {}), str(file)))
        if self._is_bare or not tables:
            return []
        from agentcli.extensions.hooks.run import read_hooks

        problems: list[str] = []
        specs = [spec for table, source in tables for spec in read_hooks(table, source, problems)]
        for problem in problems:
            self._on_notice(problem)
        for spec in specs:
            self._programs.add_hook(spec)
        return specs

    def of_session(self, session_id: str, mode: Callable[[], str]) -> CommandHooks | None:
        """Return the hooks of a session; None where there are none."""
        if not self.specs:
            return None
        from agentcli.extensions.hooks.run import CommandHooks, HookSession

        session, programs = HookSession(id=session_id, mode=mode), self._programs.pins
        cwd, environment = self._config.cwd, program_environment(self._config, session_id)
        return CommandHooks(specs=self.specs, session=session, programs=programs, cwd=cwd, environment=environment)
