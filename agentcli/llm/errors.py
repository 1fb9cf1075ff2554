"""Defines the errors of model requests, and reads servers' rejections: the kind, message, code and time to wait."""

import re
import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from typing import Any

from agentcli.errors import AgentcliError
from agentcli.llm.messages import Message, decode_json

MAX_MESSAGE_CHARS = 500  # of a rejection in an unknown form
_DURATION = r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,15})?)s)?"  # 6m0s, as OpenAI writes it
_MAX_WAIT_S = 32 * 86_400.0  # usage limits last a month at most

Mask = Callable[[str], str]


class ProviderError(AgentcliError):
    """A failed model request.

    `partial` is the reply up to the failure, without calls that were cut. `retry_after` is the wait in seconds that the
    server asks for. Once text was `shown`, the request is not retried. `is_answered`: the server has the request, and
    may bill it. `sent` is the request's body. `tries` is the number of tries, which took `tried_s` seconds in all.
    """

    is_retryable = False
    partial: Message | None = None
    shown = False
    sent: Mapping[str, Any] = {}
    tries = 1
    tried_s = 0.0

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        code: str = "",
        is_retryable: bool | None = None,
        is_answered: bool = False,
    ) -> None:
        super().__init__(message)
        if is_retryable is not None:
            self.is_retryable = is_retryable
        self.status, self.retry_after, self.code, self.is_answered = status, retry_after, code, is_answered


class AuthError(ProviderError):
    """401, 403: the key is missing, wrong, or not allowed to do this."""


class BadRequest(ProviderError):
    """400, 404, 413, 422 and similar: the server does not accept the request."""


class ModelNotFound(BadRequest):
    """The server has no such model."""


class ContextOverflow(BadRequest):
    """The prompt does not fit the model's window. `is_guess`: the server gave no reason."""

    is_guess = False


class BillingError(ProviderError):
    """402 and similar: the account has no credit left."""


class Transient(ProviderError):
    """A failure after which the same request may succeed."""

    is_retryable = True


class RateLimit(Transient):
    """429: this account sends too many requests."""


class Overloaded(Transient):
    """503, 529: the service is overloaded."""


class ServerError(Transient):
    """Other 5xx, 408, 409, and replies that make no sense."""


class Timeout(Transient):
    """Nothing arrived for too long."""


class ConnectionFailed(Transient):
    """The connection could not be made, or it broke."""


# The messages of each service for a prompt that is too long (from their documents and issue trackers, 2026-11).
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
# The error for a status and a pattern that "CODE MESSAGE" contains; the first row that matches applies.
_KINDS: tuple[tuple[Container[int], str, type[ProviderError]], ...] = (
    ((401, 403), "", AuthError),
    ((400,), r"API key not valid|API_KEY_INVALID", AuthError),  # Gemini
    ((402,), "", BillingError),
    ((400, 403), r"credit balance is too low", BillingError),  # Anthropic
    ((429,), r"^insufficient_quota ", BillingError),
    ((429,), "", RateLimit),
    ((498, 503, 529), "", Overloaded),
    ((408, 504), "", Timeout),
    ((409, 424), "", ServerError),  # Bedrock answers 424 if the model failed
    ((400,), r"^tool_use_failed ", ServerError),  # Groq: the model wrote a broken call; the next try may be right
    # llama.cpp and Ollama answer 5xx to a request that they do not accept
    (_FAILED, r"image input|does not support images|mmproj|jinja|chat template", BadRequest),
    (_ANY, _OVERFLOW, ContextOverflow),
    (_FAILED, "", ServerError),
    ((400, 413), r"^\S*\s*$", ContextOverflow),  # without a message: most likely the prompt is too long
    (_REFUSED, _MODEL_MISSING, ModelNotFound),
    ((404,), r"^not_found_error ", ModelNotFound),  # Anthropic
    (_ANY, "", BadRequest),
)


def error_for_status(
    status: int,
    message: str,
    *,
    code: str = "",
    default_message: str = "",
    retry_after: float | None = None,
    should_retry: bool | None = None,
) -> ProviderError:
    """Return the error for a status and its body's `message` and `code`; an empty message becomes the default one."""
    matching = (row for row in _KINDS if status in row[0] and re.search(row[1], f"{code} {message}", re.IGNORECASE))
    _, _, kind = next(matching)  # the last row matches everything
    error = kind(
        message or default_message, status=status, retry_after=retry_after, code=code, is_retryable=should_retry
    )
    if isinstance(error, ContextOverflow):
        error.is_guess = not message.strip()
    return error


