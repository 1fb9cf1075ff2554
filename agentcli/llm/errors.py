"""Why a model request failed.

ProviderError
├── AuthError            401, 403: the key is missing, wrong or not allowed
├── BadRequest           400, 404, 413, 422 and kin: the request itself is refused
│   ├── ModelNotFound    the model does not exist here
│   └── ContextOverflow  the prompt does not fit the model's window
├── BillingError         402: no credit left
├── RateLimit            429: this account asks too often
├── Overloaded           529, 503: the service has no room for anybody
├── ServerError          other 5xx, 408, 409, and replies that make no sense
├── Timeout              nothing arrived for too long
└── ConnectionFailed     no connection, or it broke
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Any

from agentcli.errors import AgentcliError
from agentcli.llm.messages import Message


class ProviderError(AgentcliError):
    """A model request failed.

    `retry_after` is the server's own word in seconds. `partial` is the reply up to the failure, calls that were
    cut left out. `shown` says that text of it has reached the reader, after which nothing is retried, `is_answered`
    that the server had begun to answer, or took the request and stayed silent: it may bill that. `sent` is the body
    of a `BadRequest`. It ended `tries` tries that took `tried_s` seconds together.
    """

    is_retryable = False

    def __init__(
        self, message: str, *, status: int | None = None, retry_after: float | None = None, code: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        self.code = code
        self.partial: Message | None = None
        self.shown = False
        self.is_answered = False
        self.sent: Mapping[str, Any] = {}
        self.tries = 1
        self.tried_s = 0.0


class AuthError(ProviderError):
    """The key is missing, wrong, or not allowed to do this."""


class BadRequest(ProviderError):
    """The server refuses the request as it is."""


class ModelNotFound(BadRequest):
    """The server has no such model."""


class ContextOverflow(BadRequest):
    """The prompt does not fit the model's window. `is_guess`: the server refused it without a word."""

    is_guess = False


class BillingError(ProviderError):
    """The account has no credit left."""


class RateLimit(ProviderError):
    is_retryable = True


class Overloaded(ProviderError):
    is_retryable = True


class ServerError(ProviderError):
    is_retryable = True


class Timeout(ProviderError):
    is_retryable = True


class ConnectionFailed(ProviderError):
    is_retryable = True


# How each service says that a prompt is too long (from their documents and issue trackers, 2026-11).
_OVERFLOW = (
    r"prompt is too long|exceed context limit|exceeds the context window|context[_ ]length[_ ]exceeded"
    r"|maximum context length is \d+|longer than the (maximum model|context) length|exceed_context_size_error"
    r"|exceeds the available context size|greater than the context length|reduce the length of the messages"
    r"|too large for model with \d+ maximum|input token count.*exceeds the maximum|maximum prompt length is \d+"
    r"|input is too long for requested model|exceeds the limit of \d+|exceeded model token limit"
    r"|context window exceeds limit|too many tokens|token limit exceeded|prompt.*exceeds.*context"
    r"|context size (has been )?exceeded|exceed context window"
)
_MODEL_MISSING = (
    r"model.{0,80}(not found|does not exist|not exist|unknown)|model_not_found|no such model|not a valid model"
    r"|model identifier is invalid|deployment.{0,80}does not exist"  # Bedrock; Azure and Foundry
)
_REFUSED, _FAILED, _ANY = range(500), range(500, 1_000), range(1_000)
# What a status and a pattern in "CODE MESSAGE" mean; the first row that fits counts.
_KINDS: tuple[tuple[Container[int], str, type[ProviderError]], ...] = (
    ((401, 403), "", AuthError),
    ((400,), r"API key not valid|API_KEY_INVALID", AuthError),  # Gemini
    ((402,), "", BillingError),
    ((429,), r"^insufficient_quota ", BillingError),
    ((429,), "", RateLimit),
    ((498, 503, 529), "", Overloaded),
    ((408, 504), "", Timeout),
    ((409, 424), "", ServerError),  # 424: Bedrock, of a model that failed
    ((400,), r"^tool_use_failed ", ServerError),  # Groq: the model wrote a broken call; the next try may be right
    # llama.cpp and Ollama, of a form or an image
    (_FAILED, r"image input|does not support images|mmproj|jinja|chat template", BadRequest),
    (_ANY, _OVERFLOW, ContextOverflow),
    (_FAILED, "", ServerError),
    ((400, 413), r"^\S*\s*$", ContextOverflow),
    (_REFUSED, _MODEL_MISSING, ModelNotFound),
    ((404,), r"^not_found_error ", ModelNotFound),
    (_ANY, "", BadRequest),
)


def error_for_status(
    status: int,
    message: str,
    *,
    code: str = "",
    otherwise: str = "",
    retry_after: float | None = None,
    should_retry: bool | None = None,
) -> ProviderError:
    """Return the error for an HTTP status and what the body said.

    `code` is the body's own word (`error.type` or `error.code`); `should_retry` a server's explicit wish; `otherwise`
    the message when the body said nothing.
    """
    said = f"{code} {message}"
    rows = (kind for statuses, words, kind in _KINDS if status in statuses and re.search(words, said, re.IGNORECASE))
    error = next(rows, BadRequest)(message or otherwise, status=status, retry_after=retry_after, code=code)
    if isinstance(error, ContextOverflow):
        error.is_guess = not message.strip()
    if should_retry is not None:
        error.is_retryable = should_retry
    return error
