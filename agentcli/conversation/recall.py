"""Finds entries of the log again, by what they say or by their number: also those that a compaction left out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from agentcli.conversation.conversation import Conversation
from agentcli.conversation.entries import Assistant, Body, Compaction, Entry, Pinned, Result, User
from agentcli.llm.messages import Block, Text, Thinking, ToolUse

_EXCERPT = 160  # characters to each side of what was found
_COMMON = 3  # letters of words that say too little to be looked for beside others


class Recall:
    """The log of a conversation, with what was taken back."""

    def __init__(self, conversation: Conversation) -> None:
        self._entries = conversation.entries

    def entry(self, id: str) -> str | None:
        """An entry whole, by its number in the log or by its id; None where there is none."""
        wanted = id.strip().lstrip("#")
        for number, entry in self._numbered():
            if wanted in (str(number), entry.id):
                return f"{_heading(number, entry.body)}\n{_text(entry.body)}"
        return None

    def search(self, query: str) -> list[str]:
        """Excerpts of the entries that say it, or most of its words; the best first, then the newest."""
        phrase, words = query.lower().strip(), _words(query)
        scored: list[tuple[int, int, str]] = []
        for number, entry in self._numbered():
            text = _text(entry.body)
            lower = text.lower()
            found = {word for word in words if word in lower}
            score = len(words) + 1 if phrase in lower else len(found)
            if score and (score > len(words) or len(found) >= (len(words) + 1) // 2):
                at = lower.find(phrase) if phrase in lower else _densest(lower, found)
                scored.append((score, number, f"{_heading(number, entry.body)} {_excerpt(text, at)}"))
        best = sorted(scored, key=lambda one: (-one[0], -one[1]))
        return [text for _, _, text in best]

    def _numbered(self) -> Iterator[tuple[int, Entry]]:
        """The newest first: an id that a model has used twice means its last use."""
        for number in range(len(self._entries), 0, -1):
            entry = self._entries[number - 1]
            if isinstance(entry.body, User | Assistant | Result | Pinned | Compaction) and not _is_own(entry.body):
                yield number, entry


def _is_own(body: Body) -> bool:
    """True for what recall has said itself."""
    return isinstance(body, Result) and body.name == "recall"


def _words(query: str) -> list[str]:
    words = re.findall(r"[\w./-]+", query.lower())
    return [word for word in words if len(word) > _COMMON] or words


def _densest(text: str, words: Iterable[str]) -> int:
    """Where most of the words stand near to one another."""
    places = sorted(place for word in words for place in _places(text, word))
    return max(places, key=lambda at: sum(at <= other <= at + 2 * _EXCERPT for other in places), default=0)


def _places(text: str, word: str) -> list[int]:
    return [found.start() for found in re.finditer(re.escape(word), text)][:50]


def _excerpt(text: str, at: int) -> str:
    start, end = max(0, at - _EXCERPT), at + _EXCERPT
    excerpt = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{excerpt}{'…' if end < len(text) else ''}"


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
        case Compaction(carried):
            return carried
        case _:
            return ""


def _of_block(block: Block) -> str:
    match block:
        case Text(text):
            return text
        case Thinking(thinking):
            return thinking
        case ToolUse(_, "recall"):
            return ""
        case ToolUse(_, name, input):
            return f"{name} {msgspec.json.encode(input).decode()}"
        case _:
            return f"[{type(block).__name__.lower()}]"
