"""Reads why a server refused: the error in a body of any service's shape, and how long to wait."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from agentcli.llm.errors import ProviderError, error_for_status
from agentcli.llm.json_text import decode_json

LONGEST_MESSAGE = 500  # characters of a refusal whose form is not known

Mask = Callable[[str], str]


def error_in_body(body: bytes, masked: Mask = str) -> tuple[str, str]:
    """The message and the code in an error body of any service's shape; plain text is its own message.

    What is too long is cut; it is `masked` before, so that no part of a key is left.
    """
    try:
        data = decode_json(body)
    except ValueError:
        text = body.decode(errors="replace").strip()
        if text.lower().startswith(("<!doctype", "<html")):
            return "The server answered with an HTML page, not with an API's error.", ""
        return masked(text)[:LONGEST_MESSAGE], ""
    return error_in_json(data, masked)


def error_in_json(data: Any, masked: Mask = str) -> tuple[str, str]:
    """`{"error": {"message", "type"|"code"}}`, `{"error": "…"}`, `{"detail": …}`, `{"message": …}`, or a list."""
    if isinstance(data, list):
        data = data[0] if data else {}
    if not isinstance(data, dict):
        return masked(str(data))[:LONGEST_MESSAGE], ""
    inner = data.get("error") or data
    if not isinstance(inner, dict):
        if isinstance(inner, str) and inner.startswith("{"):  # Ollama passes its runner's whole answer on
            return error_in_body(inner.encode(), masked)
        return str(inner), ""
    message = inner.get("message") or inner.get("detail") or data.get("detail") or ""
    details = inner.get("details")
    codes = [details.get("error_code") if isinstance(details, dict) else None, inner.get("code"), inner.get("type")]
    code = next((word for word in codes if isinstance(word, str) and word and word != "error"), "")
    metadata = inner.get("metadata")  # OpenRouter puts the upstream's own words here
    if isinstance(metadata, dict) and metadata.get("raw"):
        message = f"{message}: {metadata['raw']}"
    return message if isinstance(message, str) else masked(json.dumps(message))[:LONGEST_MESSAGE], code


def error_told(data: Any) -> ProviderError:
    """The error in a body or an event whose status was 200; its own number counts, where it gives one."""
    message, code = error_in_json(data)
    data = data if isinstance(data, dict) else {}
    inner = data.get("error") or data
    status = inner.get("code") if isinstance(inner, dict) else None
    if not isinstance(status, int) or not 400 <= status < 600:
        status = 500
    return error_for_status(status, message, code=code, otherwise="the server failed")


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """`retry-after-ms`, then `retry-after` in seconds or as an HTTP date (RFC 9110 §10.2.3)."""
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if (number := _number_of(headers.get(name, ""))) is not None:
            return _plausible(number * unit_s)
    try:
        from email.utils import parsedate_to_datetime as parse  # 5 ms, and seldom needed

        date: datetime = parse(headers.get("retry-after", ""))
        # A date without a zone is in UTC, the only one that HTTP knows.
        return _plausible((date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        return None


def seconds_until_reset(headers: Mapping[str, str], body: bytes) -> float | None:
    """When a used-up limit is whole again, by a refusal that has no `retry-after`; None where it does not say."""
    found = [
        _seconds_left(value)
        for name, value in headers.items()
        if "ratelimit" in name and "reset" in name
        if headers.get(name.replace("reset", "remaining"), "0").strip() == "0"
    ]
    try:
        data = decode_json(body)
    except ValueError:
        data = None
    inner = data.get("error") if isinstance(data, dict) else None
    if isinstance(inner, dict):
        found += [_seconds_left(str(inner.get(name) or "")) for name in ("resets_in_seconds", "resets_at")]
    known = [seconds for seconds in found if seconds is not None]
    return max(known) if known else None


_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,15})?")
_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,15})?)s)?")  # 6m0s, as OpenAI writes it
_FIRST_EPOCH = 1_000_000_000  # seconds; a smaller number is a duration
_FIRST_EPOCH_MS = 100_000_000_000  # a greater number of seconds would be a time after the year 5000
_MAX_WAIT_S = 32 * 86_400.0  # the longest limits are those of a month


def _seconds_left(text: str) -> float | None:
    """Seconds from a duration, from seconds or milliseconds since 1970, or until a date (RFC 3339)."""
    text = text.strip()
    if (seconds := _number_of(text)) is None:
        if text and (parts := _DURATION.fullmatch(text)):
            hours, minutes, seconds = (float(part or 0) for part in parts.groups())
            return _plausible(hours * 3_600 + minutes * 60 + seconds)
        try:
            date = datetime.fromisoformat(text)
            seconds = date.replace(tzinfo=date.tzinfo or UTC).timestamp()
        except (ValueError, OverflowError):
            return None
    if seconds >= _FIRST_EPOCH_MS:
        seconds /= 1000
    return _plausible(seconds - datetime.now(UTC).timestamp() if seconds >= _FIRST_EPOCH else seconds)


def _number_of(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text.strip()) else None


def _plausible(seconds: float) -> float | None:
    """A wait that a server may mean, zero if it is over; None for one that no limit has."""
    return max(0.0, seconds) if seconds <= _MAX_WAIT_S else None
