"""Finds tokens and passwords in text by rules, which are rows of the TOML files beside this module.

One search finds the literals of all rules; a rule's pattern is tried only where one of its literals occurs. A judge,
one of the functions below, then decides if the match is a secret, not a placeholder, variable, name, path or word. Its
limits of length, entropy and letter changes were chosen by examples (`like` and `unlike`).
"""

import base64
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, lru_cache
from itertools import islice, takewhile
from math import log2
from typing import NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation
from msgspec import Struct, convert

from agentcli.patterns import lazy_pattern
from agentcli.tables import read_table

_MAX_CHARS = 80  # that are judged: the beginning of a long value suffices


_WORDS = read_table(__file__, "words")["values"]
_EXAMPLES = frozenset(_WORDS["examples"])
_VARIABLE = lazy_pattern(r"[$%][\w({]|\{\{|<%|#\{|\{[a-z_]+\}|\A(?:[<\[]|&lt;)|\A[A-Z]+(?:_[A-Z]+)+\Z|\A[*.]+\Z")
# A path, an address, a name with dots, a labelled hash (`sha256:…`)
_NO_VALUE = lazy_pattern(r"[./~@]|\w+://|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z|sha\d+[:=-]|scram-")
_CODE = lazy_pattern(r"[A-Za-z_]\w*(?:[(\[]|(?:->|::|[.+*/%])\w+)|[=!~]")
# Names that a cluster generates, `namespace/name-of-it-x7k9p`; below, rules for passwords, `minLength8AndMaxLength64`
_NAMED_THING = lazy_pattern(
    r"[a-z]+(?:-[a-z\d]+)*/(?:[a-z]+\d{0,3}-){1,9}[a-z\d]{1,10}|(?:[a-z]{1,12}\d{0,3}_){2,9}[a-z]{1,12}\d{0,3}"
)
_BOUNDS = lazy_pattern(r"(?:min|max|atLeast|atMost|between)(?:[A-Z][a-z]+|\d{1,4}){2,12}")
# Numbered names: `password2`, `newPassword1`, `uint32`
_COUNTED_NAME = lazy_pattern(
    r"(?:[a-z]+(?:[A-Z][a-z]+)+|(?i:p|pw|pwd|pass|passw?d|passwords?|passphrase|secrets?|tokens?|keys?|args?|values?|val|str"
    r"|strings?|users?|usernames?|names?|inputs?|params?|fields?|texts?|data|login|credentials?|hash|hashed|encrypted|plain"
    r"|u?int|float|char|varchar|n?varchar|bytes?|base|utf|sha|md|bcrypt|argon|scrypt|pbkdf|tests?|examples?|var|tmp|temp|x"
    r"|option|version|type|level|group|step|item|line|column|row))\d{1,3}"
)
_NO_LONE_WORD = lazy_pattern(
    r"(?i:pass|pwd|secret|token|user|name|input|value|string|text|default|prompt|config|hash|crypt|key|none|null|true"
    r"|false|empty|require|option|invalid|hidden|change|enter|type|your|example|sample|placeholder|undefined|disable"
    r"|enable|credential|argument|param|setting|environ|variable)"
)
# A path, an address without a password, a name with dots, a boolean
_PLAIN_SETTING = lazy_pattern(
    r"(?:\.{0,2}|~|[A-Za-z]:)[/\\][\w./\\ -]*|\w+://[^\s:@]*(?::\d+)?(?:/[^\s:@]*)?|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
    r"|(?i:true|false|yes|no|on|off|none|null)"
)
_BASE64_VALUE = lazy_pattern(r"(?:base64:)?[\w+/-]+={0,2}")
_HEXADECIMAL = lazy_pattern(r"[\da-fA-F]+")
_LETTER = lazy_pattern("[A-Za-z]")
_SYMBOL = lazy_pattern(r"[!@#$%^&*?]")
_UUID = lazy_pattern(r"[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}")
_RUN = lazy_pattern(r"[xX]{5}|[*#.…]{3}|\A(.)\1+\Z")
_PLACEHOLDER = lazy_pattern(r"[xX]{5}|\*{3}|\.{3}|#{4}|_{4}|…|•|[-_](?:here|HERE)|\A[$<%\[]|\$[{(]|\{\{|\A(.)\1+\Z")
# Only in three spellings: `FaKe` may be four letters of a random token.
_PLACEHOLDERS = [spelled for word in _WORDS["placeholders"] for spelled in (word, word.capitalize(), word.upper())]


