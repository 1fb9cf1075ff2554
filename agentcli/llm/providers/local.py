"""The embedded model: llama.cpp's server in a child process, started on demand and shared between programs."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agentcli.errors import UserError
from agentcli.llm.block_edits import block_edits
from agentcli.llm.chat_completions import stream_chat
from agentcli.llm.errors import BadRequest, ProviderError
from agentcli.llm.http import HttpClient
from agentcli.llm.local_server.server import acquire
from agentcli.llm.media import MediaRules
from agentcli.llm.messages import Message, Text, ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import (
    Done,
    Health,
    Request,
    StreamEvent,
    TextDelta,
    TokenCount,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    complete,
)
from agentcli.llm.tokens.estimates import estimate
from agentcli.llm.wire.openai_request import Quirks, media_rules

log = logging.getLogger(__name__)

# Small models also write their calls as plain text; a temperature of 0 made the most of their calls right.
QUIRKS = Quirks(read_text_calls=True, null_content=False, images=0, extra_body={"temperature": 0, "cache_prompt": True})


class Server(Protocol):
    """A running model server that stays up until it is released."""

    base_url: str
    api_key: str

    @property
    def is_running(self) -> bool: ...

    def release(self) -> None: ...


class LocalProvider:
    """The model of one server. `start` gives the server, when the first request comes or the one before has died."""

    name = "local"

    def __init__(self, info: ModelInfo, *, start: Callable[[], Awaitable[Server]], read_timeout: float = 600.0) -> None:
        self.info = msgspec.structs.replace(info, sends_back="none")
        self._start = start
        self._read_timeout = read_timeout
        self._server: Server | None = None
        self._http: HttpClient | None = None
        self._starting = asyncio.Lock()

    @property
    def model(self) -> str:
        return self.info.id

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info, QUIRKS)

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        http = await self._connected()
        async with aclosing(stream_chat(http, request, info=self.info, provider=self.name, quirks=QUIRKS)) as events:
            async for event in events:
                if isinstance(event, Done) and (end := missing_fence(event.message)):
                    yield TextDelta(end)
                    event = with_text(event, end)
                if isinstance(event, Done) and not event.message.tool_uses:
                    calls = [
                        ToolUse(f"call_{secrets.token_hex(6)}", name, given) for name, given in _edits(event, request)
                    ]
                    for call in calls:
                        yield ToolCallStarted(call.id, call.name)
                        yield ToolCallDelta(call.id, msgspec.json.encode(call.input).decode())
                        yield ToolCallEnded(call.id)
                    event = with_calls(event, calls) if calls else event
                yield event

    async def warm(self, request: Request) -> None:
        """Start the server and let it read the fixed beginning of `request`, so that a first answer need not wait."""
        try:
            await complete(self, msgspec.structs.replace(request, max_tokens=1))
        except ProviderError:
            log.debug("warming failed", exc_info=True)  # the first prompt will tell

    async def _connected(self) -> HttpClient:
        async with self._starting:
            if self._server is not None and not self._server.is_running:
                await self.aclose()
            if self._http is None:
                try:
                    self._server = await self._start()
                except UserError as error:
                    raise BadRequest(str(error)) from error
                key = {"authorization": f"Bearer {self._server.api_key}"}
                self._http = HttpClient(self._server.base_url, key, read_timeout=self._read_timeout)
            return self._http

    async def count_tokens(self, request: Request) -> TokenCount:
        return estimate(request, self.info)

    async def health_check(self) -> Health:
        try:
            http = await self._connected()
            await http.get_json("/models")
        except ProviderError as error:
            return Health(False, str(error))
        return Health(True, f"{self.model} answers, window {self.info.window:,} tokens")

    async def aclose(self) -> None:
        http, self._http = self._http, None
        server, self._server = self._server, None
        if http is not None:
            await http.aclose()
        if server is not None:
            server.release()


def server_starter(
    *, model_path: Path, state_folder: Path, context: int, linger_s: float, on_wait: Callable[[str], None] | None
) -> Callable[[], Awaitable[Server]]:
    """How a GGUF file is served: by the server that runs for it already, else by a new one."""

    async def start() -> Server:
        return await acquire(
            model_path=model_path, state_folder=state_folder, context=context, linger_s=linger_s, on_wait=on_wait
        )

    return start


def missing_fence(message: Message) -> str:
    """The end of a code block that the server held back, taking it for the beginning of a call."""
    return "\n```" if message.text.count("```") % 2 and not message.tool_uses else ""


def _edits(done: Done, request: Request) -> list[tuple[str, dict[str, Any]]]:
    can_edit = any(tool.name == "file_edit" for tool in request.tools)
    return block_edits(done.message.text, request) if can_edit and "```" in done.message.text else []


def with_calls(done: Done, calls: Sequence[ToolUse]) -> Done:
    message = Message("assistant", (*done.message.content, *calls))
    return msgspec.structs.replace(done, message=message, stop_reason="end_turn")


def with_text(done: Done, text: str) -> Done:
    blocks = list(done.message.content)
    blocks[-1] = Text(done.message.text + text)
    return msgspec.structs.replace(done, message=Message("assistant", tuple(blocks)))
