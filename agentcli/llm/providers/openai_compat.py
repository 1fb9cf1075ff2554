"""Any server that speaks Chat Completions or OpenAI's Responses API. presets.json lists servers' quirks."""

from collections.abc import AsyncGenerator, Mapping
from functools import cache

import msgspec

from agentcli.llm.errors import ProviderError
from agentcli.llm.http import HttpClient
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo, preset_rows
from agentcli.llm.provider import Health, Request, StreamEvent
from agentcli.llm.providers import BaseProvider
from agentcli.llm.streaming import stream_openai
from agentcli.llm.wire.chat_completions import Quirks, media_rules
from agentcli.settings.keys import Key


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A server: its address, the environment variable of its key, and its quirks."""

    base_url: str = ""
    key_env: str = ""
    key_header: str = "authorization"
    lists_models: bool = True  # a model that the server does not list does not exist
    needs_key: bool = True
    key_path: str = ""  # a path that, unlike `/models`, needs a valid key
    quirks: Quirks = Quirks()


@cache
def presets() -> dict[str, Preset]:
    return {name: msgspec.convert(row, Preset) for name, row in preset_rows().items()}


class OpenAICompatProvider(BaseProvider):
    """One model on one server. Token counts are estimates, because the protocol has no count."""

    _carrier: HttpClient

    def __init__(
        self,
        info: ModelInfo,
        *,
        preset: Preset,
        base_url: str = "",
        api_key: Key = "",
        headers: Mapping[str, str] | None = None,
        read_timeout: float = 600.0,
    ) -> None:
        # Only servers with this quirk get unsigned thinking back, and only that of replies with calls.
        super().__init__(msgspec.structs.replace(info, sends_back="calls" if preset.quirks.echo_reasoning else "none"))
        self._preset = preset
        self._carrier = HttpClient(
            base_url or preset.base_url,
            headers or {},
            key=api_key,
            key_header=preset.key_header,
            read_timeout=read_timeout,
        )
        if preset.needs_key and not api_key:
            variable_or_login = f"{preset.key_env}, or keep one with agentcli login {self.name}"
            remedy = variable_or_login if preset.key_env else f"providers.{self.name}.api_key_env"
            self._carrier.missing_key_problem = f"No key for {self.name}: set {remedy}."

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info, self._preset.quirks)

    def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        return stream_openai(self._carrier, request, self.info, self._preset.quirks)

    async def _check(self) -> Health:
        """List the server's models; first ask for `key_path`, which checks the key if the list needs none."""
        for path in filter(None, (self._preset.key_path, "/models")):
            try:
                listed = await self._carrier.fetch_json(path)
            except ProviderError as error:
                # A gateway may lack the first path, and the address of a single deployment has no list.
                if error.status != 404 or (path == "/models" and self._preset.lists_models):
                    raise
                listed = None
        if listed is None:  # from `/models`, the last path
            return Health(True, f"{self.name} answers, but only a request shows whether it accepts the key")
        rows = listed.get("data") if isinstance(listed, dict) else listed
        found = [row.get("id") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        ids = tuple(str(id).removeprefix("models/") for id in found)  # Gemini's ids have this prefix
        if ids and self.model not in ids and self._preset.lists_models:
            return Health(False, f"{self.name} has no model {self.model!r}; there is {', '.join(ids[:8])}", ids)
        return Health(True, f"{self.model} answers", ids)
