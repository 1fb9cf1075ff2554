"""Defines a rule for one kind of secret, and the matcher that finds the secrets it describes in a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice

from msgspec import Struct

from agentcli.safety.secrets.values import JUDGES

# No pattern looks further ahead or back than this many characters from the place where it is tried, so the verdict on a
# stretch of text holds whatever surrounds it. Streams depend on both limits.
LONGEST_MATCH = 8_000
LONGEST_CONTEXT = 2_000
MOST_EACH = 40  # secrets behind one announcement

# A token does not begin within a word, within base64 or in a wheel's list of hashes. The end of an escape (\n in JSON,
# %3D in a URL) is not part of a word.
_LEFT = r"(?:(?<![0-9A-Za-z])(?<![0-9A-Za-z][+_-])(?<!sha256=)|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2}))"
_RIGHT = r"(?![0-9A-Za-z])"


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of secret, as a row of the TOML files beside this module.

    `pattern` is a regular expression (ASCII). Its group 1, or else the whole match, is the secret and contains no white
    space; `judge`, a function of values.py, has the last word on it.

    `starts` are literals divided by spaces; the pattern is tried `back` characters before each of them. `words` are the
    same in every spelling (`api-key` stands for api_key, apiKey, API_KEY, ...). A rule without either is searched for
    everywhere. `after` is a word that must stand earlier in the same command, backslash-continued lines included.
    `is_bounded` keeps the match from starting or ending inside a word. With `each`, the pattern only announces secrets:
    they are the matches of this expression in the rest of the line. With `is_named`, the literal is the name of a
    secret, and names that only say something about one, such as `token_count`, do not count.

    `like` and `unlike` are examples for the tests, which replace `{h32}` and its kin with random characters, so that
    no secret stands in this repository.
    """

    name: str
    pattern: str
    like: str
    unlike: str = ""
    starts: str = ""
    words: str = ""
    judge: str = "looks_random"
    back: int = 0
    after: str = ""
    is_bounded: bool = True
    each: str = ""
    is_named: bool = False

    @property
    def literals(self) -> list[str]:
        return [*self.starts.split(), *(spelled for word in self.words.split() for spelled in spellings(word))]


def spellings(words: str) -> list[str]:
    """The ways a name is written: new-relic, NEW_RELIC, newRelic. `meraKit` is not one of Meraki."""
    parts = words.split("-")
    found: dict[str, None] = {}
    for joint in ("", "-", "_", "."):
        title = [part.title() for part in parts]
        for spelled in (parts, title, [part.upper() for part in parts], [parts[0], *title[1:]]):
            found[joint.join(spelled)] = None
    return list(found)


class Matcher:
    """Finds the secrets of one rule. Compiles its expression on first use, since most are never needed."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._is_secret = JUDGES[rule.judge]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = self.rule.pattern
        return re.compile(f"{_LEFT}(?:{pattern}){_RIGHT}" if self.rule.is_bounded else pattern, re.ASCII)

    @cached_property
    def _each(self) -> re.Pattern[str]:
        return re.compile(self.rule.each, re.ASCII)

    @cached_property
    def _starts(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.rule.literals)))

    def spans_at(self, text: str, position: int) -> Iterator[tuple[int, int]]:
        """The secrets that the literal at `position` belongs to or announces: at most one, except for `each`."""
        rule = self.rule
        if (match := self._match_at(text, position)) is None:
            return
        found: Iterable[re.Match[str]] = (match,)
        if rule.each:
            found = islice(self._announced(text, match.end()), MOST_EACH)
        for one in found:
            start, end = one.span(1 if one.lastindex else 0)
            if self._is_secret(text[start:end]):
                yield start, end

    def _match_at(self, text: str, position: int) -> re.Match[str] | None:
        rule = self.rule
        if position < rule.back or not (match := self._pattern.match(text, position - rule.back)):
            return None
        if rule.after and not _stands_before(rule.after, text, position):
            return None
        return None if rule.is_named and _ABOUT_SECRETS.match(text, position) else match

    def _announced(self, text: str, start: int) -> Iterator[re.Match[str]]:
        """The matches of `each` in the rest of the line, up to the next announcement, so that each is found once."""
        line_end = end = _line_end(text, start)
        for literal in self._starts.finditer(text, start, line_end):
            if following := self._match_at(text, literal.start()):
                end = following.end()
                break
        for one in self._each.finditer(text, start, line_end):
            if one.start() >= end:
                return
            yield one

    def spans_in(self, text: str) -> Iterator[tuple[int, int]]:
        """The secrets of a rule without literals, whose pattern is searched for everywhere."""
        for match in self._pattern.finditer(text):
            if self._is_secret(match.group()):
                yield match.span()


def _line_end(text: str, start: int) -> int:
    """The end of the line at `start`, or of the part of it that may be looked at."""
    end = text.find("\n", start, start + LONGEST_CONTEXT)
    return end if end >= 0 else start + LONGEST_CONTEXT


def _stands_before(word: str, text: str, position: int) -> bool:
    earliest = max(0, position - LONGEST_CONTEXT + len(word))
    found = text.rfind(word, earliest, position)
    return found >= 0 and _LINE_END.search(text, found, position) is None


# The rest of names that only say something about a secret, and tokens that turn pages.
_ABOUT_SECRETS = re.compile(
    r"[\w.-]{0,40}?(?i:id|url|uri|name|file|path|dir|size|len|length|count|type|expiry|hash|host|version|min|max|ttl"
    r"|field|label|prefix|policy)s?(?![a-z])"
    r"|[\w.-]{0,40}?(?i:sha\d{0,3}|md5|digest|checksum|commit|revision|mode|flow|method|scheme|strategy|provider|backend|transport)s?(?![\w.-])|(?:(?<=[Nn]ext_)|(?<=[Nn]ext)|(?<=[Pp]age_)|(?<=[Pp]age)"
    r"|(?<=[Cc]ontinuation))",
    re.ASCII,
)
_LINE_END = re.compile(r"(?<!\\)(?<!\\\r)\n")
