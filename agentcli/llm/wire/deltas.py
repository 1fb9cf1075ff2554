"""Joins the deltas of a stream: it costs one event a piece and not one a token. Parts reasoning from text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeVar

from agentcli.llm.errors import ProviderError, ServerError
from agentcli.llm.messages import Block, Text, Thinking
from agentcli.llm.provider import StreamEvent, TextDelta, ThinkingDelta, ToolCallDelta

T = TypeVar("T")
OPEN, CLOSE = "<think>", "</think>"
_ANY_TAG = re.compile("</?think>")
_FENCE = re.compile(r"\s*(`{3,}|~{3,})")
_MAX_FENCE_LINE = 100  # characters of a line that may be a fence
_BEFORE_A_WORD = frozenset(" \t`'\"(“‘")  # a tag behind one of these is spoken about


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
    """Return the same events with neighbouring deltas of one kind (and one call) joined; order is kept."""
    if len(events) < 2:
        return events
    joined: list[StreamEvent] = []
    for kind, group in groupby(events, type):  # each delta comes here, so the loops are those of C
        if kind is TextDelta or kind is ThinkingDelta:
            joined.append(kind("".join([event.text for event in group])))  # type: ignore[union-attr]
        elif kind is ToolCallDelta:
            for id, deltas in groupby(group, attrgetter("id")):
                joined.append(ToolCallDelta(id, "".join([delta.partial_json for delta in deltas])))  # type: ignore[union-attr]
        else:
            joined += group
    return joined


class ThinkTags:
    """Parts reasoning in `<think>…</think>` from text. The tag may be split over chunks, its opening may be missing.

    Only a tag that begins the reply opens reasoning, or `begins_inside`. One `</think>` ends it, or without a tag all
    text before it `was_thinking`; none does in code or in prose (behind an opening tag, a space or a quotation mark).
    """

    def __init__(self, *, begins_inside: bool = False) -> None:
        self._held = ""
        self._state: Literal["start", "thinking", "text"] = "start"
        self.is_unclosed = begins_inside  # reasoning that no tag opened, and none has closed yet
        self.was_thinking = False  # what was given out as text before the newest pieces
        self._skips_newlines = False  # those that only set a tag apart
        self._may_end = True
        self._last = ""  # the character of the text before what is held
        self._line = ""  # the beginning of the line that it stands in
        self._fence = ""  # the fence that opened the block of code it stands in

    def skip_opening(self) -> None:
        """The server keeps reasoning apart: a tag that begins the text is the answer's own."""
        if self._state == "start" or self.is_unclosed:
            self._state, self.is_unclosed = "text", False

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Return (is it thinking, the piece) for all that is certain so far."""
        self.was_thinking = False
        is_plain = self._state == "text" and not self._held and not self._skips_newlines
        if is_plain and (not self._may_end or "<" not in text):
            self._follow(text)
            return [(False, text)]
        self._held += text
        pieces: list[tuple[bool, str]] = []
        while self._held:
            if self._skips_newlines:
                self._held = self._held.lstrip("\n")
                self._skips_newlines = not self._held
            elif self._state == "start":
                begun = self._held.lstrip()
                if OPEN.startswith(begun) and begun != OPEN:
                    break
                self._state = "thinking" if begun.startswith(OPEN) or self.is_unclosed else "text"
                if begun.startswith(OPEN):
                    self._held, self._skips_newlines, self.is_unclosed = begun.removeprefix(OPEN), True, False
            elif not self._read_on(pieces):
                break
        return pieces

    def _read_on(self, pieces: list[tuple[bool, str]]) -> bool:
        """Take what is held up to the next tag; False when more must arrive first."""
        is_thinking = self._state == "thinking"
        if not self._may_end:
            self._take(len(self._held), pieces)
            return True
        tag = _ANY_TAG.search(self._held) if not is_thinking else re.search(CLOSE, self._held)
        if tag is None:
            self._take(len(self._held) - max(_overlap(self._held, OPEN), _overlap(self._held, CLOSE)), pieces)
            return False
        self._take(tag.start(), pieces)
        self._may_end = False
        if is_thinking or (tag[0] == CLOSE and self._last not in _BEFORE_A_WORD and not self._fence):
            self._held, self._skips_newlines = self._held.removeprefix(CLOSE), True
            self._state, self.is_unclosed = "text", False
            if not is_thinking:
                self.was_thinking = True
                pieces[:] = [(True, piece) for _, piece in pieces]
        return True

    def _take(self, size: int, pieces: list[tuple[bool, str]]) -> None:
        piece, self._held = self._held[:size], self._held[size:]
        if piece:
            pieces.append((self._state == "thinking", piece))
            self._follow(piece)

    def _follow(self, text: str) -> None:
        """Note where the text is by now, as long as a tag may come."""
        if not self._may_end or not text:
            return
        self._last = text[-1]
        *lines, self._line = (self._line + text).split("\n")
        self._line = self._line[:_MAX_FENCE_LINE]
        for line in lines:
            if not self._fence:
                self._fence = found[1] if (found := _FENCE.match(line)) else ""
            elif line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
                self._fence = ""

    def close(self) -> list[tuple[bool, str]]:
        """Return the text that was held back, at the reply's end."""
        self.was_thinking = False
        held, self._held = self._held, ""
        return [(self._state == "thinking", held)] if held else []


class Prose:
    """The text and the reasoning of one reply, which servers send apart or in tags."""

    def __init__(self, *, begins_inside: bool = False) -> None:
        self.text, self.thinking = list[str](), list[str]()
        self._tags = ThinkTags(begins_inside=begins_inside)

    def add_thinking(self, thought: str, out: list[StreamEvent]) -> None:
        self._tags.skip_opening()
        self.thinking.append(thought)
        out.append(ThinkingDelta(thought))

    def add(self, text: str, out: list[StreamEvent]) -> None:
        self._take(self._tags.feed(text), out)

    def close(self, out: list[StreamEvent]) -> None:
        self._take(self._tags.close(), out)

    def require_text(self, out: list[StreamEvent]) -> None:
        """Of a whole reply, take reasoning that never ended for its text."""
        if self._tags.is_unclosed and self.thinking:
            self.text, self.thinking = self.thinking, []
            out.append(TextDelta("".join(self.text)))

    def _take(self, pieces: Iterable[tuple[bool, str]], out: list[StreamEvent]) -> None:
        if self._tags.was_thinking:
            self.thinking += self.text
            self.text.clear()
        for is_thinking, piece in pieces:
            (self.thinking if is_thinking else self.text).append(piece)
            out.append(ThinkingDelta(piece) if is_thinking else TextDelta(piece))

    def blocks(self, *between: Block) -> list[Block]:
        """The reasoning, what stands between, and the text."""
        thinking, text = "".join(self.thinking), "".join(self.text)
        return [*([Thinking(thinking)] if thinking else []), *between, *([Text(text)] if text else [])]


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` could begin `tag`."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0)
