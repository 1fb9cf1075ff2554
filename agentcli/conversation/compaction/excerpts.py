"""Picks the most informative sentences of older turns, for a digest that has no room for all of them.

A sentence is scored by how rare its words are in the conversation, as Luhn (1958) and later extractive summarizers do,
and by words that mark rules, decisions and reasons.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from math import log
from typing import Literal

from msgspec import Struct

MAX_SENTENCE_CHARS = 200
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")
_WORD = re.compile(r"\w+")
_CUE = re.compile(
    r"\b(?:never|always|must|do not|don't|from now on|make sure|remember|important|prefer|because|instead|"
    r"(?:I|we) (?:use|keep|chose|decided|will|have|went))\b",
    re.IGNORECASE,
)
_IDENTIFIER = re.compile(r"`|\w[_/.]\w|\d")  # code, a path, a name with underscores, a number
_CUE_FACTOR, _IDENTIFIER_FACTOR, _FOCUS_FACTOR = 2.0, 1.3, 10.0
_RARE_WORDS = 2  # that count for a sentence: a longer one is not better for having more of them
_SMOOTHING_WORDS = 8  # keeps very short sentences from winning
_MAX_MISSES = 20  # sentences that did not fit, after which the rest is not looked at
_ENTRY_TOKENS = 8  # the line break, the speaker and the number in front of the first sentence of an entry


Kind = Literal["failure", "answer", "prompt"]
# Of the room; what one kind leaves goes to the next.
SHARES: dict[Kind, float] = {"failure": 0.2, "answer": 0.3, "prompt": 0.5}


class Passage(Struct, frozen=True):
    """A sentence of the entry with this number; `speaker` introduces it."""

    entry: int
    kind: Kind
    speaker: str
    text: str


def split_passages(entry: int, kind: Kind, speaker: str, text: str) -> Iterator[Passage]:
    """Yield the sentences of an entry's text on one line each, the long ones cut."""
    for part in _SENTENCE_END.split(text):
        if _WORD.search(part):
            line = " ".join(part[: 2 * MAX_SENTENCE_CHARS].split())
            shown = line if len(line) <= MAX_SENTENCE_CHARS else f"{line[:MAX_SENTENCE_CHARS].rstrip()}…"
            yield Passage(entry, kind, speaker, shown)


class Scorer:
    """Scores sentences against those of their conversation: rare words count more than common ones.

    Sentences with words of `focus`, in lower case, come before all others.
    """

    def __init__(self, sentences: Iterable[Passage], focus: Collection[str] = ()) -> None:
        found = [_words(sentence.text) for sentence in sentences]
        self._uses = Counter(word for words in found for word in words)
        self._count = len(found) + 1
        self._focus = tuple(focus)

    def score(self, text: str) -> float:
        words = _words(text)
        rarest = sorted((log(self._count / (self._uses[word] or 1)) for word in words), reverse=True)[:_RARE_WORDS]
        score = sum(rarest) / (len(words) + _SMOOTHING_WORDS)
        if _CUE.search(text):
            score *= _CUE_FACTOR
        if _IDENTIFIER.search(text):
            score *= _IDENTIFIER_FACTOR
        if self._focus and any(word.startswith(self._focus) for word in words):
            score *= _FOCUS_FACTOR
        return score


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def pick_excerpts(
    sentences: Sequence[Passage], max_tokens: int, size: Callable[[str], int], scorer: Scorer
) -> list[str]:
    """Return lines of the most informative sentences in their order, one line for each entry.

    `size` counts the tokens of a text; the lines take at most `max_tokens`. Gaps are marked by an ellipsis.
    """
    picked: list[int] = []
    entries: set[int] = set()
    left = 0.0
    newest_first = reversed(range(len(sentences)))
    best = sorted(newest_first, key=lambda place: scorer.score(sentences[place].text), reverse=True)
    for kind, share in SHARES.items():
        left += share * max_tokens
        misses = 0
        for place in (place for place in best if sentences[place].kind == kind):
            sentence = sentences[place]
            tokens = size(sentence.text) + 1 + (0 if sentence.entry in entries else _ENTRY_TOKENS)
            if tokens <= left:
                left -= tokens
                picked.append(place)
                entries.add(sentence.entry)
            elif (misses := misses + 1) > _MAX_MISSES:
                break
    lines = []
    for number, places in groupby(sorted(picked), key=lambda place: sentences[place].entry):
        chosen = [*places]
        text = sentences[chosen[0]].text
        for before, place in pairwise(chosen):
            text += f"{' ' if place == before + 1 else ' … '}{sentences[place].text}"
        lines.append(f"{sentences[chosen[0]].speaker} [#{number}]: {text}")
    return lines
