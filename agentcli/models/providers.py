"""Finds the keys of providers, and builds providers from the settings, the environment and these keys."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from agentcli.errors import ConfigError, NoKey, UsageError, did_you_mean
from agentcli.llm.addresses import is_address, ollama_address
from agentcli.llm.models import PROVIDERS, ModelInfo, preset_rows, provider_names
from agentcli.llm.provider import Provider
from agentcli.settings.files import from_home
from agentcli.settings.keys import Key, KeyHelper
from agentcli.settings.load import Config
from agentcli.settings.structs import ServerSettings

SEARCH_KEY = "TAVILY_API_KEY"  # the key of the service that web_search uses
# By provider, the variable of its key, then that of its bearer token.
_VARIABLES = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK",),
    "foundry": ("ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_AUTH_TOKEN"),
}
_SIGNED_IN = ("bedrock", "vertex", "foundry")  # clouds: their own tools may have credentials
NO_ADDRESS = "this is not a server address; write http://HOST:PORT/PATH (or https)."
_LIBRARIES = {"bedrock": "boto3", "vertex": "google.auth"}  # with these the SDK signs requests


class ProviderKeys:
    """Finds, stores and removes the keys of providers."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._helpers: dict[str, KeyHelper] = {}

    def providers_that_take_keys(self) -> list[str]:
        names = dict.fromkeys(("anthropic", *preset_rows(), *_VARIABLES, *self._config.settings.providers))
        return [name for name in names if self.variables(name)]

    def variables(self, provider: str) -> tuple[str, ...]:
        """Return the variables of a provider's key, the usual one first; none if it needs no key."""
        server = self._server(provider)
        if defaults := _VARIABLES.get(provider):
            key, *tokens = defaults
            return (server.api_key_env or key, *tokens)
        # All other providers with code of their own (PROVIDERS), such as ollama, take no key; servers do, unless a
        # setting says that they need none.
        takes_key = server.needs_key is not False and provider not in PROVIDERS
        variable = server.api_key_env or preset_rows().get(provider, {}).get("key_env", "")
        return (variable,) if variable and takes_key else ()

    def places(self, provider: str) -> Iterator[tuple[str, str]]:
        """Yield each of a provider's variables with a description of where its value is. Raises `ConfigError`."""
        variables = self.variables(provider)
        if self._uses_helper(provider):
            yield variables[0] if variables else provider, f"from providers.{provider}.api_key_helper"
        else:
            yield from ((variable, self._config.key_source(variable)) for variable in variables)

    def place(self, provider: str) -> str:
        """Describe where the provider's key is that would be used; empty if there is none. Raises `ConfigError`."""
        return next((place for _, place in self.places(provider) if place), "")

    def can_use(self, provider: str) -> bool:
        """Return True if a provider can be used: it has a key, or needs none."""
        try:
            return not self.variables(provider) or bool(self.place(provider))
        except ConfigError:  # reported where the key is used
            return False

    def require(self, provider: str) -> None:
        """Raise `NoKey` if every request would fail without a key. A cloud may have other credentials."""
        variables = self.variables(provider)
        if variables and provider not in _SIGNED_IN and not self.place(provider):
            raise NoKey(provider, variables[0])

    def credentials(self, provider: str) -> tuple[Key, Key]:
        """Return a provider's key, or the command that prints it, and its bearer token. Raises `ConfigError`.

        A key typed in this session comes first, then the key and the token in the environment, then the key helper of
        the settings, then a stored key.
        """
        config = self._config
        if self._uses_helper(provider):
            setting = f"providers.{provider}.api_key_helper"
            helper = KeyHelper(
                self._server(provider).api_key_helper,
                # It runs outside of projects, whose files could change what it does.
                folder=config.paths.config if config.paths.config.is_dir() else Path.home(),
                make_error=lambda text: config.error(text, setting),
                on_key=config.stored_keys.printed.add,
            )
            return self._helpers.setdefault(provider, helper), ""  # one for all models: it reuses its key
        if not (variables := self.variables(provider)):
            return "", ""
        first, *token_variables = variables
        if first in config.stored_keys.typed:  # the person typed it in this session, so it is the newest
            return config.key(first), ""
        token = next(filter(config.key_in_environment, token_variables), "")
        uses_key = not token or config.key_in_environment(first)  # a token takes precedence over a stored key
        return (config.key(first) if uses_key else ""), (config.key(token) if token else "")

    def describe_all(self) -> list[str]:
        """Return a line for each key that is set, with its place but not its value. Raises `ConfigError`."""
        places = {name: place for provider in self.providers_that_take_keys() for name, place in self.places(provider)}
        places[SEARCH_KEY] = self._config.key_source(SEARCH_KEY)
        return [f"{name} {place}" for name, place in places.items() if place]

    def store(self, provider: str, variable: str, key: str) -> str:
        """Store a key, and return a sentence about its place. Raises `ConfigError`."""
        place = self._config.stored_keys.store(variable, key)
        message = f"The key for {provider} is {place}. To remove it: agentcli login --remove {provider}"
        if self._config.key_in_environment(variable):
            message += f"\nIn later sessions, {variable} in the environment overrides it."
        return message

    def remove(self, provider: str, variables: Sequence[str]) -> str:
        """Remove the keys that were stored or typed, and return a sentence. Raises `UsageError` if there are none."""
        places = [place for variable in variables if (place := self._config.stored_keys.remove(variable))]
        in_environment = next(filter(self._config.key_in_environment, variables), "")
        rest = f" {in_environment} in the environment still has one." if in_environment else ""
        if not places:
            raise UsageError(f"No key for {provider} is saved.{rest}")
        return f"Removed the key for {provider} ({places[0]}).{rest}"

    def _uses_helper(self, provider: str) -> bool:
        """Return True if a command prints the key: one is set, and no key was typed or is in the environment."""
        typed, in_environment = self._config.stored_keys.typed, self._config.key_in_environment
        has_key = any(name in typed or in_environment(name) for name in self.variables(provider))
        return bool(self._server(provider).api_key_helper) and not has_key

    def _server(self, provider: str) -> ServerSettings:
        return self._config.settings.providers.get(provider, ServerSettings())


