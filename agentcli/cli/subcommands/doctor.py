"""`agentcli doctor` checks an installation: what works, is degraded or is broken, and how to fix it."""

import asyncio
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Literal
from urllib.parse import urlsplit

import apsw
import msgspec
import typer
from msgspec.structs import replace

from agentcli import __version__
from agentcli.app import Builder
from agentcli.cli.subcommands.shared import AsJson, configuration, in_store, print_answer, single_command
from agentcli.conversation.history import counted
from agentcli.errors import AgentcliError, ConfigError, StorageError, ToolError, did_you_mean
from agentcli.extensions.mcp.config import EXTRA, server_specs
from agentcli.extensions.programs import Hooks, Plugins, WorkspacePrograms
from agentcli.infra.sandbox.backends.choosing import how_to_install
from agentcli.infra.sandbox.backends.linux import PROGRAMS
from agentcli.infra.sessions.sqlite import MemorySessions
from agentcli.llm import local_weights as weights
from agentcli.llm.addresses import is_loopback
from agentcli.llm.provider import Health
from agentcli.models.choice import Models, split_name
from agentcli.models.providers import ProviderKeys
from agentcli.settings.files import is_file, is_writable
from agentcli.settings.load import Config
from agentcli.settings.structs import BudgetSettings, MCPSettings, PermissionSettings, ProviderSettings
from agentcli.setup.options import check_hosts
from agentcli.tools.sandbox import find_rg

Status = Literal["ok", "warning", "problem"]
Result = tuple[Status, str, str]  # status, message, how to fix it

_MARKS: dict[Status, str] = {"ok": "✓", "warning": "!", "problem": "✗"}
_MAX_WAIT_S = 3.0  # for a program or a server
_LOCAL_SERVERS = ("ollama", "lmstudio", "vllm")  # they run on this machine unless an address says otherwise
_ADDRESS_VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "ollama": "OLLAMA_HOST"}


class Subject(msgspec.Struct, dict=True):
    """The installation to check, as a session in this directory would use it."""

    config: Config

    @cached_property
    def models(self) -> Models:
        """Raises `ConfigError`."""
        return Models(self.config)

    def builder(self, on_notice: Callable[[str], None], **sections: Any) -> Builder:
        """Return a builder with these sections of settings, but no models and MCP servers, checked by others."""
        sections |= {"provider": ProviderSettings(), "budgets": BudgetSettings(), "providers": {}, "models": {}}
        settings = replace(self.config.settings, mcp=MCPSettings(enabled=False), **sections)
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


def _check_installation(subject: Subject) -> Iterator[Result]:
    if program := subject.find_program("agentcli"):
        version = _version_of(program).removeprefix("agentcli ") or "does not run"
        if version != __version__:
            fix = "Update it (./install.sh), or remove it (./install.sh --uninstall, pip uninstall agentcli)."
            yield "warning", f"This is agentcli {__version__}, but the PATH has {program} ({version}).", fix


def _check_ripgrep(subject: Subject) -> Iterator[Result]:
    path, fix = "", "Install agentcli again (./install.sh), or the package"
    with suppress(ToolError):
        path = find_rg()
    return _check_program("ripgrep", path, "agentcli cannot search or list files", fix)


def _check_program(
    name: str, path: str, loss: str, fix: str = "Install it with your package manager"
) -> Iterator[Result]:
    """Check that the program was found (an empty `path`: it was not) and runs; `loss` is what fails without it."""
    if not path:
        yield "problem", f"{name} is missing: {loss}.", f"{fix}: {name}"
    elif not _version_of(path):
        yield "problem", f"{path} does not run: {loss}.", f"{fix}: {name}"
    else:
        yield "ok", path, ""


def _check_sandbox(subject: Subject) -> Iterator[Result]:
    """Build a workspace as a session does, and report how well its sandbox confines commands."""
    notices: list[str] = []  # about changes that killed sessions were applying: `workspace()` below finishes them
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


