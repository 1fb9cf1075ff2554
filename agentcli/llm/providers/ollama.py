"""Ollama through its native API, because its other one has no window size."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from agentcli.llm.addresses import ollama_address
from agentcli.llm.errors import BadRequest
from agentcli.llm.http import HttpClient
from agentcli.llm.media import MediaRules
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, StreamEvent
from agentcli.llm.providers.base import BaseProvider
from agentcli.llm.streaming import LineParser, stream_reply
from agentcli.llm.wire.ollama import OllamaReader, media_rules, to_body
from agentcli.llm.wire.reply_parts import CallIds

BASE_URL = "http://127.0.0.1:11434"


class OllamaProvider(BaseProvider):
    """One model on an Ollama server. `num_ctx` is the window to use, if the model can have such a large one."""

    _carrier: HttpClient

    def __init__(
        self,
        info: ModelInfo,
        *,
        base_url: str = BASE_URL,
        num_ctx: int = 32_768,
        read_timeout: float = 600.0,
    ) -> None:
        super().__init__(msgspec.structs.replace(info, window=num_ctx, max_output=min(info.max_output, num_ctx // 2)))
        self._was_shown = False
        self._carrier = HttpClient(ollama_address(base_url), {}, read_timeout=read_timeout)

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info)

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        if not self._was_shown:
            await self._learn()
        if request.tools and not self.info.takes_tools:
            raise BadRequest(f"{self.model} cannot call tools: choose another model, or give it --tools none.")
        stream = stream_reply(
            self._carrier,
            "/api/chat",
            request,
            build=lambda: to_body(request, self.info),
            reader=OllamaReader(request, self.info, ids=CallIds(request.messages)),
            parser=LineParser(),
            content_type="ndjson",
        )
        async with aclosing(stream) as events:
            async for event in events:
                yield event

    async def _learn(self) -> None:
        shown = await self._carrier.fetch_json("/api/show", {"model": self.model})
        self._was_shown = True
        self.info = with_abilities(self.info, shown if isinstance(shown, dict) else {})

    async def _check(self) -> None:
        await self._learn()


def with_abilities(info: ModelInfo, shown: dict[str, Any]) -> ModelInfo:
    """Return `info` with the abilities and the window that `/api/show` answered."""
    details = shown.get("model_info")
    details = details if isinstance(details, dict) else {}
    largest = next((v for k, v in details.items() if k.endswith(".context_length") and isinstance(v, int)), 0)
    can = shown.get("capabilities")
    if isinstance(can, list):
        effort = details.get("general.architecture") == "gptoss"
        thinking = ("effort" if effort else "toggle") if "thinking" in can else "none"
        info = msgspec.structs.replace(
            info, thinking=thinking, takes_images="vision" in can, takes_tools="tools" in can, is_known=True
        )
    return msgspec.structs.replace(info, window=min(info.window, largest) if largest else info.window)
