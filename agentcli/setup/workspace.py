"""Makes the workspaces in which calls run: sandbox, data files, memory, the web, and what masks secrets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from agentcli.agent.permissions.rules import Rules
from agentcli.extensions.programs import WorkspacePrograms
from agentcli.infra.data_files import DataFolder
from agentcli.infra.lazy_sandbox import LazySandbox
from agentcli.settings.files import make_private_folder
from agentcli.settings.load import Config
from agentcli.settings.paths import from_home, home_of
from agentcli.setup.context import make_memory
from agentcli.setup.options import ClientFiles, Extras, check_hosts
from agentcli.setup.telemetry import secret_headers
from agentcli.tools.command import Profile
from agentcli.tools.sandbox import Sandbox
from agentcli.tools.tool import Workspace
from agentcli.tools.web.web import Web

if TYPE_CHECKING:
    from agentcli.safety.secrets.masking import Masker
    from agentcli.tools.web.searching import SearchProvider


class WorkspaceFactory:
    """Makes the workspaces of one configuration: one for each session, and those in which single tools run."""

    def __init__(self, config: Config, extras: Extras, data: DataFolder, programs: WorkspacePrograms) -> None:
        self._config, self._extras, self._data, self._programs = config, extras, data, programs
        self.has_memory = config.settings.memory.enabled and not extras.bare

    def make(
        self, session_id: str, rules: Rules, *, profile: Profile | None = None, files: ClientFiles | None = None
    ) -> Workspace:
        """Make the workspace of a session; its sandbox is opened when it is first used. Raises `ConfigError`."""
        config, sandbox = self._config, self._config.settings.sandbox
        check_hosts(config)
        added = _added_folders(config)
        if sandbox.kind == "docker" and not sandbox.docker_image:
            raise config.error("set sandbox.docker_image to the image that commands run in.", "sandbox.kind")
        state = config.paths.state
        for folder in (state.parent, state) if state.parent == config.paths.config else (state,):
            with suppress(OSError):  # reported by whatever writes there first
                make_private_folder(folder)

        def open_sandbox() -> Sandbox:
            if self._extras.sandbox is not None:
                return self._extras.sandbox
            from agentcli.setup.sandbox import make_sandbox

            made = make_sandbox(
                config,
                (config.cwd, *added),
                session_id=session_id,
                rules=rules,
                profile=profile,
                programs=self._programs.files,
            )
            return files.sandbox(made) if files else made

        lazy = LazySandbox(open_sandbox)
        workspace = Workspace(
            config.cwd,
            cast("Sandbox", lazy),
            data=self._data.of_session(session_id),
            web=Web(granted_hosts=config.settings.web.hosts, find_search=self._find_search),
            memory=make_memory(config) if self.has_memory else None,
            home=home_of(config.environment),
            preload=lazy.load,
        )
        workspace.charset = config.settings.tools.charset or ""
        return workspace

    def _find_search(self) -> SearchProvider | None:
        from agentcli.tools.web.searching import Tavily

        if self._extras.search is not None:
            return self._extras.search
        key = self._config.key("TAVILY_API_KEY")
        return Tavily(key) if key else None


def _added_folders(config: Config) -> list[Path]:
    names = config.settings.permissions.additional_directories
    folders = [config.cwd / from_home(name) for name in names]
    for name, folder in zip(names, folders, strict=True):
        if not folder.is_dir():
            message = f"{folder} is not a folder that could be added."
            raise config.error(message, "permissions.additional_directories", item=name)
    return folders


def finish_interrupted_dry_runs(state: Path, on_notice: Callable[[str], None]) -> None:
    """Finish applying the changes that a killed session had begun to apply, and remove what else it left behind."""
    if (mount_points := state / "mount_points").is_dir() and any(mount_points.iterdir()):
        from agentcli.infra.sandbox.mounts.mount_points import remove_left_behind

        remove_left_behind(mount_points)
    tries = state / "tries"
    if not any(any(tries.glob(f"*/{name}")) for name in ("plan", "mount_points")):
        return
    from agentcli.infra.sandbox.trial.keep_plan import finish_interrupted

    if notice := finish_interrupted(tries):
        on_notice(notice)


def make_masker(config: Config, values: frozenset[str]) -> Masker:
    """Make what masks secrets: those of known forms, the keys that this program was given, and `values`."""
    from agentcli.infra.sandbox.environment import credentials_in
    from agentcli.safety.secrets.masking import Masker

    own = (*credentials_in(config.environment), *config.kept_keys.values, *secret_headers(config))
    return Masker((*own, *values))
