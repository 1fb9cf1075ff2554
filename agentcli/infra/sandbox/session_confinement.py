"""Draws the bounds of a session's commands, holds them to these, and opens the way to granted hosts."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch, Unconfined
from agentcli.infra.sandbox.git.config import find_git
from agentcli.infra.sandbox.mounts.mount_points import SessionNote
from agentcli.infra.sandbox.mounts.protect_plan import Protection, is_inside
from agentcli.infra.sandbox.network.proxy import NetworkProxy
from agentcli.infra.sandbox.protection.created_config import present_names
from agentcli.infra.sandbox.protection.left_behind import clean_up_killed_sessions
from agentcli.infra.sandbox.protection.planning import MAX_REPOSITORIES, plan_protection
from agentcli.infra.sandbox.scan import PresentPaths, Scan
from agentcli.safety.hosts import read_grant
from agentcli.safety.paths.judge import SECRET_HOME_PATHS, auto_executed, is_secret
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import Command, Grants, Profile, Reverts
from agentcli.tools.dry_run import DryRunLimits

if TYPE_CHECKING:
    from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

MOST_OBEYED = 50  # names below the roots' own level that are kept from being written: each costs a mount

_HOW_TO_GRANT = "The user can grant it: /sandbox host NAME, or sandbox.hosts in the settings."

_EVEN_IF_MISSING = frozenset((".agentcli", ".claude", ".cursor", ".husky", ".idea", ".mcp.json", ".vscode"))

log = logging.getLogger(__name__)


class CommandLimits(Struct, frozen=True, kw_only=True):
    """The settings for commands, all paths absolute; trusted commands run `programs` outside of the sandbox."""

    profile: Profile = "danger-full-access"
    home: Path = Path("/")
    masked: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    environment: tuple[str, ...] = ()
    cache: Path | None = None
    state: Path | None = None
    own_folders: tuple[Path, ...] = ()
    dry_runs: DryRunLimits = DryRunLimits()
    programs: Callable[[Sequence[Path]], Sequence[Path]] = lambda roots: ()


def _names_in(root: Path) -> Iterator[str]:
    """The auto-executed names that are in a folder."""
    return (name for name in present_names(root, auto_executed().names) if (root / name).exists())


class SessionConfinement:
    """Holds a session's commands to their bounds; `choose` finds what confines them, `denied` tests paths by rules."""

    def __init__(
        self,
        roots: Sequence[Path],
        limits: CommandLimits,
        choose: Callable[[], Confinement],
        denied: Callable[[], Callable[[Path], bool] | None],
        *,
        state: Path,
        search_path: str,
    ) -> None:
        self.limits = limits
        self.scan = Scan(lambda path: is_secret(path, limits.home), denied)
        self._roots = tuple(root.resolve() for root in roots)
        self._choose = choose
        self._search_path = search_path
        self._state = state
        at_home = (limits.home / path for path in SECRET_HOME_PATHS)
        self.dry_run_folder = state / "tries"
        self._masked = PresentPaths((*at_home, *limits.masked, self.dry_run_folder))
        self._aside = state / "put_aside"  # what stood in the way of something that was put back
        self._protected_places: dict[tuple[Path, ...], tuple[float, tuple[str, ...]]] = {}
        self._proxies: dict[frozenset[str], NetworkProxy] = {}
        self._opening = asyncio.Lock()
        self._note: SessionNote | None = None
        self._snapshot: ProtectedSnapshot | None = None
        self._left_behind: Reverts | None = None
        self._unreported = Reverts()
        self._cleaning = Lock()

    @cached_property
    def backend(self) -> Confinement:
        return Unconfined() if self.limits.profile == "danger-full-access" else self._choose()

    @property
    def confines(self) -> bool:
        return self.backend.name != "none"

    def roots(self, grants: Grants) -> tuple[Path, ...]:
        return (*self._roots, *grants.roots)

    def git(self, grants: Grants) -> str:
        """The git that commands cannot replace."""
        return find_git(self._search_path, (*self.roots(grants), *self.limits.writable, *grants.writable))

    def bounds(self, profile: Profile | None, grants: Grants) -> Bounds:
        """The bounds of a command that starts now; in a session without bounds no command has any."""
        limits, roots = self.limits, self.roots(grants)
        if limits.profile == "danger-full-access":
            return Bounds("danger-full-access", roots, limits.home)
        secrets, obeyed = self.scan.protected(roots)
        own = (self._state, *limits.own_folders)
        # What only reads needs no host; a program that a repository has git run gets none.
        proxy = self._proxies.get(frozenset(grants.hosts)) if profile != "read-only" else None
        return Bounds(
            profile or limits.profile,
            roots,
            limits.home,
            masked=(*self._masked.now(), *secrets),
            readable_again=(*grants.readable, *grants.writable),
            writable=(*limits.writable, *(path for path in grants.writable if path.exists())),
            protected=_protected_names(roots),
            protected_paths=(*self._at_home(roots), *own, *limits.programs(roots), *obeyed[:MOST_OBEYED]),
            proxy_socket=proxy.socket if proxy is not None else None,
            # In a root a command could put a link in its place, which the next one would follow.
            cache=None if limits.cache is None or any(map(limits.cache.is_relative_to, roots)) else limits.cache,
            scan=self.scan,
            git=self.git(grants),
        )

    def is_protected(self, path: Path, grants: Grants) -> bool:
        """True if git or a trusted command runs this file or obeys its contents. The answer is up to a second old."""
        roots = self.roots(grants)
        planned_at, places = self._protected_places.get(roots, (float("-inf"), ()))
        if time.monotonic() - planned_at > 1:
            own = tuple(self.limits.programs(roots))
            home, git = self.limits.home, self.git(grants)
            bounds = Bounds("workspace-write", roots, home, protected_paths=own, scan=self.scan, git=git)
            plan = plan_protection(bounds, str(roots[0]))
            places = (*plan.read_only, *plan.missing_files, *plan.missing_folders)
            self._protected_places = {roots: (time.monotonic(), places)}
        return any(is_inside(str(path), place) for place in places)

    def _at_home(self, roots: Sequence[Path]) -> Sequence[Path]:
        """Files that start with the machine, a shell or a program, present or not, if the home can be written."""
        home = self.limits.home
        if not any(map(home.is_relative_to, roots)):
            return ()
        table = auto_executed()
        there = (path for path in table.home if (home / path).exists())
        places = dict.fromkeys((*(name for name in table.start if "*" not in name), *_names_in(home), *there))
        is_mac = sys.platform == "darwin"
        return [home / name for name in places if name != ".git" and (is_mac or not name.startswith("Library/"))]

    @contextmanager
    def launch(self, argv: Sequence[str], command: Command, pass_fds: Sequence[int]) -> Iterator[Launch]:
        """Raises `OSError`."""
        assert command.profile != "own", "such a command is not confined"
        cwd, profile = command.cwd, command.profile or self.limits.profile
        if profile == "danger-full-access":
            plan = partial(self._protection, command.grants, cwd=cwd)
            with self._snapshot.accepting(plan) if self._snapshot is not None else nullcontext():
                yield Launch(list(argv), tuple(pass_fds), reverts=self._with_unreported(Reverts()))
            return
        earlier = self._snapshot.retry() if self._snapshot is not None else Reverts()
        note = self._session_note() if profile == "workspace-write" else None
        bounds = replace(self.bounds(command.profile, command.grants), note=note.points if note is not None else None)
        if bounds.cache is not None:
            make_private_folder(bounds.cache)
        confined = self.backend.launch(argv, cwd=cwd, bounds=bounds, pass_fds=pass_fds)
        with confined as launch, self._guarded(bounds, cwd, note) as reverts:
            reverts.put_back += earlier.put_back  # what still could not be is reported when the command has ended
            descriptor = note.descriptor if note is not None else None
            yield launch._replace(reverts=self._with_unreported(reverts), note=descriptor)

    def _session_note(self) -> SessionNote | None:
        """The note of the session, by which the keeper or the next start cleans up after a kill."""
        notes = self._state / "mount_points" if self.backend.keeps_names else self._aside / "unfinished"
        try:
            with self._cleaning:
                self._note = self._note or SessionNote(notes)
        except OSError as error:  # a full disk: what a kill may leave is no reason to run nothing
            log.warning("nothing is noted for after a kill: %s", error)
        return self._note

    @contextmanager
    def _guarded(self, bounds: Bounds, cwd: Path, note: SessionNote | None) -> Iterator[Reverts]:
        if self.backend.keeps_names or bounds.profile != "workspace-write":
            yield Reverts()
            return
        if self._snapshot is None:
            from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

            self._snapshot = ProtectedSnapshot(self._aside, note)
        plan = self._protection(bounds, cwd=cwd)
        with self._snapshot.during(plan, roots=bounds.roots, granted=bounds.writable) as reverts:
            yield reverts

    def _protection(self, bounds: Bounds | Grants, *, cwd: Path | None = None) -> Protection:
        """Plan what to revert where nothing protects it. Without mounts every repository can be committed to."""
        bounds = self.bounds(None, bounds) if isinstance(bounds, Grants) else bounds
        return plan_protection(bounds, str(cwd or bounds.roots[0]), max_to_commit_to=MAX_REPOSITORIES)

    def unguarded_folders(self, grants: Grants) -> Sequence[str]:
        """The folders that hold more protected files than could be reverted."""
        if self.limits.profile != "workspace-write" or self.backend.keeps_names:
            return ()
        from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

        return ProtectedSnapshot("/").unguarded_folders(self._protection(grants))

    def accept(self, path: Path, content: bytes) -> None:
        """Keep what was written to a file: the person agreed."""
        if self._snapshot is not None:  # else no command ran that it would be reverted with
            self._snapshot.accept(str(path), content)

    async def make_ready(self, grants: Grants) -> None:
        """Prepare for a command: revert what killed sessions left changed, and open the way to its hosts."""
        if self._left_behind is None:
            await asyncio.to_thread(self.clean_up)
        await self._open_network(frozenset(grants.hosts))

    def clean_up(self) -> Reverts:
        """Revert once what killed sessions left changed."""
        with self._cleaning:
            if self._left_behind is None:
                self._left_behind = left = clean_up_killed_sessions(self._aside / "unfinished")
                done = [f"{each}, changed by a command of a session that was killed" for each in left.put_back]
                self._unreported = Reverts(done, [*left.left_changed])
            return self._left_behind

    def _with_unreported(self, reverts: Reverts) -> Reverts:
        """Report it to the model with the first command."""
        reverts.add(self._unreported)
        self._unreported = Reverts()
        return reverts

    async def _open_network(self, hosts: frozenset[str]) -> None:
        """Start what leads to some hosts and no others, where commands have no network of their own."""
        async with self._opening:
            if not hosts or hosts in self._proxies or not self.confines:
                return
            try:
                for host in hosts:
                    read_grant(host)
            except ValueError as error:
                raise ToolError(f"A host cannot be granted: {error}", kind="invalid_parameters") from error
            folder = Path(tempfile.mkdtemp(prefix="agentcli-"))  # 0700
            proxy = NetworkProxy(sorted(hosts), folder=folder, how_to_grant=_HOW_TO_GRANT)
            await proxy.start()
            self._proxies[hosts] = proxy

    async def aclose(self) -> None:
        is_done = self._snapshot is None or self._snapshot.close()
        if self._note is not None:
            self._note.close(is_done=is_done)
            self._note = None
        while self._proxies:
            _, proxy = self._proxies.popitem()
            await proxy.aclose()
            with suppress(FileNotFoundError):  # whoever tidies up temporary files was here
                proxy.socket.parent.rmdir()


def _protected_names(roots: Sequence[Path]) -> tuple[str, ...]:
    """Names that are there, and the few obeyed at once: each missing one shows as an empty folder to commands."""
    there = {name for root in roots for name in _names_in(root)}
    return tuple(sorted((there | _EVEN_IF_MISSING) - {".git"}))
