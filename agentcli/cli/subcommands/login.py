"""`agentcli login`: tries a provider's key and keeps it."""

from __future__ import annotations

import sys
from getpass import getpass
from typing import Annotated

import typer

from agentcli.cli.output import echo, print_table
from agentcli.cli.subcommands.shared import AsJson, configuration, make_app, print_json, wait_for
from agentcli.errors import UsageError, UserError, did_you_mean
from agentcli.models.choice import Models
from agentcli.models.providers import SEARCH_KEY

SEARCH = {"tavily": (SEARCH_KEY,)}  # what web_search asks: a key, and no model

app = make_app(
    "Try a provider's key and keep it, in the keyring or in a file that only you can read.", needs_command=False
)


@app.command()
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
            echo(_try_key(models, provider, key))
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


def _try_key(models: Models, provider: str, key: str) -> str:
    """Return the provider's answer. Raises `UserError` where the key does not work."""
    health = wait_for(models.try_key(provider, key))
    if not health.ok:
        raise UserError(f"{health.detail} (not kept; --untried keeps it all the same)")
    return f"{health.detail}."
