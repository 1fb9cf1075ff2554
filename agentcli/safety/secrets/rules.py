"""Finds tokens and passwords by the rules of the TOML files, each tried only where one of its literals stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from itertools import islice, takewhile
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation
from msgspec import Struct, convert

from agentcli.safety.secrets.values import JUDGES, read_table

# No pattern looks further ahead or back than this many characters from the place where it is tried, so the verdict on a
# stretch of text holds whatever surrounds it. Streams depend on both limits.
LONGEST_MATCH = 8_000
LONGEST_CONTEXT = 2_000
MOST_EACH = 40  # secrets behind one announcement

# A token does not begin within a word, within base64 or in a wheel's list of hashes. The end of an escape (\n in JSON,
# %3D in a URL, ^I of `cat -T`) is not part of a word.
_LEFT = (
    r"(?:(?<![0-9A-Za-z])(?<![0-9A-Za-z][+_-])(?<!sha256=)|(?<=\\[nrtbf])|(?<=\^[IM])|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\\u[0-9A-Fa-f]{4})|(?<=\\x[0-9A-Fa-f]{2}))"
)
_RIGHT = r"(?![0-9A-Za-z])"


class Secret(NamedTuple):
    """A secret in a text: where it starts and ends, in characters, and the name of the rule that found it."""

    start: int
    end: int
    rule: str


class SecretRule(Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """One kind of secret, as a row of the TOML files beside this module.

    `pattern` is a regular expression (ASCII). Its group 1, or else the whole match, is the secret and contains no white
    space; `judge`, a function of values.py, has the last word on it. The pattern is tried `back` characters before each
    of the literals in `starts`, and of `words` in every spelling (`api-key` stands for api_key, apiKey, API_KEY, ...);
    everywhere without either. `after` is a word that must stand earlier in the same command. `is_bounded` keeps the
    match from starting or ending inside a word. With `each`, the pattern only announces secrets: they are the matches
    of this expression in the rest of the line. With `is_named`, the literal names a secret, and names that only say
    something about one, such as `token_count`, do not count. In `like` and `unlike`, examples for the tests, `{h32}`
    and its kin stand for random characters.
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

    @cached_property
    def literals(self) -> list[str]:
        return [*self.starts.split(), *(spelled for word in self.words.split() for spelled in spellings(word))]

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        """The pattern, compiled on first use, since most are never needed."""
        return re.compile(f"{_LEFT}(?:{self.pattern}){_RIGHT}" if self.is_bounded else self.pattern, re.ASCII)

    def spans_at(self, text: str, position: int) -> Iterator[tuple[int, int]]:
        """The secrets that the literal at `position` belongs to or announces: at most one, except for `each`."""
        if (match := self._match_at(text, position)) is None:
            return
        for one in islice(self._announced(text, match.end()), MOST_EACH) if self.each else (match,):
            start, end = one.span(1 if one.lastindex else 0)
            if JUDGES[self.judge](text[start:end]):
                yield start, end

    def _match_at(self, text: str, position: int) -> re.Match[str] | None:
        if position < self.back or not (match := self._expression.match(text, position - self.back)):
            return None
        if self.after:
            found = text.rfind(self.after, max(0, position - LONGEST_CONTEXT + len(self.after)), position)
            if found < 0 or _LINE_END.search(text, found, position):
                return None
        return None if self.is_named and _ABOUT_SECRETS.match(text, position) else match

    def _announced(self, text: str, start: int) -> Iterator[re.Match[str]]:
        """The matches of `each` in the rest of the line, up to the next announcement, so that each is found once."""
        line_end = text.find("\n", start, start + LONGEST_CONTEXT)
        line_end = line_end if line_end >= 0 else start + LONGEST_CONTEXT
        literals = re.compile("|".join(map(re.escape, self.literals))).finditer(text, start, line_end)
        following = next(filter(None, (self._match_at(text, literal.start()) for literal in literals)), None)
        end = following.end() if following else line_end
        found = re.compile(self.each, re.ASCII).finditer(text, start, line_end)
        yield from takewhile(lambda one: one.start() < end, found)

    def spans_in(self, text: str) -> Iterator[tuple[int, int]]:
        """The secrets of a rule without literals, whose pattern is searched for everywhere."""
        for match in self._expression.finditer(text):
            if JUDGES[self.judge](match.group()):
                yield match.span()