def looks_random(value: str) -> bool:
    """Return True for a possible token: a value that does not repeat a few characters. It may contain words."""
    # Even a random value has low entropy if it has only digits, or few characters.
    min_entropy = 2.0 if value.isdigit() else 2.6 if len(value) < 24 else 3.0
    return _RUN.search(value) is None and entropy(value) >= min_entropy


def has_random_digits(value: str) -> bool:
    return re.search("[0-9]", value) is not None and looks_random(value)  # long names in code rarely have digits


def is_placeholder(value: str) -> bool:
    """Return True for text that people write in place of a secret: `xxxx`, `<token>`, `${KEY}`, `YOUR_KEY`."""
    return _PLACEHOLDER.search(value) is not None or any(word in value for word in _PLACEHOLDERS)


def entropy(value: str) -> float:
    """Return the Shannon entropy in bits per character: 4 for long random hexadecimal, nearly 6 for base64."""
    length = len(value)
    return -sum(count / length * log2(count / length) for count in Counter(value).values())


def is_password(value: str) -> bool:
    """Return True unless the value, found where a password belongs, is an example or a variable."""
    bare = value.strip("\"'{}")
    is_example = len(bare) < 3 or bare.lower() in _EXAMPLES or is_placeholder(bare)
    return not (is_example or _VARIABLE.match(value) or _VARIABLE.match(bare))


def is_credential(value: str) -> bool:
    """Return True if the value of an Authorization header, without its scheme, is a secret."""
    value = value[:_MAX_CHARS]
    if is_placeholder(value) or _VARIABLE.search(value) or value.startswith("{"):
        return False
    with suppress(ValueError):
        decoded = base64.b64decode(value, validate=True)
        if b":" in decoded and decoded.isascii():  # `user:password`
            return True
    return (_letter_digit_changes(value) >= 2 and entropy(value) > 2.5) or _is_jumbled(value)


