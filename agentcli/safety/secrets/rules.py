"""Finds tokens and passwords by the rules of the TOML files, each tried only where one of its literals stands."""

from __future__ import annotations

import base64
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from itertools import islice, takewhile
from math import log2
from typing import Any, NamedTuple

from ahocorasick_rs import BytesAhoCorasick, Implementation
from msgspec import Struct, convert

Judge = Callable[[str], bool]

_ENOUGH = 80  # characters that suffice to judge a long value


def read_table(name: str) -> dict[str, Any]:
    """Read one of the TOML tables beside this module."""
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text("utf-8"))


_WORDS = read_table("words")["values"]
_EXAMPLES = frozenset(_WORDS["examples"])
_VARIABLE = re.compile(r"[$%][\w({]|\{\{|<%|#\{|\{[a-z_]+\}|\A(?:[<\[]|&lt;)|\A[A-Z]+(?:_[A-Z]+)+\Z|\A[*.]+\Z")
# A path, an address, a name with dots, a hash that says so
_NO_VALUE = re.compile(r"[./~@]|\w+://|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z|sha\d+[:=-]|scram-")
_CODE = re.compile(r"[A-Za-z_]\w*(?:[(\[]|(?:->|::|[.+*/%])\w+)|[=!~]")
# Names that a cluster makes, `namespace/name-of-it-x7k9p`; rules for passwords, `minLength8AndMaxLength64`
_NAMED_THING = re.compile(
    r"[a-z]+(?:-[a-z\d]+)*/(?:[a-z]+\d{0,3}-){1,9}[a-z\d]{1,10}|(?:[a-z]{1,12}\d{0,3}_){2,9}[a-z]{1,12}\d{0,3}"
)
_BOUNDS = re.compile(r"(?:min|max|atLeast|atMost|between)(?:[A-Z][a-z]+|\d{1,4}){2,12}")
# Numbered names: `password2`, `newPassword1`, `uint32`
_COUNTED_NAME = re.compile(
    r"(?:[a-z]+(?:[A-Z][a-z]+)+|(?i:p|pw|pwd|pass|passw?d|passwords?|passphrase|secrets?|tokens?|keys?|args?|values?|val|str"
    r"|strings?|users?|usernames?|names?|inputs?|params?|fields?|texts?|data|login|credentials?|hash|hashed|encrypted|plain"
    r"|u?int|float|char|varchar|n?varchar|bytes?|base|utf|sha|md|bcrypt|argon|scrypt|pbkdf|tests?|examples?|var|tmp|temp|x"
    r"|option|version|type|level|group|step|item|line|column|row))\d{1,3}"
)
_NO_LONE_WORD = re.compile(
    r"(?i:pass|pwd|secret|token|user|name|input|value|string|text|default|prompt|config|hash|crypt|key|none|null|true"
    r"|false|empty|require|option|invalid|hidden|change|enter|type|your|example|sample|placeholder|undefined|disable"
    r"|enable|credential|argument|param|setting|environ|variable)"
)
# A path, an address without a password, a name with dots, a yes or no
_PLAIN_SETTING = re.compile(
    r"(?:\.{0,2}|~|[A-Za-z]:)[/\\][\w./\\ -]*|\w+://[^\s:@]*(?::\d+)?(?:/[^\s:@]*)?|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+"
    r"|(?i:true|false|yes|no|on|off|none|null)"
)
_BASE64_VALUE = re.compile(r"(?:base64:)?[\w+/-]+={0,2}")
_HEXADECIMAL = re.compile(r"[\da-fA-F]+")
_LETTER = re.compile("[A-Za-z]")
_SYMBOL = re.compile(r"[!@#$%^&*?]")
_UUID = re.compile(r"[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}")


def looks_random(value: str) -> bool:
    """True for a possible token: not a few characters repeated. Words in it do not matter."""
    least = 2.0 if value.isdigit() else 2.6 if len(value) < 24 else 3.0
    return _RUN.search(value) is None and entropy(value) >= least


def has_random_digits(value: str) -> bool:
    """`looks_random` for formats that long names in source code have too; those rarely contain digits."""
    return _DIGIT.search(value) is not None and looks_random(value)


