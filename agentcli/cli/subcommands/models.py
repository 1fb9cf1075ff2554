"""`agentcli models`: which models are known, and which one answers now; `agentcli login`: keeps a provider's key."""

from __future__ import annotations

import sys
from getpass import getpass
from typing import Annotated

import msgspec
import typer

from agentcli.cli.output import echo, print_table
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, single_command, wait_for
from agentcli.errors import UsageError, UserError, did_you_mean
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Health
from agentcli.llm.token_encoders import ModelFacts
from agentcli.models.choice import Models
from agentcli.models.providers import SEARCH_KEY

HEADINGS = ("model", "window", "reply", "USD per million", "encoder", "margin", "mode")
app = make_app("Look at the models that are known.")


@app.command("list")
def list_models(
    check: Annotated[bool, typer.Option("--check", help="Say which can be asked now, and how.")] = False,
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
def check(model: Annotated[str, typer.Argument(help="PROVIDER/MODEL; else the one that answers.")] = "") -> None:
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


SEARCH = {"tavily": (SEARCH_KEY,)}  # what web_search asks: a key, and no model


@single_command
def login(
    provider: Annotated[str, typer.Argument(help="Whose key; without it: where each one comes from.")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="Forget the key that is kept.")] = False,
    untried: Annotated[bool, typer.Option("--untried", help="Keep it without asking the provider.")] = False,
    json: AsJson = False,
) -> None:
    """The key is typed unseen, or read from stdin; the provider is asked whether it takes it, which costs nothing."""
    config = configuration()
    models = Models(config)
    variables = {name: models.keys.variables(name) for name in models.keys.takers()} | SEARCH
    if provider and provider not in variables:
        known = ", ".join(variables)
        raise UsageError(f"{provider!r} takes no key{did_you_mean(provider, variables)}; those that do: {known}.")
    if not provider:
        if remove:
            raise UsageError("Say whose key: agentcli login --remove PROVIDER.")
        rows = [(name, names[0], models.keys.place(name)) for name, names in variables.items() if name not in SEARCH]
        rows += [(name, names[0], config.place_of_key(names[0])) for name, names in SEARCH.items()]
        if json:
            print_json([dict(zip(("provider", "variable", "place"), row, strict=True)) for row in rows])
        else:
            print_table(("provider", "variable", "key"), [(*row[:2], row[2] or "no key") for row in rows])
    elif remove:
        echo(models.keys.remove(provider, variables[provider]))
    else:
        key = _typed(provider)
        if not untried and provider not in SEARCH:
            health = wait_for(models.try_key(provider, key))
            if not health.ok:
                raise UserError(f"{health.detail} (not kept; --untried keeps it all the same)")
            echo(f"{health.detail}.")
        echo(models.keys.store(provider, variables[provider][0], key))


def _typed(provider: str) -> str:
    """Raises `UsageError` for no key."""
    try:
        given = getpass(f"The key for {provider}: ") if sys.stdin.isatty() else sys.stdin.readline()
    except EOFError:
        given = ""
    if not (key := given.strip()):
        raise UsageError(f"There is no key: type it, or pipe it into agentcli login {provider}.")
    return key
