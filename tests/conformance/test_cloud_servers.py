"""The parts that stand for the clouds in the suite, and what only clouds have."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from botocore.eventstream import EventStreamBuffer

from agentcli.llm.errors import ServerError
from agentcli.llm.models import bundled_models
from agentcli.llm.providers.anthropic import aws_events
from tests.conformance.backends import KEY
from tests.conformance.cloud_backends import AWS_ENVIRONMENT, BedrockBackend, frame, framed, refusals_of_signature
from tests.conformance.reading import hear
from tests.conformance.servers import Reply

BEDROCK = BedrockBackend()


def test_frames_are_what_botocore_reads() -> None:
    reply = framed(BEDROCK.reply("Hi."))
    assert isinstance(reply, Reply)
    buffer = EventStreamBuffer()
    buffer.add_data(reply.body)
    assert {message.headers[":event-type"] for message in buffer} == {"chunk"}


@pytest.mark.full
@pytest.mark.slow
async def test_a_request_that_was_changed_or_signed_by_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    async with BEDROCK.playing("Hi.") as stage:
        await hear(stage.provider)
        received, address = stage.server.requests[0], stage.server.address
    assert refusals_of_signature(received, address) == []
    given = received.headers["authorization"]
    for change in (
        {"body": received.body + b" "},
        {"path": received.path.replace("us.", "eu.")},
        {"headers": received.headers | {"x-amz-date": "20260101T000000Z"}},
        {"headers": received.headers | {"authorization": given.replace("AKIA", "AKIB")}},
        {"headers": received.headers | {"authorization": given.replace("us-west-2", "us-east-1")}},
        {"headers": received.headers | {"authorization": ""}},
    ):
        for name, value in change.items():
            setattr(received, name, value)
        assert refusals_of_signature(received, address), change


async def events_of(*chunks: bytes) -> bytes:
    async def body() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return b"".join([event async for event in aws_events(body())])


@pytest.mark.slow
async def test_frames_are_read_as_events_and_broken_ones_are_failures() -> None:
    whole = frame(b'{"bytes": "eyJ0eXBlIjoicGluZyJ9"}', message_type="event", event_type="chunk")
    new = frame(b"{}", message_type="event", event_type="something-new")
    assert await events_of(whole[:20], whole[20:] + new, whole[:20]) == b'data: {"type":"ping"}\n\n'
    with pytest.raises(ServerError, match="broken event"):
        await events_of(whole[:-1] + bytes([whole[-1] ^ 1]))
    failed = frame(b"", message_type="error", error_code="internal", error_message="It broke")
    assert json.loads((await events_of(failed)).removeprefix(b"data: "))["error"]["message"] == "It broke"


@pytest.mark.parametrize(
    ("name", "made", "surcharge"),
    [
        ("bedrock/anthropic.claude-sonnet-5-5", "claude-sonnet-5-5", 1.0),
        ("bedrock/global.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5", 1.0),
        ("bedrock/us.anthropic.claude-haiku-4-5-20251001-v1:0", "claude-haiku-4-5", 1.1),
        ("bedrock/us-gov.anthropic.claude-opus-5-5", "claude-opus-5-5", 1.2),
        ("vertex/claude-haiku-4-5@20251001", "claude-haiku-4-5", 1.0),
        ("foundry/claude-haiku-5-5", "claude-haiku-5-5", 1.0),
        ("azure/gpt-4.1-mini", "gpt-4.1-mini", 1.0),
    ],
)
def test_a_model_is_known_by_its_name_in_a_cloud(name: str, made: str, surcharge: float) -> None:
    provider, model = name.split("/", 1)
    table = bundled_models()
    found = table.find(provider, model)
    row = table.find("openai" if provider == "azure" else "anthropic", made)
    assert (found.provider, found.id, found.is_known) == (provider, model, True)
    assert (found.window, found.thinking, found.takes_images) == (row.window, row.thinking, row.takes_images)
    assert found.prices is not None
    assert row.prices is not None
    assert found.prices.input == pytest.approx(row.prices.input * surcharge)
    assert found.prices.cache_read == pytest.approx((row.prices.cache_read or 0) * surcharge)
    if row.prices.higher is not None:
        assert found.prices.higher is not None
        assert found.prices.higher.output == pytest.approx(row.prices.higher.output * surcharge)


@pytest.mark.parametrize(
    "name", ["bedrock/arn:aws:bedrock:us-east-1:1:application-inference-profile/x", "azure/my-own", "vertex/gemini-3"]
)
def test_a_model_that_its_name_does_not_tell_is_unknown(name: str) -> None:
    assert not bundled_models().find(*name.split("/", 1)).is_known


@pytest.mark.slow
def test_the_sdk_is_imported_for_the_first_request_and_not_before() -> None:
    program = f"""
import sys
from tests.conformance.cloud_backends import OVER_SDK
providers = [backend.provider("http://127.0.0.1:9", api_key={KEY!r}) for backend in OVER_SDK]
assert not {{"anthropic", "httpx2", "botocore", "google.auth", "azure"}} & sys.modules.keys(), "too early"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
