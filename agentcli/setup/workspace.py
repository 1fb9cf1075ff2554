"""Builds the workspaces of calls: sandbox, snapshots, data files, memory, web access and the masking of secrets."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agentcli.agent.interfaces import Checkpoints
from agentcli.agent.permissions.rules import Rules, reading_denial
from agentcli.errors import ToolError
from agentcli.extensions.programs import WorkspacePrograms
from agentcli.infra.lazy import Lazy
from agentcli.infra.state_files import DataFolder, MemoryFiles, SessionData, memory_folder
from agentcli.safety.paths.judge import SECRET_HOME_PATHS, PatternBase
from agentcli.settings.files import from_home, home_of, make_private_folder, project_root
from agentcli.settings.load import Config
from agentcli.settings.structs import SandboxSettings
from agentcli.setup.options import SessionOptions, check_hosts, secret_headers
from agentcli.tools.command import Grants
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.workspace import SearchProvider, SessionGrants, SessionResources, Web, Workspace, WorkspaceSettings

if TYPE_CHECKING:
    from agentcli.frontends.acp.client import ClientFiles
    from agentcli.infra.sandbox.confinement import Confinement
    from agentcli.infra.sandbox.local import LocalSandbox
    from agentcli.safety.secrets.masking import Masker


class WorkspaceFactory:
    """Makes the workspaces of one configuration: one for each session, and those in which single tools run."""

    def __init__(self, config: Config, options: SessionOptions, data: DataFolder, programs: WorkspacePrograms) -> None:
        self._config, self._parts, self._data, self._programs = config, options.parts, data, programs
        self.has_memory = config.settings.memory.enabled and not options.is_bare

    def make(self, session_id: str, rules: Rules, *, client_files: ClientFiles | None = None) -> Workspace:
        """Make a session's workspace; its sandbox is opened at first use. Raises `ConfigError`.

        `client_files` let tools read files as an editor shows them, with its unsaved changes.
        """
        config, settings = self._config, self._config.settings.sandbox
        check_hosts(config)
        added_folders = _added_folders(config)
        if settings.kind == "docker" and not settings.docker_image:
            raise config.error("set sandbox.docker_image to the image to run commands in.", "sandbox.kind")
        state = config.paths.state
        # With AGENTCLI_HOME, the state folder is in the folder of the settings, which must be private, too.
        for folder in (state.parent, state) if state.parent == config.paths.config else (state,):
            with suppress(OSError):  # the first write there reports the error
                make_private_folder(folder)

        def open_sandbox() -> Sandbox:  # called at first use, when `workspace` below exists
            if self._parts.sandbox is not None:  # the caller's own
                return self._parts.sandbox
            folders, programs = (config.cwd, *added_folders), self._programs.pin_files
            local_sandbox = make_sandbox(config, folders, session_id=session_id, rules=rules, programs=programs)
            if client_files is None:
                return local_sandbox
            return client_files.sandbox(local_sandbox, lambda: workspace.facts.roots)

        sandbox = Lazy(open_sandbox)
        memory = MemoryFiles(memory_folder(state, project_root(config.cwd)), config.settings.memory)
        workspace = Workspace(
            cwd=config.cwd,
            sandbox=cast("Sandbox", sandbox),
            is_open=sandbox.is_made,
            session_grants=SessionGrants(Grants(hosts=settings.hosts)),
            settings=WorkspaceSettings(home_of(config.environment), config.settings.tools.charset or ""),
            resources=SessionResources(
                data=SessionData(self._data, session_id),
                web=Web(granted_hosts=config.settings.web.hosts, find_search=self._find_search),
                memory=memory if self.has_memory else None,
            ),
        )
        return workspace

    def _find_search(self) -> SearchProvider | None:
        from agentcli.tools.web.pages import Tavily

        if self._parts.search is not None:
            return self._parts.search
        key = self._config.key("TAVILY_API_KEY")
        return Tavily(key) if key else None


def _added_folders(config: Config) -> list[Path]:
    names = config.settings.permissions.additional_directories
    folders = [config.cwd / from_home(name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if not folder.is_dir():
            raise config.error(f"{folder} is not a folder.", "permissions.additional_directories", item=name)
    return folders


def finish_interrupted_dry_runs(state: Path, on_notice: Callable[[str], None]) -> None:
    """Finish the changes that killed sessions were applying, and remove what else they left in the state folder."""
    if (mount_points := state / "mount_points").is_dir() and any(mount_points.iterdir()):
        from agentcli.infra.sandbox.protection.snapshot import clean_up_killed_sessions

        clean_up_killed_sessions(mount_points)
    dry_runs = state / "tries"  # one folder for each dry run
    unfinished_work = ("plan", "mount_points")  # in such a folder until its changes are applied, or all is unmounted
    if any(any(dry_runs.glob(f"*/{name}")) for name in unfinished_work):
        from agentcli.infra.changes.journal import finish_interrupted

        if notice := finish_interrupted(dry_runs):
            on_notice(notice)


def make_masker(config: Config, values: frozenset[str]) -> Masker:
    """Make the masker of secrets: those of known forms, the keys that this program was given, and `values`."""
    from agentcli.infra.sandbox.environment import credentials_in
    from agentcli.safety.secrets.masking import Masker

    return Masker(
        (*credentials_in(config.environment), *config.stored_keys.known_keys, *secret_headers(config), *values)
    )


def make_sandbox(
    config: Config,
    folders: tuple[Path, ...],
    *,
    session_id: str,
    rules: Rules,
    programs: Callable[[Sequence[Path]], Sequence[Path]] = lambda roots: (),
) -> LocalSandbox:
    """Return the sandbox of a session in `folders`, the working directory first.

    `programs` returns the programs in some folders that hooks or MCP servers run, so that commands may not change them.
    Commands have a cache folder for each project.
    """
    from agentcli.infra.sandbox.local import LocalSandbox
    from agentcli.infra.sandbox.session_confinement import CommandLimits, SessionFolders

    home, settings = home_of(config.environment), config.settings.sandbox
    state, cache = config.paths.state, Path(os.path.realpath(config.paths.cache))  # ~/.cache may be a link
    limits = CommandLimits(
        profile=settings.profile,
        home=home,
        masked=tuple(_absolute(name, config.cwd, home) for name in settings.masked),
        writable=tuple(_absolute(name, config.cwd, home) for name in settings.writable),
        environment=settings.environment,
        folders=SessionFolders(
            state=state,
            cache=cache / "sandbox" / hashlib.sha256(os.fsencode(project_root(config.cwd))).hexdigest()[:16],
            own=(config.paths.config,),
            secret=(*config.paths.secret, *_moved_secret_files(config.environment)),
        ),
        programs=programs,
    )
    return LocalSandbox(
        folders,
        environment=config.environment,
        job_folder=state / "jobs" / session_id,
        session_id=session_id,
        limits=limits,
        choose=partial(_choose_confinement, settings, state),
        # Commands cannot read files that deny rules close to the reading tools either.
        denied=partial(reading_denial, rules, PatternBase(config.cwd, project_root(config.cwd), home)),
    )


def _choose_confinement(settings: SandboxSettings, state: Path) -> Confinement:
    """Choose the confinement of commands on this machine; probing takes milliseconds. Raises `ToolError`."""
    from agentcli.infra.sandbox.backends.choosing import KINDS, Docker, choose_confinement

    kind = settings.kind
    if kind == "docker":
        return Docker(settings.docker_image)
    tmp = state / "tmp"
    try:
        make_private_folder(tmp)
    except OSError as error:
        raise ToolError(f"Could not set up the sandbox: could not create {tmp} ({error.strerror}).") from error
    return choose_confinement(tmp=tmp, kinds=KINDS.get(sys.platform, ()) if kind == "auto" else (kind,))


def _moved_secret_files(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield secret files such as `~/.config/gh/hosts.yml` in the folders that XDG variables name instead."""
    for variable, default in {"XDG_CONFIG_HOME": ".config/", "XDG_DATA_HOME": ".local/share/"}.items():
        if (folder := environment.get(variable, "")).startswith("/"):  # programs ignore other values
            moved = (path.removeprefix(default) for path in SECRET_HOME_PATHS if path.startswith(default))
            yield from (Path(folder, path) for path in moved)


