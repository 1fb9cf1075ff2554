"""Refusals of every service, as errors of ours."""

from __future__ import annotations

from typing import Any

import pytest

from agentcli.llm.errors import (
    AuthError,
    BadRequest,
    BillingError,
    ConnectionFailed,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    ProviderError,
    RateLimit,
    ServerError,
    Timeout,
    embedded_error,
    error_for_status,
    error_in_body,
)
from tests.rows import each_row

OVERFLOWS = {
    "anthropic": "prompt is too long: 213462 tokens > 200000 maximum",
    "anthropic, older": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "openai": "Your input exceeds the context window of this model.",
    "openai, older": "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000.",
    "vllm": "The decoder prompt (length 40960) is longer than the maximum model length of 32768.",
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "lm studio": "The number of tokens to keep from the initial prompt is greater than the context length.",
    "groq": "Please reduce the length of the messages or completion.",
    "mistral": "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
    "gemini": "The input token count (1100000) exceeds the maximum number of tokens allowed (1048575).",
    "xai": "This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
    "bedrock": "Input is too long for requested model.",
    "copilot": "prompt token count of 70000 exceeds the limit of 64000",
    "kimi": "Invalid request: Your request exceeded model token limit: 262144",
    "minimax": "invalid params, context window exceeds limit (2013)",
    "ollama": "the prompt is longer than the context length currently available to the model",
}


@pytest.mark.parametrize("words", OVERFLOWS.values(), ids=OVERFLOWS.keys())
def test_an_overflow_is_known_by_each_service_s_words(words: str) -> None:
    for status in (400, 413, 422, 500):
        assert type(error_for_status(status, words)) is ContextOverflow
    assert type(error_for_status(429, words)) is RateLimit


def test_an_overflow_is_known_by_its_code() -> None:
    for code in ("context_length_exceeded", "exceed_context_size_error"):
        assert type(error_for_status(400, "Request failed.", code=code)) is ContextOverflow


def test_a_refusal_without_a_word_is_an_overflow_where_the_status_fits() -> None:
    for status in (400, 413):
        error = error_for_status(status, " ", default_message="")
        assert type(error) is ContextOverflow
    error = error_for_status(400, "", default_message="HTTP 400 from http://x")
    assert type(error) is ContextOverflow
    assert str(error) == "HTTP 400 from http://x"
    assert type(error_for_status(404, "")) is BadRequest


@pytest.mark.parametrize(
    "words",
    [
        "max_tokens: 200000 > 128000, which is the maximum allowed number of output tokens",
        "messages.3: tool_use ids were found without tool_result blocks immediately after",
        "Request exceeds the maximum allowed number of bytes.",
        "Invalid schema for function 'read_file'",
    ],
)
def test_other_refusals_are_not_a_overflow(words: str) -> None:
    assert type(error_for_status(400, words)) is BadRequest
    assert type(error_for_status(413, words)) is BadRequest


@each_row(
    "status, code, kind, is_retryable",
    [
        (400, "", BadRequest, False),
        (400, "tool_use_failed", ServerError, True),
        (401, "", AuthError, False),
        (402, "", BillingError, False),
        (403, "", AuthError, False),
        (404, "", BadRequest, False),
        (404, "not_found_error", ModelNotFound, False),
        (404, "model_not_found", ModelNotFound, False),
        (408, "", Timeout, True),
        (409, "", ServerError, True),
        (413, "", BadRequest, False),
        (422, "", BadRequest, False),
        (429, "", RateLimit, True),
        (429, "insufficient_quota", BillingError, False),
        (498, "", Overloaded, True),
        (500, "", ServerError, True),
        (502, "", ServerError, True),
        (503, "", Overloaded, True),
        (504, "", Timeout, True),
        (529, "", Overloaded, True),
    ],
)
def test_a_status_and_a_code_make_an_error(
    status: int, code: str, kind: type[ProviderError], is_retryable: bool
) -> None:
    error = error_for_status(status, "it went wrong", code=code)
    assert (type(error), error.is_retryable, error.status, error.code) == (kind, is_retryable, status, code)


@pytest.mark.parametrize(
    "words",
    [
        "The model `x` does not exist or you do not have access to it.",
        "model 'x' not found",
        "Model Not Exist",
        "x is not a valid model ID",
        "No such model: x",
    ],
)
def test_a_missing_model_is_known_by_each_service_s_words(words: str) -> None:
    assert type(error_for_status(404, words)) is type(error_for_status(400, words)) is ModelNotFound


def test_an_error_s_own_wish_is_kept_on_that_error_only() -> None:
    assert not error_for_status(500, "x", should_retry=False).is_retryable
    assert error_for_status(500, "x").is_retryable
    assert error_for_status(429, "x", retry_after=3.5).retry_after == 3.5


def test_a_new_error_has_no_partial_and_shows_nothing() -> None:
    error = ConnectionFailed("x")
    assert (error.partial, error.shown, error.status, error.retry_after, error.code) == (None, False, None, None, "")


@each_row(
    "body, message, code",
    [
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"r"}',
            "Overloaded",
            "overloaded_error",
        ),
        (
            b'{"error":{"type":"e","message":"m","details":{"error_code":"compaction_unavailable"}}}',
            "m",
            "compaction_unavailable",
        ),
        (b'{"error":{"message":"m","type":"t","param":null,"code":"c"}}', "m", "c"),
        (b'{"error":{"message":"m","type":"t","param":null,"code":null}}', "m", "t"),
        (b'{"error":{"code":429,"message":"m","metadata":{"provider_name":"P","raw":"upstream"}}}', "m: upstream", ""),
        (b'{"error":"plain"}', "plain", ""),
        (b'{"error":"{\\"error\\":{\\"message\\":\\"inner\\",\\"type\\":\\"t\\"}}"}', "inner", "t"),
        (b'{"error":"{not json"}', "{not json", ""),
        (b'{"detail":"Not Found"}', "Not Found", ""),
        (b'{"detail":[{"loc":["body"],"msg":"field required"}]}', '[{"loc": ["body"], "msg": "field required"}]', ""),
        (b'{"object":"error","message":"m","type":"BadRequestError","code":400}', "m", "BadRequestError"),
        (b'{"error":null,"message":"m"}', "m", ""),
        (b'[{"error":{"code":400,"message":"m","status":"INVALID_ARGUMENT"}}]', "m", ""),
        (b"[]", "", ""),
        (b"7", "7", ""),
        (b"upstream connect error", "upstream connect error", ""),
        (b"  \n", "", ""),
        (b"<HTML><body>no</body>", "The server answered with an HTML page, not with an API's error.", ""),
        (b"\xff\xfe bytes", "\ufffd\ufffd bytes", ""),
    ],
)
def test_each_service_s_error_body_is_read(body: bytes, message: str, code: str) -> None:
    assert error_in_body(body) == (message, code)


def test_a_long_plain_body_is_shortened() -> None:
    assert len(error_in_body(b"x" * 10_000)[0]) == 500


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ({"error": {"code": 401, "message": "m"}}, AuthError),
        ({"error": {"code": 200, "message": "m"}}, ServerError),
        ({"error": {"code": "429", "message": "m"}}, ServerError),
        ({"object": "error", "message": "m", "code": 404}, BadRequest),
        ([{"error": {"message": "m"}}], ServerError),
        (7, ServerError),
        ({}, ServerError),
    ],
)
def test_an_error_event_with_status_200_is_classified_by_its_own_number(told: Any, kind: type[ProviderError]) -> None:
    error = embedded_error(told)
    assert type(error) is kind
    assert str(error)
