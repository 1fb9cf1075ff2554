"""Checks which model answers, its key, and the servers whose addresses the person set."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec
from urllib.parse import urlsplit

from agentcli.cli.doctor.checks import Result, Subject
from agentcli.cli.subcommands.shared import wait_for
from agentcli.errors import AgentcliError, NoKey, NoModel, did_you_mean
from agentcli.llm.addresses import is_loopback
from agentcli.llm.provider import Health
from agentcli.models.choice import split_name

_MAX_ANSWER_S = 3.0
_SMALL_WINDOW = 16_384  # tokens; the system text and the tools take about 2,000, a file or two the rest
_LOCAL_SERVERS = ("ollama", "lmstudio", "vllm")  # they run on this machine unless an address says otherwise
_ADDRESS_VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "ollama": "OLLAMA_HOST"}


def model(subject: Subject) -> Iterator[Result]:
    """Check the one that answers when none is named."""
    try:
        models = subject.models
        name = wait_for(models.default())
        known = models.info(name)
        models.require_key(name)
    except AgentcliError as error:
        told, mend = str(error), "Correct it there; agentcli models list shows what is known."
        if isinstance(error, NoModel):
            told, _, mend = told.partition(" Three ")
            mend = f"Three {mend}"
        elif isinstance(error, NoKey):
            told, _, mend = told.partition(": ")
            told += "."
        yield "problem", told, mend
        return
    if known.provider == "local" and not (models.local_path(known.id).is_file() and find_spec("xllamacpp")):
        mend = "./install.sh --extras local && agentcli local install, or name another GGUF file."
        told = f"{name}: its engine or its weights are not installed ({models.local_path(known.id)})."
        yield "problem", told, mend
    others = [info.id for info in models.table() if info.provider == known.provider]
    if others and not known.is_known and known.provider != "local":
        told = f"{name} is in no table{did_you_mean(known.id, others)}: its window and price are guesses."
        yield "warning", told, "Correct its name (agentcli models list), or describe it in [models] of the settings."
    if (second := subject.config.settings.provider.fallback_model) and not models.keys.has(split_name(second)[0]):
        told = f"{second}, which is to answer in its place, has no key."
        yield "warning", told, "agentcli login, or name another one."
    yield "ok", name, ""


async def servers(subject: Subject) -> list[Result]:
    """Ask those whose address was set, or that run here; a key goes to nobody but its own provider."""
    try:
        models = subject.models
        used = [await models.default()]
    except AgentcliError:  # reported with the model
        return []
    used += filter(None, [subject.config.settings.provider.fallback_model])
    providers = {split_name(name)[0] for name in used}
    set_up = subject.config.settings.providers.items()
    spare = [name for name, one in set_up if one.base_url and name not in providers and models.keys.has(name)]
    own = {one for one in providers if one in _LOCAL_SERVERS or (_address(subject, one) and models.keys.has(one))}
    asked = [name for name in used if split_name(name)[0] in own]
    asked += [models.usual_model(name) or f"{name}/any" for name in spare]
    try:
        found = await asyncio.gather(*(_ask(subject, name, is_used=name in used) for name in asked))
    finally:
        await models.aclose()
    return [result for each in found for result in each]


def _address(subject: Subject, provider: str) -> str:
    """Return the address that the person set for a provider's server; empty for its own."""
    server = subject.config.settings.providers.get(provider)
    variable = subject.config.environment.get(_ADDRESS_VARIABLES.get(provider, ""), "")
    return (server.base_url if server else "") or variable


async def _ask(subject: Subject, name: str, *, is_used: bool) -> list[Result]:
    provider, model = split_name(name)
    found: list[Result] = []
    address, place = _address(subject, provider), f"providers.{provider}.base_url"
    host = urlsplit(address).hostname or ""
    if address.startswith("http://") and not is_loopback(host) and subject.models.keys.variables(provider):
        told = f"The key of {provider} goes to {host} unencrypted."
        found.append(("warning", told, f"Write https:// in {place}."))
    try:
        made = subject.models.provider(name)
        async with asyncio.timeout(_MAX_ANSWER_S):
            health = await made.health_check()
    except TimeoutError:
        health = Health(False, f"it did not answer within {_MAX_ANSWER_S:g} s")
    except AgentcliError as error:
        health = Health(False, str(error))
    if health.ok or (not is_used and health.models):
        window = getattr(made, "info", subject.models.info(name)).window
        if provider == "ollama" and window < _SMALL_WINDOW:
            asked = subject.config.settings.tokens.ollama_num_ctx
            told = f"{name} has a window of {window:,} tokens, which a file or two fill."
            mend = f"Set tokens.ollama_num_ctx to 32768 (now {asked}), or choose a model with a larger window."
            found.append(("warning", told, mend))
        return [*found, ("ok", f"{name}: {health.detail}", "")]
    mend = f"Start the server, or correct its address ({place}) or the model's name."
    if provider == "ollama":
        mend = f"Start it (ollama serve), and fetch the model: ollama pull {model}"
    end = "" if health.detail.endswith((".", "?")) else "."
    return [*found, ("problem" if is_used else "warning", f"{name}: {health.detail}{end}", mend)]
