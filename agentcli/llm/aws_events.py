"""Takes the event stream that AWS frames replies in apart, and gives what is in it as server-sent events."""

from __future__ import annotations

from base64 import b64decode

from botocore.eventstream import EventStreamBuffer, EventStreamMessage, ParserError

from agentcli.llm.errors import ConnectionFailed, ServerError
from agentcli.llm.json_text import decode_json, encode_json

# How the Messages API calls what AWS reports inside a stream (botocore's model of bedrock-runtime).
_KINDS = {
    "validationException": "invalid_request_error",
    "throttlingException": "rate_limit_error",
    "modelTimeoutException": "timeout_error",
    "serviceUnavailableException": "overloaded_error",
}


class AwsEvents:
    """Bytes in, server-sent events out, as bytes. Raises `ProviderError` for what cannot be read on."""

    def __init__(self) -> None:
        self._buffer = EventStreamBuffer()
        self._unread = 0  # bytes of a frame that has not come whole

    def feed(self, chunk: bytes) -> bytes:
        self._buffer.add_data(chunk)
        self._unread += len(chunk)
        events = []
        try:
            for message in self._buffer:
                self._unread -= message.prelude.total_length
                events.append(_event(message))
        except (ParserError, ValueError, KeyError) as error:
            raise ServerError(f"The server sent a broken event: {error}") from error
        return b"".join(events)

    def close(self) -> None:
        if self._unread:
            raise ConnectionFailed("The stream ended in the middle of an event.")


def _event(message: EventStreamMessage) -> bytes:
    """The event in a frame, or the error that it reports; nothing for kinds of events that are new."""
    headers = message.headers
    if headers.get(":message-type") == "event":
        if headers.get(":event-type") != "chunk":
            return b""
        data = b64decode(decode_json(message.payload)["bytes"]).translate(None, b"\r\n")  # JSON needs no line ends
        return b"data: " + data + b"\n\n"
    name = headers.get(":exception-type") or headers.get(":error-code") or "error"
    told = decode_json(message.payload) if message.payload else {}
    said = headers.get(":error-message") or (told.get("message") if isinstance(told, dict) else "") or name
    error = {"type": "error", "error": {"type": _KINDS.get(name, "api_error"), "message": said}}
    return b"data: " + encode_json(error) + b"\n\n"
