"""Prepares each older message of a conversation only once, so that requests do not take longer as it grows."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from msgspec import Raw, to_builtins

from agentcli.llm.media import MediaRules, fit_media, media_in
from agentcli.llm.messages import Message, encode_json, repair_messages

BREAKPOINT_KEY = b'"cache_control"'  # of a cache breakpoint in JSON: in a text its quotation marks would be escaped
Build = Callable[[tuple[Message, ...]], Iterable[Any]]  # returns messages in a wire format


class Transcript(tuple[Message, ...]):  # noqa: SLOT001  # a tuple with slots can have no attribute
    """The valid messages of a request, and the prepared messages of their conversation."""

    prepared: "PreparedMessages"


class PreparedMessages:
    """The older messages of a conversation, which no later message can change, in the forms that requests need.

    They end before the second newest reply, because requests put cache breakpoints into later messages: at their own
    end, and where the previous request ended (just before the newest reply). All requests of a conversation share one
    object. If its messages begin differently, as after a compaction, they are prepared from the start.
    """

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._messages: tuple[Message, ...] = ()
        self._boundaries = [0]  # positions of replies; the messages between two of them can be built separately
        self._call_ids: set[str] = set()  # the ids of all calls in `_messages`
        self._media_or_breakpoints: list[int] = []  # positions in `_messages`: see the method of this name
        self._wire_format: object = None  # identifies the API and its options that `_built` is for
        self._built: list[list[Raw] | None] = []  # the part from each boundary to the next; None: not reusable

    def _prepare(self, messages: tuple[Message, ...]) -> int:
        """Prepare the messages before the second newest reply; return the position of the first one not prepared."""
        if not self._are_unchanged_in(messages):
            self._clear()
        start = len(self._messages)
        # The reply at `start` is already a boundary.
        if older_replies := _replies(messages, start + 1)[:-1]:
            self._boundaries += older_replies
            self._messages = messages[: older_replies[-1]]
            self._call_ids |= _call_ids(self._messages[start:])
            self._media_or_breakpoints += _positions_of_media_or_breakpoints(self._messages, start)
        return len(self._messages)

    def _are_unchanged_in(self, messages: tuple[Message, ...]) -> bool:
        """Return True if these messages begin with the prepared ones, and the others do not change them."""
        # Both hold the same objects, so no texts are compared. The message after the prepared ones must be a reply,
        # because an API may merge another one with the last of them. A second reply must follow: without one, as after
        # a rewind, the request has a breakpoint inside the prepared messages.
        end = len(self._messages)
        if end == 0:
            return True
        replies = _replies(messages, end)
        return messages[:end] == self._messages and len(replies) > 1 and replies[0] == end

    def valid(self, messages: tuple[Message, ...]) -> Transcript:
        """Return the messages for a request, repaired if a provider would reject them; prepared ones are valid."""
        checked = len(self._messages) if self._are_unchanged_in(messages) else 0
        transcript = Transcript(repair_messages(messages, checked=checked, used_ids=self._call_ids if checked else ()))
        transcript.prepared = self
        return transcript

    def call_ids(self, messages: tuple[Message, ...]) -> set[str]:
        unprepared = self._prepare(messages)
        return self._call_ids | _call_ids(messages[unprepared:])

    def media_or_breakpoints(self, messages: tuple[Message, ...]) -> list[int]:
        """Return the positions of messages with media or a caller's cache breakpoints: requests search only these."""
        unprepared = self._prepare(messages)
        return [*self._media_or_breakpoints, *_positions_of_media_or_breakpoints(messages, unprepared)]

    def wire_messages(
        self, messages: tuple[Message, ...], rules: MediaRules, *, wire_format: object, build: Build
    ) -> list[Any]:
        """Return the messages in a wire format, with the media that fit.

        `build` converts messages to the format that `wire_format` identifies. Its results for an earlier request are
        reused as `Raw` JSON, except for parts with media, which would take as much memory again, or with a caller's
        breakpoints, which may change.
        """
        media_or_breakpoints = self.media_or_breakpoints(messages)
        fitted = fit_media(messages, rules, media_or_breakpoints)
        if wire_format != self._wire_format:
            self._wire_format, self._built = wire_format, []
        wire: list[Any] = []
        # The prepared messages are built in parts, from one reply to the next. Parts of earlier requests are reused.
        for number, (start, end) in enumerate(pairwise(self._boundaries)):
            if number < len(self._built) and (prepared := self._built[number]) is not None:
                wire += prepared
                continue
            part = [*build(fitted[start:end])]
            wire += part
            if number == len(self._built):  # the first time that this part is built
                is_reusable = not any(start <= position < end for position in media_or_breakpoints)
                self._built.append([Raw(encode_json(message)) for message in part] if is_reusable else None)
        return [*wire, *build(fitted[len(self._messages) :])]


def _replies(messages: tuple[Message, ...], start: int) -> list[int]:
    """Return the positions from `start` (at least 1) of replies to user messages; no API merges a reply with those."""
    return [
        n
        for n in range(start, len(messages))
        if messages[n - 1].role == "user" and messages[n].role == "assistant" and messages[n].has_answer
    ]


def _call_ids(messages: Iterable[Message]) -> set[str]:
    return {use.id for message in messages for use in message.tool_uses}


def _positions_of_media_or_breakpoints(messages: tuple[Message, ...], start: int) -> list[int]:
    return [
        n
        for n in range(start, len(messages))
        if any(media_in(messages[n : n + 1])) or BREAKPOINT_KEY in encode_json(to_builtins(messages[n].content))
    ]
