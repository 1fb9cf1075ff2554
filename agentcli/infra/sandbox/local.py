"""Files and commands on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agentcli.infra.sandbox import files, ripgrep
from agentcli.infra.sandbox.environment import command_environment
from agentcli.infra.sandbox.paths import WorkspacePaths
from agentcli.infra.sandbox.shell import Shell
from agentcli.tools.sandbox import Access, BackgroundJob, CommandResult, FileStatus, Listing, Profile, Sandbox, Search


class LocalSandbox:
    """Implements `Sandbox`. `environment` is what commands see, credentials taken out."""

    profile: Profile = "danger-full-access"
    confines = False

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        environment: Mapping[str, str],
        job_folder: Path,
        readable_roots: Sequence[Path] = (),
        session_id: str = "",
    ) -> None:
        self._paths = WorkspacePaths(roots, (*readable_roots, job_folder))
        self._environment = command_environment(environment, session_id)
        self._shell = Shell(self._environment, job_folder)

    @property
    def roots(self) -> tuple[Path, ...]:
        return self._paths.roots

    def validate_path(self, path: Path, access: Access) -> Path:
        return self._paths.validate(path, access)

    def grant(self, path: Path, access: Access) -> None:
        self._paths.grant(path, access)

    def revoke(self, path: Path, access: Access) -> None:
        self._paths.revoke(path, access)

    def status(self, path: Path) -> FileStatus | None:
        return files.status_of(path)

    def read(self, path: Path) -> BinaryIO:
        return files.open_to_read(path)

    def write(self, path: Path, content: bytes) -> None:
        files.write(path, content)

    def list(self, listing: Listing) -> AsyncGenerator[bytes, None]:
        return ripgrep.list_files(listing, self._environment)

    def search(self, search: Search) -> AsyncGenerator[bytes, None]:
        return ripgrep.search(search, self._environment, is_folder=search.where.is_dir())

    async def exec(
        self,
        command: str,
        *,
        cwd: Path,
        timeout_s: float,
        on_output: Callable[[str], None] = lambda text: None,
        most_bytes: int = 30_000,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        return await self._shell.exec(
            command, cwd=cwd, timeout_s=timeout_s, on_output=on_output, most_bytes=most_bytes, detach=detach
        )

    async def start_job(self, command: str, *, cwd: Path, timeout_s: float | None = None) -> BackgroundJob:
        return await self._shell.start_job(command, cwd=cwd, timeout_s=timeout_s)

    def jobs(self) -> Sequence[BackgroundJob]:
        return self._shell.jobs()

    def read_job(self, id: str, most_bytes: int) -> str:
        return self._shell.read_job(id, most_bytes)

    async def stop_job(self, id: str) -> None:
        await self._shell.stop_job(id)

    def add_root(self, folder: Path) -> None:
        self._paths.add_root(folder)

    async def aclose(self) -> None:
        await self._shell.aclose()


if TYPE_CHECKING:
    _: type[Sandbox] = LocalSandbox
