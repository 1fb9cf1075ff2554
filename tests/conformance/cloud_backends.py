"""Claude over Anthropic's SDK: the API itself, and the clouds that serve it, each as its own servers speak.

Bedrock's replies are framed as AWS frames them, and the signature of each request is made again by botocore. What a
test says of bytes it says of the events inside the frames.
"""

from __future__ import annotations

import re
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any

import msgspec

from agentcli.llm.provider import Provider
from agentcli.llm.providers.anthropic import AnthropicProvider, CloudProvider, Service
from tests.conformance.backends import KEY, OVER_HTTP, AnthropicBackend, Backend
from tests.conformance.servers import (
    SSE,
    Answer,
    LoopbackServer,
    Received,
    Reply,
    Rules,
    at_events,
    json_reply,
    running,
)
from tests.conformance.wire_rules import refusals_of_anthropic

REGION = "us-west-2"
ACCESS_KEY, SECRET_KEY, SESSION_TOKEN = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG", "IQoJb3JpZ2luX2VjEXAMPLE"
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_SESSION_TOKEN": SESSION_TOKEN,
    "AWS_EC2_METADATA_DISABLED": "true",
}
AWS_EVENTS = "application/vnd.amazon.eventstream"
_AWS_ERRORS = {"overloaded_error": "serviceUnavailableException", "rate_limit_error": "throttlingException"}


# AWS's event stream


def frame(payload: bytes, **headers: str) -> bytes:
    """One message of the event stream; headers with underscores for hyphens."""
    written = b""
    for name, value in headers.items():
        key = f":{name.replace('_', '-')}".encode()
        written += bytes([len(key)]) + key + b"\x07" + struct.pack("!H", len(value)) + value.encode()
    start = struct.pack("!II", 16 + len(written) + len(payload), len(written))
    message = start + struct.pack("!I", zlib.crc32(start)) + written + payload
    return message + struct.pack("!I", zlib.crc32(message))


def framed(answer: Answer) -> Answer:
    """A reply of server-sent events as Bedrock sends it: a frame for each event, cut and broken off at the same."""
    if not isinstance(answer, Reply):
        return lambda received: framed(answer(received))  # type: ignore[return-value]
    if answer.content_type != SSE or not answer.answers:
        return answer
    events = [event for event in re.split(rb"(?<=\n\n)|(?<=\r\n\r\n)", answer.body) if event]
    frames = [_frame_of(event) for event in events]
    cut = (lambda body: frames) if answer.cut is at_events else answer.cut

    def place(at: int | None) -> int | None:
        if at is None:
            return None
        ends = [0, *accumulate(map(len, events))]
        whole = sum(end <= at for end in ends) - 1
        begun = 1 if at > ends[whole] else 0
        return sum(map(len, frames[:whole])) + begun

    return answer.but(
        body=b"".join(frames),
        content_type=AWS_EVENTS,
        cut=cut,
        breaks_after=place(answer.breaks_after),
        falls_silent_after=place(answer.falls_silent_after),
    )


def _frame_of(event: bytes) -> bytes:
    data = b"\n".join(line[5:].strip() for line in event.splitlines() if line.startswith(b"data:"))
    if data.startswith(b'{"type":"error"'):
        error = msgspec.json.decode(data)["error"]
        payload = msgspec.json.encode({"message": error["message"]})
        kind = _AWS_ERRORS.get(error["type"], "internalServerException")
        return frame(payload, exception_type=kind, content_type="application/json", message_type="exception")
    payload = msgspec.json.encode({"bytes": b64encode(data).decode(), "p": "abcdefgh"})
    return frame(payload, event_type="chunk", content_type="application/json", message_type="event")


