"""Finds the plugins of a session: those that are installed, switched on and trusted, and those of `--plugin-dir`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from agentcli.errors import UserError
from agentcli.settings.files import make_private_folder
from agentcli.settings.load import Config

if TYPE_CHECKING:
    from agentcli.extensions.plugins.plugin import Plugin


class Plugins(Struct, kw_only=True, dict=True):
    """The plugins of one configuration. Without any, the modules that read plugins are not imported.

    `folders` are those of `--plugin-dir`, which need no trust. A session that `is_bare` has no others.
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

    def with_servers(self) -> Sequence[Plugin]:
        return [plugin for plugin in self.active if plugin.servers]

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
