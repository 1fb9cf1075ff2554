"""Chooses the model that answers: the named one, or else the first one found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from agentcli.errors import NoModel, UsageError, did_you_mean
from agentcli.llm import models as catalog
from agentcli.llm.addresses import is_header_name, ollama_address
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Health, Provider
from agentcli.models.providers import ProviderKeys, ProviderMaker, unknown_provider_message
from agentcli.settings.check import find_error, unknown_setting
from agentcli.settings.files import current_folder, from_home
from agentcli.settings.keys import StoredKeys, split_command
from agentcli.settings.load import Config, load_config
from agentcli.settings.structs import ServerSettings

if TYPE_CHECKING:
    from agentcli.llm.token_encoders import Encoders

KEYED_MODELS = (  # the variable of a key, and the model that answers if only this key is set
    ("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-5-5"),
    ("ANTHROPIC_AUTH_TOKEN", "anthropic/claude-sonnet-5-5"),
    ("OPENAI_API_KEY", "openai/gpt-6.1-sol"),
    ("DEEPSEEK_API_KEY", "deepseek/deepseek-v4-pro"),
    ("GEMINI_API_KEY", "gemini/gemini-3.8-flash"),
)
# The models that answer if only the provider, a cloud, is known; each cloud names models in its own way.
_CLOUD_MODELS = ("bedrock/global.anthropic.claude-sonnet-5-5", "vertex/claude-sonnet-5-5", "foundry/claude-sonnet-5-5")
EMBEDDED = "local/qwen2.5-coder-1.5b-instruct-q4_k_m"
KEY_TEST_S = 30.0  # importing the SDK of a cloud may take seconds of it
PROBE_S = 0.3  # a server on this machine must answer within this time

_FIXED_FIELDS = ("id", "provider", "is_known", "sends_back")  # fields of a model that a row in the settings cannot set

NO_MODEL = """No model is set up. Three ways to connect one:
  an API key        agentcli login, or export ANTHROPIC_API_KEY=… (or OPENAI_API_KEY, GEMINI_API_KEY, DEEPSEEK_API_KEY)
  your own server   start Ollama or LM Studio with a model, or name one with -m ollama/MODEL
  the built-in one  agentcli local install (about 1.2 GB, runs on this machine)
