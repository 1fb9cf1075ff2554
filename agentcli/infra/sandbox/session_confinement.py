"""Determines which paths and hosts a session's commands may use, and confines each command accordingly."""

import asyncio
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct

from agentcli.errors import ToolError
from agentcli.infra.sandbox import confinement
from agentcli.infra.sandbox.git_config import find_git
from agentcli.infra.sandbox.mount_points import CleanupNote, MountPointList
from agentcli.infra.sandbox.network.proxy import NetworkProxy
from agentcli.infra.sandbox.protection.auto_executed import present_names
from agentcli.infra.sandbox.protection.planning import MAX_REPOSITORIES, plan_protection
from agentcli.infra.sandbox.scan import Scan
from agentcli.safety.hosts import WEB_PORTS, read_grant
from agentcli.safety.paths.judge import SECRET_HOME_PATHS, auto_executed, is_secret
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import Command, DryRunLimits, Grants, Profile, Reverts

if TYPE_CHECKING:
    from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

MAX_AUTO_EXECUTED = 50  # protected files in folders below the roots: each costs a mount

_HOW_TO_GRANT = "The user can grant it: /sandbox host NAME, or sandbox.hosts in the settings."

# Protected even if missing. Only the most important names: each costs a mount, and commands see an empty folder.
_EVEN_IF_MISSING = frozenset((".agentcli", ".claude", ".cursor", ".husky", ".idea", ".mcp.json", ".vscode"))
_UNFINISHED = "unfinished"  # the folder for notes of sessions whose changes are not reverted yet


class SessionFolders(Struct, frozen=True, kw_only=True):
    """Folders of agentcli, as absolute paths."""

    state: Path | None = None
    cache: Path | None = None  # the caches of this workspace's commands
    own: tuple[Path, ...] = ()  # settings
    secret: tuple[Path, ...] = ()  # files and folders with secrets that their names do not show


class CommandLimits(Struct, frozen=True, kw_only=True):
    """The settings for commands, with absolute paths."""

    profile: Profile = "danger-full-access"
    home: Path = Path("/")
    masked: tuple[Path, ...] = ()  # commands cannot read these
    writable: tuple[Path, ...] = ()  # commands can write these in addition to the roots
    environment: tuple[str, ...] = ()  # names of variables that commands see, even if they look like secrets
    folders: SessionFolders = SessionFolders()
    dry_runs: DryRunLimits = DryRunLimits()
    # Returns the files below some roots that trusted commands run outside the sandbox.
    programs: Callable[[Sequence[Path]], Sequence[Path]] = lambda roots: ()

    @property
    def hidden(self) -> tuple[Path, ...]:
        return (*self.masked, *self.folders.secret)


