"""Checks an installation. Each check reports what works, is degraded or is broken, and how to fix it."""

import asyncio
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import apsw
import msgspec
from msgspec.structs import replace

from agentcli import __version__
from agentcli.app import Builder
from agentcli.cli.subcommands.shared import in_store
from agentcli.errors import AgentcliError, ConfigError, StorageError, ToolError, did_you_mean
from agentcli.extensions.mcp.config import EXTRA, expand_variables, server_specs
from agentcli.extensions.mcp.tools import StdioSpec
from agentcli.extensions.plugins.active import Plugins
from agentcli.extensions.programs import Hooks, WorkspacePrograms
from agentcli.infra.sandbox.backends.choosing import how_to_install
from agentcli.infra.sandbox.backends.linux import PROGRAMS
from agentcli.infra.sessions.maintenance import first_damage
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm import local_weights as weights
from agentcli.llm.addresses import is_loopback
from agentcli.llm.provider import Health
from agentcli.models.choice import Models, split_name
from agentcli.models.providers import ProviderKeys
from agentcli.settings.files import is_file, is_writable, project_root
from agentcli.settings.load import Config
from agentcli.settings.structs import BudgetSettings, MCPSettings, PermissionSettings, ProviderSettings
from agentcli.setup.options import check_hosts
from agentcli.tools.sandbox import find_rg

Status = Literal["ok", "warning", "problem"]
Result = tuple[Status, str, str]  # status, message, how to fix it
Check = Callable[["Subject"], Iterable[Result]]

_MAX_WAIT_S = 3.0  # for a program or a server
_SMALL_WINDOW = 16_384  # tokens; the system text and the tools take about 2,000, a file or two the rest
_INTERPRETERS = ("bash", "sh", "zsh", "python", "python3", "node", "ruby", "perl")
_LOCAL_SERVERS = ("ollama", "lmstudio", "vllm")  # they run on this machine unless an address says otherwise
_ADDRESS_VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "ollama": "OLLAMA_HOST"}


class Subject(msgspec.Struct, dict=True):
    """The installation to check, as a session in this directory would use it."""

    config: Config

    @cached_property
    def models(self) -> Models:
        """Raises `ConfigError`."""
        return Models(self.config)

    def builder(self, on_notice: Callable[[str], None], **changes: Any) -> Builder:
        """Return a builder without models and MCP servers: they have their own checks."""
        changes |= {"provider": ProviderSettings(), "budgets": BudgetSettings(), "providers": {}, "models": {}}
        settings = replace(self.config.settings, mcp=MCPSettings(enabled=False), **changes)
        return Builder(replace(self.config, settings=settings), store=MemorySessions(), on_notice=on_notice)

    def find_program(self, name: str) -> str:
        return shutil.which(name, path=self.config.environment.get("PATH")) or ""