To take a tour without a model: agentcli demo"""


def check_settings(config: Config) -> None:
    """Raise `ConfigError` for wrong settings of providers and models, and for unknown providers or model fields."""
    settings, usable = config.settings, catalog.provider_names()  # `usable`: they need no table [providers.NAME]
    for name, server in settings.providers.items():
        if not server.base_url and name not in usable:
            why = f"base_url is missing{did_you_mean(name, usable)}. Without it, choose one of {', '.join(usable)}."
            raise config.error(why, f"providers.{name}")
        _check_server(name, server, config)
    fields = [field for field in ModelInfo.__struct_fields__ if field not in _FIXED_FIELDS]
    for name, rows in settings.models.items():
        if name not in usable and name not in settings.providers:
            raise config.error(unknown_provider_message(name, config), f"models.{name}")
        for model, row in rows.items():
            key = f"models.{name}.{model}"
            if unknown := next((field for field in row if field not in fields), ""):
                raise config.error(unknown_setting(unknown, fields), f"{key}.{unknown}")
            if problem := find_error({**row, "id": "", "provider": ""}, ModelInfo, key):  # the two required fields
                wrong_key, message = problem
                raise config.error(message, wrong_key)
    known = {*usable, *catalog.PROVIDERS, *settings.providers}  # PROVIDERS adds only openai_compat to the usable ones
    for key in ("model", "plan_model", "fallback_model"):
        if model := getattr(settings.provider, key):
            try:
                name, _ = split_name(model)
            except UsageError as error:
                raise config.error(str(error), f"provider.{key}") from error
            if name not in known:
                raise config.error(unknown_provider_message(name, config), f"provider.{key}")


def _check_server(name: str, server: ServerSettings, config: Config) -> None:
    """Raise `ConfigError` for an invalid header name, key helper or quirk in a table `[providers.NAME]`."""
    key = f"providers.{name}"
    headers = [(header, "headers") for header in server.headers]
    if server.key_header:
        headers.append((server.key_header, "key_header"))
    for header, setting in headers:
        if not is_header_name(header):
            raise config.error(f"{header!r} is not a valid header name. Write one such as X-Title.", f"{key}.{setting}")
    if command := server.api_key_helper:
        split_command(command, lambda message: config.error(message, f"{key}.api_key_helper"))
    if server.quirks and name in catalog.PROVIDERS:
        raise config.error(f"{name} has none: they apply only to servers that use Chat Completions.", f"{key}.quirks")
    if server.quirks:
        from agentcli.llm.wire.chat_completions import Quirks

        if problem := find_error(server.quirks, Quirks, f"{key}.quirks"):
            wrong_key, message = problem
            raise config.error(message, wrong_key)


class Models:
    """The models that can be named: their providers, one for each `provider/model`, and the facts about them.

    `on_notice` is called with texts for the person, such as the reason why they must wait.
    """

    def __init__(self, config: Config, *, on_notice: Callable[[str], None] = lambda text: None) -> None:
        self._config = config
        self._providers: dict[str, Provider] = {}
        self._replaced: list[Provider] = []  # not yet closed, because a request may still use them
        self._added: dict[str, Provider] = {}  # callers' own, by `provider/model`
        self.keys = ProviderKeys(config)
        self._maker = ProviderMaker(config, self.keys, on_notice, self.local_path)
        check_settings(config)

    def add_provider(self, provider: Provider) -> str:
        """Add a caller's own provider, and return the name of its model."""
        name = f"{provider.name}/{provider.model}"
        self._added[name] = provider
        return name

    async def default(self) -> str:
        """Return the configured model, else the first one found. Raises `NoModel` with the ways to get one."""
        settings = self._config.settings
        if settings.provider.model:
            return "/".join(split_name(settings.provider.model))
        with_helper = [name for name, server in settings.providers.items() if server.api_key_helper]
        # A key in the environment comes first, then a command that prints one, then a stored one.
        keyed_models = chain(
            (model for variable, model in KEYED_MODELS if self._config.key_in_environment(variable)),
            (model for _, model in KEYED_MODELS if model.partition("/")[0] in with_helper),
            (model for variable, model in KEYED_MODELS if self._config.stored_keys.place(variable)),
        )
        if keyed := next(keyed_models, ""):
            named = self._config.environment.get("ANTHROPIC_MODEL")
            return f"anthropic/{named}" if named and keyed.startswith("anthropic/") else keyed
        if running := await self.local_models():
            return running[0]
        if find_spec("xllamacpp") and self.embedded_path().is_file():
            return EMBEDDED
        raise NoModel(NO_MODEL)

    async def local_models(self) -> list[str]:
        """Return the models of Ollama and LM Studio, if they run on this machine."""
        ollama = ollama_address(self._config.environment.get("OLLAMA_HOST", ""))
        answers = await asyncio.gather(
            _ask_server(ollama, "/api/tags"), _ask_server("http://127.0.0.1:1234", "/v1/models")
        )
        names: list[str] = []
        # They answer {"models": [{"name": …}, …]}, and {"data": [{"id": …}, …]}.
        forms = (("ollama", "models", "name"), ("lmstudio", "data", "id"))
        for (provider, rows_key, name_key), answer in zip(forms, answers, strict=True):
            with suppress(msgspec.ValidationError):
                rows = msgspec.convert(answer, dict[str, Any]).get(rows_key)
                models = [row.get(name_key) for row in msgspec.convert(rows, list[dict[str, Any]])]
                names += [f"{provider}/{model}" for model in models if isinstance(model, str) and model]
        return names

    def require_key(self, name: str) -> None:
        """Raise `NoKey` if every request to `provider/model` would fail without a key."""
        self.keys.require(split_name(name)[0])

    async def try_key(self, provider: str, key: str) -> Health:
        """Ask the provider whether it accepts a key. This costs no tokens."""
        only_this_key = StoredKeys()
        only_this_key.typed[self.keys.variables(provider)[0]] = key
        models = Models(msgspec.structs.replace(self._config, stored_keys=only_this_key))
        # The check asks for the list of models, so it needs no model that exists.
        model = self.usual_model(provider) or f"{provider}/any"
        try:
            async with asyncio.timeout(KEY_TEST_S):
                health = await models.provider(model).health_check()
        except TimeoutError:
            return Health(False, f"{provider} did not answer within {KEY_TEST_S:g} s", is_reached=False)
        finally:
            await models.aclose()
        if health.models:  # only a key that is accepted gets the list, even if `model` is not in it
            return Health(True, f"{provider} accepts the key and lists {len(health.models):,} models", health.models)
        return health

    def usual_model(self, provider: str) -> str:
        """Return the model that answers if only the provider is known; empty if there is none."""
        names = chain((model for _, model in KEYED_MODELS), _CLOUD_MODELS, (info.name for info in self.table()))
        return next((name for name in names if name.startswith(f"{provider}/")), "")

    def forget(self, provider: str) -> None:
        """Forget the provider's objects, so that its next use builds one with its current key."""
        names = [name for name in self._providers if name.startswith(f"{provider}/")]
        self._replaced += [self._providers.pop(name) for name in names]

    def info(self, name: str) -> ModelInfo:
        """Return the facts about `provider/model`. Raises `UsageError`, and `ConfigError` for a wrong encoder file."""
        info_of_added: ModelInfo | None = getattr(self._added.get(name), "info", None)
        if info_of_added is not None:
            return info_of_added
        provider, model = split_name(name)
        known = self.table().find(provider, model)
        # Each estimate contains the factor `SAFETY`, which a margin in the person's encoder file replaces.
        if self._config.settings.tokens.encoders and (margin := self.encoders.file_margin(name)):
            known = msgspec.structs.replace(known, token_factor=known.token_factor * margin / catalog.SAFETY)
        match provider:
            case "local":
                window = self._config.settings.local.context
                return msgspec.structs.replace(known, window=window, max_output=min(2_048, window // 2), small=True)
            case "scripted":
                return msgspec.structs.replace(known, takes_images=True, prices=known.prices or catalog.Prices())
            case "vertex" if known.prices and self._config.environment.get("CLOUD_ML_REGION") != "global":
                return msgspec.structs.replace(known, prices=known.prices.times(catalog.REGIONAL))
            case _:
                return known

    def small_model(self, name: str) -> str:
        """Return the small model of a model's provider if it is cheaper, else `name`."""
        if name in self._added:  # a caller's provider is for one model
            return name
        provider, info = split_name(name)[0], self.info(name)
        small = self.info(f"{provider}/small")
        is_resolved = small.id != "small"  # clouds have their own model names, so it means nothing there
        is_cheaper = info.prices and small.prices and small.prices.output < info.prices.output
        return small.name if is_resolved and is_cheaper else name

    def table(self) -> catalog.ModelTable:
        """Return the bundled models, in which the user's rows replace others."""
        bundled, rows = catalog.bundled_models(), self._config.settings.models
        return catalog.ModelTable([*bundled, *catalog.model_rows(rows)]) if rows else bundled

    @cached_property
    def encoders(self) -> Encoders:
        """The token encoders of all models. Raises `ConfigError` if the person's file is not valid."""
        from agentcli.llm.token_encoders import encoders

        file = self._config.settings.tokens.encoders
        return encoders.with_file(self._config.paths.config / from_home(file, "tokens.encoders")) if file else encoders

    def count_texts(self, texts: Sequence[str], info: ModelInfo) -> int:
        from agentcli.llm.token_encoders import text_tokens

        return text_tokens(texts, info.id, self.encoders)

    def provider(self, name: str) -> Provider:
        """Return the provider of `provider/model`. Raises `UsageError` or `ConfigError`."""
        if name not in self._added and name not in self._providers:
            self._providers[name] = self._maker.make(self.info(name))
        return self._added.get(name) or self._providers[name]

    def embedded_path(self) -> Path:
        return self._config.paths.models / "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"

    def local_path(self, model: str) -> Path:
        """Return the GGUF file of `local/MODEL`: a path, or the installed (or configured) one."""
        if model.endswith(".gguf"):
            return self._config.cwd / from_home(model)
        configured = self._config.settings.local.model
        return from_home(configured, "local.model") if configured else self.embedded_path()

    async def aclose(self) -> None:
        for provider in (*self._replaced, *self._providers.values()):
            await provider.aclose()


def create_provider(name: str, *, model: str | ModelInfo, api_key: str = "", **server: Any) -> Provider:
    """Return a provider for one model, for an `Agent` or to send requests to; `aclose` it at the end.

        provider = create_provider("anthropic", model="claude-sonnet-5-5", api_key=key)
        provider = create_provider("house", model="llama", base_url="http://10.0.0.7:8000/v1")

    `name` is a bundled provider or one of the settings; with a `base_url` it may be any, for a server that speaks Chat
    Completions. `model` is its name there, or a `ModelInfo` if you know more about it. `server` are keys of
    `[providers.NAME]`, overriding the settings. Raises `ConfigError`, or `UsageError` (e.g. a missing key).
    """
    if api_key and name not in catalog.provider_names():  # its key needs the name of a variable
        server = {"api_key_env": "API_KEY"} | server
    config = load_config(current_folder(), flags={"providers": {name: server}} if server else {}, caller="arguments")
    models = Models(config)
    if api_key:
        if not (variables := models.keys.variables(name)):
            raise UsageError(f"{name} takes no API key.")
        config.stored_keys.typed[variables[0]] = api_key
    models.keys.require(name)
    info = models.info(f"{name}/{model}") if isinstance(model, str) else msgspec.structs.replace(model, provider=name)
    return ProviderMaker(config, models.keys, lambda text: None, models.local_path).make(info)


def split_name(name: str) -> tuple[str, str]:
    """Return the provider and the id of a model: of `provider/model`, or of a bundled model's id or alias (`opus`).

    A name that begins with `claude-` is Anthropic's. Raises `UsageError`.
    """
    name = name.removesuffix("[1m]")  # Claude Code's mark of a window of a million tokens
    provider, slash, model = name.partition("/")
    if not slash and (info := catalog.bundled_models().find_short(name)):
        return info.provider, info.id
    if not slash and name.startswith("claude-"):
        return "anthropic", name
    if not provider or not model:
        raise UsageError(
            f"{name!r} is not a model. Write PROVIDER/MODEL, such as anthropic/claude-sonnet-5-5, or sonnet."
        )
    return provider, model


async def _ask_server(address: str, path: str) -> Any:
    """Return the JSON answer of a server on this machine, or None.

    This does not use the HTTP client, whose import takes longer than the answer.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or 80
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            answer = await reader.read()  # to the end: HTTP/1.0 closes the connection after it
            writer.close()
        return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
    except (OSError, ValueError):
        return None
