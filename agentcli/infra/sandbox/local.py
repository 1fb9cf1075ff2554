"""Provides the files and commands of this machine as a `Sandbox`."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.infra.changes import writing
from agentcli.infra.lazy import Lazy
from agentcli.infra.sandbox import ripgrep
from agentcli.infra.sandbox.confinement import Confinement, Unconfined, is_inside
from agentcli.infra.sandbox.environment import command_environment
from agentcli.infra.sandbox.protection import auto_executed
from agentcli.infra.sandbox.secret_files import SecretFiles, SecretValues
from agentcli.infra.sandbox.session_confinement import MAX_AUTO_EXECUTED, CommandLimits, SessionConfinement
from agentcli.safety.commands.records import GitSetup
from agentcli.safety.paths.judge import is_secret
from agentcli.tools.command import NO_GRANTS, Command, CommandResult, Grants, Profile
from agentcli.tools.sandbox import Listing, PathStatus, Search, SearchOutcome, Use

if TYPE_CHECKING:
    from agentcli.infra.sandbox.dry_runs.dry_run import DryRuns
    from agentcli.infra.sandbox.processes.shell import DetachHandle, Shell

# By the type in `st_mode`, which is 0 here if nothing exists, or if it cannot be examined.
_KINDS: dict[int, Literal["file", "folder", "other"] | None] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", 0: None}


class LocalSandbox:
    """Implements `Sandbox`. Tools cannot read secret files, nor files that the person's rules deny."""

    def __init__(
        self,
        roots: Sequence[Path],
        *,
        environment: Mapping[str, str],
        job_folder: Path,
        session_id: str = "",
        limits: CommandLimits = CommandLimits(),
        choose: Callable[[], Confinement] = Unconfined,  # finds the backend
        denied: Callable[[], Callable[[Path], bool] | None] = lambda: None,  # returns a test by the current rules
    ) -> None:
        self.confinement = SessionConfinement(
            roots,
            limits,
            choose,
            denied,
            state=limits.folders.state or job_folder / "state",
            search_path=environment.get("PATH", ""),
            running_jobs=lambda: [job.pid for job in self.jobs.list() if job.is_running],
        )
        self.dry_runs = Lazy(self._open_dry_runs)
        self._home = limits.home
        # Files with agentcli's own secrets and settings. `is_secret` knows only their usual paths, not those that
        # environment variables name.
        self._secret_paths = tuple(path.resolve() for path in limits.folders.secret)
        self._settings_paths = tuple(path.resolve() for path in limits.folders.own)
        self._current_deny_test = denied
        self._job_folder = job_folder
        self._real_job_folder = str(job_folder.resolve())  # tools may read the output of jobs in it
        self._own_environment = environment  # for the person's own commands
        self._environment = command_environment(environment, session_id, allowed=limits.environment)
        self._shell = Lazy(self._open_shell)
        self._secret_values = SecretValues(
            self._environment, lambda root, names: SecretFiles(root, self._is_secret).among(names)
        )

    @property
    def jobs(self) -> Shell:
        """The session's shell, which implements `Jobs`."""
        return self._shell.load()

    def facts(self, grants: Grants = NO_GRANTS) -> LocalFacts:
        return LocalFacts(self, grants)

    def look(self, path: Path, use: Use = "read", grants: Grants = NO_GRANTS) -> PathStatus:
        real, found, error_number = _resolve(path)
        mode = found.st_mode if found is not None else 0
        return PathStatus(
            real=real,
            place=self._place_of(real, use, grants),
            kind=_KINDS.get(stat.S_IFMT(mode), "other"),
            size=found.st_size if found is not None else 0,
            links=found.st_nlink if found is not None and stat.S_ISREG(mode) else 1,
            errno=error_number,
            is_auto_executed=use == "write"
            and (any(map(real.is_relative_to, self._settings_paths)) or self.confinement.is_protected(real, grants)),
            git=self._git_setup(real, use, grants) if use in ("git", "remotes") else None,
        )

    def _place_of(self, real: Path, use: Use, grants: Grants) -> Literal["granted", "secret", "inside", "outside"]:
        reads_job_output = use != "write" and is_inside(str(real), self._real_job_folder)
        if reads_job_output or grants.cover(real, "write" if use == "write" else "read"):
            return "granted"
        if self._is_secret(real):
            return "secret"
        return "inside" if any(map(real.is_relative_to, self.confinement.roots(grants))) else "outside"

    def read(self, path: Path) -> BinaryIO:
        return writing.open_to_read(path)

    def write(self, path: Path, content: bytes) -> None:
        writing.write(path, content)
        self.confinement.accept_write(path, content)

    async def search(
        self, query: Listing | Search, take: Callable[[Any], None], grants: Grants = NO_GRANTS
    ) -> SearchOutcome:
        if isinstance(query, Listing):
            return await ripgrep.list_files(query, self._environment, take)
        base = query.base or (query.where if query.where.is_dir() else query.where.parent)
        secret_files = SecretFiles(base, lambda path: is_secret(path, self._home))
        may_meet_secrets = any(path.is_relative_to(base) or base.is_relative_to(path) for path in self._secret_paths)
        # The names of `_secret_paths` do not show that they are secret, so near them every path gets the full test.
        is_denied = self._is_secret if may_meet_secrets else self._current_deny_test()

        def hidden_among(names: Sequence[bytes]) -> set[bytes]:
            hidden = secret_files.among(names, is_denied)
            return {name for name in hidden if self.look(base / os.fsdecode(name), "read", grants).place != "granted"}

        return await ripgrep.search(query, self._environment, take, secrets_among=hidden_among)

    def _is_secret(self, path: Path) -> bool:
        is_denied = self._current_deny_test()
        return (
            is_secret(path, self._home)
            or any(map(path.is_relative_to, self._secret_paths))
            or (is_denied is not None and is_denied(path))
        )

    def secret_values(self, roots: Sequence[Path], *, apart_from: Path | None) -> frozenset[str]:
        secret_files, _ = self.confinement.scan.secrets_and_auto_executed(roots)
        return self._secret_values.values_in(secret_files, roots, apart_from=apart_from)

    def _git_setup(self, folder: Path, use: Use, grants: Grants) -> GitSetup | None:
        """Return the programs that git may start in a folder and, for `remotes`, its settings; None if harmless."""
        confinement = self.confinement
        if use == "git" and confinement.confines and not confinement.backend.weakness:
            return None  # git then runs in a strong read-only sandbox, where a program can do no harm
        git, scan = confinement.git(grants), confinement.scan
        if use == "git":
            program = auto_executed.find_program_setting(folder, git=git, environment=self._environment, scan=scan)
            return GitSetup(program=program)
        return auto_executed.find_git_setup(folder, git=git, environment=self._environment, scan=scan)

    async def run(
        self,
        command: Command,
        *,
        on_output: Callable[[str], None] = lambda text: None,
        detach: asyncio.Event | None = None,
    ) -> CommandResult:
        """Run a command as a dry run, as a job or as usual, confined unless it is the person's own."""
        confinement, grants, started = self.confinement, command.grants, time.monotonic()
        if command.profile != "own":  # the person's own commands run unconfined
            await confinement.make_ready(grants)
        if command.dry_run is not None:
            # Nobody approved a narrow dry run, so secret files are hidden from it even in granted folders.
            folders = [path for path in grants.readable if path.is_dir()] if command.dry_run == "narrow" else []
            secrets, _ = await asyncio.to_thread(confinement.scan.secrets_and_auto_executed, folders)
            dry_runs = self.dry_runs.load()

            async def run_dry(detach_handle: DetachHandle | None) -> CommandResult:
                dry_run = await dry_runs.run(command, on_output=on_output, masked=secrets, detach_handle=detach_handle)
                return replace(dry_run.result, dry_run=dry_run, denials=confinement.denials(grants, since=started))

            return await dry_runs.background.start(run_dry, detach)
        is_job = detach is not None and detach.is_set()  # set before the start: the command was requested as a job
        if is_job or (command.profile or confinement.limits.profile) != "workspace-write":
            return await self._shell.load().exec(command, on_output=on_output, detach=detach, is_job=is_job)
        # The command can write to the workspace: report the auto-executed files that it creates or changes.
        roots = confinement.roots(grants)
        before = auto_executed.watched_states(roots)
        result = await self._shell.load().exec(command, on_output=on_output, detach=detach)
        made = tuple(auto_executed.find_new_or_changed(before, roots, confinement.git(grants)))
        return replace(result, made=made, denials=confinement.denials(grants, since=started))

    def _open_shell(self) -> Shell:
        from agentcli.infra.sandbox.processes.shell import Shell  # late: a session's first prompt need not wait for it

        return Shell(
            self._environment, self._job_folder, launch=self.confinement.launch, own_environment=self._own_environment
        )

    def _open_dry_runs(self) -> DryRuns:
        from agentcli.infra.sandbox.dry_runs.dry_run import DryRuns  # late: a first prompt need not wait for it

        confinement = self.confinement
        return DryRuns(
            self._shell.load,
            lambda: confinement.backend,
            lambda grants: confinement.bounds(None, grants),
            folder=confinement.dry_run_folder,
            limits=confinement.limits.dry_runs,
            search_path=self._environment.get("PATH", ""),
        )

    async def aclose(self) -> None:
        if self.dry_runs.is_made():
            await self.dry_runs.load().background.cancel()
        await self._shell.aclose()
        if self.dry_runs.is_made():
            await asyncio.to_thread(self.dry_runs.load().close)
        await self.confinement.aclose()


