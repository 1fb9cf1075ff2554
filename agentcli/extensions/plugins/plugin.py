"""Reads the folders of plugins, in the forms of Claude Code and of Agent Plugins 1.0; a folder may have both."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from agentcli.errors import ConfigError
from agentcli.settings.files import is_file, markdown_files, read_small_file

MANIFESTS = (".claude-plugin/plugin.json", "plugin.json")  # the first overrides the second
ENTRY_FILE = ".marketplace-entry.json"  # the marketplace's entry for a plugin, stored in the installed plugin's folder
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# For each kind of part: its key in manifests, which may list more places, and its usual places in the folder.
_USUAL_PLACES = {
    "commands": ("commands",), "agents": ("agents",), "skills": ("skills",), "hooks": ("hooks/hooks.json",),
    "mcpServers": (".mcp.json", "mcp.json"),
}  # fmt: skip
# Parts of plugins that agentcli does not support: their keys in manifests, and their places in the folder.
_UNUSED_KEYS = "lspServers outputStyles themes monitors channels userConfig dependencies settings".split()
_UNUSED_PLACES = ("output-styles", "themes", "monitors", "rules", "bin", ".lsp.json", "settings.json")


class Plugin(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A plugin as read from its folder. `data` is the folder in which its programs may store files.

    Its parts are in the places that its `manifests` list, and if it `has_usual_places` in `_USUAL_PLACES`, too. Each
    kind is read when it is first used, which may raise `ConfigError`.
    """

    name: str
    root: Path
    data: Path
    marketplace: str
    manifests: list[dict[str, Any]]
    has_usual_places: bool

    def about(self, key: str) -> str:
        """Return the value of a key in the first manifest that has it, as one line; empty if none has it."""
        return " ".join(str(next((keys[key] for keys in self.manifests if key in keys), "")).split())

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables of its hooks and servers, which its texts may contain as `${NAME}`."""
        folders = {"ROOT": str(self.root), "DATA": str(self.data)}
        prefixes = ("CLAUDE_PLUGIN", "AGENTCLI_PLUGIN", "PLUGIN")
        return {f"{prefix}_{name}": folder for prefix in prefixes for name, folder in folders.items()}

    def fill(self, text: str, quote: Callable[[str], str] = str) -> str:
        """Replace `${CLAUDE_PLUGIN_ROOT}` and the other variables in a text with their values, escaped by `quote`."""
        for name, value in self.variables.items():
            text = text.replace(f"${{{name}}}", quote(value))
        return text

    @cached_property
    def commands(self) -> dict[str, Path]:
        """The files of its commands by name; one in a sub-folder is `folder:name`."""
        return self._markdown_files("commands")

    @cached_property
    def agents(self) -> dict[str, Path]:
        """The files of its subagents, by the names of the files."""
        return self._markdown_files("agents")

    @cached_property
    def skills(self) -> list[Path]:
        """Folders of skills, or skills themselves."""
        return list(self._paths("skills"))

    @cached_property
    def hooks(self) -> list[tuple[Any, str]]:
        """The tables of its hooks, each with the file that it comes from."""
        return list(self._tables("hooks"))

    @cached_property
    def servers(self) -> dict[str, Any]:
        """The entries of its MCP servers by their names in a session."""
        servers: dict[str, Any] = {}
        for table, file in self._tables("mcpServers"):
            # Variables are inside JSON strings, so their values are escaped for JSON, without the quotation marks.
            filled = json.loads(self.fill(json.dumps(table), lambda value: json.dumps(value)[1:-1]))
            for name, entry in filled.items() if isinstance(filled, dict) else ():
                if isinstance(entry, dict) and isinstance(entry.get("env", {}), dict):
                    entry["env"] = self.variables | entry.get("env", {})
                    servers.setdefault(f"plugin_{self.name}_{name}", entry)
                elif name != "$schema":  # the one key beside the servers
                    raise ConfigError(f"the MCP server {name} is not an object.", file=file)
        return servers

    @property
    def unused(self) -> list[str]:
        """The keys and places of parts that agentcli does not support."""
        keys = [key for key in _UNUSED_KEYS if self.about(key)]
        return keys + [place for place in _UNUSED_PLACES if os.path.lexists(self.root / place)]

    def _places(self, kind: str) -> Iterator[Path | Mapping[str, Any]]:
        """Yield each place of a kind of part once, and tables that a manifest contains instead of a path."""
        usual = _USUAL_PLACES[kind] if self.has_usual_places else ()
        places: list[Any] = [name for name in usual if os.path.lexists(self.root / name)]
        for listed in (keys[kind] for keys in self.manifests if kind in keys):
            places += listed if isinstance(listed, list) else [listed]
        yielded = set()
        for place in places:
            path = self.root / str(place)
            if isinstance(place, Mapping):
                yield place
            elif not isinstance(place, str) or not is_inside(path, self.root) or not path.exists():
                raise ConfigError(f"{kind}: {place!r} is not a path in the plugin.", file=str(self.root))
            elif (real := os.path.realpath(path)) not in yielded:
                yielded.add(real)
                yield path

    def _paths(self, kind: str) -> Iterator[Path]:
        for place in self._places(kind):
            if isinstance(place, Mapping):
                raise ConfigError(f"{kind} must be a path or a list of paths.", file=str(self.root))
            yield place

    def _markdown_files(self, kind: str) -> dict[str, Path]:
        """Return the files of a kind of part, by their paths below its place: `a:b` for `a/b.md`."""
        files: dict[str, Path] = {}
        for place in self._paths(kind):
            folder = place if place.is_dir() else place.parent
            for file in markdown_files(place) if place.is_dir() else [place]:
                if is_inside(file, self.root):  # else a link leads out of the plugin
                    files.setdefault(":".join(file.relative_to(folder).with_suffix("").parts), file)
        return files

    def _tables(self, kind: str) -> Iterator[tuple[Any, str]]:
        """Yield the tables of a kind, each with the file that it comes from, or the plugin's folder."""
        for place in self._places(kind):
            content, file = (place, self.root) if isinstance(place, Mapping) else (read_json_object(place), place)
            yield content.get(kind, content), str(file)


