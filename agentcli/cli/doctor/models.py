"""Checks which model answers, its key, and the servers whose addresses the person set."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from agentcli.cli.doctor.finding import Check, Said, Subject, ok, problem, warning
from agentcli.cli.keys import SEARCH_KEY
from agentcli.cli.subcommands.shared import wait_for
from agentcli.errors import AgentcliError, ConfigError, NoKey, did_you_mean
from agentcli.llm.provider import Health
from agentcli.llm.proxies import proxy_for
from agentcli.llm.server_address import is_loopback
from agentcli.models.choice import NoModel, split_name

_LONGEST_ANSWER_S = 3.0
_SMALL_WINDOW = 16_384  # tokens; the system text and the tools take about 2,000, a file or two the rest
_HERE = ("ollama", "lmstudio", "vllm")  # servers that run on this machine unless an address says otherwise
_ADDRESS_VARIABLES = {"anthropic": "ANTHROPIC_BASE_URL", "openai": "OPENAI_BASE_URL", "ollama": "OLLAMA_HOST"}
_STRAY = re.compile(r"\s|^['\"]|['\"]$|[^\x21-\x7e]")


def model(subject: Subject) -> Iterator[Said]:
    """The one that answers when none is named."""
    try:
        models = subject.models
        name = wait_for(models.default())
        known = models.info(name)
        models.require_key(name)
    except NoModel as none:
        told, _, ways = str(none).partition(" Three ")
        yield problem(told, f"Three {ways}")
        return
    except NoKey as none:
        told, _, mend = str(none).partition(": ")
        yield problem(f"{told}.", mend)
        return
    except AgentcliError as error:
        yield problem(str(error), "Correct it there; agentcli models list shows what is known.")
        return
    if known.provider == "local" and not (models.local_path(known.id).is_file() and find_spec("xllamacpp")):
        mend = "./install.sh --extras local && agentcli local install, or name another GGUF file."
        yield problem(f"{name}: its engine or its weights are not installed ({models.local_path(known.id)}).", mend)
    others = [info.id for info in models.table() if info.provider == known.provider]
    if others and not known.is_known and known.provider != "local":
        yield warning(
            f"{name} is in no table{did_you_mean(known.id, others)}: its window and price are guesses.",
            "Correct its name (agentcli models list), or describe it in [models] of the settings.",
        )
    if (second := subject.config.settings.provider.fallback_model) and not models.keys.has(split_name(second)[0]):
        yield warning(f"{second}, which is to answer in its place, has no key.", "agentcli login, or name another one.")
    yield ok(name)


def key_texts(subject: Subject) -> Iterator[Said]:
    """Keys that were copied together with what stood around them."""
    try:
        variables = [
            name for provider in subject.models.keys.takers() for name in subject.models.keys.variables(provider)
        ]
    except ConfigError:  # told with the model
        variables = []
    given = {name: subject.config.key_in_environment(name) for name in (*variables, SEARCH_KEY)}
    kept = dict.fromkeys(subject.config.kept_keys.values, f"a key in {subject.config.paths.credentials}")
    for key, place in ({key: name for name, key in given.items()} | kept).items():
        if _STRAY.search(key):
            yield problem(
                f"{place} holds quotes, spaces, line ends or other characters that no key has.",
                "Set it anew without them; agentcli login PROVIDER tries it first.",
            )


def servers(subject: Subject) -> list[Said]:
    """Whether those answer whose address was set, or that run here; a key goes to nobody but its own provider."""
    return wait_for(_ask_servers(subject))


async def _ask_servers(subject: Subject) -> list[Said]:
    try:
        models = subject.models
        used = [await models.default()]
    except AgentcliError:  # told with the model
        return []
    used += filter(None, [subject.config.settings.provider.fallback_model])
    set_up = [name for name, server in subject.config.settings.providers.items() if server.base_url]
    spare = [name for name in set_up if name not in {split_name(name)[0] for name in used} and models.keys.has(name)]
    asked = [name for name in used if _is_asked(subject, split_name(name)[0])]
    asked += [models.usual_model(name) or f"{name}/any" for name in spare]
    try:
        found = await asyncio.gather(*(_ask(subject, name, is_used=name in used) for name in asked))
    finally:
        await models.aclose()
    return [said for each in found for said in each]


def _is_asked(subject: Subject, provider: str) -> bool:
    is_set = bool(_address(subject, provider))
    return provider in _HERE or (is_set and subject.models.keys.has(provider))


def _address(subject: Subject, provider: str) -> str:
    """Where the person says that a provider's server is; empty for its own address."""
    server = subject.config.settings.providers.get(provider)
    variable = subject.config.environment.get(_ADDRESS_VARIABLES.get(provider, ""), "")
    return (server.base_url if server else "") or variable


async def _ask(subject: Subject, name: str, *, is_used: bool) -> list[Said]:
    provider, model = split_name(name)
    found: list[Said] = []
    address, place = _address(subject, provider), f"providers.{provider}.base_url"
    host = urlsplit(address).hostname or ""
    if address.startswith("http://") and not is_loopback(host) and subject.models.keys.variables(provider):
        found.append(warning(f"The key of {provider} goes to {host} unencrypted.", f"Write https:// in {place}."))
    try:
        made = subject.models.provider(name)
        async with asyncio.timeout(_LONGEST_ANSWER_S):
            health = await made.health_check()
    except TimeoutError:
        health = Health(False, f"it did not answer within {_LONGEST_ANSWER_S:g} s")
    except AgentcliError as error:
        health = Health(False, str(error))
    if health.ok or (not is_used and health.models):
        window = getattr(made, "info", subject.models.info(name)).window
        if provider == "ollama" and window < _SMALL_WINDOW:
            asked = subject.config.settings.tokens.ollama_num_ctx
            mend = f"Set tokens.ollama_num_ctx to 32768 (now {asked}), or choose a model with a larger window."
            found.append(warning(f"{name} has a window of {window:,} tokens, which a file or two fill.", mend))
        return [*found, ok(f"{name}: {health.detail}")]
    mend = f"Start the server, or correct its address ({place}) or the model's name."
    if provider == "ollama":
        mend = f"Start it (ollama serve), and fetch the model: ollama pull {model}"
    return [*found, (problem if is_used else warning)(f"{name}: {health.detail}.", mend)]


def proxies(subject: Subject) -> Iterator[Said]:
    for scheme in ("http", "https"):
        try:
            proxy_for(f"{scheme}://agentcli.invalid")
        except ConfigError as error:
            yield problem(str(error), "Write it as http://HOST:PORT, or unset it.")


def certificates(subject: Subject) -> Iterator[Said]:
    """What is set in place of the system's certificates."""
    for variable in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        given = subject.config.environment.get(variable, "")
        if given and not (Path(given).is_file() if variable == "SSL_CERT_FILE" else Path(given).is_dir()):
            yield problem(
                f"{variable}: {given} is not there, so no server is trusted.", f"Correct or unset {variable}."
            )
            return
    if given := subject.config.environment.get("SSL_CERT_FILE", ""):
        try:
            import ssl  # a Python without it is found by its own check

            ssl.create_default_context(cafile=given)
        except (ImportError, OSError) as error:  # SSLError is an OSError
            yield problem(f"SSL_CERT_FILE: {given} holds no certificates ({error}).", "Correct or unset SSL_CERT_FILE.")


CHECKS: dict[str, Check] = {
    "model": model,
    "key texts": key_texts,
    "servers": servers,
    "proxies": proxies,
    "certificates": certificates,
}