def refusals_of_signature(received: Received, address: str) -> list[str]:
    """Why AWS would refuse who asks: the signature is made once more, by botocore, of what came."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    given = received.headers.get("authorization", "")
    if given.startswith("Bearer "):
        return []
    found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(.+), SignedHeaders=(\S+), Signature=(\w+)", given)
    if found is None:
        return ["IncompleteSignatureException"]
    key, scope, names, signature = found.groups()
    signed = {name: received.headers[name] for name in names.split(";")}
    request = AWSRequest(received.method, address + received.path, headers=signed, data=received.body)
    request.context["timestamp"] = received.headers["x-amz-date"]
    signer = SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY, SESSION_TOKEN), "bedrock", REGION)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    refusals = [] if key == ACCESS_KEY else [f"UnrecognizedClientException: {key}"]
    if scope != signer.credential_scope(request):
        refusals.append(f"SignatureDoesNotMatch: {scope}")
    if not {"host", "x-amz-date", "x-amz-security-token"} <= signed.keys():
        refusals.append(f"not signed: {names}")
    if signature != signer.signature(text, request):
        refusals.append("SignatureDoesNotMatch")
    return refusals


# The servers, and how the providers reach them


class SdkBackend(AnthropicBackend):
    """The API itself, with Anthropic's SDK as carrier."""

    id = "anthropic-sdk"

    def provider(self, url: str, **options: Any) -> Provider:
        return AnthropicProvider(**{"info": self.info, "base_url": url, "api_key": KEY, "uses_sdk": True} | options)

    def key_sent(self, headers: dict[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")


NO_MESSAGES = "messages: at least one message is required"


class _CloudServer(LoopbackServer):
    """A health check may ask where requests are made: it asks for no stream."""

    def _answer(self, received: Received) -> Reply:
        probe = self._routes.get(f"{received.method} {received.path}")
        if probe is not None and b'"stream"' not in received.body:
            self.others.append(received)
            return probe if isinstance(probe, Reply) else probe(received)
        return super()._answer(received)


class CloudBackend(AnthropicBackend):
    """A cloud's server. `chat_path` is where it is asked, `probe_path` where the health check asks."""

    model: str
    chat_path: str
    probe_path: str
    count_path = ""
    base = ""

    def __init__(self) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(self.info, id=self.model, provider=self.id)

    def service(self, url: str, key: str) -> Service:
        raise NotImplementedError

    def provider(self, url: str, **options: Any) -> Provider:
        key = options.pop("api_key", KEY)
        return CloudProvider(**{"info": self.info, "service": self.service(url, key)} | options)

    def asked(self, received: Received) -> dict[str, Any]:
        return {"model": self.model, "stream": True} | received.json

    def who_asks(self, server: LoopbackServer) -> Rules:
        """Why the cloud would refuse who asks."""
        return lambda received: [] if self.key_sent(received.headers) else ["401"]

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        routes: dict[str, Answer] = {
            f"POST {self.probe_path}": health or self.refusal(400, "invalid_request_error", NO_MESSAGES)
        }
        if self.count_path:
            routes[f"POST {self.count_path}"] = json_reply({"input_tokens": 2_095})
        server = _CloudServer(script, chat_path=self.chat_path, routes=routes, base=self.base)
        refusals = self.who_asks(server)
        server.rules = lambda received: [*refusals(received), *self.refusals(received)]
        return running(server)

    def refusals(self, received: Received) -> list[str]:
        body = received.json
        refusals = refusals_of_anthropic(self.asked(received), version=body.get("anthropic_version", ""))
        if not body.get("anthropic_version"):
            refusals.append("anthropic_version: Field required")
        return [*refusals, *(f"{name}: Extra inputs" for name in ("model",) if name in body)]


class BedrockBackend(CloudBackend):
    id = "bedrock"
    model = "us.anthropic.claude-sonnet-5-5-v1:0"
    chat_path = f"/model/{model}/invoke-with-response-stream"
    probe_path = f"/model/{model}/invoke"
    counts_exactly = False

    def __init__(self) -> None:
        super().__init__()
        self.overflow = self.refusal(400, "", "Input is too long for requested model.")
        self.missing_model = self.refusal(400, "", "The provided model identifier is invalid.")

    def service(self, url: str, key: str) -> Service:
        return Service(platform="bedrock", base_url=url, api_key="" if key == KEY else key, region=REGION)

    def refusal(self, status: int, kind: str, message: str, **headers: str) -> Reply:
        return json_reply({"message": message}, status, x_amzn_errortype=f"{kind or 'Validation'}Exception", **headers)

    def serving(self, script: Iterable[Answer], health: Answer | None) -> AbstractContextManager[LoopbackServer]:
        return super().serving(map(framed, script), health)

    def key_sent(self, headers: dict[str, str]) -> str:
        """The suite's key, where the request is signed: the server's rules look at the signature."""
        return KEY if headers.get("authorization", "").startswith("AWS4-HMAC-SHA256 ") else ""

    def who_asks(self, server: LoopbackServer) -> Rules:
        return lambda received: refusals_of_signature(received, server.address)


class VertexBackend(CloudBackend):
    id = "vertex"
    model = "claude-sonnet-5-5"
    base = "/v1"
    _place = "/projects/a-project/locations/us-east5/publishers/anthropic/models"
    chat_path = f"{_place}/{model}:streamRawPredict"
    probe_path = f"{_place}/{model}:rawPredict"
    count_path = f"{_place}/count-tokens:rawPredict"

    def service(self, url: str, key: str) -> Service:
        return Service(platform="vertex", base_url=url, auth_token=key, region="us-east5", project="a-project")

    def key_sent(self, headers: dict[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")


class FoundryBackend(CloudBackend):
    """Asked with a key; with a bearer token it is `foundry-bearer`."""

    model = "claude-sonnet-5-5"
    base = "/anthropic"
    chat_path = probe_path = "/v1/messages"
    count_path = "/v1/messages/count_tokens"

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__()

    def service(self, url: str, key: str) -> Service:
        given = {"auth_token" if self.id == "foundry-bearer" else "api_key": key}
        return Service(platform="foundry", base_url=url, **given)  # type: ignore[arg-type]

    def key_sent(self, headers: dict[str, str]) -> str:
        if self.id == "foundry-bearer":
            return headers.get("authorization", "").removeprefix("Bearer ")
        assert headers["api-key"] == headers["x-api-key"]
        return headers["x-api-key"]

    def refusals(self, received: Received) -> list[str]:
        return refusals_of_anthropic(received.json, version=received.headers.get("anthropic-version", ""))


OVER_SDK: list[Backend] = [
    SdkBackend(),
    BedrockBackend(),
    VertexBackend(),
    FoundryBackend("foundry"),
    FoundryBackend("foundry-bearer"),
]
EVERY_HTTP: list[Backend] = [*OVER_HTTP, *OVER_SDK]