def _check_local_model(subject: Subject) -> Iterator[Result]:
    has_engine, folder = find_spec("xllamacpp") is not None, subject.config.paths.models
    yield "ok", "engine installed" if has_engine else "engine not installed (./install.sh --extras local)", ""
    file = folder / weights.PINNED.file_name
    if is_file(file) and weights.installed(folder) is None:
        size = f"{file.stat().st_size:,} bytes of {weights.PINNED.size:,}"
        yield "problem", f"{file} is damaged: {size}.", "Delete it, then: agentcli local install"
    if name := subject.config.settings.local.model:
        file = subject.models.local_path("default")  # the file that local.model names
        if not file.is_file() or file.open("rb").read(4) != b"GGUF":
            yield "problem", f"local.model: {name} is not a GGUF file.", "Name an existing one, or unset local.model."


def _check_terminal(subject: Subject) -> Iterator[Result]:
    if (kind := subject.config.environment.get("TERM", "")) in ("", "dumb"):
        fix = "export TERM=xterm-256color, if your terminal supports it"
        yield "warning", f"TERM is {kind or 'not set'}, so sessions are shown line by line.", fix


def _check_state(subject: Subject) -> Iterator[Result]:
    folder = subject.config.paths.state
    if not is_writable(folder):
        fix = "chown or chmod it, or set AGENTCLI_HOME to a folder that you can write to."
        yield "problem", f"Could not write to {folder}: no sessions are saved.", fix
    elif folder.is_dir() and (mode := stat.S_IMODE(folder.stat().st_mode)) != stat.S_IRWXU:
        yield "warning", f"{folder} has the mode {mode:o}, but must be private to you.", f"chmod 700 {folder}"
    else:
        yield "ok", str(folder), ""


def _check_sessions(subject: Subject) -> Iterator[Result]:
    try:
        stored = in_store(lambda store: store.list(limit=1_000), subject.config.paths.sessions)
        yield "ok", f"{len(stored)} stored, SQLite {apsw.sqlite_lib_version()}", ""
    except StorageError as error:
        yield "problem", str(error), "For details: agentcli sessions fsck. To repair: agentcli sessions fsck --repair"


def _check_keys(subject: Subject) -> Iterator[Result]:
    file = subject.config.paths.credentials
    try:
        yield "ok", "; ".join(ProviderKeys(subject.config).describe_all()) or "none (to save one: agentcli login)", ""
    except ConfigError as error:
        yield "problem", str(error), f"chmod 600 {file}. If it is damaged, delete it and run agentcli login again."


def _check_settings(subject: Subject) -> Iterator[Result]:
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
    """Return what `read` returns, and a finding for each problem that it reports; `page` explains how to correct it."""
    notices: list[str] = []
    try:
        specs = read(notices.append)
    except ConfigError as error:
        return (), [("problem", str(error), f"Correct the file ({page}). No session starts until then.")]
    return specs, [("warning", text, f"Correct it ({page}), or remove it.") for text in notices]


def _check_hooks(subject: Subject) -> Iterator[Result]:
    config = subject.config
    specs, results = _read_specs(
        lambda on_notice: Hooks(Plugins(config=config, on_notice=on_notice), WorkspacePrograms(config)).specs,
        "docs/hooks.md",
    )
    yield from results
    notes = dict.fromkeys(f"{spec.source}: {spec.note}." for spec in specs if spec.note)
    yield from (("ok", note, "") for note in notes)


def _check_mcp_servers(subject: Subject) -> Iterator[Result]:
    specs, results = _read_specs(lambda on_notice: server_specs(subject.config, on_notice), "docs/mcp.md")
    yield from results
    if specs and find_spec("mcp") is None:
        yield "problem", f"{len(specs)} MCP servers are configured, but the extra mcp is not installed.", EXTRA


def _check_model(subject: Subject) -> Iterator[Result]:
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
    yield "ok", name, ""  # the name is shown after a finding, too


async def _check_servers(subject: Subject) -> list[Result]:
    try:
        names = [await subject.models.default(), subject.config.settings.provider.fallback_model]
    except AgentcliError:  # `_check_model` reports it
        return []
    try:
        results = await asyncio.gather(*(_check_server(subject, name) for name in names if name))
    finally:
        await subject.models.aclose()
    return [result for results_of_server in results for result in results_of_server]


