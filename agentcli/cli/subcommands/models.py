"""`agentcli models`: which models are known, and which one answers now."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from agentcli.cli.output import echo, print_table
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, wait_for
from agentcli.errors import UsageError
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Health
from agentcli.llm.tokens.counting import ModelFacts
from agentcli.models.choice import Models

HEADINGS = ("model", "window", "reply", "USD per million", "encoder", "margin", "mode")
app = make_app("Look at the models that are known.")


@app.command("list")
def list_models(
    check: Annotated[
        bool, typer.Option("--check", help="Say which can be asked now: a key, or a running server.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Every model of the table: window, longest reply, prices (USD per million tokens), how its tokens are counted."""
    models = Models(configuration())
    infos: list[ModelInfo] = list(models.table())
    reach: dict[str, str] = {}
    if check:
        running, reach = wait_for(_reached(models))
        infos += [models.info(name) for name in running]
    facts = list(map(models.encoders.facts, infos))
    others = [name for name, how in reach.items() if how and name not in {info.provider for info in infos}]
    if json:
        told = [msgspec.to_builtins(model) for model in facts] + [{"provider": name, "id": ""} for name in others]
        print_json([model | {"reach": reach[model["provider"]]} for model in told] if check else told)
        return
    rows = list(map(_row, facts)) + [(f"{name}/…", *[""] * (len(HEADINGS) - 1)) for name in others]
    if check:
        rows = [(*row, reach[row[0].partition("/")[0]] or "no") for row in rows]
    print_table((*HEADINGS, "reach") if check else HEADINGS, rows, numeric={"window", "reply", "margin"})
    echo("\nAny other model works too, as PROVIDER/MODEL; its window and price are then guesses.")


async def _reached(models: Models) -> tuple[list[str], dict[str, str]]:
    """The models of servers that run on this machine, and how each provider can be asked."""
    running = await models.running()
    return running, await models.reach(running)


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="PROVIDER/MODEL; without it the one that would answer.")] = "",
) -> None:
    """Ask a model's server whether it answers and takes the key."""
    name, health = wait_for(_check(model))
    echo(f"{name}: {health.detail}")
    if not health.ok:
        raise typer.Exit(1)


async def _check(model: str) -> tuple[str, Health]:
    models = Models(configuration())
    try:
        name = model or await models.default()
        return name, await models.provider(name).health_check()
    finally:
        await models.aclose()


@app.command()
def default() -> None:
    """Print the model that answers when none is named."""
    try:
        echo(wait_for(Models(configuration()).default()))
    except UsageError as none:
        echo(str(none))
        raise typer.Exit(2) from none


def _row(model: ModelFacts) -> tuple[str, ...]:
    prices = model.prices
    cost = f"${prices.input:g} in, ${prices.output:g} out" if prices else "price unknown"
    limits = f"{model.window:,} tokens", f"{model.max_output:,} out"
    return f"{model.provider}/{model.id}", *limits, cost, model.encoder, f"{model.margin:g}", model.mode
