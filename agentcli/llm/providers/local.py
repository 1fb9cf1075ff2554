"""The embedded model: llama.cpp's server in a child process, started on demand and shared between programs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import msgspec

from agentcli.errors import UserError
from agentcli.llm.block_edits import block_edits
from agentcli.llm.errors import BadRequest, ProviderError
from agentcli.llm.http import HttpClient
from agentcli.llm.media import MediaRules
from agentcli.llm.messages import Message, Text, ToolUse
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Done, Request, StreamEvent, TextDelta
from agentcli.llm.providers import BaseProvider
from agentcli.llm.streaming import stream_openai
from agentcli.llm.wire.chat_completions import Quirks, media_rules
from agentcli.llm.wire.reply_parts import CallIds, call_events

if TYPE_CHECKING:
    from agentcli.llm.local_server import LocalServer


# Small models also write their calls as plain text. With a temperature of 0, most of their calls were right.
QUIRKS = Quirks(
    read_text_calls=True,
    null_content=False,
    images=0,
    extra_body={"temperature": 0, "cache_prompt": True, "return_progress": True},
)


class LocalProvider(BaseProvider):
    """The model of one server. `start` returns the server for the first request, and again if the server has ended."""

    def __init__(
        self, info: ModelInfo, *, start: Callable[[], Awaitable["LocalServer"]], read_timeout: float = 600.0
    ) -> None:
        super().__init__(msgspec.structs.replace(info, sends_back="none"))
        self._start, self._read_timeout = start, read_timeout
        self._server: LocalServer | None = None
        self._carrier: HttpClient | None = None
        self._starting = asyncio.Lock()

    @property
    def media_rules(self) -> MediaRules:
        return media_rules(self.info, QUIRKS)

    async def stream(self, request: Request) -> AsyncGenerator[StreamEvent, None]:
        http = await self._connected_client()
        async with aclosing(stream_openai(http, request, self.info, QUIRKS)) as events:
            async for event in events:
                if isinstance(event, Done) and not event.message.tool_uses:
                    for part in _completed(event, request):
                        yield part
                else:
                    yield event

    async def warm(self, request: Request) -> None:
        """Start the server and let it read the fixed beginning of `request`, so that the first answer comes sooner."""
        with suppress(ProviderError):  # the first prompt will report it
            async for _ in self.stream(msgspec.structs.replace(request, max_tokens=1)):
                pass

    async def _connected_client(self) -> HttpClient:
        async with self._starting:
            if self._server is not None and not self._server.is_running:
                await self.aclose()
            if self._carrier is None:
                try:
                    self._server = server = await self._start()
                except UserError as error:
                    raise BadRequest(str(error)) from error
                self._carrier = HttpClient(server.base_url, {}, key=server.api_key, read_timeout=self._read_timeout)
            return self._carrier

    async def _check(self) -> None:
        await (await self._connected_client()).fetch_json("/models")

    async def aclose(self) -> None:
        server, self._server = self._server, None
        await super().aclose()
        self._carrier = None
        if server is not None:
            server.release()


def _completed(done: Done, request: Request) -> Iterator[StreamEvent]:
    """Yield the missing end of a code block, calls for the edits that the text describes, and `Done` with both."""
    blocks, text, end = list(done.message.content), done.message.text, "\n```"
    if text.count("```") % 2:  # the server mistook the end for the beginning of a call, and left it out
        text += end
        blocks[-1] = Text(text)  # its only text
        yield TextDelta(end)
    can_edit = "```" in text and any(tool.name == "file_edit" for tool in request.tools)
    edits = block_edits(text, request) if can_edit else []
    calls = [ToolUse(CallIds().take(), name, input) for name, input in edits]
    for call in calls:
        yield from call_events(call)
    # The model has described the edits as done, so they run, and it is not asked again.
    stop = "end_turn" if calls else done.stop_reason
    yield msgspec.structs.replace(done, message=Message("assistant", (*blocks, *calls)), stop_reason=stop)
