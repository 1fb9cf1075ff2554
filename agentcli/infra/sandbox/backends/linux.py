"""Confines commands on Linux: with bubblewrap, or with Landlock where namespaces are forbidden.

Bubblewrap (bwrap(1), version 0.8 or newer) gives a command its own namespaces. The command sees the whole disk
read-only, the workspace writable, its own /tmp, /run, /dev and processes, no network, none of the host's sockets, and
no secrets. It keeps its user, and ends with the process that started it.

A mount belongs to a file, not to its name: when somebody *outside* replaces a protected or hidden file, by renaming
another one over it as editors do, Linux removes the mount from running sandboxes. Folders stay protected even if files
inside them are replaced.

A process that can write in the workspace, such as a background command, can replace a folder with a symlink at any
moment. Paths in the workspace are therefore opened and checked here, and given to bubblewrap as descriptors.

Landlock with a filter of system calls is weaker, as `limits` describes. A command sees the host's /tmp, which it can
only read, its processes and its sockets; processes that it leaves behind are not ended. The session reverts its changes
to auto-executed files (protection/snapshot.py). The keeper confines its commands itself; commands that are started in
another way need a Python process of their own to do that.
"""

import errno
import marshal
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from agentcli.infra.sandbox.backends.launcher import REFUSAL_START
from agentcli.infra.sandbox.backends.seccomp import filter_program
from agentcli.infra.sandbox.confinement import (
    NOTHING,
    Bounds,
    FullConfinement,
    HideStep,
    Launch,
    Mount,
    Protection,
    SecretCovers,
    find_place,
    find_places,
    is_inside,
    is_private,
    is_real,
    kind_of,
    listening_sockets,
    memory_file,
    plan_hiding,
    private_folders,
    run_probe,
)
from agentcli.infra.sandbox.environment import PRIVATE_TMP, WITHOUT_NETWORK, cache_environment
from agentcli.infra.sandbox.mount_points import MountPoints, open_real
from agentcli.infra.sandbox.network.relay import python_folders, relay_command, relay_environment
from agentcli.infra.sandbox.protection.planning import plan_protection
from agentcli.tools.command import Profile

# Not searched on the PATH, which a project may have changed. Ubuntu's AppArmor lets only /usr/bin/bwrap create
# namespaces.
PROGRAMS = (Path("/usr/bin/bwrap"), Path("/usr/local/bin/bwrap"), Path("/run/current-system/sw/bin/bwrap"))

# Root does not need a user namespace, and could not enter other users' folders in one. Only root without capabilities
# (in a container) needs it.
NAMESPACES = {
    "all": ("--unshare-all",),
    "all but user": ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
}

_ALWAYS = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
# Root owns the kernel's settings in /proc/sys, and could write them even without capabilities: they need a mount.
_SYSTEM = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")

PROXY_SOCKET = "/run/agentcli/proxy"
RELAY = "/run/agentcli/relay.py"

# The limit for one command, because a message can carry 253 descriptors. Everything that an earlier command could have
# replaced is mounted by a descriptor: a path might lead elsewhere by then.
_MAX_DESCRIPTORS = 240


class Bubblewrap(FullConfinement):
    """Implements `Confinement`. `namespaces` is a key of `NAMESPACES`; `hidden` is the folder for covers."""

    name = "bubblewrap"
    why = ""

    def __init__(self, program: Path, namespaces: str, *, hidden: Path) -> None:
        self._start = (str(program), *_ALWAYS, *NAMESPACES[namespaces], *_SYSTEM)
        self._covers = SecretCovers(hidden)

    @contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        resources = bounds.resources
        with (
            closing(MountPoints(resources.note)) as mount_points,
            memory_file(filter_program(internet=True)) as program,  # each command has a network of its own
            closing(Layout(bounds, str(cwd), mount_points, self._covers)) as layout,
        ):
            mounts = layout.mounts_for(plan_protection(bounds, str(cwd)))
            proxy = relay_environment(resources.ports) if resources.proxy_socket is not None else WITHOUT_NETWORK
            relay = relay_command(RELAY, PROXY_SOCKET, resources.ports) if resources.proxy_socket is not None else []
            yield Launch(
                [*self._start, "--chdir", str(cwd), "--seccomp", str(program), "--", *relay, *argv],
                (program, *layout.descriptors),
                cache_environment(str(resources.cache or f"{PRIVATE_TMP}/.cache")) | proxy,
                refusal=REFUSAL_START,
                mounts=tuple(mounts),
            )

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return tuple(plan_protection(bounds, str(bounds.roots[0]) if bounds.roots else "/").problems)


