"""Chooses the best backend that really runs a command on this machine, and says why not a better one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from agentcli.infra.sandbox.backends.linux import PROGRAMS, Bubblewrap, Landlock, probe_landlock, rendered
from agentcli.infra.sandbox.backends.seatbelt import Seatbelt
from agentcli.infra.sandbox.confinement import MAX_PLANS, Bounds, Confinement, Unconfined, run_probe

_INSTALLERS = ("apt-get install", "dnf install", "pacman -S", "zypper install", "apk add")

KINDS = {"linux": ("bubblewrap", "landlock"), "darwin": ("seatbelt",)}

# Explanations of the system's messages, for the person.
_ADVICE = {
    "uid map": "user namespaces are forbidden here; where AppArmor does it, its profile"
    " bwrap-userns-restrict (package apparmor-profiles) allows them to bubblewrap",
    "No permissions to creat": "user namespaces are forbidden here (in a container: --security-opt seccomp=unconfined,"
    " or --privileged)",
    "nknown option": "it is too old: version 0.8 is needed, or an older one with its security updates",
    "Creating new namespace failed": "namespaces are forbidden here",
    "Operation not permitted": "namespaces or mounts are forbidden here",
}


@cache
def choose_confinement(
    *,
    tmp: Path,
    kinds: tuple[str, ...] = KINDS.get(sys.platform, ()),
    programs: tuple[Path, ...] = PROGRAMS,
) -> Confinement:
    """Return the first of `kinds` that runs `true` here, probed once, else none; its `why` explains the failures."""
    reasons: list[str] = []
    for kind in kinds:
        try:
            return _probe(kind, " ".join(reasons), tmp, programs)
        except (OSError, NotImplementedError, ValueError, subprocess.SubprocessError) as error:
            reasons.append(f"{kind}: {error}.")
    return Unconfined(" ".join(reasons) or "There is nothing to confine commands with on this system.")


def _probe(kind: str, why: str, tmp: Path, programs: Sequence[Path]) -> Confinement:
    """Return a backend that really runs `true`, in bounds like those of a command. Raises what `choose` catches."""
    if kind == "landlock":
        return Landlock(probe_landlock(), why, tmp=tmp)
    candidates: list[Confinement] = [Seatbelt(tmp)]
    if kind == "bubblewrap":
        program = next((program for program in programs if program.is_file()), None)
        if program is None:
            raise OSError(f"not installed (`{how_to_install()}`)")
        namespaces = ("all but user", "all") if os.getuid() == 0 else ("all",)
        candidates = [Bubblewrap(program, each, hidden=tmp / "hidden") for each in namespaces]
    message = ""
    for confinement in candidates:
        for _ in range(MAX_PLANS):  # again where that may help
            message = _error_of_running_true(confinement, tmp)
            if not message:
                return confinement
            if _advice(message):
                break
    raise OSError(f"{_advice(message) or 'it does not work here'} ({message})")


def how_to_install() -> str:
    """Return the command that installs bubblewrap here."""
    how = next((how for how in _INSTALLERS if shutil.which(how.split()[0])), _INSTALLERS[0])
    return f"{how} bubblewrap" if os.getuid() == 0 else f"sudo {how} bubblewrap"


def _advice(message: str) -> str:
    """Explain a message that would be the same at the next try; empty for any other."""
    return next((advice for sign, advice in _ADVICE.items() if sign in message), "")


def _error_of_running_true(confinement: Confinement, folder: Path) -> str:
    root = folder.resolve()
    bounds = Bounds(profile="workspace-write", roots=(root,), home=Path("/"))
    try:
        with confinement.launch(["true"], cwd=root, bounds=bounds) as planned, rendered(planned) as launch:
            done = run_probe(launch.argv, launch.pass_fds)
    except FileNotFoundError as error:
        if Path(error.filename or "/").is_relative_to(root):  # a folder that was planned is gone
            return str(error)
        raise
    message = done.stderr.decode(errors="replace").strip() or f"it ended with {done.returncode}"
    return message if done.returncode else ""