def error_in_body(body: bytes, mask: Mask = str) -> tuple[str, str]:
    """Return the message and the code in an error body of any service; `mask` removes secrets before it is cut."""
    try:
        data = decode_json(body)
    except ValueError:
        text = body.decode(errors="replace").strip()
        if text.lower().startswith(("<!doctype", "<html")):
            return "The server answered with an HTML page, not with an API's error.", ""
        return mask(text)[:MAX_MESSAGE_CHARS], ""
    return error_in_json(data, mask)


def error_in_json(data: Any, mask: Mask = str) -> tuple[str, str]:
    """Return the message and the code in an error's JSON.

    The forms are `{"error": {"message", "type"|"code"}}`, `{"error": "…"}`, `{"detail": …}`, `{"message": …}`, and a
    list of one of them. Only a message that is cut is masked here, before the cut, because half a secret is not
    recognised; callers mask the others.
    """
    if isinstance(data, list):
        data = data[0] if data else {}
    if not isinstance(data, dict):
        return mask(str(data))[:MAX_MESSAGE_CHARS], ""
    error = data.get("error") or data
    if isinstance(error, str) and error.startswith("{"):  # Ollama passes on the whole answer of its runner
        return error_in_body(error.encode(), mask)
    if not isinstance(error, dict):
        return str(error), ""
    message = error.get("message") or error.get("detail") or data.get("detail") or ""
    parts = (error.get("details"), error.get("metadata"))
    details, metadata = (part if isinstance(part, dict) else {} for part in parts)
    # The most precise one first. `code` may be a number, and `type` the bare word "error".
    codes = (details.get("error_code"), error.get("code"), error.get("type"))
    code = next((word for word in codes if isinstance(word, str) and word and word != "error"), "")
    if raw := metadata.get("raw"):  # OpenRouter's copy of the provider's message
        message = f"{message}: {raw}"
    if isinstance(message, str):
        return message, code
    import json

    return mask(json.dumps(message))[:MAX_MESSAGE_CHARS], code


def embedded_error(data: Any) -> ProviderError:
    """Return the error in a body or an event whose HTTP status was 200. Its own status is used if it has one."""
    message, code = error_in_json(data)
    error = (data.get("error") or data) if isinstance(data, dict) else None
    number = error.get("code") if isinstance(error, dict) else None
    status = number if isinstance(number, int) and 400 <= number < 600 else 500
    return error_for_status(status, message, code=code, default_message="the server failed")


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the wait from `retry-after-ms`, or `retry-after` in seconds or as a date (RFC 9110 §10.2.3)."""
    seconds = _seconds_until(headers.get("retry-after-ms", ""), unit_s=0.001)
    return _seconds_until(headers.get("retry-after", "")) if seconds is None else seconds


def seconds_until_reset(headers: Mapping[str, str], body: bytes) -> float | None:
    """Return the seconds until all exhausted limits reset, from a rejection without `retry-after`; None if unknown."""
    # x-ratelimit-reset-tokens: 6m0s is used if x-ratelimit-remaining-tokens is 0 or missing.
    resets = [name for name in headers if "ratelimit" in name and "reset" in name]
    exhausted = [name for name in resets if headers.get(name.replace("reset", "remaining"), "0").strip() == "0"]
    times = [headers[name] for name in exhausted]
    with suppress(ValueError, LookupError, TypeError, AttributeError):  # most bodies have another form
        error = decode_json(body)["error"]
        times += [str(error.get(name) or "") for name in ("resets_in_seconds", "resets_at")]
    return max((seconds for time in times if (seconds := _seconds_until(time)) is not None), default=None)


def _seconds_until(text: str, unit_s: float = 1.0) -> float | None:
    """Return the seconds that a server says to wait; None if `text` is not a time or the wait exceeds `_MAX_WAIT_S`.

    `text` is a number of `unit_s`, a duration such as `6m0s`, or a time: (milli)seconds since 1970, or a date.
    """
    text = text.strip()
    try:
        if re.fullmatch(r"\d{1,15}(?:\.\d{1,15})?", text):
            seconds = float(text) * unit_s
            if seconds >= 100_000_000_000:  # milliseconds; as seconds it would be after the year 5000
                seconds /= 1000
            if seconds >= 1_000_000_000:  # a time; a smaller number is a duration
                seconds -= time.time()
        elif text and (parts := re.fullmatch(_DURATION, text)):
            hours, minutes, rest_s = (float(part or 0) for part in parts.groups())
            seconds = hours * 3_600 + minutes * 60 + rest_s
        else:
            from datetime import UTC, datetime
            from email.utils import parsedate_to_datetime  # 5 ms, and seldom needed

            # 2026-11-26T10:00:00Z, or the form of HTTP: Thu, 26 Nov 2026 10:00:00 GMT
            date = datetime.fromisoformat(text) if text[:1].isdigit() else parsedate_to_datetime(text)
            seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds) if seconds <= _MAX_WAIT_S else None
