"""What one piece of a stream means, its deltas joined: a fast stream costs one event a piece and not one a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from agentcli.llm.errors import ProviderError, ServerError
from agentcli.llm.provider import StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta

T = TypeVar("T")


def read(
    items: Iterable[T], feed: Callable[[T, list[StreamEvent]], None]
) -> tuple[list[StreamEvent], ProviderError | None]:
    """The events of one piece's items, and the failure that one of them is or reports: what came before it counts."""
    out: list[StreamEvent] = []
    failure: ProviderError | None = None
    try:
        for item in items:
            feed(item, out)
    except ProviderError as error:
        failure = error
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        failure = ServerError(f"The server sent an event that its protocol does not know: {error}")
        failure.__cause__ = error
    return merged(out), failure


def text_in(value: Any) -> str:
    """A text as a server sends it, nothing for null. Raises TypeError for what is no text."""
    if isinstance(value, str | None):
        return value or ""
    raise TypeError(f"{value!r} stands where a text belongs")


def count_in(value: Any) -> int:
    """A count as a server sends it; what is no number, or below zero, counts nothing."""
    return int(value) if isinstance(value, int | float) and 0 < value < float("inf") else 0


def merged(events: list[StreamEvent]) -> list[StreamEvent]:
    """The same events with neighbouring deltas of one kind (and one call) joined; order is kept."""
    joined: list[StreamEvent] = []
    position, count = 0, len(events)
    while position < count:
        event = events[position]
        kind = type(event)
        position += 1
        # Compared by identity, which is the fastest and which the type checker does not follow: each delta comes here.
        if kind is TextDelta or kind is ThinkingDelta:
            parts = [event.text]  # type: ignore[union-attr]
            while position < count and type(events[position]) is kind:
                parts.append(events[position].text)  # type: ignore[union-attr]
                position += 1
            joined.append(kind("".join(parts)))
        elif isinstance(event, ToolCallDelta):
            parts = [event.partial_json]
            while position < count:
                following = events[position]
                if not isinstance(following, ToolCallDelta) or following.id != event.id:
                    break
                parts.append(following.partial_json)
                position += 1
            joined.append(ToolCallDelta(event.id, "".join(parts)))
        else:
            joined.append(event)
    return joined
