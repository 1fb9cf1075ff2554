"""Judges if a value in the place of a secret is one, and no placeholder, variable, name, path or plain word."""

from __future__ import annotations

import base64
import re
import tomllib
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from math import log2
from typing import Any

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