def is_inside(path: Path, folder: Path) -> bool:
    """Return True if a path, after following links, is in a folder, or is the folder."""
    return "\0" not in str(path) and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def checked_name(value: Any, file: Path, what: str = "plugin") -> str:
    """Return the name of a plugin or marketplace. Raises `ConfigError` if no folder may have this name."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        rule = "letters, digits, '.', '_' and '-', at most 64"
        raise ConfigError(f"{value!r} is not the name of a {what}: use {rule}.", file=str(file))
    return value


def read_json_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if there is none. Raises `ConfigError`."""
    try:
        return msgspec.json.decode(read_small_file(file), type=dict[str, Any]) if is_file(file) else {}
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"could not be read ({error}).", file=str(file)) from error


def read_plugin(root: Path, *, data: Path, marketplace: str = "") -> Plugin:
    """Return the plugin in a folder; its programs may use a folder of its name in `data`. Raises `ConfigError`."""
    manifests = [keys for keys in (read_json_object(root / name) for name in MANIFESTS) if keys]
    entry = read_json_object(root / ENTRY_FILE)
    if not manifests and not entry:
        raise ConfigError(f"is not a plugin: it has no {' and no '.join(MANIFESTS)}.", file=str(root))
    # Without a manifest, a non-strict entry lists all parts: other files in the folder may belong to other plugins.
    has_usual_places = bool(manifests) or entry.get("strict") is not False
    manifests.append(entry)
    name = checked_name(entry.get("name") or next((keys["name"] for keys in manifests if "name" in keys), None), root)
    plugin = Plugin(
        name=name,
        root=root,
        data=data / name,
        marketplace=marketplace,
        manifests=manifests,
        has_usual_places=has_usual_places,
    )
    _ = plugin.commands, plugin.agents, plugin.skills, plugin.hooks, plugin.servers  # raises for a broken part
    return plugin