def _version_of(program: str) -> str:
    """Return the first line that a program prints for `--version`; empty if the program does not run."""
    command, quiet = [program, "--version"], subprocess.DEVNULL
    try:
        ended = subprocess.run(command, stdin=quiet, capture_output=True, check=True, timeout=_MAX_WAIT_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ended.stdout.decode(errors="replace").partition("\n")[0].strip()


def check_installation(subject: Subject) -> Iterator[Result]:
    """Warn if the PATH has several installations of agentcli, or one that is not this version."""
    folders = (subject.config.environment.get("PATH") or os.defpath).split(os.pathsep)
    files = filter(None, (shutil.which("agentcli", path=folder) for folder in reversed(folders)))
    found = {os.path.realpath(file): file for file in files}  # reversed, so that the first name on the PATH wins
    versions = {file: _version_of(file).removeprefix("agentcli ") for file in found.values()}
    listed = ", ".join(f"{file} ({version or 'does not run'})" for file, version in versions.items())
    if len(versions) > 1:
        fix = "Remove the ones you do not use (./install.sh --uninstall, pip uninstall agentcli)."
        yield "warning", f"agentcli is on the PATH {len(versions)} times: {listed}.", fix
    elif versions and set(versions.values()) != {__version__}:
        yield "warning", f"This is agentcli {__version__}, but the PATH has {listed}.", "Update it: ./install.sh"


def check_ripgrep(subject: Subject) -> Iterator[Result]:
    program, fix = "", "Install agentcli again (./install.sh), or the package"
    with suppress(ToolError):
        program = find_rg()
    return check_program(program, "ripgrep", "agentcli cannot search or list files", fix)


def check_program(
    program: str, name: str, loss: str, fix: str = "Install it with your package manager"
) -> Iterator[Result]:
    """Check that a program exists (else its path is empty) and runs; `loss` says what does not work without it."""
    if not program:
        yield "problem", f"{name} is missing: {loss}.", f"{fix}: {name}"
    elif not _version_of(program):
        yield "problem", f"{program} does not run: {loss}.", f"{fix}: {name}"
    else:
        yield "ok", program, ""


def check_sandbox(subject: Subject) -> Iterator[Result]:
    """Check how commands are confined. Building the workspace finishes changes of killed sessions, with notices."""
    notices: list[str] = []
    # Leave out the permission rules: a mistake in one is not a problem of the sandbox.
    permissions = PermissionSettings(tries=subject.config.settings.permissions.tries)
    builder = subject.builder(notices.append, permissions=permissions)
    try:
        facts = builder.workspace().facts
        warning, description, confines = facts.warning, " ".join(facts.description), facts.confines
    finally:
        asyncio.run(builder.aclose())
        for text in notices:
            yield "warning", text, "Check these files. To revert them: /undo in that session."
    if not warning:
        yield "ok", description, ""
    elif warning.startswith(("Weak sandbox", "NO SANDBOX")):  # other warnings are about files
        fix = "Allow bubblewrap to create user namespaces (docs/permissions.md), or work where they are allowed."
        if (kind := subject.config.settings.sandbox.kind) not in ("auto", "bubblewrap"):
            fix = f'sandbox.kind is "{kind}". Set it to "auto" to use the best one.'
        elif sys.platform == "linux" and not any(program.is_file() for program in PROGRAMS):
            fix = f"Install bubblewrap: {how_to_install()}"
        yield "warning" if confines else "problem", warning, fix
    else:
        yield "warning", warning, "Check the files that are named."


def check_local_model(subject: Subject) -> Iterator[Result]:
    has_engine, folder = find_spec("xllamacpp") is not None, subject.config.paths.models
    yield "ok", "engine installed" if has_engine else "engine not installed (./install.sh --extras local)", ""
    file, install = folder / weights.PINNED.file_name, "agentcli local install"
    if is_file(file) and weights.installed(folder) is None:
        size = f"{file.stat().st_size:,} bytes of {weights.PINNED.size:,}"
        yield "problem", f"{file} is damaged: {size}.", f"Delete it, then: {install}"
    elif any(folder.glob(".*.parts")):
        yield "warning", f"The download of the model in {folder} is incomplete.", f"To resume it: {install}"
    if name := subject.config.settings.local.model:
        file = subject.models.local_path("default")  # the file that local.model names
        if not file.is_file() or file.open("rb").read(4) != b"GGUF":
            yield "problem", f"local.model: {name} is not a GGUF file.", "Name an existing one, or unset local.model."


def check_terminal(subject: Subject) -> Iterator[Result]:
    if (kind := subject.config.environment.get("TERM", "")) in ("", "dumb"):
        fix = "export TERM=xterm-256color, if your terminal supports it"
        yield "warning", f"TERM is {kind or 'not set'}, so sessions are shown line by line.", fix


def check_state(subject: Subject) -> Iterator[Result]:
    folder = subject.config.paths.state
    elsewhere = "or set AGENTCLI_HOME to a folder that you can write to."
    if not is_writable(folder):
        yield "problem", f"Could not write to {folder}: no sessions are saved.", f"chown or chmod it, {elsewhere}"
    elif folder.is_dir() and folder.stat().st_uid != os.geteuid():
        yield "problem", f"{folder} belongs to another user.", f"chown -R it, {elsewhere}"
    elif folder.is_dir() and (mode := stat.S_IMODE(folder.stat().st_mode)) != stat.S_IRWXU:
        yield "warning", f"{folder} has the mode {mode:o}, but must be private to you.", f"chmod 700 {folder}"
    else:
        yield "ok", str(folder), ""


def check_sessions(subject: Subject) -> Iterator[Result]:
    """Look for damage in the database of sessions, for 2 seconds at most."""
    database = subject.config.paths.sessions
    if database.is_file() and (damage := first_damage(database, within_s=2.0)):
        yield "problem", f"{database} is damaged ({damage}).", "agentcli sessions fsck --repair"
        return
    try:
        stored = in_store(lambda store: store.list(limit=1_000), database)
        yield "ok", f"{len(stored)} stored, SQLite {apsw.sqlite_lib_version()}", ""
    except StorageError as error:
        yield "problem", str(error), "For details: agentcli sessions fsck. To repair: agentcli sessions fsck --repair"


def check_keys(subject: Subject) -> Iterator[Result]:
    file = subject.config.paths.credentials
    try:
        yield "ok", "; ".join(ProviderKeys(subject.config).lines()) or "none (to save one: agentcli login)", ""
    except ConfigError as error:
        yield "problem", str(error), f"chmod 600 {file}. If it is damaged, delete it and run agentcli login again."


def check_settings(subject: Subject) -> Iterator[Result]:
    """Find invalid settings, unknown AGENTCLI_ variables and an untrusted project; always list the files in use."""
    config = subject.config
    try:
        check_hosts(config)
        subject.builder(lambda text: None).tool_registry()  # only for the errors that it raises
        _ = subject.models.encoders  # reading the encoders raises `ConfigError` if their file is not valid
    except ConfigError as error:
        yield "problem", str(error), "Correct it there: docs/settings.md lists all settings."
    for notice in config.notices:  # "MESSAGE. To …", or "MESSAGE: the fix or the reason."
        message, _, fix = notice.partition(". ") if ". To " in notice else notice.rpartition(": ")
        yield "warning", f"{message}.", f"{fix[:1].upper()}{fix[1:]}"
    if (file := config.paths.user_config).is_file() and file.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield "warning", f"Others can write to {file}.", f"chmod 600 {file}"
    yield "ok", ", ".join(map(str, config.files)) or "defaults", ""


def _read_specs(read: Callable[[Callable[[str], None]], Any], page: str) -> tuple[Any, list[Result]]:
    """Read hooks or MCP servers; return them, and findings about those that cannot be used. `page` explains them."""
    notices: list[str] = []
    try:
        specs = read(notices.append)
    except ConfigError as error:
        return (), [("problem", str(error), f"Correct the file ({page}). No session starts until then.")]
    return specs, [("warning", text, f"Correct it ({page}), or remove it.") for text in notices]


def check_hooks(subject: Subject) -> Iterator[Result]:
    """Find hooks that cannot be used, and hooks whose program or script does not exist."""
    config = subject.config
    specs, results = _read_specs(
        lambda on_notice: Hooks(Plugins(config=config, on_notice=on_notice), WorkspacePrograms(config)).specs,
        "docs/hooks.md",
    )
    yield from results
    notes = dict.fromkeys(f"{spec.source}: {spec.note}." for spec in specs if spec.note)
    yield from (("ok", note, "") for note in notes)
    for spec in specs:
        if missing := _missing_program(spec.expanded_command, subject):
            about = f"{spec.source}: hooks.{spec.event}: {missing} does not exist or cannot be run ({spec.title})."
            yield "problem", about, "Correct the command, or install the program. To test it: agentcli hooks test"


def _missing_program(command: str, subject: Subject) -> str:
    """Return the missing program of a hook's command, or its missing script; empty if none is known to be missing."""
    cwd, root = subject.config.cwd, str(project_root(subject.config.cwd))
    for name in ("AGENTCLI_PROJECT_DIR", "CLAUDE_PROJECT_DIR"):
        command = command.replace(f"${{{name}}}", root).replace(f"${name}", root)
    try:
        words = [os.path.expanduser(word) for word in shlex.split(command)]  # noqa: PTH111 - words, not paths
    except ValueError:  # an unclosed quotation mark: no shell can run it
        return command
    if not words or any(mark in words[0] for mark in "$`={}()|;&<>*"):  # only a shell knows which program this runs
        return ""
    lookup = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", words[0]]
    if subprocess.run(lookup, cwd=cwd, env=subject.config.environment, capture_output=True, check=False).returncode:
        return words[0]
    script = words[1] if len(words) > 1 and Path(words[0]).name in _INTERPRETERS else ""
    is_path = "/" in script and not any(mark in script for mark in "$`*")
    return script if is_path and not (cwd / script).exists() else ""


def check_mcp_servers(subject: Subject) -> Iterator[Result]:
    """Find MCP servers that could not be started, without starting any."""
    specs, results = _read_specs(lambda on_notice: server_specs(subject.config, on_notice), "docs/mcp.md")
    yield from results
    if specs and find_spec("mcp") is None:
        yield "problem", f"{len(specs)} MCP servers are configured, but the extra mcp is not installed.", EXTRA
    for spec in specs:
        about = f"{spec.source}: the MCP server {spec.name}:"
        all_fields = msgspec.json.encode(spec.transport).decode()
        try:
            expand_variables(all_fields, subject.config.environment)
        except ToolError as error:
            yield "warning", f"{about} {error}", "Set it where you start agentcli."
            continue
        program = expand_variables(str(getattr(spec.transport, "command", "")), subject.config.environment)
        if isinstance(spec.transport, StdioSpec) and not subject.find_program(program):
            fix = f"Install it, or use its full path. To test it: agentcli mcp get {spec.name}"
            yield "problem", f"{about} {program} does not exist or cannot be run.", fix


def check_model(subject: Subject) -> Iterator[Result]:
    try:
        models = subject.models
        name = asyncio.run(models.default())
        info = models.info(name)
        models.require_key(name)
    except AgentcliError as error:
        yield "problem", str(error), "To list the known models: agentcli models list"
        return
    if info.provider == "local" and not (models.local_path(info.id).is_file() and find_spec("xllamacpp")):
        fix = "Run ./install.sh --extras local && agentcli local install, or name another GGUF file."
        yield "problem", f"{name}: its engine or its weights are not installed ({models.local_path(info.id)}).", fix
    known = [row.id for row in models.table() if row.provider == info.provider]  # none for a server of the settings
    if known and not info.is_known and info.provider != "local":
        message = f"{name} is not in the table{did_you_mean(info.id, known)}, so its window and price are guesses."
        yield "warning", message, "Correct its name (agentcli models list), or describe it in [models] of the settings."
    if (fallback := subject.config.settings.provider.fallback_model) and not models.keys.has(split_name(fallback)[0]):
        message = f"The fallback model {fallback} has no key."
        yield "warning", message, "Add one with agentcli login, or choose another model."
    yield "ok", name, ""


async def check_servers(subject: Subject) -> list[Result]:
    """Check that the servers of the default and the fallback model answer, both at the same time."""
    try:
        names = [await subject.models.default(), subject.config.settings.provider.fallback_model]
    except AgentcliError:  # `check_model` reports it
        return []
    try:
        results = await asyncio.gather(*(_check_server(subject, name) for name in names if name))
    finally:
        await subject.models.aclose()
    return [result for of_server in results for result in of_server]


async def _check_server(subject: Subject, name: str) -> list[Result]:
    """Check that a model's server answers, if it is a local one, or if the person set its address and has its key."""
    models, (provider, model) = subject.models, split_name(name)
    server, setting = subject.config.settings.providers.get(provider), f"providers.{provider}.base_url"
    from_environment = subject.config.environment.get(_ADDRESS_VARIABLES.get(provider, ""), "")
    address = (server.base_url if server else "") or from_environment  # empty: the provider's own address
    if provider not in _LOCAL_SERVERS and not (address and models.keys.has(provider)):
        return []
    results: list[Result] = []
    host = urlsplit(address).hostname or ""
    if address.startswith("http://") and not is_loopback(host) and models.keys.variables(provider):
        message = f"agentcli sends the key of {provider} to {host} unencrypted."
        results.append(("warning", message, f"Use https:// in {setting}."))
    try:
        client = models.provider(name)
        async with asyncio.timeout(_MAX_WAIT_S):
            health = await client.health_check()
    except TimeoutError:
        health = Health(False, f"the server did not answer within {_MAX_WAIT_S:g} s")
    except AgentcliError as error:
        health = Health(False, str(error))
    if not health.ok:
        fix = f"Start the server, or correct its address ({setting}) or the name of the model."
        if provider == "ollama":
            fix = f"Start it (ollama serve), and pull the model: ollama pull {model}"
        end = "" if health.detail.endswith((".", "?")) else "."
        return [*results, ("problem", f"{name}: {health.detail}{end}", fix)]
    window = getattr(client, "info", models.info(name)).window  # Ollama's client has asked the server for its window
    if provider == "ollama" and window < _SMALL_WINDOW:
        now = subject.config.settings.tokens.ollama_num_ctx
        fix = f"Set tokens.ollama_num_ctx to 32768 (now {now}), or choose a model with a larger window."
        results.append(("warning", f"{name} has a window of {window:,} tokens, enough for only a file or two.", fix))
    return [*results, ("ok", f"{name}: {health.detail}", "")]
