"""Keeps the installed plugins and the names of marketplaces in the configuration folder; downloads both with git.

A plugin's files never change in place: a new version gets its own folder, and is in use once the index names it.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from agentcli.errors import ConfigError, UsageError, UserError, did_you_mean
from agentcli.extensions.plugins import plugin as plugin_folders
from agentcli.extensions.plugins.plugin import Plugin, checked_name, is_inside, read_plugin
from agentcli.settings.files import FileLock, Paths, make_private_folder, replace_file
from agentcli.settings.short_program import run_short_program
from agentcli.settings.trust import folder_digest, is_folder_trusted, trust_folder

_NEW = ".new-"  # prefix of the names of folders that are being filled
_FILES = "files-"  # prefix of the names of installed versions' folders
_TIMEOUT_S = 300.0
_REPOSITORY = re.compile(r"\w[\w.-]*/[\w-][\w.-]*")  # owner/repo on GitHub
_ADDRESS = re.compile(r"(?:https?|ssh|git|file)://\S+|\w[\w.-]*@[\w.-]+:\S+")
_REVISION = re.compile(r"\w[\w./+-]*")
_LEFT_OUT = frozenset((".git", "__pycache__"))
# Nothing in a repository is run, and nobody is asked for a password.
_SETTINGS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "gc.auto=0")
_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "GIT_LFS_SKIP_SMUDGE": "1",
    "GCM_INTERACTIVE": "never", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file",
}  # fmt: skip


class Marketplace(msgspec.Struct, frozen=True):
    """The address or folder of a list of plugins, and the names in it when it was last read."""

    source: str
    plugins: tuple[str, ...]


class InstalledPlugin(msgspec.Struct, frozen=True, omit_defaults=True):
    """An installed plugin. Its files are in `folder`/NAME, because some programs expect a folder of that name."""

    marketplace: str
    folder: str  # relative to the folder of all plugins
    is_enabled: bool = True


class _Index(msgspec.Struct):
    marketplaces: dict[str, Marketplace] = {}
    plugins: dict[str, InstalledPlugin] = {}


class PluginStore:
    """The plugins and marketplaces of one person. A method that raises `UserError` has changed nothing."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self._folder = paths.plugin_index.parent
        self.data = paths.state / "plugins"  # where the plugins' programs store files

    @property
    def index(self) -> _Index:
        """The installed plugins and the known marketplaces by name, as they are now."""
        file = self.paths.plugin_index
        try:
            return msgspec.json.decode(file.read_bytes(), type=_Index)
        except FileNotFoundError:
            return _Index()
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"could not be read ({error}).", file=str(file)) from error

    def _save(self, index: _Index) -> None:
        replace_file(self.paths.plugin_index, msgspec.json.format(msgspec.json.encode(index)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing plugins, and remove folders that a killed process left behind."""
        try:
            make_private_folder(self._folder)
            with FileLock(self._folder / ".lock", timeout_s=10):
                self._remove_unused()
                yield
        except TimeoutError as error:
            raise UserError("Another agentcli is changing the plugins. Try again when it is done.") from error
        except OSError as error:
            raise UserError(f"Could not change the plugins: {error}.") from error

    def _remove_unused(self) -> None:
        used = {self._folder / installed.folder for installed in self.index.plugins.values()}
        for folder in {*self._folder.glob(f"{_NEW}*"), *self._folder.glob(f"*/{_FILES}*")} - used:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()  # fails if other folders are in it, which stay

    @contextmanager
    def _new_folder(self) -> Iterator[Path]:
        with TemporaryDirectory(prefix=_NEW, dir=self._folder, ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    @contextmanager
    def _repository(self, source: str) -> Iterator[Path]:
        """Yield the folder of a marketplace, which is downloaded if `source` is not a folder."""
        with self._new_folder() as new:
            if not (folder := Path(source)).is_dir():
                folder = new / "files"
                download(source, folder)
            yield folder

    def add_marketplace(self, source: str) -> str:
        """Add or reread the marketplace at a git address, in `owner/repo` or in a folder, and return its name."""
        index, folder = self.index, Path(source).expanduser().absolute()
        source = str(folder) if folder.is_dir() else source
        with self._repository(source) as repository:
            name, entries = read_marketplace(repository)
        if name in index.marketplaces and index.marketplaces[name].source != source:
            raise UsageError(f"There is a marketplace {name} already, from {index.marketplaces[name].source}.")
        index.marketplaces[name] = Marketplace(source, tuple(entries))
        self._save(index)
        return name

    def remove_marketplace(self, name: str) -> None:
        """Remove a marketplace from which nothing is installed."""
        index = self.index
        self.marketplace(name)  # raises if there is none
        if users := [plugin for plugin, installed in index.plugins.items() if installed.marketplace == name]:
            raise UsageError(f"{', '.join(users)} came from {name}. Remove them first: agentcli plugin remove NAME")
        del index.marketplaces[name]
        self._save(index)

    def marketplace(self, name: str) -> Marketplace:
        marketplaces = self.index.marketplaces
        if name not in marketplaces:
            raise UsageError(f"There is no marketplace {name!r}{did_you_mean(name, [*marketplaces])}.")
        return marketplaces[name]

    def _marketplace_with(self, name: str) -> str:
        """Return the only marketplace that has a plugin. Raises `UsageError` if none or several have it."""
        found = [key for key, marketplace in self.index.marketplaces.items() if name in marketplace.plugins]
        if not found:
            raise UsageError(f"No marketplace has a plugin {name!r}. To list them: agentcli plugin marketplace list")
        if len(found) > 1:
            raise UsageError(f"{' and '.join(found)} have a plugin {name}. Say which: {name}@{found[0]}")
        return found[0]

    @contextmanager
    def staged(self, name: str) -> Iterator[Plugin]:
        """Yield the plugin NAME or NAME@MARKETPLACE in a new folder for review, which only `install` keeps."""
        name, _, marketplace = name.partition("@")
        marketplace = marketplace or self._marketplace_with(name)
        with self._repository(self.marketplace(marketplace).source) as repository, self._new_folder() as new:
            _, entries = read_marketplace(repository)
            if (entry := entries.get(name)) is None:
                raise UsageError(f"{marketplace} has no plugin {name!r}{did_you_mean(name, [*entries])}.")
            if (installed := self.index.plugins.get(name)) and installed.marketplace != marketplace:
                raise UsageError(f"{name} is installed from {installed.marketplace}. Remove it first.")
            root, source = new / "files" / checked_name(name, repository), entry.get("source")
            if isinstance(source, str):  # a folder of the marketplace's repository
                folder = repository / source
            else:  # a repository of its own
                repository = new / "repository"
                folder = download(source, repository)
            copy_folder(folder, root, repository=repository)
            # Without the source, so that the same files at another commit are not a new version.
            replace_file(root / plugin_folders.ENTRY_FILE, msgspec.json.encode({**entry, "source": ""}))
            yield read_plugin(root, data=self.data, marketplace=marketplace)

    def is_current(self, staged: Plugin) -> bool:
        """Return True if this very plugin is installed and trusted."""
        installed = self.index.plugins.get(staged.name)
        if installed is None or not is_folder_trusted(self.paths, root := self._root(staged.name, installed)):
            return False
        return folder_digest(root) == folder_digest(staged.root)

    def install(self, staged: Plugin) -> None:
        """Install a plugin that the person trusts, in place of an older version of it."""
        index, name = self.index, staged.name
        folder = f"{name}/{_FILES}{os.urandom(6).hex()}"
        (self._folder / name).mkdir(mode=0o700, exist_ok=True)
        staged.root.parent.rename(self._folder / folder)  # `staged.root` becomes `folder`/NAME
        is_enabled = name not in index.plugins or index.plugins[name].is_enabled  # an update leaves it off if it was
        index.plugins[name] = InstalledPlugin(staged.marketplace, folder, is_enabled)
        root = self._root(name, index.plugins[name])
        trust_folder(self.paths, root, folder_digest(root))
        self._save(index)  # last, because it puts the new version in use

    def _find(self, name: str) -> tuple[str, InstalledPlugin]:
        """Return the name of an installed plugin, and its entry. `name` may end with @MARKETPLACE."""
        plugin_name, _, marketplace = name.partition("@")
        installed = self.index.plugins.get(plugin_name)
        if installed is None or marketplace not in ("", installed.marketplace):
            raise UsageError(f"No plugin {name!r} is installed{did_you_mean(plugin_name, [*self.index.plugins])}.")
        return plugin_name, installed

    def _root(self, name: str, installed: InstalledPlugin) -> Path:
        return self._folder / installed.folder / name

    def read(self, name: str) -> Plugin:
        """Return an installed plugin, even if it is disabled or not trusted."""
        plugin_name, installed = self._find(name)
        return read_plugin(self._root(plugin_name, installed), data=self.data, marketplace=installed.marketplace)

    def switch(self, name: str, *, is_enabled: bool) -> None:
        """Enable an installed plugin, if it is trusted, or disable it, for sessions that start later."""
        with self.locked():
            (plugin_name, installed), index = self._find(name), self.index
            if is_enabled and not is_folder_trusted(self.paths, self._root(plugin_name, installed)):
                how = f"To review them: agentcli plugin enable {plugin_name}"
                raise UsageError(f"The files of {plugin_name} have changed. {how}")
            index.plugins[plugin_name] = msgspec.structs.replace(installed, is_enabled=is_enabled)
            self._save(index)

    def remove(self, name: str) -> None:
        (plugin_name, installed), index = self._find(name), self.index
        del index.plugins[plugin_name]
        self._save(index)
        trust_folder(self.paths, self._root(plugin_name, installed), "")  # forgets the trust
        self._remove_unused()

    def active_plugins(self, on_notice: Callable[[str], None]) -> Iterator[Plugin]:
        """Yield the enabled plugins that are trusted and can be read; the other enabled ones are reported."""
        for name in [name for name, installed in self.index.plugins.items() if installed.is_enabled]:
            try:
                if is_folder_trusted(self.paths, self._root(*self._find(name))):
                    yield self.read(name)
                else:
                    how = f"To review them: agentcli plugin enable {name}"
                    on_notice(f"The plugin {name} is not used: its files are not as you trusted them. {how}")
            except UserError as error:
                on_notice(f"The plugin {name} is not used: {error}")


def read_marketplace(root: Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return a marketplace's name, and its entries by plugin. Raises `ConfigError`."""
    file = root / ".claude-plugin/marketplace.json"
    if not (content := plugin_folders.read_json_object(file)):  # the repository of one plugin is its own marketplace
        name = read_plugin(root, data=root).name
        return name, {name: {"name": name, "source": "./"}}
    try:
        entries, metadata = msgspec.convert(content.get("plugins"), list[dict[str, Any]]), content.get("metadata")
    except msgspec.ValidationError as error:
        raise ConfigError(f"it has no list of plugins ({error}).", file=str(file)) from error
    folder = metadata.get("pluginRoot", ".") if isinstance(metadata, dict) else "."
    for entry in entries:
        if isinstance(entry.get("source"), str):
            entry["source"] = f"{folder}/{entry['source']}"
    return checked_name(content.get("name"), file, "marketplace"), {str(entry.get("name")): entry for entry in entries}


def git_source(source: Any) -> tuple[str, str, str]:
    """Return a repository's address, the branch, tag or commit to check out, and a folder in it.

    `source` is an address or `owner/repo`, which may end with `#REVISION`, or the `source` of a marketplace's entry.
    Raises `UsageError` for anything else.
    """
    path = "."
    match source:
        case str():
            address, _, revision = source.partition("#")
        case {"source": "github", "repo": str(address)} | {"source": "url" | "git-subdir", "url": str(address)}:
            revision, path = str(source.get("sha") or source.get("ref") or ""), str(source.get("path") or ".")
        case _:
            kind = source.get("source", source) if isinstance(source, dict) else source
            raise UsageError(f"Plugins from {kind!r} are not supported; use a repository or a folder.")
    if _REPOSITORY.fullmatch(address):
        address = f"https://github.com/{address}.git"
    if not _ADDRESS.fullmatch(address):
        raise UsageError(f"{address!r} is neither a folder, nor owner/repo, nor the address of a git repository.")
    if revision and not _REVISION.fullmatch(revision):
        raise UsageError(f"{revision!r} is not a branch, tag or commit.")
    return address, revision or "HEAD", path


def download(source: Any, folder: Path) -> Path:
    """Download a repository into a new `folder`, and return the path in it that `source` names. Raises `UserError`."""
    address, revision, path = git_source(source)
    folder.mkdir(exist_ok=True)
    fetch = ("fetch", "--quiet", "--no-tags", "--depth=1", "--", address, revision)
    for arguments in (("init", "--quiet", "--template="), fetch, ("checkout", "--quiet", "--detach", "FETCH_HEAD")):
        asyncio.run(_git(address, "-C", str(folder), *arguments))
    shutil.rmtree(folder / ".git", ignore_errors=True)
    return folder / path


async def _git(address: str, *arguments: str) -> None:
    """Run git, unaffected by any repository that the caller is in. Raises `UserError`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _ENVIRONMENT
    try:
        end = await run_short_program(
            ("git", *_SETTINGS, *arguments),
            timeout_s=_TIMEOUT_S,
            max_bytes=100_000,
            environment=environment,
            ends_children=True,
        )
    except OSError as error:
        raise UserError(f"Could not run git ({error.strerror}), which gets plugins from repositories.") from error
    if end.exit_code != 0:
        message = " ".join(end.stderr.decode(errors="replace").split())
        why = f"it took more than {_TIMEOUT_S:.0f} s" if end.exit_code is None else message
        raise UserError(f"git could not get {address}: {why}")


def copy_folder(source: Path, target: Path, *, repository: Path) -> None:
    """Copy a plugin's folder; links within its repository become copies. Raises `UserError`."""

    def check_and_ignore(folder: str, names: list[str]) -> set[str]:
        """Check a folder before it is copied, and return the names that are left out."""
        for path in (Path(folder, name) for name in names if name not in _LEFT_OUT):  # links are followed
            if not is_inside(path, repository):
                raise UserError(f"{path.relative_to(source)} of the plugin leads out of its repository.")
            if not path.is_dir() and not path.is_file():
                raise UserError(f"{path.relative_to(source)} of the plugin is not a file.")
        return set(names) & _LEFT_OUT

    if not is_inside(source, repository) or not source.is_dir():
        raise UserError(f"The plugin's path does not exist or leads out of its repository: {source}")
    shutil.copytree(source, target, ignore=check_and_ignore)