def spellings(words: str) -> list[str]:
    """Return the ways a name is written: new-relic, NEW_RELIC, newRelic. `meraKit` is not one of Meraki."""
    parts = words.split("-")
    title = [part.title() for part in parts]
    forms = (parts, title, [part.upper() for part in parts], [parts[0], *title[1:]])
    return list(dict.fromkeys(joint.join(form) for joint in ("", "-", "_", ".") for form in forms))


# The rest of names that only say something about a secret, and tokens that turn pages.
_ABOUT_SECRETS = re.compile(
    r"[\w.-]{0,40}?(?i:id|url|uri|name|file|path|dir|size|len|length|count|type|expiry|hash|host|version|min|max|ttl"
    r"|field|label|prefix|policy)s?(?![a-z])"
    r"|[\w.-]{0,40}?(?i:sha\d{0,3}|md5|digest|checksum|commit|revision|mode|flow|method|scheme|strategy|provider|backend|transport)s?(?![\w.-])|(?:(?<=[Nn]ext_)|(?<=[Nn]ext)|(?<=[Pp]age_)|(?<=[Pp]age)"
    r"|(?<=[Cc]ontinuation))",
    re.ASCII,
)
_LINE_END = re.compile(r"(?<!\\)(?<!\\\r)\n")


def bytes_for_search(text: str) -> bytes:
    """Return one byte for each character, so that positions agree. ASCII stays, other characters become anything."""
    return text.encode("latin-1", "replace")


def find_tokens(text: str, raw: bytes) -> list[Secret]:
    """Return the secrets without line ends, which may overlap, in time proportional to the text's length."""
    places, announced, everywhere = _prepared()
    found: list[Secret] = []
    for literal, start, _ in places.find_matches_as_indexes(raw, overlapping=True):
        for rule in announced[literal]:
            found += (Secret(*span, rule.name) for span in rule.spans_at(text, start))
    for rule in everywhere:
        found += (Secret(*span, rule.name) for span in rule.spans_in(text))
    return found


@cache
def _prepared() -> tuple[BytesAhoCorasick, list[list[SecretRule]], list[SecretRule]]:
    by_literal: dict[bytes, list[SecretRule]] = {}
    for rule in all_rules():
        for literal in rule.literals:
            by_literal.setdefault(literal.encode(), []).append(rule)
    places = BytesAhoCorasick(list(by_literal), implementation=Implementation.DFA)
    return places, list(by_literal.values()), [rule for rule in all_rules() if not rule.literals]


@cache
def all_rules() -> tuple[SecretRule, ...]:
    """Return every rule, with the parts of its pattern filled in. Takes 5 ms, at the first text that is searched."""
    tokens, places, keys = map(read_table, ("tokens", "places", "provider_keys"))
    parts = {**tokens["parts"], **places["parts"], **keys["parts"]}
    rows = [row for table in (tokens, places) for group in table["rules"].values() for row in group]
    for key in keys["rules"]["keys"]:  # the names of a provider, a pattern of the value, an example
        words = key["words"].split()
        spelled = "|".join(word.replace("-", "[-_.]?") for word in words)
        pattern = keys["pattern"].replace("{words}", spelled).replace("{value}", key["value"])
        like = f"{words[0].upper().replace('-', '_')}_VALUE={key['like']}"
        names = {"name": key["name"], "words": key["words"], "pattern": pattern, "like": like}
        rows.append({**names, "judge": "has_random_digits", "is_bounded": False})
    return tuple(convert([{**row, "pattern": _filled(row["pattern"], parts)} for row in rows], list[SecretRule]))


def _filled(pattern: str, parts: Mapping[str, str]) -> str:
    """Return `pattern` on one line, each name in braces replaced by that part, which may name parts itself."""
    joined = "".join(map(str.strip, pattern.split("\n"))) if "\n" in pattern else pattern
    return re.sub(r"\{([A-Z_]+)\}", lambda found: _filled(parts[found[1]], parts), joined)
