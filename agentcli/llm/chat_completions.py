"""One Chat Completions request over HTTP: what every provider that speaks this protocol shares."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from agentcli.llm.http import HttpClient
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, StreamEvent
from agentcli.llm.reply_stream import stream_reply
from agentcli.llm.wire.calls import CallIds
from agentcli.llm.wire.openai_reply import ReplyReader
from agentcli.llm.wire.openai_request import Quirks, to_body


def stream_chat(
    http: HttpClient, request: Request, *, info: ModelInfo, provider: str, quirks: Quirks
) -> AsyncGenerator[StreamEvent, None]:
    """The reply's events, `Done` last. Raises `ProviderError` with the partial message."""
    reader = ReplyReader(
        info.id,
        provider,
        quirks=quirks,
        tool_names=frozenset(tool.name for tool in request.tools),
        ids=CallIds(request.messages),
    )
    return stream_reply(
        http,
        "/chat/completions",
        request,
        build=lambda: to_body(request, info, quirks, provider),
        reader=reader,
        info=info,
        whole="choices",
    )