class Layout:
    """The mounts of one command. `descriptors` are for bubblewrap; `close` closes them in this process."""

    def __init__(self, bounds: Bounds, cwd: str, mount_points: MountPoints, covers: SecretCovers) -> None:
        self.descriptors: list[int] = []  # of the mounts' sources
        self._bounds = bounds
        self._mount_points = mount_points
        self._covers = covers
        self._may_write = bounds.profile == "workspace-write"
        self._grants = [grant for grant in map(str, bounds.writable if self._may_write else ()) if is_real(grant)]
        self._areas = sorted(  # the roots, the cache and granted paths, which are mounted on themselves
            {*map(str, filter(None, (*bounds.roots, bounds.resources.cache))), *self._grants}, key=_depth
        )
        self._shown_in_private = sorted({str(bounds.home), cwd}, key=_depth)  # visible even inside a private folder
        self._mounts: list[Mount] = []  # so far, in their order

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    def mounts_for(self, protection: Protection) -> Sequence[Mount]:
        """Return the mounts in their order, outer folders first. Raises `OSError` if something changed meanwhile."""
        resources = self._bounds.resources
        python = python_folders() if resources.proxy_socket is not None else []
        private = private_folders()
        # The home, the working folder and Python must stay visible inside a private folder.
        mounted = (*private, *self._areas)  # these are mounted anyway
        needed = [path for path in (*self._shown_in_private, *python) if path not in mounted and is_private(path)]
        self._mounts += [
            *(Mount(folder, mode="1777") for folder in private),
            *(Mount(path, path) for path in needed if kind_of(path) == "folder"),
        ]
        hidden_outside, hidden_inside = self._plan_hiding(python)  # outside `_areas`, and inside them
        self._hide(hidden_outside)
        for path in sorted({*self._areas, *protection.writable}, key=_depth):
            self._bind(path, is_writable=self._may_write or path == str(resources.cache))
        self._protect(protection)
        for path in self._grants:  # grants win over protection
            if any(is_inside(path, protected) for protected in protection.read_only):
                self._bind(path, is_writable=True)
        self._hide(hidden_inside)  # last, because the mounts above would cover these
        self._hide_sockets([step.path for step in (*hidden_outside, *hidden_inside) if step.action != "show"])
        if resources.proxy_socket is not None:
            self._mounts += [
                Mount(PROXY_SOCKET, str(resources.proxy_socket)),
                Mount(RELAY, str(Path(__file__).parents[1] / "network" / "relay.py")),
            ]
        return self._mounts

    def _bind(self, path: str, *, is_writable: bool = False) -> None:
        if len(self.descriptors) == _MAX_DESCRIPTORS:
            raise OSError(errno.EMFILE, f"more than {_MAX_DESCRIPTORS} places of the workspace are to be protected")
        self.descriptors.append(open_real(path))
        self._mounts.append(Mount(path, path, self.descriptors[-1], is_writable))

    def _plan_hiding(self, python: Sequence[str]) -> tuple[list[HideStep], list[HideStep]]:
        """Plan the hiding outside `_areas`, and the hiding inside them, which follows after these are mounted."""
        masked = [
            place
            for place in find_places(self._bounds.masked)
            if not is_private(place.path)
            or any(is_inside(place.path, folder) for folder in (*self._shown_in_private, *self._areas))
        ]
        # A path with a link in it is not shown, because a command may have changed the link.
        shown = find_places(path for path in (*map(str, self._bounds.readable_again), *python) if is_real(path))
        inside = {place for place in (*masked, *shown) if any(is_inside(place.path, area) for area in self._areas)}
        # Programs look for settings in the home. If it is inside a hidden folder, they must be able to enter it.
        reachable = (*self._areas, os.path.realpath(self._bounds.home))
        outside = plan_hiding((p for p in masked if p not in inside), (p for p in shown if p not in inside), reachable)
        return outside, plan_hiding((p for p in masked if p in inside), (p for p in shown if p in inside))

    def _hide(self, steps: Sequence[HideStep]) -> None:
        """Mount covers and empty folders over hidden paths, and shown paths on top of these."""
        for step in steps:
            match step.action:
                case "hide":
                    self._mounts.append(Mount(step.path, self._covers.over(step.path)))
                case "hide folder":
                    self._mounts.append(Mount(step.path))  # an empty folder that nobody can enter
                case "hide around":  # the folder cannot be listed, but mounts inside it can be reached
                    self._mounts.append(Mount(step.path, mode="0111"))
                case "show":  # readable, and writable only with a grant
                    self._bind(step.path, is_writable=step.path in self._grants)

    def _protect(self, protection: Protection) -> None:
        """Mount read-only paths on themselves, and an empty file system in memory on missing folders.

        The latter costs a quarter of a bind. If a command makes it writable, its changes end with the command.
        """
        made = [path for path, text in protection.missing_files.items() if self._mount_points.hold(path, text)]
        for path in sorted({*protection.read_only, *made}, key=_depth):
            self._bind(path)
        for path in filter(self._mount_points.hold, protection.missing_folders):
            if kind_of(path) == "folder":
                self._mounts.append(Mount(path, mode="0555"))
            else:  # somebody created something else there in the meantime
                self._bind(path)

    def _hide_sockets(self, hidden: Sequence[str]) -> None:
        """Hide all sockets of the host except those in the workspace, which its servers and git use."""
        for path in listening_sockets():
            place = find_place(path)
            if place is None or any(is_inside(place.path, folder) for folder in (*self._areas, *hidden)):
                continue
            # In a private folder only the shown paths are visible anyway.
            if not is_private(place.path) or any(is_inside(place.path, shown) for shown in self._shown_in_private):
                self._mounts.append(Mount(place.path, NOTHING))


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


