"""Knows where each provider's key comes from: typed, in the environment, from a command, or kept."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from agentcli.errors import ConfigError, NoKey
from agentcli.llm.providers.catalog import PROVIDERS, preset_rows
from agentcli.settings.keys import KeyHelper
from agentcli.settings.load import Config
from agentcli.settings.paths import home_of
from agentcli.settings.structs import ServerSettings

# The usual variable of the key first, then that of a bearer token.
_VARIABLES = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK",),
    "foundry": ("ANTHROPIC_FOUNDRY_API_KEY", "ANTHROPIC_FOUNDRY_AUTH_TOKEN"),
}
# Where the clouds' own tools keep what they sign in with: variables, and a file in the home folder.
_SIGNED_IN = {
    "bedrock": (("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"), ".aws/credentials"),
    "vertex": (("GOOGLE_APPLICATION_CREDENTIALS",), ".config/gcloud/application_default_credentials.json"),
    "foundry": (("AZURE_CLIENT_ID",), ".azure/azureProfile.json"),
}


class ProviderKeys:
    """The keys of all providers of one configuration."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._helpers: dict[str, KeyHelper] = {}

    def takers(self) -> list[str]:
        """Every provider that takes a key, the settings' own included."""
        names = dict.fromkeys(("anthropic", *preset_rows(), *_VARIABLES, *self._config.settings.providers))
        return [name for name in names if self.variables(name)]

    def variables(self, provider: str) -> tuple[str, ...]:
        """Where a provider's key is looked for, the usual variable first; empty for one that needs none."""
        server = self._server(provider)
        if usual := _VARIABLES.get(provider):
            return (server.api_key_env or usual[0], *usual[1:])
        if provider in PROVIDERS:
            return ()
        variable = server.api_key_env or preset_rows().get(provider, {}).get("key_env", "")
        takes_one = bool(variable) if server.needs_key is None else server.needs_key
        return (variable,) if variable and takes_one else ()

    def places(self, provider: str) -> Iterator[tuple[str, str]]:
        """Each of a provider's variables, and where what it stands for comes from, in words. Raises `ConfigError`."""
        if self._server(provider).api_key_helper and not self._is_at_hand(provider):
            variable = next(iter(self.variables(provider)), provider)
            yield variable, f"from providers.{provider}.api_key_helper"
            return
        for variable in self.variables(provider):
            yield variable, self._config.place_of_key(variable)

    def place(self, provider: str) -> str:
        """Where a provider's key comes from, in words; empty where there is none. Raises `ConfigError`."""
        return next((place for _, place in self.places(provider) if place), "")

    def sign_in(self, provider: str) -> str:
        """What a cloud's own tools have to sign in with, in words; empty where none of it is seen."""
        variables, file = _SIGNED_IN.get(provider, ((), ""))
        if found := next(filter(self._config.environment.get, variables), ""):
            return f"{found} in the environment"
        path = home_of(self._config.environment) / file
        return str(path) if file and path.is_file() else ""

    def has(self, provider: str) -> bool:
        """True also for one that needs none."""
        try:
            return not self.variables(provider) or bool(self.place(provider))
        except ConfigError:  # told where the key is asked for
            return False

    def require(self, provider: str) -> None:
        """Raises `NoKey` where a request could only fail for want of one. A cloud may know who asks without a key."""
        variables = self.variables(provider)
        if variables and provider not in _SIGNED_IN and not self.place(provider):
            raise NoKey(provider, variables[0])

    def key(self, provider: str) -> tuple[str, str]:
        """A provider's key and its bearer token, as far as they are there. Raises `ConfigError`."""
        config = self._config
        if not (variables := self.variables(provider)):
            return "", ""
        first, *others = variables
        if config.kept_keys.typed(first):
            return config.key(first), ""
        token = next(filter(config.key_in_environment, others), "")
        is_alone = not token or config.key_in_environment(first)
        return (config.key(first) if is_alone else ""), config.key(token) if token else ""

    def helper(self, provider: str) -> KeyHelper | None:
        """The command that has the key, where one is set and no key is nearer at hand."""
        command = self._server(provider).api_key_helper
        if not command or self._is_at_hand(provider):
            return None
        if provider not in self._helpers:
            folder = self._config.paths.config
            self._helpers[provider] = KeyHelper(
                command,
                folder=folder if folder.is_dir() else Path.home(),
                error=lambda message: self._config.error(message, f"providers.{provider}.api_key_helper"),
                on_key=self._config.kept_keys.see,
            )
        return self._helpers[provider]

    def _is_at_hand(self, provider: str) -> bool:
        """True if the key was typed or is in the environment, which a command and a kept key give way to."""
        config = self._config
        return any(config.kept_keys.typed(name) or config.key_in_environment(name) for name in self.variables(provider))

    def _server(self, provider: str) -> ServerSettings:
        return self._config.settings.providers.get(provider, ServerSettings())


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package around it
        return False
