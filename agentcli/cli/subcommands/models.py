"""`agentcli models`: which models are known, and which one answers now."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from agentcli.cli.output import tell
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, run_app, wait_for
from agentcli.cli.tables import print_table
from agentcli.errors import UsageError
from agentcli.llm.provider import Health
from agentcli.llm.tokens.registry import ModelFacts
from agentcli.model_choice import Models

HEADINGS = ("model", "window", "reply", "USD per million", "encoder", "margin", "mode")
app = make_app("Look at the models that are known.")


def run(arguments: list[str]) -> int:
    return run_app(app, "models", arguments)


@app.command("list")
def list_models(json: AsJson = False) -> None:
    """Every model of the table: window, longest reply, prices (USD per million tokens), how its tokens are counted."""
    models = Models(configuration())
    facts = list(map(models.encoders.facts, models.table()))
    if json:
        print_json([msgspec.to_builtins(model) for model in facts])
        return
    print_table(HEADINGS, list(map(_row, facts)), numeric={"window", "reply", "margin"})
    tell("\nAny other model works too, as PROVIDER/MODEL; its window and price are then guesses.")


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="PROVIDER/MODEL; without it the one that would answer.")] = "",
) -> None:
    """Ask a model's server whether it answers and takes the key."""
    name, health = wait_for(_check(model))
    tell(f"{name}: {health.detail}")
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
        tell(wait_for(Models(configuration()).default()))
    except UsageError as none:
        tell(str(none))
        raise typer.Exit(2) from none


def _row(model: ModelFacts) -> tuple[str, ...]:
    prices = model.prices
    cost = f"${prices.input:g} in, ${prices.output:g} out" if prices else "price unknown"
    limits = f"{model.window:,} tokens", f"{model.max_output:,} out"
    return f"{model.provider}/{model.id}", *limits, cost, model.encoder, f"{model.margin:g}", model.mode