def _letter_digit_changes(value: str) -> int:
    return len(re.findall(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)", value))  # `sha256` has one


def _is_mixed(value: str) -> bool:  # it has letters and digits
    return re.search("[0-9]", value) is not None and re.search("[A-Za-z]", value) is not None


def _is_jumbled(value: str) -> bool:
    """Return True if capitals, small letters and digits alternate more often than in a camel-case name."""
    turns = len(re.findall(r"[a-z](?=[A-Z\d])|[A-Z](?=[a-z\d])|\d(?=[A-Za-z])", value))
    return not value.islower() and len(value) >= 16 and turns >= 0.42 * len(value) and entropy(value) > 3.5


def is_assigned(value: str) -> bool:
    """Return True if the value of a name such as `token` looks generated; code has many such names."""
    value = value[:_MAX_CHARS]
    return _looks_generated(value) and not is_placeholder(value) and _VARIABLE.search(value) is None


def _looks_generated(value: str) -> bool:
    """Return True if a program has probably made a value: letters and digits mixed as in no name, word or path."""
    if not _is_mixed(value):
        return _is_jumbled(value)
    if _HEXADECIMAL.fullmatch(value):  # only in one case, because no encoder mixes cases
        return len(value) >= 24 and looks_random(value) and value in (value.lower(), value.upper())
    if _NO_VALUE.match(value) or _NAMED_THING.fullmatch(value) or _BOUNDS.fullmatch(value):
        return False
    if _SYMBOL.search(value):
        return len(value) >= 10 and entropy(value) > 2.8
    return len(value) >= 12 and (_letter_digit_changes(value) >= 3 or _is_jumbled(value)) and entropy(value) > 3.0


def is_quoted_password(value: str) -> bool:
    """Return True if a quoted value of a name such as `password` is a password, not a name or path."""
    if is_placeholder(value) or _VARIABLE.search(value) or _UUID.fullmatch(value) or _COUNTED_NAME.fullmatch(value):
        return False
    # A symbol at the end is no evidence, because sentences end in one.
    has_symbol = len(value) >= 8 and _LETTER.search(value) is not None and _SYMBOL.search(value[1:-1]) is not None
    return (_is_mixed(value) or has_symbol) and _NO_VALUE.match(value) is None and entropy(value) > 2.5


def is_bare_password(value: str) -> bool:
    """Return True if an unquoted value of a name such as `password` has a digit or symbol: others are names or code."""
    value = value.rstrip(".!?:")
    if len(value) < 6 or not is_password_setting(value) or _UUID.fullmatch(value):
        return False
    if value.isidentifier():
        return _is_mixed(value) and ("_" not in value or _looks_generated(value))
    return _LETTER.search(value) is not None and (_is_mixed(value) or _SYMBOL.search(value[1:]) is not None)


def is_lone_word(value: str) -> bool:
    """Return True if a value of letters only, in a line that sets a password, is a password."""
    is_one_word = value.islower() or value.isupper() or value.istitle()
    return is_one_word and is_password_setting(value) and _NO_LONE_WORD.search(value) is None


@lru_cache(256)  # in `Set-Cookie: a=1; Set-Cookie: b=2`, the second cookie is judged for both names
def is_cookie(value: str) -> bool:
    """Return True if a cookie's value identifies a session, and is not a date, number or word."""
    start = value[:_MAX_CHARS]
    looks_generated = _is_jumbled(start) or (_is_mixed(value) and _letter_digit_changes(start) >= 2)
    return looks_generated and entropy(start) > 2.5 and not (is_placeholder(start) or _VARIABLE.match(start))


def is_password_setting(value: str) -> bool:
    bare = value.rstrip("),;")
    is_code = _NO_VALUE.match(value) or _CODE.match(value) or _COUNTED_NAME.fullmatch(bare) or _BOUNDS.fullmatch(bare)
    return not is_code and is_password(bare)


def is_hidden_setting(value: str, *, is_vague: bool) -> bool:
    """Return True if a value in a file of secrets is secret. If its name `is_vague`, it must look generated."""
    if is_placeholder(value) or _VARIABLE.match(value) or _PLAIN_SETTING.fullmatch(value):
        return False
    is_base64 = len(value) >= 24 and _BASE64_VALUE.fullmatch(value) and entropy(value) > 3.5 and _is_mixed(value)
    return value.lower() not in _EXAMPLES and (not is_vague or bool(is_base64) or _looks_generated(value[:_MAX_CHARS]))


def is_discord(value: str) -> bool:
    """Return True if the last two parts of `id.time.signature` look like base64, not like names of methods."""
    _, time, signature = value.split(".", 2)
    return time != time.lower() and _is_mixed(signature) and signature != signature.lower()


_JUDGES: dict[str, Callable[[str], bool]] = {
    "looks_random": looks_random, "has_random_digits": has_random_digits, "is_password": is_password,
    "is_credential": is_credential, "is_assigned": is_assigned, "is_quoted_password": is_quoted_password,
    "is_bare_password": is_bare_password, "is_lone_word": is_lone_word, "is_cookie": is_cookie,
    "is_password_setting": is_password_setting, "is_discord": is_discord,
    # For a format so specific that even an invented value is masked.
    "anything": lambda value: True,
    # Names in source code rarely have a digit, or a letter five times in a row.
    "is_no_name": lambda value: re.search(r"\d|([a-z])\1{4}", value) is not None,
    # A letter is required because `-p` is also the option for port numbers of containers.
    "is_password_argument": lambda value: _LETTER.search(value) is not None and is_password_setting(value),
    # For a JSON Web Token: two objects in base64 and a signature, which are not random enough for other tests.
    "is_token_in_parts": lambda value: _is_mixed(value) and entropy(value) > 3.5,
    # Even the word `password` is masked: test databases use it.
    "is_url_password": lambda value: not is_placeholder(value) and _VARIABLE.match(value) is None,
    # The name in `curl -u NAME:`, without a password, may be a key; `administrator` is not.
    "is_user_key": lambda value: is_password(value) and has_random_digits(value),
}  # fmt: skip


# No pattern looks further ahead or back than this from the position where it is tried, so text further away cannot
# change its result. `StreamMask` depends on both limits. In characters.
MAX_MATCH_CHARS = 8_000
MAX_CONTEXT_CHARS = 2_000
_MAX_ANNOUNCED = 40  # secrets that one match announces

# A token does not begin inside a word, inside base64 or in a wheel's list of hashes. It may begin after an escape,
# whose last letter is not part of a word: \n in JSON, %3D in a URL, ^I of `cat -T`.
_LEFT = (
    r"(?:(?<![0-9A-Za-z])(?<![0-9A-Za-z][+_-])(?<!sha256=)|(?<=\\[nrtbf])|(?<=\^[IM])|(?<=%[0-9A-Fa-f]{2})"
    r"|(?<=\\u[0-9A-Fa-f]{4})|(?<=\\x[0-9A-Fa-f]{2}))"
)
_RIGHT = r"(?![0-9A-Za-z])"
# Ends of names that only describe a secret (`token_count`), and the names of pagination tokens (`next_token`).
_ABOUT_SECRETS = lazy_pattern(
    r"[\w.-]{0,40}?(?i:id|url|uri|name|file|path|dir|size|len|length|count|type|expiry|hash|host|version|min|max|ttl"
    r"|field|label|prefix|policy)s?(?![a-z])"
    r"|[\w.-]{0,40}?(?i:sha\d{0,3}|md5|digest|checksum|commit|revision|mode|flow|method|scheme|strategy|provider|backend|transport)s?(?![\w.-])|(?:(?<=[Nn]ext_)|(?<=[Nn]ext)|(?<=[Pp]age_)|(?<=[Pp]age)"
    r"|(?<=[Cc]ontinuation))",
    re.ASCII,
)
_LINE_END = lazy_pattern(r"(?<!\\)(?<!\\\r)\n")


class Secret(NamedTuple):
    start: int  # in characters
    end: int
    rule: str  # the name of the rule that found it


class Place(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The places in a text where a rule's pattern is tried; everywhere if it has no literals.

    `starts` are literals; `words` are names that are searched for in every spelling: `api-key` also means api_key,
    apiKey, API_KEY and so on. Both are separated by blanks.
    """

    starts: str = ""
    words: str = ""
    back: int = 0  # characters before the literal with which the pattern begins
    after: str = ""  # a word that must come earlier in the same command
    is_named: bool = False  # the literal is a name, but not one that only describes a secret (`token_count`)

    @property
    def literals(self) -> list[str]:
        return [*self.starts.split(), *(spelled for word in self.words.split() for spelled in _spellings(word))]


class SecretRule(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """One kind of secret.

    `pattern` is a regular expression (ASCII). The secret is its group 1 or, without groups, the whole match. With
    `each`, the pattern only announces secrets, which are the matches of `each` in the rest of the line. `like` and
    `unlike` are texts for the tests, in which placeholders such as `{h32}` become random characters.
    """

    name: str
    pattern: str
    place: Place
    like: str
    unlike: str = ""
    judge: str = "looks_random"
    is_bounded: bool = True  # the match neither begins nor ends inside a word
    each: str = ""

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        # Compiled on first use, because most patterns are never needed.
        return re.compile(f"{_LEFT}(?:{self.pattern}){_RIGHT}" if self.is_bounded else self.pattern, re.ASCII)

    def spans_at(self, text: str, position: int) -> Iterator[tuple[int, int]]:
        """Yield the span of the secret whose literal is at `position`, or the spans of those it announces (`each`)."""
        if (match := self._match_at(text, position)) is None:
            return
        matches = islice(self._announced(text, match.end()), _MAX_ANNOUNCED) if self.each else (match,)
        for secret in matches:
            start, end = secret.span(1 if secret.lastindex else 0)  # `lastindex` is None if the pattern has no group
            if _JUDGES[self.judge](text[start:end]):
                yield start, end

    def _match_at(self, text: str, position: int) -> re.Match[str] | None:
        """Return the match `place.back` characters before a literal at `position`, if `place` fits the text there."""
        place = self.place
        if position < place.back or not (match := self._expression.match(text, position - place.back)):
            return None
        if place.after:
            found = text.rfind(place.after, max(0, position - MAX_CONTEXT_CHARS + len(place.after)), position)
            if found < 0 or _LINE_END.search(text, found, position):  # the word is not in the same command
                return None
        return None if place.is_named and _ABOUT_SECRETS.match(text, position) else match

    def _announced(self, text: str, start: int) -> Iterator[re.Match[str]]:
        """Yield the matches of `each` that begin before the line's next announcement ends; it finds the others."""
        line_end = text.find("\n", start, start + MAX_CONTEXT_CHARS)
        line_end = line_end if line_end >= 0 else start + MAX_CONTEXT_CHARS
        literals = re.compile("|".join(map(re.escape, self.place.literals))).finditer(text, start, line_end)
        next_announcement = next(filter(None, (self._match_at(text, literal.start()) for literal in literals)), None)
        end = next_announcement.end() if next_announcement else line_end
        found = re.compile(self.each, re.ASCII).finditer(text, start, line_end)
        yield from takewhile(lambda one: one.start() < end, found)

    def spans_in(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the spans of secrets, for a rule without literals: its pattern, with no group, is tried everywhere."""
        matches = self._expression.finditer(text)
        yield from (match.span() for match in matches if _JUDGES[self.judge](match.group()))


def _spellings(words: str) -> list[str]:
    """Return the spellings of a name: new-relic, NEW_RELIC, newRelic and so on, but not every mix of cases."""
    parts = words.split("-")
    title = [part.title() for part in parts]
    forms = (parts, title, [part.upper() for part in parts], [parts[0], *title[1:]])
    return list(dict.fromkeys(separator.join(form) for separator in ("", "-", "_", ".") for form in forms))


def bytes_for_search(text: str) -> bytes:
    """Return one byte for each character, so that positions agree. Only ASCII characters keep their meaning."""
    return text.encode("latin-1", "replace")


def find_tokens(text: str, raw: bytes) -> list[Secret]:
    """Return the secrets in a text except private keys, in linear time; they may overlap. `raw`: `bytes_for_search`."""
    literals, rules_by_literal, rules_without_literals = _prepared_search()
    found: list[Secret] = []
    for index, start, _ in literals.find_matches_as_indexes(raw, overlapping=True):
        found += (Secret(*span, rule.name) for rule in rules_by_literal[index] for span in rule.spans_at(text, start))
    found += (Secret(*span, rule.name) for rule in rules_without_literals for span in rule.spans_in(text))
    return found


@cache
def _prepared_search() -> tuple[BytesAhoCorasick, list[list[SecretRule]], list[SecretRule]]:
    """Return a search for all literals, the rules of each literal (by its index), and the rules without literals."""
    by_literal = defaultdict[bytes, list[SecretRule]](list)
    for rule in all_rules():
        for literal in rule.place.literals:
            by_literal[literal.encode()].append(rule)
    literals = BytesAhoCorasick(list(by_literal), implementation=Implementation.ContiguousNFA)
    return literals, list(by_literal.values()), [rule for rule in all_rules() if not rule.place.literals]


@cache
def all_rules() -> tuple[SecretRule, ...]:
    """Return every rule, with the parts of its pattern filled in. The first call takes 5 ms."""
    tokens, places, keys = (read_table(__file__, name) for name in ("tokens", "places", "provider_keys"))
    parts = {**tokens["parts"], **places["parts"], **keys["parts"]}
    rows = [row for table in (tokens, places) for group in table["rules"].values() for row in group]
    for key in keys["rules"]["keys"]:  # a row has names of a provider, a pattern for the value, and an example
        words = key["words"].split()
        spelled = "|".join(word.replace("-", "[-_.]?") for word in words)
        pattern = keys["pattern"].replace("{words}", spelled).replace("{value}", key["value"])
        like = f"{words[0].upper().replace('-', '_')}_VALUE={key['like']}"
        row = {"name": key["name"], "words": key["words"], "pattern": pattern, "like": like}
        rows.append({**row, "judge": "has_random_digits", "is_bounded": False})
    for row in rows:
        row["pattern"] = _filled(row["pattern"], parts)
        row["place"] = {key: row.pop(key) for key in Place.__struct_fields__ if key in row}
    return convert(tuple(rows), tuple[SecretRule, ...])


def _filled(pattern: str, parts: Mapping[str, str]) -> str:
    """Return a pattern on one line, with `{NAME}` replaced by the part of that name, which may contain other parts."""
    joined = "".join(map(str.strip, pattern.split("\n"))) if "\n" in pattern else pattern
    return re.sub(r"\{([A-Z_]+)\}", lambda found: _filled(parts[found[1]], parts), joined)
