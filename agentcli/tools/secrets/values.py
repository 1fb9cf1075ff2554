"""Whether a value that stands where a secret would stand is one.

A placeholder, a variable, a name, a path or plain words is not.
"""

from __future__ import annotations

import base64
import re

from agentcli.tools.secrets.rule import entropy, has_random_digits, is_placeholder, looks_random

_ENOUGH = 80  # characters that tell what a long value is

# Passwords that people write into examples.
_EXAMPLES = frozenset(
    """
    pass password passwd pwd passwort secret token test testing admin root user username changeme changeit login key
    apikey api_key api-key xxx none null undefined true false string postgres guest mypassword my-password
    """.split()
)
_VARIABLE = re.compile(r"[$%][\w({]|\{\{|<%|#\{|\{[a-z_]+\}|\A(?:[<\[]|&lt;)|\A[A-Z]+(?:_[A-Z]+)+\Z|\A[*.]+\Z")
# A path, an address, a name with dots, a hash that says so
_NO_VALUE = re.compile(r"[./~@]|\w+://|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+\Z|sha\d+[:=-]")
_HEXADECIMAL = re.compile(r"[\da-fA-F]+")
_SYMBOL = re.compile(r"[!@#$%^&*?]")
_UUID = re.compile(r"[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}")


def is_password(value: str) -> bool:
    """For places where nothing but a password stands."""
    bare = value.strip("\"'{}")
    if len(bare) < 3 or bare.lower() in _EXAMPLES or is_placeholder(bare):
        return False
    return _VARIABLE.match(value) is None and _VARIABLE.match(bare) is None


def is_url_password(value: str) -> bool:
    """Between a user and a host even the word is one: that is how test databases are reached."""
    return not is_placeholder(value) and _VARIABLE.match(value) is None


def is_user_key(value: str) -> bool:
    return is_password(value) and has_random_digits(value)


def is_credential(value: str) -> bool:
    """The value of an Authorization header, without its scheme."""
    value = value[:_ENOUGH]
    if is_placeholder(value) or _VARIABLE.search(value) or value.startswith("{"):
        return False
    return (_changes(value) >= 2 and entropy(value) > 2.5) or _is_jumbled(value) or _is_basic(value)


def _changes(value: str) -> int:
    """How often letters and digits take turns: seldom in names, `sha256` and `utf8` once."""
    return len(re.findall(r"\d(?=[A-Za-z])|[A-Za-z](?=\d)", value))


def _is_mixed(value: str) -> bool:
    return re.search("[0-9]", value) is not None and re.search("[A-Za-z]", value) is not None


def _is_jumbled(value: str) -> bool:
    """Letters of both cases (and digits) that take turns more often than humps of a name do."""
    if value.islower():
        return False
    turns = len(re.findall(r"[a-z](?=[A-Z\d])|[A-Z](?=[a-z\d])|\d(?=[A-Za-z])", value))
    return len(value) >= 16 and turns >= 0.42 * len(value) and entropy(value) > 3.5


def _is_basic(value: str) -> bool:
    try:
        decoded = base64.b64decode(value, validate=True)
    except ValueError:
        return False
    return b":" in decoded and decoded.isascii()


def is_assigned(value: str) -> bool:
    """What is given to a name that says secret. Code is full of those, so the value must look generated."""
    value = value[:_ENOUGH]
    return _looks_generated(value) and not is_placeholder(value) and _VARIABLE.search(value) is None


def _looks_generated(value: str) -> bool:
    if not _is_mixed(value):
        return _is_jumbled(value)
    if _HEXADECIMAL.fullmatch(value):  # no encoder mixes cases
        return len(value) >= 24 and looks_random(value) and value in (value.lower(), value.upper())
    if _NO_VALUE.match(value):
        return False
    if _SYMBOL.search(value):
        return len(value) >= 10 and entropy(value) > 2.8
    return len(value) >= 12 and (_changes(value) >= 3 or _is_jumbled(value)) and entropy(value) > 3.0


def is_quoted_password(value: str) -> bool:
    """A value in quotes given to a password may be short, but names and paths stand there too."""
    if not _is_mixed(value) or is_placeholder(value) or _VARIABLE.search(value) or _UUID.fullmatch(value):
        return False
    return _NO_VALUE.match(value) is None and entropy(value) > 2.5


def is_password_setting(value: str) -> bool:
    return is_password(value) and _NO_VALUE.match(value) is None


def is_token_in_parts(value: str) -> bool:
    """A JSON Web Token is random only to its reader: two objects in base64 and what signs them."""
    return _is_mixed(value) and entropy(value) > 3.5


def is_discord(value: str) -> bool:
    """`.time.signature`, both base64: `.create.shouldReturnNothingWhenEmpty` is a method."""
    _, time, signature = value.split(".", 2)
    return time != time.lower() and _is_mixed(signature) and signature != signature.lower()
