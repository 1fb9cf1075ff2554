"""Confines commands in namespaces of their own, through bubblewrap (bwrap(1), version 0.8 or newer).

What a command sees: the whole disk read-only, the workspace writable, its own /tmp, /run, /dev and processes, no
network, no socket of the host's, secrets hidden. What it keeps: its user. What ends it: the death of the process that
started it.

Mounts follow what is mounted, not names: when somebody *outside* replaces a protected or hidden file, by renaming
another one over it as editors do, Linux takes the mount away from running sandboxes. Folders stay protected whatever is
replaced inside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from agentcli.infra.sandbox.backends.bubblewrap_layout import PROXY_SOCKET, RELAY, Layout
from agentcli.infra.sandbox.backends.seccomp import filter_program
from agentcli.infra.sandbox.confinement import Bounds, Launch
from agentcli.infra.sandbox.environment import PRIVATE_TMP, WITHOUT_NETWORK, cache_environment
from agentcli.infra.sandbox.mounts.hide_plan import SecretCovers
from agentcli.infra.sandbox.mounts.mount_points import MountPoints
from agentcli.infra.sandbox.network.relay import relay_command, relay_environment
from agentcli.infra.sandbox.protection.planning import plan_protection
from agentcli.tools.command import Profile

# Never from PATH, which a project can have changed. Ubuntu's AppArmor lets only /usr/bin/bwrap make namespaces.
PROGRAMS = (Path("/usr/bin/bwrap"), Path("/usr/local/bin/bwrap"), Path("/run/current-system/sw/bin/bwrap"))

# Root has no need of a user namespace, in which it could not even enter the folders of others. Root without
# capabilities (in a container) has.
NAMESPACES = {
    "all": ("--unshare-all",),
    "all but user": ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
}

_ALWAYS = ("--die-with-parent", "--new-session", "--cap-drop", "ALL")
# The kernel's settings are files of root's: without its own mount, root could write them even without capabilities.
_SYSTEM = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys")


class Bubblewrap:
    """Implements `Confinement`. `namespaces` is a key of `NAMESPACES`; `hidden` is a folder for what hides files."""

    name = "bubblewrap"
    weakness = ""
    keeps_names = True
    why = ""

    def __init__(self, program: Path, namespaces: str, *, hidden: Path) -> None:
        self._start = (str(program), *_ALWAYS, *NAMESPACES[namespaces], *_SYSTEM)
        self._hidden = SecretCovers(hidden)

    @contextmanager
    def launch(
        self, argv: Sequence[str], *, cwd: Path, bounds: Bounds, pass_fds: Sequence[int] = ()
    ) -> Iterator[Launch]:
        with ExitStack() as stack:
            mount_points = stack.enter_context(MountPoints(bounds.note))
            program = stack.enter_context(_filter())
            layout = stack.enter_context(closing(Layout(bounds, str(cwd), mount_points, self._hidden)))
            mounts = layout.mounts_for(plan_protection(bounds, str(cwd)))
            proxy = relay_environment() if bounds.proxy_socket is not None else WITHOUT_NETWORK
            command = [*relay_command(RELAY, PROXY_SOCKET), *argv] if bounds.proxy_socket else list(argv)
            yield Launch(
                [*self._start, "--chdir", str(cwd), "--seccomp", str(program), "--", *command],
                (*pass_fds, program, *layout.descriptors),
                cache_environment(str(bounds.cache or f"{PRIVATE_TMP}/.cache")) | proxy,
                refusal="bwrap: ",
                mounts=tuple(mounts),
            )

    def hides(self, profile: Profile) -> bool:
        return profile != "danger-full-access"

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        return tuple(plan_protection(bounds, str(bounds.roots[0]) if bounds.roots else "/").problems)


@contextmanager
def _filter() -> Iterator[int]:
    """A pipe to read the filter from: commands would share the position of a file. Each has its own loopback."""
    read, write = os.pipe()
    try:
        os.write(write, filter_program(internet=True))
        os.close(write)
        yield read
    finally:
        os.close(read)
