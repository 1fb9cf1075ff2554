"""Runs agentcli as an agent of Harbor, the harness of Terminal-Bench 2 (https://github.com/harbor-framework/harbor).

    harbor run -d terminal-bench@2.0 -a agentcli.evals.harbor:AgentcliAgent -m anthropic/claude-sonnet-5-5 \
        --ak package=dist/agentcli-0.1.0-py3-none-any.whl

Harbor is installed separately. The provider's key comes from the environment; other variables need `--ae NAME=VALUE`.
`harbor agent schema agentcli.evals.harbor:AgentcliAgent` shows the options.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from agentcli.errors import UsageError
from agentcli.models.providers import ProviderKeys
from agentcli.settings.load import load_config

if TYPE_CHECKING:
    from harbor.agents.installed.base import BaseInstalledAgent
    from harbor.environments.base import BaseEnvironment
    from harbor.models.agent.context import AgentContext

_LOG = "agentcli.jsonl"
_PATH = 'export PATH="$HOME/.local/bin:$PATH"\n'
_INSTALL = """set -e
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
uv tool install --force --python 3.13 {package}"""
# A turn limit (53) or a budget (54) ends a run as a timeout does: Harbor grades the files as they are. It searches all
# output for the cause of any other end, so it gets only the result object.
_RUN = "{command} </dev/null >{log} 2>{log}.err || case $? in 53|54) ;; *) cat {log}.err; tail -n 1 {log}; exit 1; esac"
# Our provider errors and Harbor's, which decide whether a run is tried again.
_ERRORS = {
    "AuthError": "AgentAuthenticationError",
    "BillingError": "ApiUsageLimitError",
    "ConnectionFailed": "NetworkConnectionError",
    "ContextOverflow": "ContextWindowExceededError",
    "ModelNotFound": "ModelNotFoundError",
    "Overloaded": "ApiOverloadedError",
    "RateLimit": "ApiRateLimitError",
    "ServerError": "ApiInternalServerError",
    "Timeout": "ApiResponseStalledError",
}


def __getattr__(name: str) -> Any:
    if name != "AgentcliAgent":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, _agent_class())


def agent_command(instruction: str, model: str | None, flags: str = "") -> str:
    """Return the shell command that does a task and prints stream-json.

    The container is the sandbox, because most containers allow no other.
    """
    if instruction.lstrip().startswith("/"):  # "/app holds …" would be a slash command
        instruction = f"Task: {instruction}"
    options = f"--permission-mode bypassPermissions --sandbox danger-full-access {flags}"
    chosen = f" -m {shlex.quote(model)}" if model else ""
    return f"agentcli -p --output-format stream-json {options}{chosen} -- {shlex.quote(instruction)}"


def read_log(text: str) -> list[dict[str, Any]]:
    """Return the objects of a stream-json log, without the half line that a killed process leaves."""
    objects = []
    for line in text.split("\n"):
        with suppress(msgspec.DecodeError):
            objects.append(msgspec.json.decode(line, type=dict[str, Any]))
    return objects


def context_fields(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of Harbor's `AgentContext`.

    A log without a result, as after a timeout, has no cost, and its tokens are the sum of the replies'.
    """
    if not log:
        return {}
    result = log[-1] if log[-1]["type"] == "result" else {}
    replies = [entry["message"].get("usage", {}) for entry in log if entry["type"] == "assistant"]

    def total(*names: str) -> int:
        return sum(usage.get(name, 0) for usage in ([result["usage"]] if result else replies) for name in names)

    cached = total("cache_read_input_tokens")
    names = ("session_id", "subtype", "terminal_reason", "num_turns", "is_error")
    return {
        "n_input_tokens": cached + total("input_tokens", "cache_creation_input_tokens"),
        "n_cache_tokens": cached,
        "n_output_tokens": total("output_tokens"),
        "cost_usd": result.get("total_cost_usd"),
        "metadata": {name: result[name] for name in names if name in result},
    }


async def _install(agent: BaseInstalledAgent, environment: BaseEnvironment) -> None:
    await agent.ensure_system_dependencies(environment, ("curl", "git"))
    package = agent.options.package
    if package.endswith(".whl") and "://" not in package:
        file, package = package, f"/tmp/{Path(package).name}"  # noqa: S108  # in the container
        await environment.upload_file(file, package)
        await agent.exec_as_root(environment, f"chmod a+r {shlex.quote(package)}")
    await agent.exec_as_agent(environment, _PATH + _INSTALL.format(package=shlex.quote(package)))


async def _run(
    agent: BaseInstalledAgent, instruction: str, environment: BaseEnvironment, context: AgentContext
) -> None:
    command = agent_command(agent.render_instruction(instruction), agent.model_name, agent.build_cli_flags())
    provider = (agent.model_name or "").partition("/")[0]
    config = load_config(Path.cwd())
    names = (*ProviderKeys(config).variables(provider), f"{provider.upper()}_BASE_URL")
    log = shlex.quote(str(agent.environment_logs_dir / _LOG))
    variables = {name: os.environ[name] for name in names if name in os.environ}
    await agent.exec_as_agent(environment, _PATH + _RUN.format(command=command, log=log), env=variables)


def _fill_context(agent: BaseInstalledAgent, context: AgentContext) -> None:
    with suppress(FileNotFoundError):  # nothing ran
        log = read_log((agent.logs_dir / _LOG).read_text("utf-8", "replace"))
        for name, value in context_fields(log).items():
            setattr(context, name, value)


def _agent_class() -> type:
    try:
        import pydantic
        from harbor.agents import capabilities, options
        from harbor.agents.installed import base
    except ImportError as error:
        raise UsageError(
            f"Harbor is missing ({error}): pip install 'harbor>=0.26', with Python 3.12 or newer."
        ) from error
    flag, field = options.Cli, pydantic.Field
    fields: dict[str, Any] = {
        # No default, because anybody may have published a package of our name.
        "package": (str, field(description="A wheel on this machine, or a requirement such as an address of git.")),
        "max_turns": (Annotated[int, flag("--max-turns")], field(1_000, description="Requests for one task.")),
        "max_budget_usd": (Annotated[float | None, flag("--max-budget-usd")], field(None, description="For one task.")),
        "reasoning_effort": (Annotated[str | None, flag("--effort")], field(None, description="low to max.")),
        "disable_web_search": (Annotated[bool, flag("--deny web_fetch --deny web_search")], field(False)),
    }
    patterns = [base.ErrorPattern(f'"terminal_reason":"{ours}"', getattr(base, its)) for ours, its in _ERRORS.items()]
    members = {
        "__module__": __name__,
        "capabilities": capabilities.AgentCapabilities(native_web_tools=True, reasoning_effort=True),
        "options_model": pydantic.create_model("AgentcliOptions", __base__=options.InstalledAgentOptions, **fields),
        "ERROR_PATTERNS": base.BaseInstalledAgent.ERROR_PATTERNS + patterns,
        "name": staticmethod(lambda: "agentcli"),
        "get_version_command": lambda _: f"{_PATH}agentcli --version | cut -d ' ' -f 2",
        "install": _install,
        "run": _run,
        "populate_context_post_run": _fill_context,
    }
    return type("AgentcliAgent", (base.BaseInstalledAgent,), members)