_RUN = re.compile(r"[xX]{5}|[*#.…]{3}|\A(.)\1+\Z")
_DIGIT = re.compile("[0-9]")


def is_no_name(value: str) -> bool:
    """For formats so loose that names in source code fit: requires a digit, or a letter five times in a row."""
    return re.search(r"\d|([a-z])\1{4}", value) is not None


def anything(value: str) -> bool:
    """For formats so specific that even a made-up value is masked."""
    return True


def is_access_key(value: str) -> bool:
    """Amazon's manuals write AKIAIOSFODNN7EXAMPLE."""
    return not value.endswith(("EXAMPLE", "XXXXXXXX"))


def is_placeholder(value: str) -> bool:
    """True for what people write to say that a secret belongs here: `xxxx`, `<token>`, `${KEY}`, `YOUR_KEY`."""
    return _PLACEHOLDER.search(value) is not None or any(word in value for word in _PLACEHOLDERS)


_PLACEHOLDER = re.compile(r"[xX]{5}|\*{3}|\.{3}|#{4}|_{4}|…|•|[-_](?:here|HERE)|\A[$<%\[]|\$[{(]|\{\{|\A(.)\1+\Z")
# A word counts only in one case: FaKe is four letters of a token.
_PLACEHOLDERS = [spelled for word in _WORDS["placeholders"] for spelled in (word, word.capitalize(), word.upper())]


def entropy(value: str) -> float:
    """Shannon entropy in bits per character: 4 for long random hexadecimal, nearly 6 for base64."""
    length = len(value)
    return -sum(count / length * log2(count / length) for count in Counter(value).values())


def is_password(value: str) -> bool:
    """For places where only a password stands."""
    bare = value.strip("\"'{}")
    if len(bare) < 3 or bare.lower() in _EXAMPLES or is_placeholder(bare):
        return False
    return _VARIABLE.match(value) is None and _VARIABLE.match(bare) is None


def is_url_password(value: str) -> bool:
    """Between user and host even the word `password` is one: test databases are reached that way."""
    return not is_placeholder(value) and _VARIABLE.match(value) is None


def is_user_key(value: str) -> bool:
    return is_password(value) and has_random_digits(value)


def is_credential(value: str) -> bool:
    """The value of an Authorization header, without its scheme."""
    value = value[:_ENOUGH]
    if is_placeholder(value) or _VARIABLE.search(value) or value.startswith("{"):
        return False
    if (_changes(value) >= 2 and entropy(value) > 2.5) or _is_jumbled(value):
        return True
    try:
        decoded = base64.b64decode(value, validate=True)
    except ValueError:
        return False
    return b":" in decoded and decoded.isascii()  # a login


