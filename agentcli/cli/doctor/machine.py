"""Checks the machine: Python, the programs that agentcli runs, the sandbox, the installation itself."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib import import_module
from importlib.util import cache_from_source, find_spec
from pathlib import Path

from agentcli import __version__
from agentcli import errors as any_module
from agentcli.cli.doctor.finding import Check, Said, Subject, ok, problem, version_of, warning
from agentcli.cli.output import warn
from agentcli.cli.subcommands.shared import wait_for
from agentcli.errors import ToolError
from agentcli.infra.sandbox.backends.bubblewrap import PROGRAMS
from agentcli.infra.sandbox.backends.choosing import how_to_install
from agentcli.llm.local_server import weights
from agentcli.settings.files import is_file
from agentcli.settings.structs import PermissionSettings
from agentcli.tools.ripgrep import find_rg

_PARTS_OF_PYTHON = ("ssl", "ctypes", "zlib", "fcntl", "termios")
_INSTALL = "Install it with your package manager"
_GGUF = b"GGUF"  # what such a file begins with


def version(subject: Subject) -> Iterator[Said]:
    yield ok(f"{__version__}, Python {platform.python_version()}, {sys.platform}")


def python(subject: Subject) -> Iterator[Said]:
    """Builds that lack a part, or that the dependencies' wheels are not made for."""
    if missing := [name for name in _PARTS_OF_PYTHON if not _can_import(name)]:
        yield problem(
            f"{sys.executable} is a Python without {', '.join(missing)}.",
            "Install one that has all its parts (python3 of your system, or uv's), then run ./install.sh again.",
        )
    kind = sys.implementation.name
    if kind != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or sysconfig.get_config_var("Py_DEBUG"):
        yield warning(
            f"{sys.executable} is {kind} in an unusual build ({sys.version.partition(' (')[0]}), which is not tested.",
            "Install agentcli with an ordinary CPython.",
        )


def _can_import(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def installation(subject: Subject) -> Iterator[Said]:
    """Another agentcli on the PATH than this one, or more than one."""
    found: dict[str, str] = {}
    for folder in (subject.config.environment.get("PATH") or os.defpath).split(os.pathsep):
        if file := shutil.which("agentcli", path=folder):
            found.setdefault(os.path.realpath(file), file)
    versions = {file: version_of(file).removeprefix("agentcli ") for file in found.values()}
    told = ", ".join(f"{file} ({version or 'does not run'})" for file, version in versions.items())
    if len(versions) > 1:
        yield warning(
            f"agentcli is on the PATH {len(versions)} times: {told}.",
            "Remove those that you do not use (./install.sh --uninstall, pip uninstall agentcli).",
        )
    elif versions and set(versions.values()) != {__version__}:
        yield warning(f"This is agentcli {__version__}, but on the PATH is {told}.", "Update it: ./install.sh")


def bytecode(subject: Subject) -> Iterator[Said]:
    """Without it every start compiles the source again, at two to five times the cost."""
    kept = Path(cache_from_source(str(any_module.__file__)))
    if not kept.is_file():
        off = "PYTHONDONTWRITEBYTECODE" in subject.config.environment
        why = "PYTHONDONTWRITEBYTECODE is set" if off else f"{kept.parent} cannot be written"
        yield warning(
            f"Starts are slow: there is no compiled code of agentcli ({why}).",
            f"{'Unset PYTHONDONTWRITEBYTECODE, or run' if off else 'Run'} {sys.executable} -m compileall -q "
            f"{Path(__file__).parents[2]}",
        )


def ripgrep(subject: Subject) -> Iterator[Said]:
    try:
        program = find_rg()
    except ToolError:
        program = None
    yield _judged(
        program, "ripgrep", "nothing can be searched or listed", "Install agentcli again (./install.sh), or the package"
    )


def bash(subject: Subject) -> Iterator[Said]:
    yield _judged(subject.program("bash"), "bash", "commands run in /bin/sh, which takes fewer of them", _INSTALL)


def git(subject: Subject) -> Iterator[Said]:
    less = "no commits, no /diff and /review, and nobody is told what a command did to a repository"
    yield _judged(subject.program("git"), "git", less, _INSTALL)


def _judged(program: str | None, name: str, less: str, mend: str) -> Said:
    """Whether a program is there and runs; `less` is what does not work without it."""
    if program and version_of(program):
        return ok(program)
    return problem(f"{f'{program} does not run' if program else f'{name} is missing'}: {less}.", f"{mend}: {name}")


def sandbox(subject: Subject) -> Iterator[Said]:
    """How commands are confined; what a killed session left behind is put in order on the way, and told."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        warn(text)

    permissions = PermissionSettings(tries=subject.config.settings.permissions.tries)
    builder = subject.builder(tell, permissions=permissions)
    try:
        held = builder.workspace().sandbox
        found, how, confines = held.warning(), " ".join(held.told()), held.confines
    finally:
        wait_for(builder.aclose())
    for text in told:
        yield warning(text, "Look at these files; /undo in that session takes them back.")
    if not found:
        yield ok(how)
    elif found.startswith(("Weak sandbox", "NO SANDBOX")):
        yield (warning if confines else problem)(found, _how_to_confine(subject))
    else:
        yield warning(found, "Look at the files that are named.")


def _how_to_confine(subject: Subject) -> str:
    kind = subject.config.settings.sandbox.kind
    if kind not in ("auto", "bubblewrap"):
        return f'sandbox.kind is "{kind}": with "auto" the best one is taken.'
    if sys.platform == "linux" and not any(program.is_file() for program in PROGRAMS):
        return f"Install bubblewrap: {how_to_install()}"
    return "Let bubblewrap make user namespaces (docs/permissions.md), or work where they are allowed."


def local_model(subject: Subject) -> Iterator[Said]:
    """The engine, and files of weights that are broken."""
    has_engine, folder = find_spec("xllamacpp") is not None, subject.config.paths.models
    yield ok("engine installed" if has_engine else "engine not installed (./install.sh --extras local)")
    pinned, again = folder / weights.PINNED.file_name, "agentcli local install"
    if is_file(pinned) and weights.installed(folder) is None:
        whole, size = weights.PINNED.size, pinned.stat().st_size
        yield problem(f"{pinned} is damaged: {size:,} bytes of {whole:,}.", f"Delete it, then: {again}")
    elif any(folder.glob(".*.parts")):
        yield warning(f"A download of the model was broken off in {folder}.", f"{again} goes on with it.")
    elif has_engine and is_file(pinned) and not weights.is_verified(folder):
        yield warning(f"The hash of {pinned} was never checked.", f"{again} checks it.")
    if name := subject.config.settings.local.model:
        file = subject.models.local_path("default")
        if not file.is_file() or file.open("rb").read(len(_GGUF)) != _GGUF:
            yield problem(f"local.model: {name} is no GGUF file.", "Name one that is there, or unset local.model.")


CHECKS: dict[str, Check] = {
    "agentcli": version,
    "python": python,
    "installation": installation,
    "bytecode": bytecode,
    "ripgrep": ripgrep,
    "bash": bash,
    "git": git,
    "sandbox": sandbox,
    "local model": local_model,
}
