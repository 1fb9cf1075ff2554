"""Provides the files and commands of this machine as a `Sandbox`."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

from msgspec.structs import replace

from agentcli.infra.changes import writing
from agentcli.infra.sandbox.confinement import Confinement, Unconfined
from agentcli.infra.sandbox.environment import command_environment
from agentcli.infra.sandbox.files.git_state import git_state
from agentcli.infra.sandbox.files.paths import WorkspacePaths
from agentcli.infra.sandbox.files.secret_files import SecretFiles
from agentcli.infra.sandbox.protection import created_config
from agentcli.infra.sandbox.search import ripgrep
from agentcli.infra.sandbox.session_confinement import CommandLimits, SessionConfinement
from agentcli.safety.paths.judge import is_secret
from agentcli.tools.command import BackgroundJob, Command, CommandResult
from agentcli.tools.sandbox import Access, FileStatus, FoundRows, Listing, Looked, Sandbox, Search

if TYPE_CHECKING:
    from agentcli.infra.sandbox.dry_runs.dry_run import DryRuns
    from agentcli.infra.sandbox.files.secret_values import SecretValues
    from agentcli.infra.sandbox.processes.shell import Shell
    from agentcli.tools.dry_run import DryRun


_FRESH_FOR_S = 1.0  # which secret files there are, where nothing is known to have changed


class LocalSandbox(SessionConfinement):
    """Implements `Sandbox`: a session's confinement, with files and commands.

    `environment` is the person's; commands see it with credentials taken out. `limits` say what commands may do,
    `choose` what confines them; without them nothing does. No tool reads files that hold secrets, or those for which
    the test that `denied` gives then is true.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        environment: Mapping[str, str],
        job_folder: Path,
        session_id: str = "",
        limits: CommandLimits = CommandLimits(),
        choose: Callable[[], Confinement] = Unconfined,
        denied: Callable[[], Callable[[Path], bool] | None] = lambda: None,
    ) -> None:
        paths = WorkspacePaths(roots, job_folder, is_secret=self._is_secret)
        super().__init__(limits, paths, choose, denied, search_path=environment.get("PATH", ""))
        self._denied = denied
        self._job_folder = job_folder
        self._own_environment = environment
        self._environment = command_environment(environment, session_id, allowed=limits.environment)
        self._secret_files: list[Path] = []
        self._looked_at = float("-inf")
        self._started_shell: Shell | None = None
        self._started_dry_runs: DryRuns | None = None
        self._beginning = Lock()

    def validate_path(self, path: Path, access: Access) -> Path:
        return self._paths.validate(path, access)

    def real_path(self, path: Path) -> Path:
        return self._paths.real(path)

    def status(self, path: Path) -> FileStatus | None:
        return writing.status_of(path)

    def read(self, path: Path) -> BinaryIO:
        return writing.open_to_read(path)

    def write(self, path: Path, content: bytes) -> None:
        writing.write(path, content)
        self.accept(path, content)

    async def list(self, listing: Listing, take: Callable[[str], None]) -> Looked:
        return await ripgrep.list_files(listing, self._environment, take)

    async def search(self, search: Search, take: Callable[[Sequence[FoundRows]], None]) -> Looked:
        base = search.base or (search.where if search.where.is_dir() else search.where.parent)
        secrets, is_denied = SecretFiles(base, self._holds_secrets), self._denied()

        def among(names: Sequence[bytes]) -> set[bytes]:
            found = secrets.among(names)
            if is_denied is not None:
                found |= {name for name in names if is_denied(base / os.fsdecode(name))}
            return {name for name in found if not self._is_granted(base / os.fsdecode(name))}

        return await ripgrep.search(search, self._environment, take, are_secret=among)

    def _is_granted(self, path: Path) -> bool:
        return self._paths.knows(self._paths.real(path), "read")

    def _is_secret(self, path: Path) -> bool:
        is_denied = self._denied()
        return self._holds_secrets(path) or (is_denied is not None and is_denied(path))

    def _holds_secrets(self, path: Path) -> bool:
        return is_secret(path, self.limits.home)

    def secret_values(self, *, is_changed: bool = False, apart_from: Path | None = None) -> frozenset[str]:
        now = time.monotonic()
        if is_changed or now - self._looked_at >= _FRESH_FOR_S:
            self._secret_files, self._looked_at = self.secret_files(), now
        if not self._secret_files and not any(map(git_state, self.roots)):
            return frozenset()
        return self._secret_values.held_by(self._secret_files, self.roots, apart_from=apart_from)

    @cached_property
    def _secret_values(self) -> SecretValues:
        """Imported late: it takes 20 ms."""
        from agentcli.infra.sandbox.files.secret_values import SecretValues

        return SecretValues(self._environment, lambda root, names: SecretFiles(root, self._is_secret).among(names))

    def program_of_git(self, folder: Path) -> str:
        # A read-only sandbox lets such a program do no harm, but for what a weak one leaves open.
        if self.confines and not self.confinement.weakness:
            return ""
        from agentcli.infra.sandbox.protection.git_programs import ProgramSearch

        return ProgramSearch(self._git, self._environment, self._scan).setting(folder)

    async def exec(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        if not command.is_own:
            await self.make_ready()
        if command.is_own or (command.profile or self.profile) != "workspace-write":
            return await self._shell.exec(command, on_output=on_output, detach=detach)
        before = created_config.watched(self.roots)
        result = await self._shell.exec(command, on_output=on_output, detach=detach)
        return replace(result, made=tuple(created_config.made_or_changed(before, self.roots, self._git)))

    async def start_job(self, command: Command) -> BackgroundJob:
        await self.make_ready()
        job = (await self._shell.exec(command, is_job=True)).job
        assert job is not None, "a job is refused or detached"
        return job

    def jobs(self) -> Sequence[BackgroundJob]:
        return self._started_shell.jobs.list() if self._started_shell is not None else ()

    def read_job(self, id: str, most_bytes: int) -> str:
        return self._shell.jobs.read(id, most_bytes)

    async def stop_job(self, id: str) -> None:
        await self._shell.jobs.stop(id)

    def why_no_trial(self) -> str:
        return self._dry_runs.why_not()

    async def try_command(self, command: Command, *, on_output: Callable[[str], None] = lambda text: None) -> DryRun:
        await self.make_ready()
        folders = [path for path in self._paths.granted("read") if path.is_dir()] if command.nobody_allowed else []
        secrets = (await asyncio.to_thread(self._scan.protected, folders))[0] if folders else []
        return await self._dry_runs.run(command, on_output=on_output, masked=secrets)

    @property
    def _shell(self) -> Shell:
        """Imported late: it takes some milliseconds, and a session's first prompt need not wait for it."""
        if self._started_shell is None:
            from agentcli.infra.sandbox.processes.shell import Shell

            self._started_shell = Shell(
                self._environment,
                self._job_folder,
                launch=self.launch,
                own_environment=self._own_environment,
            )
        return self._started_shell

    @property
    def _dry_runs(self) -> DryRuns:
        """Imported late: it takes some milliseconds, and a session's first prompt need not wait for it."""
        with self._beginning:  # `why_no_trial` is asked in a thread
            if self._started_dry_runs is None:
                from agentcli.infra.sandbox.dry_runs.dry_run import DryRuns

                self._started_dry_runs = DryRuns(
                    lambda: self._shell,
                    lambda: self.confinement,
                    self.bounds,
                    folder=self.limits.tries or self._job_folder / "tries",
                    limits=self.limits.tried,
                    search_path=self._environment.get("PATH", ""),
                )
            return self._started_dry_runs

    def told(self) -> tuple[str, ...]:
        if not self.confines or self.profile != "workspace-write":
            return super().told()
        why_not = self._dry_runs.why_not()
        return (*super().told(), why_not or "Commands that would ask are tried on a stand-in of the workspace first.")

    async def aclose(self) -> None:
        if self._started_shell is not None:
            await self._started_shell.aclose()
        if self._started_dry_runs is not None:
            await asyncio.to_thread(self._started_dry_runs.close)
        await super().aclose()


if TYPE_CHECKING:
    _: type[Sandbox] = LocalSandbox
