"""Finds tokens and passwords in a text. One pass over its bytes finds the few places where a rule is worth trying."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation

from agentcli.safety.secrets.rule import Matcher
from agentcli.safety.secrets.rules import all_rules


class Found(NamedTuple):
    """A secret in a text: where it starts and ends, in characters, and the name of the rule that found it."""

    start: int
    end: int
    rule: str


def bytes_for_search(text: str) -> bytes:
    """One byte for each character, so that positions agree. ASCII stays, other characters become anything."""
    return text.encode("latin-1", "replace")


def find_tokens(text: str, raw: bytes) -> list[Found]:
    """The secrets without line ends, in no order. They may overlap. `raw` is `bytes_for_search(text)`.

    The time is proportional to the length of the text, whatever it contains.
    """
    places, matchers, swept = _prepared()
    found: list[Found] = []
    for literal, start, _ in places.find_matches_as_indexes(raw, overlapping=True):
        for matcher in matchers[literal]:
            found += (Found(*span, matcher.rule.name) for span in matcher.spans_at(text, start))
    for matcher in swept:
        found += (Found(*span, matcher.rule.name) for span in matcher.spans_in(text))
    return found


@cache
def _prepared() -> tuple[BytesAhoCorasick, list[list[Matcher]], list[Matcher]]:
    by_literal: dict[bytes, list[Matcher]] = {}
    swept = []
    for rule in all_rules():
        matcher = Matcher(rule)
        literals = rule.literals
        for literal in literals:
            by_literal.setdefault(literal.encode(), []).append(matcher)
        if not literals:
            swept.append(matcher)
    return BytesAhoCorasick(list(by_literal), implementation=Implementation.DFA), list(by_literal.values()), swept
