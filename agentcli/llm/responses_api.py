"""One request to OpenAI's Responses API over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from agentcli.llm.http import HttpClient
from agentcli.llm.models import ModelInfo
from agentcli.llm.provider import Request, StreamEvent
from agentcli.llm.reply_stream import stream_reply
from agentcli.llm.wire.calls import CallIds
from agentcli.llm.wire.openai_request import Quirks
from agentcli.llm.wire.responses_reply import ReplyReader
from agentcli.llm.wire.responses_request import to_body


def stream_response(
    http: HttpClient, request: Request, *, info: ModelInfo, provider: str, quirks: Quirks
) -> AsyncGenerator[StreamEvent, None]:
    """The reply's events, `Done` last. Raises `ProviderError` with the partial message."""
    return stream_reply(
        http,
        "/responses",
        request,
        build=lambda: to_body(request, info, quirks, provider),
        reader=ReplyReader(info.id, provider, ids=CallIds(request.messages)),
        info=info,
        whole="output",
    )
