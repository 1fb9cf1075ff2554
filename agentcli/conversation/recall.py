"""Finds entries of the log again, by what they say or by their number: also those that a compaction left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from math import log

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Entry, Pinned, Result, User
from agentcli.llm.messages import Block, Document, Image, Text, Thinking, ToolResult, ToolUse, block_text

_EXCERPT = 160  # characters to each side of what was found
_SHORT = 3  # letters of a word that would be found in many others
_MOST_PLACES = 50  # of one word in one entry
_FOR_THE_PHRASE = 10.0
_SAYING_LITTLE = frozenset(
    "a an and are as at be by did do for from had has have how in is it its of on or that the this to was we were what "
    "when where which who why with you".split()
)


class LogSearch:
    """The log of a conversation, with what was taken back."""

    def __init__(self, conversation: Conversation) -> None:
        self._entries = conversation.entries

    def entry(self, id: str) -> tuple[str, tuple[Image | Document, ...]] | None:
        """An entry whole, by its number in the log or by its id, and its images; None where there is none."""
        wanted = id.strip().lstrip("#")
        for number, entry in self._numbered():
            if wanted in (str(number), entry.id):
                return f"{_heading(number, entry.body)}\n{_text(entry.body)}", _media(entry.body)
        return None

    def search(self, query: str) -> list[str]:
        """Excerpts of the entries that say it, or most of its words: the rarer the words the better, then the newer."""
        phrase = " ".join(query.lower().split())
        patterns = [
            re.compile(rf"(?<!\w){re.escape(word)}(?!\w)" if len(word) <= _SHORT else re.escape(word))
            for word in saying_much(phrase)
        ]
        texts = [(number, entry.body, _text(entry.body)) for number, entry in self._numbered()]
        lowered = [text.lower() for _, _, text in texts]
        holders = [sum(pattern.search(text) is not None for text in lowered) for pattern in patterns]
        scored: list[tuple[float, int, str]] = []
        for (number, body, text), lower in zip(texts, lowered, strict=True):
            found = [n for n, pattern in enumerate(patterns) if pattern.search(lower)]
            has_phrase = phrase in lower
            if has_phrase or (found and 2 * len(found) >= len(patterns)):
                score = sum(log(1 + len(texts) / holders[n]) for n in found) + (_FOR_THE_PHRASE if has_phrase else 0)
                at = lower.find(phrase) if has_phrase else _densest(lower, [patterns[n] for n in found])
                start, end = max(0, at - _EXCERPT), at + _EXCERPT
                excerpt = f"{'…' if start else ''}{' '.join(text[start:end].split())}{'…' if end < len(text) else ''}"
                scored.append((score, number, f"{_heading(number, body)} {excerpt}"))
        return [text for _, _, text in sorted(scored, key=lambda one: (-one[0], -one[1]))]

    def _numbered(self) -> Iterator[tuple[int, Entry]]:
        """The newest first: an id that a model has used twice means its last use."""
        for number in range(len(self._entries), 0, -1):
            entry = self._entries[number - 1]
            is_own = isinstance(entry.body, Result) and entry.body.name == "recall"
            if isinstance(entry.body, User | Assistant | Result | Pinned) and not is_own:
                yield number, entry


def saying_much(query: str) -> list[str]:
    """The words of a query without those that stand everywhere."""
    words = list(dict.fromkeys(re.findall(r"[\w./-]*\w", query)))
    return [word for word in words if word not in _SAYING_LITTLE] or words


def _densest(text: str, patterns: Sequence[re.Pattern[str]]) -> int:
    """Return the place around which most of the words are found."""
    matches = (match for pattern in patterns for match in islice(pattern.finditer(text), _MOST_PLACES))
    places = sorted(match.start() for match in matches)
    return max(places, key=lambda at: sum(at <= other <= at + 2 * _EXCERPT for other in places), default=0)


def _heading(number: int, body: Body) -> str:
    match body:
        case User(is_reminder=True):
            who = "note"
        case User():
            who = "user"
        case Assistant():
            who = "you"
        case Result(name=name, result=result):
            who = f"{name}{' (failed)' if result.is_error else ''}"
        case _:
            who = type(body).__name__.lower()
    return f"[#{number} {who}]"


def _text(body: Body) -> str:
    match body:
        case User(content) | Assistant(content):
            return "\n".join(filter(None, map(_of_block, content)))
        case Result(result):
            return result.text
        case Pinned(text):
            return text
        case _:
            return ""


def _media(body: Body) -> tuple[Image | Document, ...]:
    match body:
        case User(content) | Result(ToolResult(content=tuple() as content)):
            return tuple(block for block in content if isinstance(block, Image | Document))
        case _:
            return ()


def _of_block(block: Block) -> str:
    if isinstance(block, ToolUse) and block.name == "recall":
        return ""
    return block_text(block) if isinstance(block, Text | Thinking | ToolUse) else f"[{type(block).__name__.lower()}]"
