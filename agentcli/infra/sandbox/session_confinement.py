"""Draws the boundary of one session: decides what commands may do now, and opens the way to granted hosts."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agentcli.errors import ToolError
from agentcli.infra.sandbox.confinement import Bounds, Confinement, Launch, Unconfined
from agentcli.infra.sandbox.files.paths import WorkspacePaths
from agentcli.infra.sandbox.git.config import find_git
from agentcli.infra.sandbox.mounts.mount_points import SessionNote
from agentcli.infra.sandbox.mounts.protect_plan import Protection
from agentcli.infra.sandbox.network.host_grants import read_grant
from agentcli.infra.sandbox.network.proxy import NetworkProxy
from agentcli.infra.sandbox.protection.created_config import present_names
from agentcli.infra.sandbox.protection.left_behind import clean_up_killed_sessions
from agentcli.infra.sandbox.protection.planning import MAX_REPOSITORIES, plan_protection
from agentcli.infra.sandbox.scan import PresentPaths, Scan
from agentcli.safety.paths.judge import SECRET_HOME_PATHS, auto_executed, is_secret
from agentcli.settings.files import make_private_folder
from agentcli.tools.command import Profile, Reverts
from agentcli.tools.dry_run import DryRunLimits
from agentcli.tools.sandbox import Access

if TYPE_CHECKING:
    from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

MOST_OBEYED = 50  # names below the roots' own level that are kept from being written: each costs a mount

_HOW_TO_GRANT = "The user can grant it: /sandbox host NAME, or sandbox.hosts in the settings."

_EVEN_IF_MISSING = frozenset((".agentcli", ".claude", ".cursor", ".husky", ".idea", ".mcp.json", ".vscode"))

log = logging.getLogger(__name__)


class CommandLimits(Struct, frozen=True, kw_only=True):
    """The settings for commands. Paths are absolute; `cache` is where tools keep theirs, per workspace.

    `tries` holds what stands in for the workspace while a command is tried, `aside` what stood in the way of something
    that was put back, `mount_notes` the names of mount points that were made; `own_folders` are agentcli's own. `tried`
    limits what a tried command may change. `programs` are files of the workspace that trusted commands run outside of
    the sandbox.
    """

    profile: Profile = "danger-full-access"
    home: Path = Path("/")
    masked: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hosts: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    cache: Path | None = None
    tries: Path | None = None
    aside: Path | None = None
    mount_notes: Path | None = None
    own_folders: tuple[Path, ...] = ()
    tried: DryRunLimits = DryRunLimits()
    programs: Callable[[Sequence[Path]], Sequence[Path]] = lambda roots: ()


def _names_in(root: Path) -> Iterator[str]:
    """The auto-executed names that are in a folder."""
    return (name for name in present_names(root, auto_executed().names) if (root / name).exists())


class SessionConfinement:
    """Implements `Boundary` but for what needs the environment of commands.

    `choose` finds what confines commands here; it is asked when the first of them is judged or run.
    """

    def __init__(
        self,
        limits: CommandLimits,
        paths: WorkspacePaths,
        choose: Callable[[], Confinement],
        denied: Callable[[], Callable[[Path], bool] | None] = lambda: None,
        *,
        search_path: str = "",
    ) -> None:
        self.limits = limits
        self._paths = paths
        self._choose = choose
        self._scan = Scan(lambda path: is_secret(path, limits.home), denied)
        self._search_path = search_path
        own = (limits.tries,) if limits.tries is not None else ()
        at_home = (limits.home / path for path in SECRET_HOME_PATHS)
        self._masked = PresentPaths((*at_home, *limits.masked, *own))
        self._protected_places: tuple[str, ...] = ()
        self._planned_at = float("-inf")
        self._hosts: list[str] = list(limits.hosts)
        self._proxy: NetworkProxy | None = None
        self._proxy_folder: tempfile.TemporaryDirectory[str] | None = None
        self._revert_notes = limits.aside / "unfinished" if limits.aside is not None else None
        self._note: SessionNote | None = None
        self._snapshot: ProtectedSnapshot | None = None
        self._left_behind: Reverts | None = None
        self._unreported = Reverts()
        self._cleaning = Lock()

    @cached_property
    def confinement(self) -> Confinement:
        return Unconfined() if self.limits.profile == "danger-full-access" else self._choose()

    @property
    def roots(self) -> tuple[Path, ...]:
        return self._paths.roots

    @property
    def profile(self) -> Profile:
        return self.limits.profile

    @property
    def confines(self) -> bool:
        return self.confinement.name != "none"

    def knows(self, path: Path, access: Access) -> bool:
        return self._paths.knows(path, access)

    def grant(self, path: Path, access: Access) -> None:
        self._paths.grant(path, access)

    def revoke(self, path: Path, access: Access) -> None:
        self._paths.revoke(path, access)

    def add_root(self, folder: Path) -> None:
        self._paths.add_root(folder)

    def bounds(self, profile: Profile | None = None) -> Bounds:
        """The bounds of a command that starts now; in a session without bounds no command has any."""
        limits, paths = self.limits, self._paths
        if limits.profile == "danger-full-access":
            return Bounds("danger-full-access", paths.roots, limits.home)
        secrets, obeyed = self._scan.protected(paths.roots)
        return Bounds(
            profile or limits.profile,
            paths.roots,
            limits.home,
            masked=(*self._masked.now(), *secrets),
            readable_again=(*paths.granted("read"), *paths.granted("write")),
            writable=(*limits.writable, *(path for path in paths.granted("write") if path.exists())),
            protected=self._protected(),
            protected_paths=(*self._always_protected(), *obeyed[:MOST_OBEYED]),
            # What only reads needs no host; a program that a repository has git run gets none.
            proxy_socket=self._proxy.socket if self._proxy and self._hosts and profile != "read-only" else None,
            cache=self._cache,
            scan=self._scan,
            git=self._git,
        )

    @property
    def _cache(self) -> Path | None:
        """None where a command could put a link in its place, which the next one would follow."""
        cache = self.limits.cache
        is_theirs = cache is not None and any(cache.is_relative_to(root) for root in self.roots)
        return None if is_theirs else cache

    def secret_files(self) -> list[Path]:
        """Find the secret files that are in the workspace now."""
        return self._scan.protected(self.roots)[0]

    def is_write_protected(self, path: Path) -> bool:
        """True if git or a trusted command runs this file or obeys its contents. The answer is up to a second old."""
        if time.monotonic() - self._planned_at > 1:
            bounds = Bounds(
                "workspace-write",
                self.roots,
                self.limits.home,
                protected_paths=tuple(self.limits.programs(self.roots)),
                scan=self._scan,
                git=self._git,
            )
            plan = plan_protection(bounds, str(self.roots[0]))
            self._protected_places = (*plan.read_only, *plan.missing_files, *plan.missing_folders)
            self._planned_at = time.monotonic()
        return any(path.is_relative_to(place) for place in self._protected_places)

    def exposed_secrets(self, profile: Profile | None = None) -> Sequence[Path]:
        if self.confinement.hides(profile or self.limits.profile):
            return ()
        roots, granted = self.roots, {*self._paths.granted("read"), *self._paths.granted("write")}
        masked = (path for path in self.limits.masked if any(path.is_relative_to(root) for root in roots))
        found = (*self._scan.protected(roots)[0], *(path for path in masked if path.exists()))
        return [path for path in dict.fromkeys(found) if path not in granted]

    @property
    def _git(self) -> str:
        can_write = (*self.roots, *self.limits.writable, *self._paths.granted("write"))
        return find_git(self._search_path, can_write)

    def _always_protected(self) -> Sequence[Path]:
        return (*self._at_home(), *self.limits.own_folders, *self.limits.programs(self.roots))

    def _protected(self) -> tuple[str, ...]:
        """Names that are there, and of those that are not the few that programs would obey at once in a project.

        What is missing has to be there as an empty folder while a command runs, which commands that list see.
        """
        there = {name for root in self.roots for name in _names_in(root)}
        return tuple(sorted((there | _EVEN_IF_MISSING) - {".git"}))

    def _at_home(self) -> Sequence[Path]:
        """Files that start with the machine, a shell or a program, present or not, if the home can be written."""
        home = self.limits.home
        if not any(home.is_relative_to(root) for root in self.roots):
            return ()
        table = auto_executed()
        there = (path for path in table.home if (home / path).exists())
        places = dict.fromkeys((*(name for name in table.start if "*" not in name), *_names_in(home), *there))
        is_mac = sys.platform == "darwin"
        return [home / name for name in places if name != ".git" and (is_mac or not name.startswith("Library/"))]

    @contextmanager
    def launch(
        self, argv: Sequence[str], cwd: Path, pass_fds: Sequence[int], profile: Profile | None = None
    ) -> Iterator[Launch]:
        """Raises `OSError`."""
        if (profile or self.profile) == "danger-full-access":
            plan = partial(self._protection, cwd=cwd)
            with self._snapshot.accepting(plan) if self._snapshot is not None else nullcontext():
                yield Launch(list(argv), tuple(pass_fds), reverts=self._with_unreported(Reverts()))
            return
        if self._cache is not None:
            make_private_folder(self._cache)
        earlier = self._snapshot.retry() if self._snapshot is not None else Reverts()
        note = self._session_note() if (profile or self.profile) == "workspace-write" else None
        bounds = replace(self.bounds(profile), note=note.points if note is not None else None)
        confined = self.confinement.launch(argv, cwd=cwd, bounds=bounds, pass_fds=pass_fds)
        with confined as launch, self._guarded(bounds, cwd, note) as reverts:
            reverts.put_back += earlier.put_back  # what still could not be is reported when the command has ended
            descriptor = note.descriptor if note is not None else None
            yield launch._replace(reverts=self._with_unreported(reverts), note=descriptor)

    def _session_note(self) -> SessionNote | None:
        """The note of the session, by which the keeper or the next start cleans up after a kill."""
        notes = self.limits.mount_notes if self.confinement.keeps_names else self._revert_notes
        try:
            with self._cleaning:
                self._note = self._note or (SessionNote(notes) if notes is not None else None)
        except OSError as error:  # a full disk: what a kill may leave is no reason to run nothing
            log.warning("nothing is noted for after a kill: %s", error)
        return self._note

    @contextmanager
    def _guarded(self, bounds: Bounds, cwd: Path, note: SessionNote | None) -> Iterator[Reverts]:
        if self.confinement.keeps_names or bounds.profile != "workspace-write":
            yield Reverts()
            return
        if self._snapshot is None:
            from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

            self._snapshot = ProtectedSnapshot(self.limits.aside or tempfile.gettempdir(), note)
        plan = self._protection(bounds, cwd)
        with self._snapshot.during(plan, roots=bounds.roots, granted=bounds.writable) as reverts:
            yield reverts

    def _protection(self, bounds: Bounds | None = None, cwd: Path | None = None) -> Protection:
        """Plan what to revert where nothing protects it. Without mounts every repository can be committed to."""
        return plan_protection(bounds or self.bounds(), str(cwd or self.roots[0]), max_to_commit_to=MAX_REPOSITORIES)

    def accept(self, path: Path, content: bytes) -> None:
        """Keep what was written to a file: the person agreed."""
        if self._snapshot is not None:  # else no command ran that it would be reverted with
            self._snapshot.accept(str(path), content)

    def grant_host(self, host: str) -> None:
        """Raises `ToolError` for what is no host."""
        try:
            read_grant(host)
            if self._proxy is not None:
                self._proxy.grant(host)
        except ValueError as error:
            raise ToolError(f"{host!r} cannot be granted: {error}", kind="invalid_parameters") from error
        self._hosts.append(host)

    def revoke_host(self, host: str) -> None:
        if host in self._hosts:
            self._hosts.remove(host)
            if self._proxy is not None:
                self._proxy.revoke(host)

    async def make_ready(self) -> None:
        """Prepare for a command: revert what killed sessions left changed, and open the way to granted hosts."""
        if self._left_behind is None:
            await asyncio.to_thread(self._clean_up)
        await self._open_network()

    def _clean_up(self) -> Reverts:
        """Revert once what killed sessions left changed."""
        with self._cleaning:
            if self._left_behind is None:
                notes = self._revert_notes
                self._left_behind = left = clean_up_killed_sessions(notes) if notes is not None else Reverts()
                done = [f"{each}, changed by a command of a session that was killed" for each in left.put_back]
                self._unreported = Reverts(done, [*left.left_changed])
            return self._left_behind

    def _with_unreported(self, reverts: Reverts) -> Reverts:
        """Report it to the model with the first command."""
        reverts.add(self._unreported)
        self._unreported = Reverts()
        return reverts

    async def _open_network(self) -> None:
        """Start what leads to the granted hosts, where there are some and commands have no network of their own."""
        if not self._hosts or self._proxy is not None or not self.confines:
            return
        self._proxy_folder = tempfile.TemporaryDirectory(prefix="agentcli-")  # mkdtemp makes it 0700
        proxy = NetworkProxy(self._hosts, folder=Path(self._proxy_folder.name), how_to_grant=_HOW_TO_GRANT)
        await proxy.start()
        self._proxy = proxy

    def warning(self) -> str:
        """Say why commands are confined less than they could be, how to mend that, and what was restored after a kill.

        Empty if all is well, or nothing is to be confined.
        """
        left = self._clean_up()
        done, failed = "; ".join(left.put_back), "; ".join(left.left_changed)
        return " ".join(
            filter(
                None,
                (
                    self._weakness(),
                    self._unguarded(),
                    done and f"Put back what a command changed whose session was killed: {done}.",
                    failed and f"Changed by a command of another session, and could not be put back: {failed}.",
                ),
            )
        )

    def _unguarded(self) -> str:
        if self.limits.profile != "workspace-write" or self.confinement.keeps_names:
            return ""
        from agentcli.infra.sandbox.protection.snapshot import ProtectedSnapshot

        found = ProtectedSnapshot("/").unguarded_folders(self._protection())
        named = ", ".join(found)
        return f"More is in {named} than can be put back: what commands change there may stay." if found else ""

    def _weakness(self) -> str:
        confinement = self.confinement
        if self.limits.profile == "danger-full-access":
            return ""
        if not self.confines:
            return f"NO SANDBOX: every command asks. {confinement.why}".rstrip()
        if not confinement.weakness:
            return f"NO COMMAND CAN RUN: {confinement.why}" if confinement.why else ""
        better = f" A better one: {confinement.why}" if confinement.why else ""
        return f"Weak sandbox ({confinement.name}): {confinement.weakness}.{better}"

    def told(self) -> tuple[str, ...]:
        """Describe the confinement in lines for the person, with what it does not keep here."""
        confinement = self.confinement
        if self.limits.profile == "danger-full-access":
            return ("Commands are not confined: they can read, change and send anything you can.",)
        if not self.confines:
            return (self._weakness(),)
        hosts = ", ".join(dict.fromkeys(self._hosts)) or "none"
        lines = [f"Commands are confined by {confinement.name}: {self.limits.profile}, hosts: {hosts}."]
        if confinement.why:
            lines.append(f"Not the best there is: {confinement.why}" if confinement.weakness else self._weakness())
        bounds = self.bounds()
        lines += [
            f"{root} has too many folders: secret files deep in it may be readable for commands."
            for root in self.roots
            if self._scan.is_partial(str(root))
        ]
        if unguarded := self._unguarded():
            lines.append(unguarded)
        if (left := len(self._scan.protected(self.roots)[1]) - MOST_OBEYED) > 0:
            lines.append(f"{left:,} settings of editors and tools in folders below can be written: there are too many.")
        return (*lines, *confinement.limits(bounds))

    async def aclose(self) -> None:
        is_done = self._snapshot is None or self._snapshot.close()
        if self._note is not None:
            self._note.close(is_done=is_done)
            self._note = None
        if self._proxy is not None:
            await self._proxy.aclose()
            self._proxy = None
        if self._proxy_folder is not None:
            self._proxy_folder.cleanup()
            self._proxy_folder = None
