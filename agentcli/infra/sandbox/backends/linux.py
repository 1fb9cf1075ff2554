"""Confines commands on Linux: with bubblewrap, or with Landlock where namespaces are forbidden.

Bubblewrap (bwrap(1), version 0.8 or newer) gives a command its own namespaces. The command sees the whole disk
read-only, the workspace writable, its own /tmp, /run, /dev and processes, no network, none of the host's sockets, and
no secrets. It keeps its user, and ends with the process that started it.

When somebody *outside* replaces a protected or hidden file, by renaming another one over it as editors do, Linux takes
its mount away from running sandboxes. A mounted folder stays protected, whatever is replaced inside it.

A background command that can write in the workspace can replace a folder with a symlink at any moment. Paths there are
therefore opened here, checked, and given to bubblewrap as descriptors.

Landlock and a filter of system calls are weaker; `limits` says in which ways. A command can read the host's /tmp, sees
its processes and sockets, and what it leaves running is not ended. The session reverts its changes to auto-executed
files (protection/snapshot.py).
"""

import errno
import marshal
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from agentcli.infra.sandbox.backends.launcher import SETUP_ERROR_PREFIX
from agentcli.infra.sandbox.backends.seccomp import filter_program
from agentcli.infra.sandbox.confinement import (
    NOTHING,
    Bounds,
    Confinement,
    HideStep,
    Launch,
    Mount,
    Protection,
    RealPath,
    SecretCovers,
    is_inside,
    is_private,
    is_real,
    kind_of,
    listening_sockets,
    memory_file,
    plan_hiding,
    private_folders,
    resolve_existing,
)
from agentcli.infra.sandbox.environment import PRIVATE_TMP, WITHOUT_NETWORK, cache_environment
from agentcli.infra.sandbox.mount_points import MountPoints, open_real
from agentcli.infra.sandbox.network.relay import relay_command, relay_environment
from agentcli.infra.sandbox.protection.planning import plan_protection

# The PATH is not searched: a project can change it, and Ubuntu's AppArmor lets only /usr/bin/bwrap make namespaces.
PROGRAMS = (Path("/usr/bin/bwrap"), Path("/usr/local/bin/bwrap"), Path("/run/current-system/sw/bin/bwrap"))

# Root cannot enter other users' folders in a user namespace, but without capabilities (in a container) it needs one.
NAMESPACES = {
    "all": ("--unshare-all",),
    "all but user": ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
}

_ALWAYS = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
# /proc/sys, the kernel's settings, is mounted read-only, because root could write them even without capabilities.
_SYSTEM = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")

PROXY_SOCKET = "/run/agentcli/proxy"
RELAY = "/run/agentcli/relay.py"

_MAX_DESCRIPTORS = 240  # of mounts; a message to the keeper carries 253


class Bubblewrap(Confinement):
    """`namespaces` is a key of `NAMESPACES`, `hidden` the folder of `SecretCovers`."""

    name = "bubblewrap"

    def __init__(self, program: Path, namespaces: str, *, hidden: Path) -> None:
        self._start = (str(program), *_ALWAYS, *NAMESPACES[namespaces], *_SYSTEM)
        self._covers = SecretCovers(hidden)

    @contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        resources = bounds.resources
        with (
            closing(MountPoints(resources.mount_point_list)) as mount_points,
            memory_file(filter_program(internet=True)) as seccomp,  # each command has a network of its own
            closing(MountPlanner(bounds, str(cwd), mount_points, self._covers)) as planner,
        ):
            mounts = planner.mounts_for(plan_protection(bounds, str(cwd)))
            network, relay = WITHOUT_NETWORK, list[str]()
            if resources.proxy_socket is not None:
                network = relay_environment(resources.ports)
                relay = relay_command(RELAY, PROXY_SOCKET, resources.ports)
            yield Launch(
                [*self._start, "--chdir", str(cwd), "--seccomp", str(seccomp), "--", *relay, *argv],
                (seccomp, *planner.descriptors),
                cache_environment(str(resources.cache or f"{PRIVATE_TMP}/.cache")) | network,
                setup_error_prefix=SETUP_ERROR_PREFIX,
                mounts=tuple(mounts),
            )

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return tuple(plan_protection(bounds, str(bounds.roots[0]) if bounds.roots else "/").problems)


