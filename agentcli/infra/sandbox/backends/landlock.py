"""Confines commands with Landlock and a filter of system calls, where namespaces are forbidden.

It is weaker than namespaces, and `limits` says where. A command sees the host's /tmp, which it can read and not write,
its processes and its sockets; nothing ends what it left behind. The session reverts what it changed of auto-executed
files (protection/snapshot.py). The keeper bounds its commands itself; started in any other way, each costs the start of
a Python.
"""

from __future__ import annotations

import marshal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from agentcli.infra.sandbox.backends.seccomp import filter_program
from agentcli.infra.sandbox.confinement import Bounds, Launch, memory_file, run_probe
from agentcli.infra.sandbox.environment import WITHOUT_NETWORK, cache_environment
from agentcli.infra.sandbox.mounts.plans import find_places, is_inside, is_real, plan_hiding
from agentcli.tools.command import Profile


class Landlock:
    """Implements `Confinement`. `abi` is Landlock's version. Each command has a folder for temporary files in `tmp`."""

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
    def launch(
        self, argv: Sequence[str], *, cwd: Path, bounds: Bounds, pass_fds: Sequence[int] = ()
    ) -> Iterator[Launch]:
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
            yield Launch([*launcher, *argv], (*pass_fds, plan), environment, launcher_words=len(launcher))

    def limits(self, bounds: Bounds) -> tuple[str, ...]:
        texts = [
            "Commands can connect to unix sockets of other programs.",
            "Processes that a command leaves behind are not ended with it.",
        ]
        if self.abi < 6:  # the first version that keeps signals inside
            texts.append("Commands can send signals to your other processes (Linux before 6.12).")
        if bounds.resources.proxy_socket is not None:
            texts.append("Commands reach no host, granted or not.")
        if bounds.profile == "workspace-write":
            texts += [
                "Commands can change modes, times and attributes of your files anywhere, though not their contents.",
                "Commands can write git hooks and other protected names; what they change is put back afterwards.",
            ]
            for place in find_places(bounds.masked):
                if any(is_inside(place.path, str(root)) for root in bounds.roots):
                    texts.append(f"Commands can read {place.path}.")
        return tuple(texts)


def probe_landlock() -> int:
    """Return the kernel's version of Landlock, from a launcher that really runs. Raises `OSError` with the reason."""
    with _plan_file(Bounds(profile="read-only", roots=(), home=Path("/")), None) as plan:
        done = run_probe(launcher_words(plan), (plan,))
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace").strip())
    return int(done.stdout)


def launcher_words(plan: int, python: Path | None = None) -> list[str]:
    """Return the arguments that start the launcher with the plan behind a descriptor.

    The interpreter is our own, not a virtual environment's link to it. The launcher is imported rather than run,
    because Python keeps what it compiled of imported modules alone.
    """
    start = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); from launcher import main; main()"
    return [str(python or Path(sys.executable).resolve()), "-I", "-S", "-c", start, str(plan)]


def _plan_file(bounds: Bounds, scratch: str | None) -> AbstractContextManager[int]:
    granted = (*bounds.roots, *bounds.writable) if bounds.profile == "workspace-write" else ()
    own = find_places(filter(None, (bounds.resources.cache, scratch)))
    # A path that was granted may be a link by now, to anywhere.
    written = [*filter(is_real, map(str, granted)), *(place.path for place in own)]
    steps = plan_hiding(find_places(bounds.masked), find_places([*filter(is_real, map(str, bounds.readable_again))]))
    program = filter_program(internet=False, keeps_attributes=bounds.profile == "read-only")
    hidden, visible = ([step.path for step in steps if (step.what == "show") is is_shown] for is_shown in (False, True))
    return memory_file(marshal.dumps(("restrict", program, (hidden, visible, written))))
