"""Finds the hooks that settings and trust let a session have; what runs them is loaded where there are some."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.errors import ConfigError
from agentcli.extensions.programs import WorkspacePrograms, program_environment
from agentcli.settings.files import is_file, read_small_file
from agentcli.settings.load import Config
from agentcli.settings.paths import project_root
from agentcli.settings.trust import HOOKS_FILE

if TYPE_CHECKING:
    from agentcli.extensions.hooks.run import CommandHooks, HookSpec


class Hooks:
    """The command hooks of one configuration, whose `programs` are trusted as they are; `tell` hears of faults."""

    def __init__(
        self, config: Config, *, is_bare: bool, tell: Callable[[str], None], programs: WorkspacePrograms | None = None
    ) -> None:
        self._config, self._is_bare, self._tell = config, is_bare, tell
        self._programs = programs or WorkspacePrograms(config)

    @cached_property
    def specs(self) -> list[HookSpec]:
        """List the person's hooks, then those of the project. Raises `ConfigError` for a file that cannot be read."""
        config = self._config
        tables = [(layer.values["hooks"], layer.source) for layer in config.layers if "hooks" in layer.values]
        if config.uses_project and is_file(file := project_root(config.cwd) / HOOKS_FILE):
            try:
                held = msgspec.json.decode(read_small_file(file), type=dict[str, Any])
            except (OSError, msgspec.MsgspecError) as error:
                raise ConfigError(f"could not be read ({error}).", file=str(file)) from error
            tables.append((held.get("hooks", {}), str(file)))
        if self._is_bare or not tables:
            return []
        from agentcli.extensions.hooks.run import read_hooks

        problems: list[str] = []
        specs = [spec for table, source in tables for spec in read_hooks(table, source, problems)]
        for problem in problems:
            self._tell(problem)
        for spec in specs:
            self._programs.add_hook(spec)
        return specs

    def of_session(self, session_id: str, mode: Callable[[], str]) -> CommandHooks | None:
        """Return the hooks of a session; None where there are none."""
        if not self.specs:
            return None
        from agentcli.extensions.hooks.run import CommandHooks, run_hook

        cwd, environment = self._config.cwd, program_environment(self._config, session_id)
        run, programs = partial(run_hook, cwd=cwd, environment=environment), self._programs.pins
        return CommandHooks(specs=self.specs, run=run, programs=programs, session_id=session_id, cwd=cwd, mode=mode)
