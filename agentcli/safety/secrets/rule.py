"""What a rule for one kind of secret is, and how a value is told from a placeholder or a plain word."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from math import log2
from typing import NamedTuple

Judge = Callable[[str], bool]

# No pattern reaches further than this from the place where it is tried, in characters, and none looks further back:
# what is said about a stretch of text holds whatever comes before and after it. A stream depends on both.
LONGEST_MATCH = 8_000
LONGEST_CONTEXT = 2_000
MOST_EACH = 40  # secrets that one announcement has

# A token does not begin within a word, within base64 or in a wheel's list of hashes; what an escape ends (\n in JSON,
# %3D in a URL) is no word.
_LEFT = r"(?:(?<![0-9A-Za-z])(?<![0-9A-Za-z][+_-])(?<!sha256=)|(?<=\\[nrtbf])|(?<=%[0-9A-Fa-f]{2}))"
_RIGHT = r"(?![0-9A-Za-z])"
_UUID = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"


def looks_random(value: str) -> bool:
    """Whether `value` may be a generated token: not a few characters repeated. Words in it do not matter."""
    least = 2.0 if value.isdigit() else 2.6 if len(value) < 24 else 3.0
    return _RUN.search(value) is None and entropy(value) >= least


def has_random_digits(value: str) -> bool:
    """`looks_random` for formats that a long name in source code has too: those seldom have digits."""
    return _DIGIT.search(value) is not None and looks_random(value)


_RUN = re.compile(r"[xX]{5}|[*#.…]{3}|\A(.)\1+\Z")
_DIGIT = re.compile("[0-9]")


def is_no_name(value: str) -> bool:
    """For formats so loose that names in source code have them: there is a digit, or a letter five times over."""
    return re.search(r"\d|([a-z])\1{4}", value) is not None


def anything(value: str) -> bool:
    """For formats so much their own that even a made-up value is masked."""
    return True


def is_placeholder(value: str) -> bool:
    """Whether people wrote `value` to say that a secret belongs here: `xxxx`, `<token>`, `${KEY}`, `YOUR_KEY`."""
    return _PLACEHOLDER.search(value) is not None or any(word in value for word in _WORDS)


_PLACEHOLDER = re.compile(r"[xX]{5}|\*{3}|\.{3}|#{4}|_{4}|…|•|[-_](?:here|HERE)|\A[$<%\[]|\$[{(]|\{\{|\A(.)\1+\Z")
# A word counts when all of it is written in one way: FaKe is four letters of a token.
_WORDS = [
    spelled
    for word in """
    example placeholder redacted dummy sample fake masked replace changeme change_me changeit your_ your- insert_
    """.split()
    for spelled in (word, word.capitalize(), word.upper())
]


def entropy(value: str) -> float:
    """Shannon's entropy of the characters, in bits for each: 4 for long random hexadecimal, nearly 6 for base64."""
    length = len(value)
    return -sum(count / length * log2(count / length) for count in Counter(value).values())


class Rule(NamedTuple):
    """One kind of secret. The pattern is tried `back` characters before each place where one of `starts` stands.

    `starts` are literals divided by spaces, none when the pattern is to be looked for everywhere. `pattern` is a
    regular expression (ASCII; `{U}` stands for a UUID) whose group 1, or else all of it, is the secret and holds no
    white space. `is_secret` judges that. `after` is a word that must stand before it in the same command, lines that a
    backslash continues included. `bounds` puts the pattern between the ends of words. With `each` the pattern is only
    what announces secrets: they are what this expression finds in the rest of the line. With `is_named` the literal
    is the name of a secret, and a name of what is only known about one does not count. `like` and `unlike` are
    examples for the test, which writes random characters for `{h32}` and its kin, so that nothing here looks like a
    secret.
    """

    name: str
    starts: str
    pattern: str
    like: str
    unlike: str = ""
    is_secret: Judge = looks_random
    back: int = 0
    after: str = ""
    bounds: bool = True
    each: str = ""
    is_named: bool = False


class Matcher:
    """A rule made ready; its expression is compiled when it is first needed, as most never are."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = self.rule.pattern.replace("{U}", _UUID)
        pattern = f"{_LEFT}(?:{pattern}){_RIGHT}" if self.rule.bounds else pattern
        return re.compile(pattern, re.ASCII)

    @cached_property
    def _each(self) -> re.Pattern[str]:
        return re.compile(self.rule.each, re.ASCII)

    @cached_property
    def _starts(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.rule.starts.split())))

    def spans_at(self, text: str, position: int) -> Iterator[tuple[int, int]]:
        """Where the secrets are that `position`, the place of one of the rule's literals, belongs to: one at most
        but for rules with `each`.
        """
        rule = self.rule
        if (match := self._match_at(text, position)) is None:
            return
        found: Iterable[re.Match[str]] = (match,)
        if rule.each:
            found = islice(self._announced(text, match.end()), MOST_EACH)
        for one in found:
            start, end = one.span(1 if one.lastindex else 0)
            if rule.is_secret(text[start:end]):
                yield start, end

    def _match_at(self, text: str, position: int) -> re.Match[str] | None:
        rule = self.rule
        if position < rule.back or not (match := self._pattern.match(text, position - rule.back)):
            return None
        if rule.after and not _stands_before(rule.after, text, position):
            return None
        return None if rule.is_named and _ABOUT_SECRETS.match(text, position) else match

    def _announced(self, text: str, start: int) -> Iterator[re.Match[str]]:
        """What stands in the rest of the line, up to the next announcement, which has its own: so each is read once."""
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
        """For a rule without literals, whose pattern is looked for everywhere."""
        for match in self._pattern.finditer(text):
            if self.rule.is_secret(match.group()):
                yield match.span()


def _line_end(text: str, start: int) -> int:
    """Of the line, or of as much of it as may be looked at."""
    end = text.find("\n", start, start + LONGEST_CONTEXT)
    return end if end >= 0 else start + LONGEST_CONTEXT


def _stands_before(word: str, text: str, position: int) -> bool:
    earliest = max(0, position - LONGEST_CONTEXT + len(word))
    found = text.rfind(word, earliest, position)
    return found >= 0 and _LINE_END.search(text, found, position) is None


# Names of what is known about a secret, and tokens that turn pages.
_ABOUT_SECRETS = re.compile(
    r"[\w.-]{0,40}?(?i:id|url|uri|name|file|path|dir|size|len|length|count|type|expiry|hash|host|version|min|max|ttl"
    r"|field|label|prefix|policy)s?(?![a-z])"
    r"|[\w.-]{0,40}?(?i:sha\d{0,3}|md5|digest|checksum|commit|revision|mode|flow|method|scheme|strategy|provider|backend|transport)s?(?![\w.-])|(?:(?<=[Nn]ext_)|(?<=[Nn]ext)|(?<=[Pp]age_)|(?<=[Pp]age)"
    r"|(?<=[Cc]ontinuation))",
    re.ASCII,
)
_LINE_END = re.compile(r"(?<!\\)(?<!\\\r)\n")