@contextmanager
def rendered(launch: Launch) -> Iterator[Launch]:
    """Pass bubblewrap's options and mounts in a memory file: they are long, and commands can see arguments."""
    if not launch.mounts:
        yield launch
        return
    end = launch.argv.index("--")
    words = [*launch.argv[1:end], *(word for mount in launch.mounts for word in _arguments(mount))]
    with memory_file(os.fsencode("".join(f"{word}\0" for word in words))) as file:
        yield launch._replace(
            argv=[launch.argv[0], "--args", str(file), *launch.argv[end:]], pass_fds=(file, *launch.pass_fds), mounts=()
        )


def _arguments(mount: Mount) -> tuple[str, ...]:
    if not mount.source:
        return ("--perms", mount.mode, "--tmpfs", mount.path)
    option = "--bind" if mount.is_writable else "--ro-bind"
    if mount.descriptor is None:
        return (option, mount.source, mount.path)
    return (f"{option}-fd", str(mount.descriptor), mount.path)


def writable_folders(mounts: Iterable[Mount]) -> list[str]:
    """Return the folders in which a command can change the disk; none of them is inside another."""
    paths = sorted({mount.path for mount in mounts if mount.is_writable and Path(mount.path).is_dir()})
    return [path for path in paths if not any(is_inside(path, other) for other in paths if other != path)]


NO_HOSTS = ("Commands reach no host, granted or not.",)


