"""Keeps and forgets the keys of providers, and says so."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.errors import UsageError
from agentcli.models.choice import Models
from agentcli.settings.load import Config

SEARCH_KEY = "TAVILY_API_KEY"


def key_lines(config: Config) -> list[str]:
    """Where each key that is there comes from; none of them is shown. Raises `ConfigError`."""
    models = Models(config)
    places = {name: place for provider in models.keys.takers() for name, place in models.keys.places(provider)}
    places[SEARCH_KEY] = config.place_of_key(SEARCH_KEY)
    return [f"{name} {place}" for name, place in places.items() if place]


def store_key(config: Config, provider: str, variable: str, key: str) -> str:
    """Keep a key for good; a sentence on where. Raises `ConfigError`."""
    place = config.kept_keys.store(variable, key)
    wins = (
        f" {variable} in the environment wins over it in later sessions." if config.key_in_environment(variable) else ""
    )
    return f"The key for {provider} is {place}; agentcli login --remove {provider} removes it.{wins}"


def forget_key(config: Config, provider: str, variables: Sequence[str]) -> str:
    """Forget the keys that were kept or typed; a sentence on it. Raises `UsageError` where there is none."""
    was = [place for variable in variables if (place := config.kept_keys.remove(variable))]
    in_environment = [variable for variable in variables if config.key_in_environment(variable)]
    rest = f" {in_environment[0]} in the environment still holds one." if in_environment else ""
    if not was:
        raise UsageError(f"No key for {provider} is kept.{rest}")
    return f"The key for {provider}, {was[0]}, is removed.{rest}"
