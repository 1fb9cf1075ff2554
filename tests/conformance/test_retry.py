"""When a failed request is tried again, over each protocol."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from agentcli.llm.errors import ConnectionFailed, Overloaded, ProviderError, RateLimit, Timeout
from agentcli.llm.provider import MAX_WAIT_S, Done, RetryPolicy, StreamEvent, delay_before, stream_with_retry
from tests.conformance.backends import ONE_EACH, OVER_HTTP, Backend, ScriptedBackend
from tests.conformance.reading import asking
from tests.conformance.servers import HTML, SILENCE, Reply, byte_by_byte, html, json_reply

one_each = pytest.mark.parametrize("backend", ONE_EACH, ids=repr)
SOON = RetryPolicy(max_retries=3, initial_delay=0.001)


class Told:
    """What `on_retry` was told."""

    def __init__(self) -> None:
        self.retries: list[tuple[int, float, ProviderError]] = []

    def __call__(self, retry: int, wait_s: float, error: ProviderError) -> None:
        self.retries.append((retry, wait_s, error))


async def run(stage: object, told: Told, policy: RetryPolicy = SOON) -> list[StreamEvent]:
    stream = stream_with_retry(stage.provider, asking(), policy=policy, on_retry=told)  # type: ignore[attr-defined]
    return [event async for event in stream]


def text_of(events: list[StreamEvent]) -> str:
    assert isinstance(events[-1], Done)
    return events[-1].message.text


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
@one_each
async def test_a_passing_failure_is_retried(backend: Backend, status: int) -> None:
    told = Told()
    async with backend.playing(backend.refusal(status, "some_error", "not now"), "Hi.") as stage:
        assert text_of(await run(stage, told)) == "Hi."
    ((retry, wait_s, error),) = told.retries
    assert (retry, error.status, str(error)) == (1, status, "not now")
    assert 0.00075 <= wait_s <= 0.001


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
@one_each
async def test_a_refusal_is_not_retried(backend: Backend, status: int) -> None:
    told = Told()
    async with backend.playing(backend.refusal(status, "some_error", "never"), "Hi.") as stage:
        with pytest.raises(ProviderError, match="never"):
            await run(stage, told)
        assert len(stage.server.requests) == 1
    assert told.retries == []


@pytest.mark.parametrize("backend", OVER_HTTP, ids=repr)
async def test_an_overflow_is_not_retried(backend: Backend) -> None:
    async with backend.playing(backend.overflow, "Hi.") as stage:
        with pytest.raises(ProviderError):
            await run(stage, Told())
        assert len(stage.server.requests) == 1


@one_each
async def test_a_page_in_place_of_the_api_is_not_retried_but_a_gateway_s_page_is(backend: Backend) -> None:
    async with backend.playing(html(200), "Hi.") as stage:
        with pytest.raises(ProviderError):
            await run(stage, Told())
    async with backend.playing(Reply(HTML, 502, "text/html"), "Hi.") as stage:
        assert text_of(await run(stage, Told())) == "Hi."


@one_each
async def test_a_timeout_before_any_text_is_retried(backend: Backend) -> None:
    told = Told()
    async with backend.playing(SILENCE, "Hi.", read_timeout=0.1) as stage:
        assert text_of(await run(stage, told)) == "Hi."
    assert isinstance(told.retries[0][2], Timeout)


@one_each
async def test_a_connection_that_breaks_before_any_text_is_retried(backend: Backend) -> None:
    told = Told()
    async with backend.playing(backend.reply("Hi.").but(breaks_after=20), "Hi.") as stage:
        assert text_of(await run(stage, told)) == "Hi."
    assert isinstance(told.retries[0][2], ConnectionFailed)


@one_each
async def test_nothing_is_retried_after_text_was_shown(backend: Backend) -> None:
    told = Told()
    reply = backend.reply("All is well.", cut=byte_by_byte)
    async with backend.playing(reply.but(breaks_after=reply.body.index(b"well")), "Hi.") as stage:
        with pytest.raises(ConnectionFailed) as failed:
            await run(stage, told)
        assert len(stage.server.requests) == 1
    assert told.retries == []
    assert failed.value.shown
    assert failed.value.partial is not None
    assert failed.value.partial.text == "All is "


@one_each
async def test_an_error_event_before_any_text_is_retried(backend: Backend) -> None:
    body = backend.error_event("overloaded_error", "Overloaded")  # type: ignore[attr-defined]
    async with backend.playing(backend.reply("x").but(body=body), "Hi.") as stage:
        assert text_of(await run(stage, Told())) == "Hi."


@one_each
async def test_retries_end_after_as_many_as_the_policy_says_with_the_last_error(backend: Backend) -> None:
    told = Told()
    refusals = [backend.refusal(503, "some_error", f"no {number}") for number in range(1, 6)]
    async with backend.playing(*refusals) as stage:
        with pytest.raises(Overloaded, match="no 4"):
            await run(stage, told)
        assert len(stage.server.requests) == 4
    assert [retry for retry, _, _ in told.retries] == [1, 2, 3]


async def test_without_retries_the_first_error_is_raised() -> None:
    (backend, *_) = ONE_EACH
    async with backend.playing(backend.refusal(503, "api_error", "no")) as stage:
        with pytest.raises(Overloaded):
            await run(stage, Told(), RetryPolicy(max_retries=0))


@pytest.mark.parametrize(
    ("header", "value"),
    [("retry_after_ms", "20"), ("retry_after", "0.02"), ("retry_after", "date")],
)
@one_each
async def test_the_server_s_own_wait_is_kept(backend: Backend, header: str, value: str) -> None:
    told = Told()
    value = formatdate(time.time() - 5, usegmt=True) if value == "date" else value
    async with backend.playing(backend.refusal(429, "rate_limit_error", "slow", **{header: value}), "Hi.") as stage:
        started = time.monotonic()
        assert text_of(await run(stage, told)) == "Hi."
    ((_, wait_s, error),) = told.retries
    assert wait_s == error.retry_after == (0.0 if "GMT" in value else 0.02)
    assert time.monotonic() - started >= wait_s


@one_each
async def test_a_wait_of_minutes_is_not_waited_for(backend: Backend) -> None:
    async with backend.playing(backend.refusal(429, "rate_limit_error", "slow", retry_after="600"), "Hi.") as stage:
        with pytest.raises(RateLimit) as failed:
            await run(stage, Told())
    assert failed.value.retry_after == 600 > MAX_WAIT_S


@one_each
async def test_the_server_s_wish_goes_before_the_status(backend: Backend) -> None:
    async with backend.playing(backend.refusal(500, "api_error", "no", x_should_retry="false"), "Hi.") as stage:
        with pytest.raises(ProviderError):
            await run(stage, Told())
    async with backend.playing(backend.refusal(400, "api_error", "no", x_should_retry="true"), "Hi.") as stage:
        assert text_of(await run(stage, Told())) == "Hi."


async def test_a_wait_doubles_from_a_second_with_up_to_a_quarter_less() -> None:
    policy = RetryPolicy()
    assert policy.max_retries == 3
    for retry, longest in [(1, 1.0), (2, 2.0), (3, 4.0), (10, MAX_WAIT_S)]:
        waits = {delay_before(retry, policy, ConnectionFailed("x")) for _ in range(50)}
        assert longest * 0.75 <= min(waits) <= max(waits) <= longest
        assert len(waits) > 1


async def test_a_scripted_failure_follows_the_same_policy() -> None:
    told = Told()
    backend = ScriptedBackend()
    failing = {"error": {"kind": "overloaded", "retry_after": 0.001}}
    async with backend.playing(failing, {"text": "Half", "error": {"kind": "connection"}}) as stage:
        with pytest.raises(ConnectionFailed) as failed:
            await run(stage, told)
    assert [(retry, wait_s) for retry, wait_s, _ in told.retries] == [(1, 0.001)]
    assert failed.value.shown
    assert failed.value.partial is not None
    assert failed.value.partial.text == "Half"


async def test_closing_early_closes_the_provider_s_stream() -> None:
    (backend, *_) = ONE_EACH
    reply = backend.reply("All is well.", cut=byte_by_byte)
    async with backend.playing(reply.but(falls_silent_after=reply.body.index(b"well"))) as stage:
        events = stream_with_retry(stage.provider, asking(), policy=SOON, on_retry=Told())
        async for _ in events:
            break
        await events.aclose()
        assert stage.server.requests[0].left.wait(3)


async def test_a_json_error_with_status_200_is_classified_by_its_own_number() -> None:
    backend = next(b for b in OVER_HTTP if b.id == "openrouter")
    told = json_reply({"error": {"code": 401, "message": "User not found."}})
    async with backend.playing(told, "Hi.") as stage:
        with pytest.raises(ProviderError, match="User not found"):
            await run(stage, Told())
        assert len(stage.server.requests) == 1