class SessionConfinement:
    """Confines a session's commands."""

    def __init__(
        self,
        roots: Sequence[Path],
        limits: CommandLimits,
        choose: Callable[[], confinement.Confinement],  # finds the backend
        denied: Callable[[], Callable[[Path], bool] | None],  # returns a test for paths that the current rules deny
        *,
        state: Path,
        search_path: str,
        running_jobs: Callable[[], Sequence[int]] = lambda: (),  # the PIDs whose descendants are the session's jobs
    ) -> None:
        self.limits = limits
        self.scan = Scan(lambda path: is_secret(path, limits.home), denied)
        self.dry_run_folder = state / "tries"  # has the overlays
        self._home_secrets = tuple(limits.home / name for name in SECRET_HOME_PATHS)
        self._roots = tuple(root.resolve() for root in roots)
        self._choose = choose
        self._search_path = search_path
        self._running_jobs = running_jobs
        self._state = state
        self._aside = state / "put_aside"  # files that were in the way of a revert are moved here
        self._proxies: dict[frozenset[str], NetworkProxy] = {}  # by the hosts that each one allows
        self._proxy_lock = asyncio.Lock()
        self._cleanup_note: CleanupNote | None = None  # made for the first command that may write
        self._snapshot: ProtectedSnapshot | None = None  # created if protected files must be reverted after commands
        self._cleanup_result: Reverts | None = None  # the result of `clean_up`; None before it ran
        self._unreported = Reverts()  # reverts of `clean_up` that the next command's result must mention
        self._cleanup_lock = Lock()  # guards `_cleanup_note` and `_cleanup_result`

    @cached_property
    def backend(self) -> confinement.Confinement:
        return confinement.Unconfined() if self.limits.profile == "danger-full-access" else self._choose()

    @property
    def confines(self) -> bool:
        return self.backend.name != "none"

    def roots(self, grants: Grants) -> tuple[Path, ...]:
        return (*self._roots, *grants.roots)

    def git(self, grants: Grants) -> str:  # the path of a git that commands cannot replace
        return find_git(self._search_path, (*self.roots(grants), *self.limits.writable, *grants.writable))

    def bounds(
        self, profile: Profile | None, grants: Grants, mount_point_list: MountPointList | None = None
    ) -> confinement.Bounds:
        """Return the bounds for a command that starts now; the default `profile` is the session's."""
        limits, roots = self.limits, self.roots(grants)
        home, cache = limits.home, limits.folders.cache
        if limits.profile == "danger-full-access":  # whatever the command's profile is
            return confinement.Bounds(profile="danger-full-access", roots=roots, home=home)
        secrets, below_roots = self.scan.secrets_and_auto_executed(roots)
        used_profile = profile or limits.profile
        # A read-only command cannot write anything anyway.
        protected = () if used_profile == "read-only" else self._protected_paths(roots, below_roots[:MAX_AUTO_EXECUTED])
        # A command that is read-only by its own `profile` needs no host. Thus a program that a repository makes git run
        # reaches none. If only the session is read-only (`profile` is None), the granted hosts can be reached.
        proxy = self._proxies.get(frozenset(grants.hosts)) if profile != "read-only" else None
        return confinement.Bounds(
            profile=used_profile,
            roots=roots,
            home=home,
            masked=(*self._home_secrets, *limits.hidden, self.dry_run_folder, *secrets),
            readable_again=(*grants.readable, *grants.writable),
            writable=(*limits.writable, *(path for path in grants.writable if path.exists())),
            protected=tuple(map(str, protected)),
            resources=confinement.CommandResources(
                proxy_socket=proxy.socket if proxy is not None else None,
                ports=self._open_ports(grants) if proxy is not None else (),
                # A cache inside a root is not used: a command could replace it with a link before the next command.
                cache=None if cache is None or any(map(cache.is_relative_to, roots)) else cache,
                mount_point_list=mount_point_list,
                scan=self.scan,
                git=self.git(grants),
            ),
        )

    def _open_ports(self, grants: Grants) -> tuple[str, ...]:
        """Return the granted ports of this machine on which a server is listening, or a job may start to listen."""
        from agentcli.infra.sandbox.processes.stall import is_listened_on

        hosts = [grant for grant in map(read_grant, dict.fromkeys(grants.hosts)) if grant.is_this_machine]
        ports = [(grant, port) for grant in hosts for port in ((grant.port,) if grant.port else WEB_PORTS)]
        has_jobs = bool(ports) and bool(self._running_jobs())
        return tuple(grant.with_port(port) for grant, port in ports if has_jobs or is_listened_on(port))

    def _connect_to_job(self, port: int) -> socket.socket | None:
        """Connect to a server among the session's jobs, whose networks are not the proxy's; None if there is none."""
        from agentcli.infra.sandbox.network.jobs import connect_to_process
        from agentcli.infra.sandbox.processes.stall import find_listener

        for job in self._running_jobs():
            if (server := find_listener(job, port)) is not None:
                return connect_to_process(server, port)
        return None

    def _protected_paths(self, roots: Sequence[Path], below_roots: Sequence[Path]) -> Iterator[str | Path]:
        """Yield the auto-executed names in the roots, and all other paths that commands must not write."""
        table, home = auto_executed(), self.limits.home
        # For `a/b`, `present_names` looks only for `a`; and it returns all names for a folder that it cannot list.
        present = {name for root in roots for name in present_names(root, table.names) if (root / name).exists()}
        # Without `.git`, because `plan_protection` protects only parts of it, so that commands can commit.
        yield from sorted((present | _EVEN_IF_MISSING) - {".git"})
        if any(map(home.is_relative_to, roots)):
            # Shell profiles and the like are protected even if they are missing.
            profiles = (name for name in table.uncreatable if "*" not in name)
            existing = (name for name in (*table.home, *present_names(home, table.names)) if (home / name).exists())
            for name in dict.fromkeys((*profiles, *existing)):
                if name != ".git" and (sys.platform == "darwin" or not name.startswith("Library/")):  # only on macOS
                    yield home / name
        yield from (self._state, *self.limits.folders.own, *self.limits.programs(roots), *below_roots)

    def is_protected(self, path: Path, grants: Grants) -> bool:
        """Return True if git or a trusted command executes this file or follows its settings, whatever its name."""
        roots = self.roots(grants)
        bounds = confinement.Bounds(
            profile="workspace-write",
            roots=roots,
            home=self.limits.home,
            protected=tuple(map(str, self.limits.programs(roots))),
            resources=confinement.CommandResources(scan=self.scan, git=self.git(grants)),
        )
        plan = plan_protection(bounds, str(roots[0]))
        protected = (*plan.read_only, *plan.missing_files, *plan.missing_folders)
        return any(confinement.is_inside(str(path), each) for each in protected)

    @contextmanager
    def launch(self, argv: Sequence[str], command: Command) -> Iterator[confinement.Launch]:
        """Confine a command. When the context has been left, its changes to protected files are reverted.

        The launch's `reverts` include those of `clean_up`, so that the command's result reports them.
        """
        assert command.profile != "own", "the person's own commands are not confined"
        cwd, profile = command.cwd, command.profile or self.limits.profile
        if profile == "danger-full-access":  # outside the sandbox: its changes to protected files are accepted
            with (
                self._snapshot.accepting(lambda: _plan_reverts(self.bounds(None, command.grants), cwd))
                if self._snapshot is not None
                else nullcontext()
            ):
                yield confinement.Launch(list(argv), reverts=self._add_unreported(Reverts()))
            return
        note = self._open_cleanup_note() if profile == "workspace-write" else None
        bounds = self.bounds(command.profile, command.grants, note)
        if bounds.resources.cache is not None:
            make_private_folder(bounds.resources.cache)
        confined = self.backend.launch(argv, cwd=cwd, bounds=bounds)
        with confined as launch, self._revert_afterwards(bounds, cwd, note) as reverts:
            descriptor = note.descriptor if note is not None else None  # by which the keeper cleans up after a kill
            yield launch._replace(reverts=self._add_unreported(reverts), cleanup_note=descriptor)

    def _open_cleanup_note(self) -> CleanupNote:
        """Return the session's note, which the keeper or the next start uses to clean up after a kill."""
        # A kill leaves only mount points behind if the backend enforces protection, otherwise also changes to revert.
        notes = self._state / "mount_points" if self.backend.enforces_protection else self._aside / _UNFINISHED
        with self._cleanup_lock:
            self._cleanup_note = self._cleanup_note or CleanupNote(notes)
        return self._cleanup_note

    def _revert_afterwards(
        self, bounds: confinement.Bounds, cwd: Path, note: CleanupNote | None
    ) -> AbstractContextManager[Reverts]:
        """Revert a command's changes to protected files if the backend cannot prevent them."""
        if self.backend.enforces_protection or bounds.profile != "workspace-write":
            return nullcontext(Reverts())
        if self._snapshot is None:
            from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

            self._snapshot = ProtectedSnapshot(self._aside, note)
        return self._snapshot.reverting(_plan_reverts(bounds, cwd), roots=bounds.roots, granted=bounds.writable)

    def accept_write(self, path: Path, content: bytes) -> None:
        """Do not revert the content that a tool wrote to a protected file, because the person approved it."""
        if self._snapshot is not None:  # without a snapshot nothing is reverted
            self._snapshot.accept_write(str(path), content)

    async def make_ready(self, grants: Grants) -> None:
        """Prepare for a command: revert changes of killed sessions, and start the proxy to the command's hosts."""
        if self._cleanup_result is None:
            await asyncio.to_thread(self.clean_up)
        await self._start_proxy(frozenset(grants.hosts))

    def clean_up(self) -> Reverts:
        """Revert the changes of killed sessions, once; the result of the next command reports this to the model."""
        with self._cleanup_lock:
            if self._cleanup_result is None:
                reverts = Reverts()
                if (self._aside / _UNFINISHED).is_dir():
                    from agentcli.infra.sandbox.protection.snapshot import clean_up_killed_sessions

                    reverts = clean_up_killed_sessions(self._aside / _UNFINISHED)
                self._unreported = Reverts(
                    [f"{each}, changed by a command of a session that was killed" for each in reverts.reverted],
                    [*reverts.not_reverted],
                )
                self._cleanup_result = reverts  # set last, because `make_ready` lets commands start once it is set
            return self._cleanup_result

    def _add_unreported(self, reverts: Reverts) -> Reverts:
        reverts.add(self._unreported)
        self._unreported = Reverts()
        return reverts

    async def _start_proxy(self, hosts: frozenset[str]) -> None:
        """Start a proxy to exactly these hosts, unless there is one already or commands are not confined."""
        async with self._proxy_lock:
            if not hosts or hosts in self._proxies or not self.confines:
                return
            try:
                grants = [*map(read_grant, sorted(hosts))]
            except ValueError as error:
                raise ToolError(f"A host cannot be granted: {error}", kind="invalid_parameters") from error
            folder = Path(tempfile.mkdtemp(prefix="agentcli-"))  # mode 0700
            proxy = NetworkProxy(grants, folder=folder, how_to_grant=_HOW_TO_GRANT, connect_to_job=self._connect_to_job)
            await proxy.start()
            self._proxies[hosts] = proxy

    def denials(self, grants: Grants, *, since: float) -> tuple[str, ...]:
        """Return the reasons for which the proxy denied connections to these hosts since a monotonic time."""
        proxy = self._proxies.get(frozenset(grants.hosts))
        return tuple(dict.fromkeys(why for at, why in proxy.denials if at >= since)) if proxy is not None else ()

    async def aclose(self) -> None:
        is_reverted = self._snapshot is None or self._snapshot.close()
        if self._cleanup_note is not None:
            self._cleanup_note.close(is_all_reverted=is_reverted)
            self._cleanup_note = None
        while self._proxies:
            _, proxy = self._proxies.popitem()
            await proxy.aclose()
            with suppress(FileNotFoundError):  # something has cleaned up temporary files
                proxy.socket.parent.rmdir()


def _plan_reverts(bounds: confinement.Bounds, cwd: Path) -> confinement.Protection:
    """Plan the paths to revert. A plan without mounts needs no limit on the repositories that accept commits."""
    return plan_protection(bounds, str(cwd), max_committable=MAX_REPOSITORIES)
