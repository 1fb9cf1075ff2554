"""The doctor's checks, all but those of models, and the installation that they look at."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeVar

import apsw
from msgspec import structs

from agentcli import __version__
from agentcli.app import Builder
from agentcli.cli.output import warn
from agentcli.cli.subcommands.shared import wait_for, with_store
from agentcli.errors import ConfigError, StorageError, ToolError
from agentcli.extensions.hooks.config import Hooks
from agentcli.extensions.mcp.config import EXTRA, expanded, server_specs, texts_of
from agentcli.infra.sandbox.backends.bubblewrap import PROGRAMS
from agentcli.infra.sandbox.backends.choosing import how_to_install
from agentcli.infra.sessions.fsck import first_damage
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm import local_weights as weights
from agentcli.models.choice import Models
from agentcli.models.providers import ProviderKeys
from agentcli.settings.files import is_file
from agentcli.settings.load import Config
from agentcli.settings.paths import is_writable, project_root
from agentcli.settings.structs import BudgetSettings, MCPSettings, PermissionSettings, ProviderSettings
from agentcli.setup.options import check_hosts
from agentcli.tools.ripgrep import find_rg

T = TypeVar("T")
Status = Literal["ok", "warning", "problem"]
_MAX_RUN_S = 3.0
_INSTALL = "Install it with your package manager"
NO_BASH = "commands run in /bin/sh, which takes fewer of them"
NO_GIT = "no commits, no /diff all and /review, and nobody is told what a command did to a repository"
_GGUF = b"GGUF"  # the first bytes of such a file
_MAX_LOOK_S = 2.0  # at one database
_INTERPRETERS = ("bash", "sh", "zsh", "python", "python3", "node", "ruby", "perl")

Result = tuple[Status, str, str]  # a finding without the name of its check
Check = Callable[["Subject"], Iterable[Result]]


@dataclass
class Subject:
    """An installation. `unread` is why its settings could not be read; `config` holds the defaults then."""

    config: Config
    unread: ConfigError | None = None

    @cached_property
    def models(self) -> Models:
        """Raises `ConfigError`."""
        return Models(self.config)

    def builder(self, on_notice: Callable[[str], None], **changes: Any) -> Builder:
        """Return a builder without models and MCP servers, because checks of their own find mistakes in those."""
        changes |= {"provider": ProviderSettings(), "budgets": BudgetSettings(), "providers": {}, "models": {}}
        settings = structs.replace(self.config.settings, mcp=MCPSettings(enabled=False), **changes)
        return Builder(structs.replace(self.config, settings=settings), store=MemorySessions(), on_notice=on_notice)

    def program(self, name: str) -> str:
        """Return the place of a program on the PATH; empty where it is not there."""
        return shutil.which(name, path=self.config.environment.get("PATH")) or ""


def version_of(program: str) -> str:
    """Return the first line of `PROGRAM --version`; empty where it does not run."""
    command, quiet = [program, "--version"], subprocess.DEVNULL
    try:
        done = subprocess.run(command, stdin=quiet, capture_output=True, check=True, timeout=_MAX_RUN_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace").partition("\n")[0].strip()


def version(subject: Subject) -> Iterator[Result]:
    yield "ok", f"{__version__}, Python {platform.python_version()}, {sys.platform}", ""


def installation(subject: Subject) -> Iterator[Result]:
    """Find another agentcli on the PATH than this one, or more than one."""
    folders = (subject.config.environment.get("PATH") or os.defpath).split(os.pathsep)
    files = filter(None, (shutil.which("agentcli", path=folder) for folder in reversed(folders)))
    found = {os.path.realpath(file): file for file in files}
    versions = {file: version_of(file).removeprefix("agentcli ") for file in found.values()}
    listed = ", ".join(f"{file} ({version or 'does not run'})" for file, version in versions.items())
    if len(versions) > 1:
        mend = "Remove those that you do not use (./install.sh --uninstall, pip uninstall agentcli)."
        yield "warning", f"agentcli is on the PATH {len(versions)} times: {listed}.", mend
    elif versions and set(versions.values()) != {__version__}:
        yield "warning", f"This is agentcli {__version__}, but on the PATH is {listed}.", "Update it: ./install.sh"


def ripgrep(subject: Subject) -> Iterator[Result]:
    program, mend = "", "Install agentcli again (./install.sh), or the package"
    with suppress(ToolError):
        program = find_rg()
    yield from check_program(program, "ripgrep", "nothing can be searched or listed", mend)


def check_program(program: str, name: str, less: str, mend: str = _INSTALL) -> Iterator[Result]:
    """Check that a program is there and runs; `less` is what does not work without it."""
    if program and version_of(program):
        yield "ok", program, ""
    else:
        what = f"{program} does not run" if program else f"{name} is missing"
        yield "problem", f"{what}: {less}.", f"{mend}: {name}"


def sandbox(subject: Subject) -> Iterator[Result]:
    """Check how commands are confined; what a killed session left behind is put in order on the way, and reported."""
    notices: list[str] = []
    permissions = PermissionSettings(tries=subject.config.settings.permissions.tries)
    builder = subject.builder(notices.append, permissions=permissions)
    try:
        facts = builder.workspace().facts
        found, how, confines = facts.warning, " ".join(facts.description), facts.confines
    finally:
        wait_for(builder.aclose())
        for text in notices:
            warn(text)
    for text in notices:
        yield "warning", text, "Look at these files; /undo in that session takes them back."
    if not found:
        yield "ok", how, ""
    elif found.startswith(("Weak sandbox", "NO SANDBOX")):
        mend = "Let bubblewrap make user namespaces (docs/permissions.md), or work where they are allowed."
        if (kind := subject.config.settings.sandbox.kind) not in ("auto", "bubblewrap"):
            mend = f'sandbox.kind is "{kind}": with "auto" the best one is taken.'
        elif sys.platform == "linux" and not any(program.is_file() for program in PROGRAMS):
            mend = f"Install bubblewrap: {how_to_install()}"
        yield "warning" if confines else "problem", found, mend
    else:
        yield "warning", found, "Look at the files that are named."


def local_model(subject: Subject) -> Iterator[Result]:
    """Check the engine, and find files of weights that are broken."""
    has_engine, folder = find_spec("xllamacpp") is not None, subject.config.paths.models
    yield "ok", "engine installed" if has_engine else "engine not installed (./install.sh --extras local)", ""
    pinned, again = folder / weights.PINNED.file_name, "agentcli local install"
    if is_file(pinned) and weights.installed(folder) is None:
        size = f"{pinned.stat().st_size:,} bytes of {weights.PINNED.size:,}"
        yield "problem", f"{pinned} is damaged: {size}.", f"Delete it, then: {again}"
    elif any(folder.glob(".*.parts")):
        yield "warning", f"A download of the model was broken off in {folder}.", f"{again} goes on with it."
    if name := subject.config.settings.local.model:
        file = subject.models.local_path("default")
        if not file.is_file() or file.open("rb").read(len(_GGUF)) != _GGUF:
            yield "problem", f"local.model: {name} is no GGUF file.", "Name one that is there, or unset local.model."


def terminal(subject: Subject) -> Iterator[Result]:
    kind = subject.config.environment.get("TERM", "")
    if kind in ("", "dumb"):
        mend = "export TERM=xterm-256color, if your terminal is one"
        yield "warning", f"TERM is {kind or 'not set'}: a session is shown line by line.", mend


def state(subject: Subject) -> Iterator[Result]:
    folder = subject.config.paths.state
    elsewhere = "or set AGENTCLI_HOME to a folder that you can write."
    if not is_writable(folder):
        yield "problem", f"{folder} cannot be written: no session is kept.", f"chown or chmod it, {elsewhere}"
    elif folder.is_dir() and folder.stat().st_uid != os.geteuid():
        yield "problem", f"{folder} belongs to another user.", f"chown -R it, {elsewhere}"
    elif folder.is_dir() and (mode := stat.S_IMODE(folder.stat().st_mode)) != stat.S_IRWXU:
        told = f"{folder} has the mode {mode:o}: it holds what you say, for you alone."
        yield "warning", told, f"chmod 700 {folder}"
    else:
        yield "ok", str(folder), ""


def sessions(subject: Subject) -> Iterator[Result]:
    """Check the database of sessions."""
    database = subject.config.paths.sessions
    if database.is_file() and (damage := first_damage(database, within_s=_MAX_LOOK_S)):
        yield "problem", f"{database} is damaged ({damage}).", "agentcli sessions fsck --repair"
        return
    try:
        stored = wait_for(with_store(lambda store: store.list(limit=1_000), database))
        yield "ok", f"{len(stored)} stored, SQLite {apsw.sqlite_lib_version()}", ""
    except StorageError as error:
        yield "problem", str(error), "agentcli sessions fsck says more, and --repair mends what can be mended."


def keys(subject: Subject) -> Iterator[Result]:
    """Report where the keys that are there come from; none of them is shown."""
    file = subject.config.paths.credentials
    try:
        subject.config.kept_keys.place("")
        if subject.unread is None:
            yield "ok", "; ".join(ProviderKeys(subject.config).lines()) or "none (agentcli login keeps one)", ""
    except ConfigError as error:
        mend = f"chmod 600 {file}; if it is damaged, delete it: agentcli login makes a new one."
        yield "problem", str(error), mend


def settings(subject: Subject) -> Iterator[Result]:
    """Find files that cannot be read, variables that mean nothing, a project that is not trusted."""
    config = subject.config
    if subject.unread is not None:
        mend = "Correct it there (docs/settings.md lists all settings); which model answers is looked at after that."
        yield "problem", str(subject.unread), mend
        return
    try:
        check_hosts(config)
        subject.builder(lambda text: None).tool_registry()
        _ = subject.models.encoders
    except ConfigError as error:
        yield "problem", str(error), "Correct it there: docs/settings.md lists all settings."
    for notice in config.notices:  # each says what to do behind its last colon
        what, _, mend = notice.rpartition(": ")
        yield "warning", f"{what}.", f"{mend[:1].upper()}{mend[1:]}"
    if (file := config.paths.user_config).is_file() and file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield "warning", f"Others can change {file}.", f"chmod 600 {file}"
    yield "ok", ", ".join(map(str, config.files)) or "defaults", ""


def _read_specs(read: Callable[[Callable[[str], None]], Sequence[T]], page: str) -> tuple[Sequence[T], list[Result]]:
    notices: list[str] = []
    try:
        specs = read(notices.append)
    except ConfigError as error:
        return (), [("problem", str(error), f"Correct the file ({page}): no session starts with it.")]
    return specs, [("warning", text, f"Correct it as {page} says, or take it out.") for text in notices]


def hooks(subject: Subject) -> Iterator[Result]:
    """Find hooks that cannot be used, and those whose program or script is not there."""
    specs, results = _read_specs(lambda tell: Hooks(subject.config, is_bare=False, tell=tell).specs, "docs/hooks.md")
    yield from results
    for spec in specs:
        if missing := _missing_in(spec.command, subject):
            told = f"{spec.source}: hooks.{spec.event}: {missing} is not there, or cannot be run ({spec.command})."
            yield "problem", told, "Correct the command, or install what it names; agentcli hooks test runs it."


def _missing_in(command: str, subject: Subject) -> str:
    """Return the program of a hook, or the script it is given to, that is not there; empty where nobody can tell."""
    cwd, root = subject.config.cwd, str(project_root(subject.config.cwd))
    for name in ("AGENTCLI_PROJECT_DIR", "CLAUDE_PROJECT_DIR"):
        command = command.replace(f"${{{name}}}", root).replace(f"${name}", root)
    try:
        words = [os.path.expanduser(word) for word in shlex.split(command)]  # noqa: PTH111 - words, not paths
    except ValueError:
        return command
    if not words or any(mark in words[0] for mark in "$`={}()|;&<>*"):
        return ""
    looked_up = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", words[0]]
    if subprocess.run(looked_up, cwd=cwd, env=subject.config.environment, capture_output=True, check=False).returncode:
        return words[0]
    script = words[1] if len(words) > 1 and Path(words[0]).name in _INTERPRETERS else ""
    is_path = "/" in script and not any(mark in script for mark in "$`*")
    return script if is_path and not (cwd / script).exists() else ""


def mcp_servers(subject: Subject) -> Iterator[Result]:
    """Find MCP servers that cannot be started; none is started for that."""
    specs, results = _read_specs(lambda tell: server_specs(subject.config, tell), "docs/mcp.md")
    yield from results
    if specs and find_spec("mcp") is None:
        yield "problem", f"{len(specs)} MCP servers are configured, and the extra mcp is not installed.", EXTRA
    for spec in specs:
        told = f"{spec.source}: the MCP server {spec.name}:"
        try:
            texts = [expanded(text, subject.config.environment) for text in texts_of(spec)]
        except ToolError as error:
            yield "warning", f"{told} {error}", "Set it where you start agentcli."
            continue
        if spec.type == "stdio" and not subject.program(texts[0]):
            mend = f"Install it, or name it with its path; agentcli mcp get {spec.name} tries it."
            yield "problem", f"{told} {texts[0]} is not there, or cannot be run.", mend