class MountPlanner:
    """Plans the mounts of one command. `descriptors` are for bubblewrap; `close` closes them in this process."""

    def __init__(self, bounds: Bounds, cwd: str, mount_points: MountPoints, covers: SecretCovers) -> None:
        self.descriptors: list[int] = []
        self._bounds = bounds
        self._mount_points = mount_points
        self._covers = covers
        self._may_write = bounds.profile == "workspace-write"
        self._grants = _only_real(bounds.writable) if self._may_write else []
        # The folders that are bind-mounted on themselves, because they may be writable.
        self._bound_folders = {*map(str, filter(None, (*bounds.roots, bounds.resources.cache))), *self._grants}
        # These are visible even inside a private folder, such as /tmp.
        self._shown_in_private = sorted({str(bounds.home), cwd, *_only_real(bounds.readable_again)}, key=_outer_first)
        self._mounts: list[Mount] = []  # planned so far; a later one covers an earlier one

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    def mounts_for(self, protection: Protection) -> Sequence[Mount]:
        """Return bubblewrap's mounts; each covers earlier ones inside it. Raises `OSError` if a path has changed."""
        resources = self._bounds.resources
        # A private folder begins empty. The folders that the command needs from the real one are mounted in it.
        private = private_folders()
        self._mounts += [Mount(folder, mode="1777") for folder in private]
        have_mounts = (*private, *self._bound_folders)  # the private ones are mounted above, the bound ones below
        for path in self._shown_in_private:
            if is_private(path) and path not in have_mounts and kind_of(path) == "folder":
                self._mounts.append(Mount(path, path))
        hidden_outside, hidden_inside = self._plan_hiding()  # outside of `_bound_folders`, and in them
        self._hide(hidden_outside)  # before the mounts below, because these may be in a hidden folder
        for path in sorted({*self._bound_folders, *protection.writable}, key=_outer_first):
            self._bind(path, is_writable=self._may_write or path == str(resources.cache))
        self._protect(protection)
        for path in self._grants:  # grants win over protection
            if any(is_inside(path, protected) for protected in protection.read_only):
                self._bind(path, is_writable=True)
        self._hide(hidden_inside)  # after the mounts above, because these would cover the hidden paths again
        self._hide_sockets([step.path for step in (*hidden_outside, *hidden_inside) if step.action != "show"])
        if resources.proxy_socket is not None:  # hosts were granted
            relay = Path(__file__).parents[1] / "network" / "relay.py"
            self._mounts += [Mount(PROXY_SOCKET, str(resources.proxy_socket)), Mount(RELAY, str(relay))]
        return self._mounts

    def _bind(self, path: str, *, is_writable: bool = False) -> None:
        """Mount a path on itself by a descriptor, since an earlier command may have replaced it by a link."""
        if len(self.descriptors) == _MAX_DESCRIPTORS:
            raise OSError(errno.EMFILE, f"more than {_MAX_DESCRIPTORS} places of the workspace are to be protected")
        self.descriptors.append(open_real(path))
        self._mounts.append(Mount(path, path, self.descriptors[-1], is_writable))

    def _plan_hiding(self) -> tuple[list[HideStep], list[HideStep]]:
        """Return the steps that hide paths outside of `_bound_folders`, and those for paths in them, for later."""
        masked = [each for each in resolve_existing(self._bounds.masked) if self._is_visible(each.path)]
        shown = resolve_existing(_only_real(self._bounds.readable_again))
        # The first steps must not hide the way to the bound folders, nor to the home, where programs look for settings.
        reachable = (*self._bound_folders, os.path.realpath(self._bounds.home))

        def select(paths: Iterable[RealPath], *, inside: bool) -> list[RealPath]:
            return [each for each in paths if _is_in_any(each.path, self._bound_folders) == inside]

        return (
            plan_hiding(select(masked, inside=False), select(shown, inside=False), reachable),
            plan_hiding(select(masked, inside=True), select(shown, inside=True)),
        )

    def _hide(self, steps: Sequence[HideStep]) -> None:
        """Mount covers over hidden paths, and then the paths inside them that are shown again."""
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
        """Mount read-only paths on themselves, and an empty file system in memory at each missing folder."""
        # `ensure` creates the file or folder to mount on; False: neither agentcli nor the command could create it.
        created = [path for path, text in protection.missing_files.items() if self._mount_points.ensure(path, text)]
        for path in sorted({*protection.read_only, *created}, key=_outer_first):
            self._bind(path)
        for path in filter(self._mount_points.ensure, protection.missing_folders):
            if kind_of(path) == "folder":  # memory takes a quarter of the time of a bind, and vanishes with the command
                self._mounts.append(Mount(path, mode="0555"))
            else:  # somebody made something else there in the meantime
                self._bind(path)

    def _hide_sockets(self, hidden: Sequence[str]) -> None:
        """Hide the host's sockets that the command would see, except those in the workspace, which git may use."""
        for path, _ in resolve_existing(listening_sockets()):
            if self._is_visible(path) and not _is_in_any(path, (*self._bound_folders, *hidden)):
                self._mounts.append(Mount(path, NOTHING))

    def _is_visible(self, path: str) -> bool:
        return not is_private(path) or _is_in_any(path, (*self._shown_in_private, *self._bound_folders))