class Landlock:
    """Implements `Confinement`. `abi` is Landlock's version. Each command gets a temporary folder inside `tmp`."""

    name = "landlock"
    weakness = (
        "commands that may write can read secret files (agentcli asks first), change git hooks (they are put back"
        " as they were), and change modes, times and attributes of your files anywhere (chmod, touch; not what is in"
        " them), and no host can be opened to them"
    )
    keeps_names = False
    hides_in: tuple[Profile, ...] = ("read-only",)

    def __init__(self, abi: int, why: str = "", *, tmp: Path, python: Path | None = None) -> None:
        self.abi = abi
        self.why = why
        self._tmp = tmp
        self._python = python

    @contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        with (
            tempfile.TemporaryDirectory(prefix="agentcli-", dir=self._tmp, ignore_cleanup_errors=True) as scratch,
            _plan_file(bounds, scratch) as plan,
        ):
            environment = {
                **cache_environment(str(bounds.resources.cache or f"{scratch}/.cache")),
                **WITHOUT_NETWORK,
                "TMPDIR": scratch,
            }
            launcher = launcher_words(plan, self._python)
            yield Launch([*launcher, *argv], (plan,), environment, launcher_words=len(launcher))

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        readable = [
            place.path
            for place in find_places(bounds.masked)
            if any(is_inside(place.path, str(root)) for root in bounds.roots)
        ]
        of_writing = (
            "Commands can change modes, times and attributes of your files anywhere, though not their contents.",
            "Commands can write git hooks and other protected names; what they change is put back afterwards.",
            *(f"Commands can read {path}." for path in readable),
        )
        signals = ("Commands can send signals to your other processes (Linux before 6.12).",) if self.abi < 6 else ()
        return (
            "Commands can connect to unix sockets of other programs.",
            "Processes that a command leaves behind are not ended with it.",
            *signals,  # since version 6 Landlock blocks them
            *(NO_HOSTS if bounds.resources.proxy_socket is not None else ()),
            *(of_writing if bounds.profile == "workspace-write" else ()),
        )


def probe_landlock() -> int:
    """Run a launcher, and return the kernel's version of Landlock. Raises `OSError` with the reason for a failure."""
    with _plan_file(Bounds(profile="read-only", roots=(), home=Path("/")), None) as plan:
        output, problem = run_probe(launcher_words(plan), (plan,))
    if problem:
        raise OSError(problem)
    return int(output)


def launcher_words(plan: int, python: Path | None = None) -> list[str]:
    """Return the arguments that start the launcher with the plan in a descriptor.

    The interpreter is our own one, not a virtual environment's link to it. The launcher is imported rather than run,
    because Python caches only the bytecode of imported modules.
    """
    start = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); from launcher import main; main()"
    return [str(python or Path(sys.executable).resolve()), "-I", "-S", "-c", start, str(plan)]


def _plan_file(bounds: Bounds, scratch: str | None) -> AbstractContextManager[int]:
    """Return a plan for launcher.py, in memory: a filter of system calls, and paths to hide, show and make writable."""
    granted = (*bounds.roots, *bounds.writable) if bounds.profile == "workspace-write" else ()
    always_written = find_places(filter(None, (bounds.resources.cache, scratch)))
    # A granted path that is now a link is left out, because it may lead anywhere.
    written = [*filter(is_real, map(str, granted)), *(place.path for place in always_written)]
    steps = plan_hiding(find_places(bounds.masked), find_places([*filter(is_real, map(str, bounds.readable_again))]))
    # Landlock does not restrict chmod and touch. The filter can block them, but only everywhere, and commands that may
    # write need them.
    program = filter_program(internet=False, keeps_attributes=bounds.profile == "read-only")
    hidden = [step.path for step in steps if step.action != "show"]
    visible = [step.path for step in steps if step.action == "show"]
    return memory_file(marshal.dumps(("restrict", program, (hidden, visible, written))))
