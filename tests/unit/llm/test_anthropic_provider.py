"""What only the Anthropic provider does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentcli.llm.errors import BadRequest, ProviderError, ServerError
from agentcli.llm.models import bundled_models
from agentcli.llm.providers.anthropic import AnthropicProvider
from tests.conformance.reading import asking, hear
from tests.conformance.replies import anthropic_reply
from tests.conformance.servers import ANTHROPIC_MODEL, LoopbackServer, Reply, anthropic_server, html, json_reply

UNKNOWN = bundled_models().find("anthropic", "claude-sonnet-5-5-preview")


def provider(server: LoopbackServer, **options: Any) -> AnthropicProvider:
    info = bundled_models().find("anthropic", "claude-sonnet-5-5")
    return AnthropicProvider(**{"info": info, "base_url": server.url, "api_key": "key"} | options)


def test_the_prompt_is_counted_by_the_server_without_the_fields_of_a_reply() -> None:
    with anthropic_server(count=json_reply({"input_tokens": 2_095})) as server:
        counted = asyncio.run(provider(server).count_tokens(asking("Hi")))
    assert (counted.tokens, counted.exact) == (2_095, True)
    (received,) = server.others
    assert not {"max_tokens", "stream"} & received.json.keys()
    assert received.json.keys() >= {"model", "messages", "system", "tools"}


@pytest.mark.parametrize("answer", [json_reply({}), json_reply([]), json_reply({"input_tokens": "many"}), html(200)])
def test_a_count_that_is_none_is_a_server_error(answer: Reply) -> None:
    with anthropic_server(count=answer) as server, pytest.raises(ServerError):
        asyncio.run(provider(server).count_tokens(asking("Hi")))


def test_a_refused_count_is_a_provider_error() -> None:
    refused = json_reply({"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, 400)
    with anthropic_server(count=refused) as server, pytest.raises(BadRequest, match="no"):
        asyncio.run(provider(server).count_tokens(asking("Hi")))


def test_a_health_check_learns_the_model_s_limits() -> None:
    with anthropic_server(
        model=json_reply(ANTHROPIC_MODEL | {"max_input_tokens": 400_000, "max_tokens": 64_000})
    ) as server:
        one = provider(server)
        health = asyncio.run(one.health_check())
    assert health.ok
    assert "400,000" in health.detail
    assert (one.info.window, one.info.max_output) == (400_000, 64_000)


def headers_sent(**options: Any) -> dict[str, str]:
    with anthropic_server([anthropic_reply("Hi.")]) as server:
        assert asyncio.run(hear(provider(server, **options))).text == "Hi."
        return server.requests[0].headers


def test_a_key_goes_in_its_own_header_and_a_token_as_bearer() -> None:
    assert headers_sent()["x-api-key"] == "key"
    token = headers_sent(api_key="", auth_token="token")
    assert token["authorization"] == "Bearer token"
    assert "x-api-key" not in token


def test_the_api_version_and_own_headers_can_be_set() -> None:
    assert headers_sent()["anthropic-version"] == "2026-10-21"
    own = headers_sent(api_version="2023-06-01", headers={"anthropic-beta": "a,b"})
    assert (own["anthropic-version"], own["anthropic-beta"]) == ("2023-06-01", "a,b")


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_a_base_url_may_end_in_v1(ending: str) -> None:
    with anthropic_server([anthropic_reply("Hi.")]) as server:
        assert asyncio.run(hear(provider(server, base_url=server.url + ending))).text == "Hi."


def test_an_empty_event_is_passed_over() -> None:
    body = anthropic_reply("Hi.").body.replace(b'event: ping\ndata: {"type":"ping"}', b"event: ping\ndata:")
    assert b"data:\n\n" in body
    with anthropic_server([Reply(body)]) as server:
        assert asyncio.run(hear(provider(server))).done.message.text == "Hi."


def test_an_unknown_model_is_asked_for_anyway() -> None:
    async def run(one: AnthropicProvider) -> None:
        assert (await hear(one)).text == "Hi."
        assert not (await one.health_check()).ok

    with anthropic_server([anthropic_reply("Hi.")]) as server:
        asyncio.run(run(provider(server, info=UNKNOWN)))
    assert server.requests[0].json["model"] == "claude-sonnet-5-5-preview"
    assert "thinking" not in server.requests[0].json


def test_half_a_compressed_refusal_is_still_a_provider_error() -> None:
    broken = json_reply({"error": {"message": "x"}}, 400, content_encoding="gzip")
    with anthropic_server([broken]) as server:
        error = asyncio.run(hear(provider(server))).error
    assert isinstance(error, ProviderError)