class LocalFacts:
    """Implements `SandboxFacts` for commands that have these `grants`."""

    def __init__(self, sandbox: LocalSandbox, grants: Grants) -> None:
        self._sandbox = sandbox
        self._confinement = sandbox.confinement
        self._grants = grants
        self.profile: Profile = self._confinement.limits.profile
        self.roots = self._confinement.roots(grants)

    @property
    def confines(self) -> bool:
        return self._confinement.confines

    @property
    def dry_run_problem(self) -> str:
        return self._sandbox.dry_runs.load().why_unavailable(self._grants)

    def exposed_secrets(self, profile: Profile | None = None) -> Sequence[Path]:
        """Return the secret files that the backend cannot hide from commands with this profile, except granted ones."""
        if (profile or self.profile) in self._confinement.backend.hides_in:
            return ()
        secrets, _ = self._confinement.scan.secrets_and_auto_executed(self.roots)
        hidden = [path for path in self._confinement.limits.hidden if any(map(path.is_relative_to, self.roots))]
        found = dict.fromkeys((*secrets, *(path for path in hidden if path.exists())))
        return [path for path in found if path not in (*self._grants.readable, *self._grants.writable)]

    def secret_values(self, *, apart_from: Path | None = None) -> frozenset[str]:
        return self._sandbox.secret_values(self.roots, apart_from=apart_from)

    @property
    def warning(self) -> str:
        """Warn the person of a weak backend, and of changes by killed sessions, which the first call reverts."""
        reverts = self._confinement.clean_up()  # later calls return the result of the first
        done, failed = "; ".join(reverts.reverted), "; ".join(reverts.not_reverted)
        parts = (
            self._weakness_warning,
            done and f"Reverted changes by a command whose session was killed: {done}.",
            failed and f"Changes by a command of another session could not be reverted: {failed}.",
        )
        return " ".join(filter(None, parts))

    @property
    def description(self) -> tuple[str, ...]:
        """Describe the confinement of commands for the person, line by line, including its gaps on this machine."""
        if self.profile == "danger-full-access":
            return ("Commands are not confined: they can read, change and send anything you can.",)
        if not self.confines:
            return (self._weakness_warning,)
        backend, scan = self._confinement.backend, self._confinement.scan
        hosts = ", ".join(dict.fromkeys(self._grants.hosts)) or "none"
        _, auto_executed_below = scan.secrets_and_auto_executed(self.roots)
        too_many = "is too large to find every secret file in it: commands may be able to read some."
        unprotected = len(auto_executed_below) - MAX_AUTO_EXECUTED  # only the first ones are protected
        lines = (
            f"Commands are confined by {backend.name}: {self.profile}, hosts: {hosts}.",
            self._weakness_warning,
            *(f"{root} {too_many}" for root in self.roots if scan.is_partial(str(root))),
            f"{unprotected:,} settings of editors and tools in folders below can be written: there are too many."
            if unprotected > 0
            else "",
            *backend.limits(self._confinement.bounds(None, self._grants)),
            (self.dry_run_problem or "Commands with unknown effects run as dry runs first.")
            if self.profile == "workspace-write"
            else "",
        )
        return tuple(filter(None, lines))

    @property
    def _weakness_warning(self) -> str:
        backend = self._confinement.backend
        if self.profile == "danger-full-access":
            return ""
        if not self.confines:
            return f"NO SANDBOX: every command asks. {backend.problem}".rstrip()
        if not backend.weakness:  # such a backend has a `problem` only if it is Docker and its daemon does not answer
            return f"NO COMMAND CAN RUN: {backend.problem}" if backend.problem else ""
        why_no_better = f" A better one: {backend.problem}" if backend.problem else ""
        return f"Weak sandbox ({backend.name}): {backend.weakness}.{why_no_better}"


def _resolve(path: Path) -> tuple[Path, os.stat_result | None, int]:
    """Return the real path, the status there (None: nothing exists), and an error number or 0. Raises `ToolError`."""
    real, found, number = "", None, 0
    try:
        real = os.path.realpath(path)
        found = os.lstat(real)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        number = error.errno or errno.EIO
    except ValueError:  # a NUL or a lone surrogate in the path; reported below, like a loop of links
        number = errno.ELOOP
    # There is no real path if a link in it cannot be read, such as one in /proc for another user's process.
    if not real or number == errno.ELOOP or (found is not None and stat.S_ISLNK(found.st_mode)):
        raise ToolError(f"{str(path)!r} cannot be resolved.", kind="invalid_parameters")
    return Path(real), found, number