def _absolute(name: str, cwd: Path, home: Path) -> Path:
    return home / name[2:] if name.startswith("~/") else cwd / name


def make_checkpoints(
    config: Config, session_id: str, roots: Callable[[], Sequence[Path]], *, is_lasting: bool
) -> Checkpoints | None:
    """Return the record of changes below `roots`, which outlives the process if `is_lasting`; None if switched off."""
    if not config.settings.checkpoints.enabled:
        return None

    def make() -> Checkpoints:
        from agentcli.infra.changes.folder_index import SnapshotLimits
        from agentcli.infra.changes.journal import PrivateFolder
        from agentcli.infra.changes.recorder import Recorder

        settings, state = config.settings.checkpoints, config.paths.state
        scratch, folder, private = state / "tries", state / "checkpoints", None
        if not is_lasting:
            private = PrivateFolder(scratch)  # removed when the session ends
            folder = private.path / "checkpoints"
        limits = SnapshotLimits(
            max_file_bytes=int(settings.largest_mb * 1e6),
            max_files=settings.most_files,
            max_bytes=int(settings.most_gb * 1e9),
            max_ignored_files=settings.ignored_files,
            max_ignored_bytes=int(settings.ignored_mb * 1e6),
            excluded=settings.exclude,
            own_folders=(str(config.paths.state), str(config.paths.cache)),
        )
        return Recorder(
            folder=folder, roots=roots, session_id=session_id, scratch=scratch, private=private, limits=limits
        )

    return cast("Checkpoints", Lazy(make))


def has_interrupted_calls(config: Config, session_id: str) -> bool:
    """Return True if a process was killed during a call of this session, so that its changes are not yet recorded."""
    return (config.paths.state / "checkpoints" / "under_way" / session_id).is_dir()
