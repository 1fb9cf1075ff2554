"""The words of a search and the texts that it looks at, the same for every store."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from unicodedata import combining, normalize

from agentcli.agent.interfaces import SearchHit
from agentcli.conversation.entries import Assistant, Body, Compaction, ContextNote, Entry, Pinned, Result, User
from agentcli.errors import StorageError
from agentcli.llm.messages import Block, Text, ToolUse

MAX_WORD_CHARS = 64
_EXCERPT_CHARS = 60  # to each side of the word that was found
_WORD = re.compile(r"[^\W_]+")
_LAST_WITH_ACCENTS = 0x52F  # Latin, Greek and Cyrillic; in other scripts a mark makes another letter


class Words:
    """The words of a search, of which each finds all words that begin with it, whatever their case and accents.

    A word with other signs in it, such as `file_read`, finds its parts in a row. Raises `StorageError` for no word.
    """

    def __init__(self, text: str) -> None:
        self._phrases = [*filter(None, (_WORD.findall(folded(part)) for part in text.split()))]
        if not self._phrases:
            raise StorageError(f"There is nothing to search for in {text!r}: give a word with a letter or a digit.")
        self._patterns = [re.compile(r"(?<![^\W_])" + r"[\W_]+".join(phrase)) for phrase in self._phrases]

    @property
    def for_index(self) -> str:
        """The query of FTS5 (https://www.sqlite.org/fts5.html, 3)."""
        return " ".join(f'"{" ".join(phrase)}"*' for phrase in self._phrases)

    @property
    def for_tsquery(self) -> str:
        """The query of Postgres on `words_in` a text. It finds all texts with the words, and some others."""
        words = [(word[:MAX_WORD_CHARS], ":*" * (word is phrase[-1])) for phrase in self._phrases for word in phrase]
        return " & ".join(f"'{word}'{mark}" for word, mark in words)

    def are_in(self, text: str) -> bool:
        text = folded(text)
        return all(pattern.search(text) for pattern in self._patterns)

    def excerpt(self, text: str) -> str:
        """Return a line of the text with the first found word in its middle."""
        matches = [match for pattern in self._patterns if (match := pattern.search(folded(text)))]
        start, end = min((match.span() for match in matches), default=(0, 0))
        begin, stop = max(0, start - _EXCERPT_CHARS), end + _EXCERPT_CHARS
        line = "".join(sign if sign.isprintable() else " " for sign in normalize("NFC", text)[begin:stop])
        return f"{'…' * (begin > 0)}{' '.join(line.split())}{'…' * (stop < len(text))}"

    def found_in(self, session_id: str, title: str, entry: Entry) -> SearchHit:
        kind, excerpt = str(entry.body.__struct_config__.tag), self.excerpt(text_of(entry.body))
        return SearchHit(session_id, entry.id, kind, excerpt, time=entry.time, title=title)


class _Folding(dict[int, str]):
    """Small letters without accents, by code point. A character stays one character, so that positions agree."""

    def __missing__(self, code: int) -> str:
        letters = normalize("NFD", chr(code))
        is_accented = code <= _LAST_WITH_ACCENTS and all(map(combining, letters[1:]))
        self[code] = (letters[0] if is_accented else chr(code)).lower()[:1]
        return self[code]


_FOLDING = _Folding()


def folded(text: str) -> str:
    """Return a text as it is indexed and looked for; its positions are those of the text in NFC."""
    return text.lower() if text.isascii() else normalize("NFC", text).translate(_FOLDING)


def words_in(text: str) -> list[str]:
    """Return the words of a text for an index without positions: each once, cut to `MAX_WORD_CHARS`."""
    return list(dict.fromkeys(word[:MAX_WORD_CHARS] for word in _WORD.findall(folded(text))))


def text_of(body: Body) -> str:
    """Return the text that a search looks at: neither the model's thinking nor system reminders."""
    match body:
        case User(is_reminder=False) as user:
            return user.text
        case Assistant(content):
            return "\n".join(text for block in content for text in _texts_of(block))
        case Result(result):
            return result.text
        case Compaction(carried):
            return carried
        case ContextNote(text) | Pinned(text):
            return text
        case _:
            return ""


def _texts_of(block: Block) -> Iterable[str]:
    if isinstance(block, Text):
        yield block.text
    elif isinstance(block, ToolUse):
        yield from (block.name, *_texts_in(block.input), block.unparsed)


def _texts_in(value: Any) -> Iterable[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)
    elif value is not None:
        yield str(value)