def _changes(value: str) -> int:
    """The number of changes between letters and digits: few in names, one in `sha256` and `utf8`."""
    return len(re.findall(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)", value))


def _is_mixed(value: str) -> bool:
    return re.search("[0-9]", value) is not None and re.search("[A-Za-z]", value) is not None


def _is_jumbled(value: str) -> bool:
    """True if letters of both cases (and digits) alternate more often than the humps of a name do."""
    if value.islower():
        return False
    turns = len(re.findall(r"[a-z](?=[A-Z\d])|[A-Z](?=[a-z\d])|\d(?=[A-Za-z])", value))
    return len(value) >= 16 and turns >= 0.42 * len(value) and entropy(value) > 3.5


def is_assigned(value: str) -> bool:
    """For values assigned to a name that says secret. Code is full of those, so the value must look generated."""
    value = value[:_ENOUGH]
    return _looks_generated(value) and not is_placeholder(value) and _VARIABLE.search(value) is None


def _looks_generated(value: str) -> bool:
    if not _is_mixed(value):
        return _is_jumbled(value)
    if _HEXADECIMAL.fullmatch(value):  # no encoder mixes cases
        return len(value) >= 24 and looks_random(value) and value in (value.lower(), value.upper())
    if _NO_VALUE.match(value) or _NAMED_THING.fullmatch(value) or _BOUNDS.fullmatch(value):
        return False
    if _SYMBOL.search(value):
        return len(value) >= 10 and entropy(value) > 2.8
    return len(value) >= 12 and (_changes(value) >= 3 or _is_jumbled(value)) and entropy(value) > 3.0


def is_quoted_password(value: str) -> bool:
    """For quoted values given to a password: they may be short, but may also be names and paths."""
    if is_placeholder(value) or _VARIABLE.search(value) or _UUID.fullmatch(value) or _COUNTED_NAME.fullmatch(value):
        return False
    # The last character does not count: sentences end in a mark.
    has_symbol = len(value) >= 8 and _LETTER.search(value) is not None and _SYMBOL.search(value[1:-1]) is not None
    return (_is_mixed(value) or has_symbol) and _NO_VALUE.match(value) is None and entropy(value) > 2.5


def is_bare_password(value: str) -> bool:
    """For unquoted values given to a password: mostly names, expressions or words, so a digit or symbol is required."""
    value = value.rstrip(".!?:")
    if len(value) < 6 or not is_password_setting(value) or _UUID.fullmatch(value):
        return False
    if value.isidentifier():
        return _is_mixed(value) and ("_" not in value or _looks_generated(value))
    return _LETTER.search(value) is not None and (_is_mixed(value) or _SYMBOL.search(value[1:]) is not None)


def is_lone_word(value: str) -> bool:
    """For letters alone on the right-hand side of a password's line."""
    is_one_word = value.islower() or value.isupper() or value.istitle()
    return is_one_word and is_password_setting(value) and _NO_LONE_WORD.search(value) is None


def is_password_argument(value: str) -> bool:
    """For arguments in a place where the ports of containers are given too."""
    return _LETTER.search(value) is not None and is_password_setting(value)


@lru_cache(256)  # a line that announces cookies repeatedly has each of them judged repeatedly
def is_cookie(value: str) -> bool:
    """For cookies: those that identify a session, not the dates, numbers and words beside them."""
    is_mixed, value = _is_mixed(value), value[:_ENOUGH]
    if is_placeholder(value) or _VARIABLE.match(value) or not (is_mixed or _is_jumbled(value)):
        return False
    return (_changes(value) >= 2 or _is_jumbled(value)) and entropy(value) > 2.5


def is_password_setting(value: str) -> bool:
    bare = value.rstrip("),;")
    if _NO_VALUE.match(value) or _CODE.match(value) or _COUNTED_NAME.fullmatch(bare) or _BOUNDS.fullmatch(bare):
        return False
    return is_password(bare)


def is_hidden_setting(value: str, *, is_vague: bool) -> bool:
    """For values in a file of secrets under a name that says so; if the name `is_vague`, they must look generated."""
    if is_placeholder(value) or _VARIABLE.match(value) or _PLAIN_SETTING.fullmatch(value):
        return False
    return value.lower() not in _EXAMPLES and (not is_vague or is_key_material(value))


def is_key_material(value: str) -> bool:
    """True for a value that stands for itself: not a name, a path or a sentence."""
    return not is_placeholder(value) and (_looks_generated(value[:_ENOUGH]) or looks_like_base64(value))


def looks_like_base64(value: str) -> bool:
    return len(value) >= 24 and _BASE64_VALUE.fullmatch(value) is not None and entropy(value) > 3.5 and _is_mixed(value)


def is_token_in_parts(value: str) -> bool:
    """For JSON Web Tokens: two objects in base64 and a signature, random only to the eye."""
    return _is_mixed(value) and entropy(value) > 3.5


def is_discord(value: str) -> bool:
    """For `.time.signature`, both base64; `.create.shouldReturnNothingWhenEmpty` is a method."""
    _, time, signature = value.split(".", 2)
    return time != time.lower() and _is_mixed(signature) and signature != signature.lower()


_ALL = (
    looks_random, has_random_digits, is_no_name, anything, is_access_key, is_password, is_url_password, is_user_key,
    is_credential, is_assigned, is_quoted_password, is_bare_password, is_lone_word, is_password_argument, is_cookie,
    is_password_setting, is_token_in_parts, is_discord,
)  # fmt: skip
JUDGES: dict[str, Judge] = {judge.__name__: judge for judge in _ALL}


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
    space; `judge`, a function of this module, has the last word on it. The pattern is tried `back` characters before
    each of the literals in `starts`, and of `words` in every spelling (`api-key` stands for api_key, apiKey, API_KEY, ...);
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
