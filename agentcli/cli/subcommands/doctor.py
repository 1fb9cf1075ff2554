"""`agentcli doctor`: what of this installation works."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Literal

import apsw
import typer

from agentcli import __version__
from agentcli.app import Builder
from agentcli.cli.keys import key_lines
from agentcli.cli.output import tell, warn
from agentcli.cli.subcommands.shared import configuration, make_app, run_app, wait_for
from agentcli.cli.tables import draws_tables, print_table
from agentcli.config import Config
from agentcli.errors import AgentcliError, ToolError
from agentcli.infra.sessions.memory import MemorySessions
from agentcli.infra.sessions.sqlite import SqliteSessions
from agentcli.model_choice import Models
from agentcli.paths import is_writable
from agentcli.tools.ripgrep import find_rg

# Works; works less well than it could; does not work.
Mark = Literal["✓", "!", "✗"]

app = make_app("Check this installation.", needs_command=False)


def run(arguments: list[str]) -> int:
    return run_app(app, "doctor", arguments)


@app.command()
def check() -> None:
    """Look at everything a session needs; exit 1 when something is missing."""
    found = []
    for name, mark, said in checks(configuration()):
        found.append((mark, name, said))
        if not draws_tables():
            tell(row(name, mark, said))
    if draws_tables():
        print_table(("", "part", "found"), found)
    raise typer.Exit(int(any(mark == "✗" for mark, _, _ in found)))


def row(name: str, mark: Mark, said: str) -> str:
    """A check in columns; what takes more lines goes on below itself."""
    first, *others = said.split("\n")
    return "\n".join([f"{mark} {name:<12}  {first}", *(f"  {line}" for line in others)])


def checks(config: Config) -> Iterator[tuple[str, Mark, str]]:
    """What was looked at, whether it works, and what was found."""
    for name, found, said in _looked(config):
        yield name, found if isinstance(found, str) else ("✓" if found else "✗"), said


def _looked(config: Config) -> Iterator[tuple[str, bool | Mark, str]]:
    yield "agentcli", True, f"{__version__}, Python {platform.python_version()}, {sys.platform}"
    yield "settings", not config.notices, "; ".join(config.notices) or ", ".join(map(str, config.files)) or "defaults"
    writable = is_writable(config.paths.state)
    yield "state", writable, str(config.paths.state) if writable else f"{config.paths.state} cannot be written"
    yield "sessions", *_sessions(config)
    try:
        yield "ripgrep", True, find_rg()
    except ToolError as error:
        yield "ripgrep", False, str(error)
    bash = shutil.which("bash")
    yield "bash", bash is not None, bash or "missing: commands run in /bin/sh"
    yield "sandbox", *_sandbox(config)
    has_git = shutil.which("git") is not None
    yield "git", has_git, "found" if has_git else "missing: apt-get install git"
    has_local = find_spec("xllamacpp") is not None
    yield "local model", True, "engine installed" if has_local else "engine not installed (./install.sh --extras local)"
    yield "keys", *_keys(config)
    try:
        models = Models(config)
        model = wait_for(models.default())
        models.require_key(model)
        yield "model", True, model
    except AgentcliError as error:
        yield "model", False, str(error)


def _keys(config: Config) -> tuple[bool, str]:
    """Where the keys that are there come from; none of them is shown."""
    try:
        return True, "; ".join(key_lines(config)) or "none (agentcli login keeps one)"
    except AgentcliError as error:
        return False, str(error)


def _sandbox(config: Config) -> tuple[bool | Mark, str]:
    """Whether commands are confined as the settings want it, and by what."""
    builder = Builder(config, store=MemorySessions(), on_notice=warn)
    try:
        sandbox = builder.workspace().sandbox
        warning, told = sandbox.warning(), " ".join(sandbox.told())
    except (AgentcliError, OSError) as error:
        return "✗", str(error)
    finally:
        wait_for(builder.aclose())
    if warning:
        return "!" if sandbox.confines else "✗", warning
    return True, told


def _sessions(config: Config) -> tuple[bool, str]:
    async def count() -> int:
        store = SqliteSessions(config.paths.sessions, on_notice=warn)
        try:
            return len(await store.list(limit=1_000))
        finally:
            await store.close()

    try:
        return True, f"{wait_for(count())} stored, SQLite {apsw.sqlite_lib_version()}"
    except AgentcliError as error:
        return False, str(error)