def _is_in_any(path: str, folders: Iterable[str]) -> bool:
    return any(is_inside(path, folder) for folder in folders)


def _only_real(paths: Iterable[Path]) -> list[str]:
    """Return the paths that exist and have no symlink in them: a command may have made one, which may lead anywhere."""
    return [path for path in map(str, paths) if is_real(path)]


def _outer_first(path: str) -> tuple[int, str]:
    return path.count("/"), path


@contextmanager
def render_mounts(launch: Launch) -> Iterator[Launch]:
    """Move bubblewrap's options and mounts to a memory file: commands could read them in its arguments."""
    if not launch.mounts:  # only bubblewrap has some
        yield launch
        return
    end = launch.argv.index("--")  # before the command
    words = [*launch.argv[1:end], *(word for mount in launch.mounts for word in _mount_options(mount))]
    with memory_file(os.fsencode("".join(f"{word}\0" for word in words))) as file:
        yield launch._replace(
            argv=[launch.argv[0], "--args", str(file), *launch.argv[end:]], pass_fds=(file, *launch.pass_fds), mounts=()
        )


def _mount_options(mount: Mount) -> tuple[str, ...]:
    if not mount.source:
        return ("--perms", mount.mode, "--tmpfs", mount.path)
    option = "--bind" if mount.is_writable else "--ro-bind"
    if mount.descriptor is None:
        return (option, mount.source, mount.path)
    return (f"{option}-fd", str(mount.descriptor), mount.path)


def writable_folders(mounts: Iterable[Mount]) -> list[str]:
    """Return the outermost folders in which a command can change the disk."""
    paths = sorted({mount.path for mount in mounts if mount.is_writable and Path(mount.path).is_dir()})
    return [path for path in paths if not _is_in_any(path, {*paths} - {path})]


class Landlock(Confinement):
    """Each command's TMPDIR is a new folder in `tmp`."""

    name = "landlock"
    weakness = (
        "commands that may write can read secret files (agentcli asks first), change git hooks (agentcli reverts that),"
        " and change modes, times and attributes of your files anywhere (chmod, touch; not what is in"
        " them), and no host can be opened to them"
    )
    enforces_protection = False
    hides_in = ("read-only",)

    def __init__(self, *, tmp: Path, python: Path | None = None) -> None:
        self._tmp = tmp
        self._python = python
        filter_program(internet=False)  # fails here, and not at the first command, if it does not know the processor

    @contextmanager
    def launch(self, argv: Sequence[str], *, cwd: Path, bounds: Bounds) -> Iterator[Launch]:
        with (
            tempfile.TemporaryDirectory(prefix="agentcli-", dir=self._tmp, ignore_cleanup_errors=True) as scratch,
            _landlock_plan(bounds, scratch) as plan,
        ):
            environment = cache_environment(str(bounds.resources.cache or f"{scratch}/.cache"))
            environment |= {**WITHOUT_NETWORK, "TMPDIR": scratch}
            launcher = launcher_words(plan, self._python)
            yield Launch([*launcher, *argv], (plan,), environment, launcher_words=len(launcher))

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return (
            "Commands can connect to unix sockets of other programs.",
            "Processes that a command leaves behind are not ended with it.",
            "Before Linux 6.12, commands can send signals to your other processes.",
        )


def launcher_words(plan: int, python: Path | None = None) -> list[str]:
    """Return the arguments that start launcher.py with the plan in a descriptor."""
    # It is imported rather than run, because Python caches only the bytecode of imported modules.
    # The interpreter is our own, not a virtual environment's link to it.
    start = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); from launcher import main; main()"
    return [str(python or Path(sys.executable).resolve()), "-I", "-S", "-c", start, str(plan)]


def _landlock_plan(bounds: Bounds, scratch: str) -> AbstractContextManager[int]:
    """Open a file with the plan by which launcher.py confines a command; `scratch` is its TMPDIR."""
    granted = (*bounds.roots, *bounds.writable) if bounds.profile == "workspace-write" else ()
    always_writable = resolve_existing(filter(None, (bounds.resources.cache, scratch)))
    writable = [*_only_real(granted), *(each.path for each in always_writable)]
    steps = plan_hiding(resolve_existing(bounds.masked), resolve_existing(_only_real(bounds.readable_again)))
    # Landlock does not restrict chmod and touch. The filter denies them everywhere, but commands that write need them.
    seccomp = filter_program(internet=False, may_change_attributes=bounds.profile != "read-only")
    hidden = [step.path for step in steps if step.action != "show"]
    shown = [step.path for step in steps if step.action == "show"]
    return memory_file(marshal.dumps(("restrict", seccomp, (hidden, shown, writable))))
