"""Finds plugins, hooks and other commands of the settings, and pins the files they run; their code is loaded late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agentcli.errors import UserError
from agentcli.settings.files import from_home, is_file, make_private_folder, project_root
from agentcli.settings.load import Config
from agentcli.settings.trust import HOOKS_FILE, remember_trust, trusted_digests

if TYPE_CHECKING:
    from agentcli.extensions.hooks.handlers import ConfiguredHooks
    from agentcli.extensions.hooks.spec import HookSpec
    from agentcli.extensions.mcp.tools import ServerSpec
    from agentcli.extensions.plugins.plugin import Plugin
    from agentcli.extensions.program_pins import ProgramPins


class Plugins(msgspec.Struct, kw_only=True, dict=True):
    """The plugins of one configuration: those that are installed, switched on and trusted, and those of `folders`.

    `folders` (`--plugin-dir`) need no trust. A session that `is_bare` has no others. Without any plugins, the modules
    that read them are not imported.
    """

    config: Config
    is_bare: bool = False  # as in `SessionOptions`
    on_notice: Callable[[str], None]
    folders: Sequence[Path] = ()

    @cached_property
    def active(self) -> Sequence[Plugin]:
        """The plugins by precedence. One that cannot be used or whose name is taken is reported and left out."""
        if not self.folders and (self.is_bare or not self.config.paths.plugin_index.exists()):
            return ()
        plugins: dict[str, Plugin] = {}
        for plugin in self._read_all():
            if plugins.setdefault(plugin.name, plugin) is not plugin:
                first = plugins[plugin.name]
                self.on_notice(f"The plugin {plugin.name} in {plugin.root} is not used; {first.root} has its name.")
            with suppress(OSError):  # the plugin's programs report what they cannot write
                make_private_folder(plugin.data)
        return tuple(plugins.values())

    def _read_all(self) -> Iterator[Plugin]:
        from agentcli.extensions.plugins.plugin import read_plugin
        from agentcli.extensions.plugins.store import PluginStore

        store = PluginStore(self.config.paths)
        for folder in self.folders:
            try:
                yield read_plugin(folder.expanduser().absolute(), data=store.data)
            except UserError as error:
                self.on_notice(f"--plugin-dir: {error}")
        if self.is_bare:
            return
        try:
            yield from store.active_plugins(self.on_notice)
        except UserError as error:  # the index of the installed plugins cannot be read
            self.on_notice(str(error))


def program_environment(config: Config, session_id: str = "") -> dict[str, str]:
    """Return the environment of hooks and servers: as for the model's commands, without credentials."""
    from agentcli.infra.sandbox.environment import command_environment

    root = str(project_root(config.cwd))
    environment = command_environment(config.environment, session_id)
    return {**environment, "AGENTCLI_PROJECT_DIR": root, "CLAUDE_PROJECT_DIR": root}


class WorkspacePrograms(msgspec.Struct, dict=True):
    """The programs that hooks, MCP servers and other commands of one configuration run."""

    config: Config

    @cached_property
    def pins(self) -> ProgramPins:
        """The pins of their files; the code is imported when it is first needed, because most projects run nothing."""
        from agentcli.extensions.program_pins import ProgramPins

        config = self.config
        pins = ProgramPins(
            cwd=config.cwd,
            root=project_root(config.cwd),
            added=[config.cwd / from_home(name) for name in config.settings.permissions.additional_directories],
            # None: the caller trusts the files as they are now, whatever was trusted before.
            load_trusted=None if config.project.is_trusted_now else partial(trusted_digests, config.paths),
            store_trusted=partial(remember_trust, config.paths),
        )
        for command in _own_commands(config):
            pins.add(command, variables=config.environment)
        return pins

    def add_hook(self, spec: HookSpec) -> None:
        is_of_project = Path(spec.source).is_relative_to(project_root(self.config.cwd) / Path(HOOKS_FILE).parent)
        if command := spec.expanded_command:  # hooks of other kinds run no program
            self.pins.add(command, is_of_project=is_of_project, variables=self.config.environment)

    def add_server(self, spec: ServerSpec) -> None:
        if command := spec.start_command:  # a server at an address has none
            variables = {**self.config.environment, **getattr(spec.transport, "env", {})}
            self.pins.add(command, is_of_project=spec.is_of_project, variables=variables)

    def pin_files(self, roots: Sequence[Path]) -> list[Path]:
        """Pin the programs in these folders, too, and return all that exist, for the sandbox to protect."""
        if "pins" in vars(self) or any(_own_commands(self.config)):  # `pins` was used before, or is needed
            self.pins.add_folders(roots)
            return self.pins.program_files()
        return []


def _own_commands(config: Config) -> Iterator[str]:
    """Yield the person's own commands: the one for the status line, and those that print API keys."""
    if command := config.settings.terminal.status_command:
        yield command
    yield from (server.api_key_helper for server in config.settings.providers.values() if server.api_key_helper)


class Hooks(msgspec.Struct, dict=True):
    """The hooks of the configuration of `plugins`. The programs that they run are pinned in `programs`."""

    plugins: Plugins
    programs: WorkspacePrograms

    @cached_property
    def specs(self) -> list[HookSpec]:
        """The hooks of the person, the project and plugins; in a bare session only of plugins. Raises `ConfigError`."""
        config, plugins = self.plugins.config, self.plugins
        # The events' tables, each with the file that it comes from, and the variables of its plugin.
        tables: list[tuple[Any, str, dict[str, str]]] = []
        if not plugins.is_bare:
            tables = [(layer.values["hooks"], layer.source, {}) for layer in config.layers if "hooks" in layer.values]
            if config.project.is_allowed and is_file(file := project_root(config.cwd) / HOOKS_FILE):
                from agentcli.extensions.plugins.plugin import read_json_object

                tables.append((read_json_object(file).get("hooks", {}), str(file), {}))
        for plugin in plugins.active:
            tables += [(table, source, plugin.variables) for table, source in plugin.hooks]
        if not tables:
            return []
        from agentcli.extensions.hooks.spec import read_hooks

        report = plugins.on_notice
        specs = [spec for table, source, variables in tables for spec in read_hooks(table, source, report, variables)]
        for spec in specs:
            self.programs.add_hook(spec)
        return specs

    def for_session(self, session_id: str, mode: Callable[[], str]) -> ConfiguredHooks | None:
        """Return the hooks as a session runs them; None if there are none. `mode` returns the permission mode."""
        if not self.specs:
            return None
        from agentcli.extensions.hooks.handlers import ConfiguredHooks
        from agentcli.extensions.hooks.run import HookContext

        config = self.plugins.config
        return ConfiguredHooks(
            specs=self.specs,
            context=HookContext(id=session_id, mode=mode),
            programs=self.programs.pins,
            cwd=config.cwd,
            environment=program_environment(config, session_id),
            variables=config.environment,
        )