def is_installed(module: str) -> bool:
    """Return True if a module can be imported, without importing it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


class ProviderMaker(msgspec.Struct):
    """Builds providers. `_on_notice` gets warnings, and the reasons for waits; `_local_path` finds a model's file."""

    _config: Config
    _keys: ProviderKeys
    _on_notice: Callable[[str], None]
    _local_path: Callable[[str], Path]

    def make(self, info: ModelInfo) -> Provider:
        """Return a new provider for a model. Raises `UsageError` or `ConfigError`."""
        provider, settings, timeout = info.provider, self._config.settings, self._config.settings.provider.read_timeout
        server = settings.providers.get(provider, ServerSettings())
        key, token = self._keys.credentials(provider)
        if provider in ("anthropic", "foundry") and server.key_header.lower() == "authorization":
            key, token = "", key or token  # the key is sent as a bearer token
        match provider:
            case "anthropic":
                from agentcli.llm.providers.anthropic import AnthropicProvider

                version = settings.provider.anthropic_version
                return AnthropicProvider(
                    info,
                    base_url=self._address(server, provider, "ANTHROPIC_BASE_URL") or "https://api.anthropic.com",
                    api_key=key,
                    auth_token=token,
                    headers=server.headers,
                    read_timeout=timeout,
                    uses_sdk=settings.provider.transport == "sdk",
                    **({"api_version": version} if version else {}),
                )
            case "bedrock" | "vertex" | "foundry":
                return self._make_cloud(info, server, key, token)
            case "ollama":
                from agentcli.llm.providers.ollama import OllamaProvider

                return OllamaProvider(
                    info,
                    base_url=self._address(server, provider, "OLLAMA_HOST"),
                    num_ctx=settings.tokens.ollama_num_ctx,
                    read_timeout=timeout,
                )
            case "local":
                return self._make_local(info)
            case "scripted":
                from agentcli.llm.providers.scripted import ScriptedProvider, read_script

                script = read_script(self._config.cwd / from_home(info.id))  # the id is the name of the script's file
                return ScriptedProvider(script, info=info, keeps=16)  # requests; only tests read all of them
            case _:
                return self._make_compatible(info, server, key)

    def _make_local(self, info: ModelInfo) -> Provider:
        from agentcli.llm.local_server import acquire
        from agentcli.llm.providers.local import LocalProvider

        settings, folder = self._config.settings, self._config.paths.state / "local"
        self._on_notice("A small model on this machine: expect mistakes.")
        start = partial(
            acquire,
            model_path=self._local_path(info.id),
            state_folder=folder,
            context=settings.local.context,
            linger_s=settings.local.linger,
            on_wait=self._on_notice,
        )
        return LocalProvider(info, start=start, read_timeout=settings.provider.read_timeout)

    def _make_cloud(self, info: ModelInfo, server: ServerSettings, key: Key, token: Key) -> Provider:
        """Return a provider for Claude in a cloud. Raises `UsageError` if a setting is missing."""
        environment = self._config.environment.get
        platform: Any = info.provider
        if (library := _LIBRARIES.get(platform)) and not is_installed(library):
            install = "pip install 'agentcli[cloud]' (or ./install.sh --extras cloud)"
            raise UsageError(f"{platform} needs the libraries of its cloud: {install}.")
        region = resource = project = ""
        address = self._address(server, platform, f"ANTHROPIC_{platform.upper()}_BASE_URL")
        match platform:
            case "bedrock":
                region = environment("AWS_REGION") or environment("AWS_DEFAULT_REGION") or ""
            case "vertex":
                region = environment("CLOUD_ML_REGION") or ""
                key, token = "", key or token  # Vertex takes only a token
                project = environment("ANTHROPIC_VERTEX_PROJECT_ID") or environment("GOOGLE_CLOUD_PROJECT") or ""
                if not region:
                    raise UsageError("vertex needs a region: set CLOUD_ML_REGION, such as us-east5 or global.")
                if (token or server.api_key_helper) and not project:  # Google's other credentials know theirs
                    raise UsageError("vertex needs a project: set ANTHROPIC_VERTEX_PROJECT_ID.")
            case "foundry":
                if not (key or token or server.api_key_helper or is_installed("azure.identity")):
                    raise NoKey(platform, "ANTHROPIC_FOUNDRY_API_KEY")
                resource = environment("ANTHROPIC_FOUNDRY_RESOURCE") or ""
                if not (resource or address):
                    variables = "ANTHROPIC_FOUNDRY_RESOURCE, or ANTHROPIC_FOUNDRY_BASE_URL"
                    raise UsageError(f"foundry needs the name of your resource: set {variables}.")
        from agentcli.llm.providers.anthropic import CloudProvider, Service

        service = Service(
            platform=platform,
            base_url=address,
            api_key=key,
            auth_token=token,
            region=region,
            project=project,
            resource=resource,
            headers=server.headers,
        )
        return CloudProvider(info, service=service, read_timeout=self._config.settings.provider.read_timeout)

    def _make_compatible(self, info: ModelInfo, server: ServerSettings, key: Key) -> Provider:
        """Return a provider for a server with an API like OpenAI's. Raises `UsageError` for an unknown provider."""
        from agentcli.llm.providers.openai_compat import OpenAICompatProvider, presets

        preset, provider = presets().get(info.provider), info.provider
        if preset is None and not server.base_url:
            raise UsageError(unknown_provider_message(provider, self._config))
        address = self._address(server, provider, "OPENAI_BASE_URL" if provider == "openai" else "")
        if provider == "azure":
            address = address or self._azure_address(info.id)
        return OpenAICompatProvider(
            info,
            preset=_apply_settings(preset, server),
            base_url=address,
            api_key=key,
            headers=server.headers,
            read_timeout=self._config.settings.provider.read_timeout,
        )

    def _azure_address(self, deployment: str) -> str:
        """Return the address of an Azure OpenAI resource; a dated API version has one for each deployment."""
        environment = self._config.environment.get
        resource, version = environment("AZURE_RESOURCE_NAME"), environment("OPENAI_API_VERSION")
        address = environment("AZURE_OPENAI_ENDPOINT") or (f"https://{resource}.openai.azure.com" if resource else "")
        if not address:
            raise UsageError(
                "azure needs the address of your resource: set AZURE_OPENAI_ENDPOINT, or providers.azure.base_url."
            )
        if not is_address(address):
            raise ConfigError(NO_ADDRESS, key="AZURE_OPENAI_ENDPOINT")
        base = address.rstrip("/").removesuffix("/openai/v1") + "/openai"
        return f"{base}/deployments/{quote(deployment)}?api-version={quote(version)}" if version else f"{base}/v1"

    def _address(self, server: ServerSettings, provider: str, variable: str) -> str:
        """Return the address in a provider's settings or its variable, "" if there is none. Raises `ConfigError`."""
        if server.base_url and not is_address(server.base_url):
            raise self._config.error(NO_ADDRESS, f"providers.{provider}.base_url")
        address = server.base_url or self._config.environment.get(variable, "").strip()
        if provider == "ollama":  # OLLAMA_HOST may be only a host or a port
            address = ollama_address(address)
        if address and not is_address(address):
            raise ConfigError(NO_ADDRESS, key=variable)
        return address


def unknown_provider_message(name: str, config: Config) -> str:
    known = list(dict.fromkeys((*provider_names(), *config.settings.providers)))
    return (
        f"Unknown provider {name!r}{did_you_mean(name, known)}. Choose one of {', '.join(known)}. For another "
        f"OpenAI-compatible server, set [providers.{name}] base_url in {config.paths.user_config}."
    )


def _apply_settings(preset: Any, server: ServerSettings) -> Any:
    """Return the preset of a server, or else an empty one, with the server's settings in it."""
    from agentcli.llm.providers.openai_compat import Preset

    # Without a preset a server needs no key, unless its settings name one.
    fields: dict[str, Any] = msgspec.to_builtins(preset or Preset(base_url=server.base_url, needs_key=False))
    fields["quirks"] |= server.quirks
    if server.api_key_env or server.api_key_helper:
        fields |= {"key_env": server.api_key_env or fields["key_env"], "needs_key": True}
    if server.needs_key is not None:
        fields["needs_key"] = server.needs_key
    if server.key_header:
        fields["key_header"] = server.key_header
    return msgspec.convert(fields, Preset)