async def _check_server(subject: Subject, name: str) -> list[Result]:
    """Check that a model's server answers, if it is local, or if the person set its address and any key it needs."""
    models, (provider, model) = subject.models, split_name(name)
    server, setting = subject.config.settings.providers.get(provider), f"providers.{provider}.base_url"
    from_environment = subject.config.environment.get(_ADDRESS_VARIABLES.get(provider, ""), "")
    address = (server.base_url if server else "") or from_environment  # empty: the provider's own address
    if provider not in _LOCAL_SERVERS and not (address and models.keys.can_use(provider)):
        return []  # at a provider's own address, there is nothing that the person could start or correct
    results: list[Result] = []
    host = urlsplit(address).hostname or ""
    if address.startswith("http://") and not is_loopback(host) and models.keys.variables(provider):
        message = f"agentcli sends the key of {provider} to {host} unencrypted."
        results.append(("warning", message, f"Use https:// in {setting}."))
    try:
        async with asyncio.timeout(_MAX_WAIT_S):
            health = await models.provider(name).health_check()
    except TimeoutError:
        health = Health(False, f"the server did not answer within {_MAX_WAIT_S:g} s")
    except AgentcliError as error:
        health = Health(False, str(error))
    if health.ok:
        return [*results, ("ok", f"{name}: {health.detail}", "")]
    fix = f"Start the server, or correct its address ({setting}) or the name of the model."
    if provider == "ollama":
        fix = f"Start it (ollama serve), and pull the model: ollama pull {model}"
    end = "" if health.detail.endswith((".", "?")) else "."
    return [*results, ("problem", f"{name}: {health.detail}{end}", fix)]


class Finding(msgspec.Struct, frozen=True):
    """One finding; `mend` says how to fix a warning (works less well) or a problem (does not work)."""

    check: str
    status: Status
    message: str = ""
    mend: str = ""


CHECKS: dict[str, Callable[[Subject], Iterable[Result]]] = {
    "agentcli": lambda subject: [("ok", f"{__version__}, Python {platform.python_version()}, {sys.platform}", "")],
    "installation": _check_installation,
    "ripgrep": _check_ripgrep,
    "bash": lambda subject: _check_program("bash", subject.find_program("bash"), "commands run in /bin/sh"),
    "git": lambda subject: _check_program("git", subject.find_program("git"), "no commits and no /review"),
    "sandbox": _check_sandbox,
    "local model": _check_local_model,
    "state": _check_state,
    "sessions": _check_sessions,
    "keys": _check_keys,
    "settings": _check_settings,
    "model": _check_model,
    "servers": lambda subject: asyncio.run(_check_servers(subject)),
    "hooks": _check_hooks,
    "MCP servers": _check_mcp_servers,
    "terminal": _check_terminal,
}


def examine(config: Config) -> Iterator[Finding]:
    """Yield the findings of every check, in order; a check that finds nothing is an `ok` without a message."""
    subject = Subject(config)
    for name, check in CHECKS.items():
        results: list[Result] = []
        try:
            results.extend(check(subject))  # `extend` keeps the findings before an error
        except (AgentcliError, OSError, ImportError) as error:
            results.append(("problem", str(error), "Fix this first. The rest of this check did not run."))
        yield from (Finding(name, *result) for result in results or [("ok", "", "")])


def format_findings(findings: Sequence[Finding]) -> str:
    """Return the findings in columns, each followed by its fix; checks that found nothing are counted at the end."""
    rows = [(one, one.message + (f"\n→ {one.mend}" if one.mend else "")) for one in findings if one.message]
    silent, indent = len(findings) - len(rows), "\n" + " " * 16
    lines = [f"{_MARKS[one.status]} {one.check:<12}  {text}".replace("\n", indent) for one, text in rows]
    return "\n".join([*lines, f"{counted(silent, 'more check')} found no problems."])


@single_command
def doctor_app(json: AsJson = False) -> None:
    """Check everything a session needs, and say how to fix problems. Exits with 1 if something does not work."""
    try:
        config = configuration()
    except ConfigError as error:
        fix = "Correct it there (docs/settings.md lists all settings), then run agentcli doctor again."
        findings = [Finding("settings", "problem", str(error), fix)]
    else:
        findings = list(examine(config))
    print_answer(list(map(msgspec.to_builtins, findings)), format_findings(findings), as_json=json)
    raise typer.Exit(int(any(one.status == "problem" for one in findings)))
