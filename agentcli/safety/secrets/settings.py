"""Finds the secret values in a settings file: `KEY=value`, JSON, YAML, TOML, INI, XML, netrc, private keys.

A value is secret if its key says so or a rule recognizes its format. Values that occur in ordinary output are not
secret: short ones, plain numbers, placeholders, paths, and words that many settings use.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Literal
from urllib.parse import unquote

from agentcli.patterns import lazy_pattern
from agentcli.safety.secrets.masking import PRIVATE_KEY, find_secrets, is_long_enough
from agentcli.safety.secrets.rules import is_hidden_setting
from agentcli.tables import read_table

_MIN_NUMBER_CHARS = 10
_MIN_KEY_LINE_CHARS = 20
_MAX_VALUES = 2_000  # in one file

_QUOTED = r"\"(?:[^\"\\\n]|\\.){0,4000}\"|'[^'\n]{0,4000}'|`[^`\n]{0,4000}`"
# A triple quote, or a quote that is not closed in its line, opens a value of several lines.
_OPENS = rf"\"\"\"|'''|(?!{_QUOTED})[\"'`]"
_CLOSED = {  # by opening quote: the rest of the value, which only the end of a setting may follow
    quote: re.compile(rf"((?:\\.|(?!{quote})[^\\]){{0,4000}}){quote}[ \t]{{0,20}}(?=[,;}})\]#\r\n]|\Z)", re.DOTALL)
    for quote in ('"""', "'''", '"', "'", "`")
}
_PAIR = lazy_pattern(  # a key and its value, in one of four forms
    rf"(?P<quote>[\"']?)(?P<key>[A-Za-z_][\w.\-]{{0,100}})(?P=quote)\]?[ \t]{{0,20}}(?:=>|:=|=|:(?![/:]))[ \t]{{0,20}}"
    rf"(?:(?P<opens>{_OPENS})|(?P<quoted>{_QUOTED})|"
    rf"(?P<block>[|>][+-]?[ \t]{{0,9}}(?:\n(?P<indent>[ \t]{{1,40}})[^\n]{{0,4000}})"
    r"(?:\n(?P=indent)[^\n]{0,4000}){0,40})|(?P<bare>[^\s\"'][^\n]{0,300}\S{0,1000}))"
)
_ELEMENT = lazy_pattern(r"<(?P<key>[A-Za-z_][\w.:\-]{0,100})(?: [^<>\n]{0,200})?>(?P<bare>[^<>\n]{1,4000})</")
_NETRC = lazy_pattern(r"\b(?P<key>password|passwd)[ \t\n]{1,9}(?P<bare>[^\s=:]{1,200})")  # a password in a .netrc
_KEY_LINE = lazy_pattern(rf"[0-9A-Za-z+/=]{{{_MIN_KEY_LINE_CHARS},}}")
_ALONE = lazy_pattern(r"\s*([^\s=:]{8,400}={0,2})\s*\Z")  # a text of only one word

_WORDS = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_TABLE = read_table(__file__, "words")
_NAMES = {kind: frozenset(words) for kind, words in _TABLE["setting_names"].items()}
_COMMON = frozenset(_TABLE["values"]["common"])
# Dictionary words, joined as in a name. They describe something, and are not secrets.
_WORD = lazy_pattern(
    r"(?:[A-Z]?[a-z]{1,20}|[A-Z]{2,20})(?:[A-Z][a-z]{2,20}|[-_ .](?:[A-Z]?[a-z]{1,20}|[A-Z]{1,20})){0,9}"
)


def secret_values(text: str) -> set[str]:
    """Return the values in a text that must be masked everywhere. Each line of a private key is such a value."""
    found = {value for value in islice(_values_of_secret_keys(text), _MAX_VALUES) if _is_rare(value)}
    for secret in find_secrets(text):
        value = text[secret.start : secret.end]
        if secret.rule == PRIVATE_KEY:
            found.update(_KEY_LINE.findall(value.replace("\\n", "\n")))  # a quoted key has `\n` for line ends
        elif _is_rare(value):
            found.add(value)
    # The whole text may be one secret, as in a token file.
    if (alone := _ALONE.match(text)) and is_hidden_setting(alone[1], is_vague=False) and _is_rare(alone[1]):
        found.add(alone[1])
    return found | {value for value in map(unquote, found) if _is_rare(value)}


def _values_of_secret_keys(text: str) -> Iterator[str]:
    for expression in (_PAIR, _ELEMENT, _NETRC):
        position = 0
        while pair := expression.search(text, position):
            # In `a: b: c` and `{a: {b: c}}` the value of one pair contains the next pair, so the search continues after
            # the key. It skips only quoted values and blocks.
            groups = pair.groupdict()
            position = pair.end("key") if groups["bare"] or groups.get("opens") else pair.end()
            certainty, key_ends_in_secret = _certainty(pair["key"])
            for value in _possible_values(pair) if certainty else ():
                # The value of a key such as `secret_santa` is not a secret if it is a plain word.
                is_plain = not key_ends_in_secret and _WORD.fullmatch(value)
                if not is_plain and is_hidden_setting(value, is_vague=certainty == "vague"):
                    yield value


def _certainty(key: str) -> tuple[Literal["sure", "vague", ""], bool]:
    """Return how certain it is that a name's value is secret ("": it is not), and if the name ends in a secret word."""
    words = [word.lower() for word in _WORDS.findall(key)]
    while words and (words[-1].isdigit() or words[-1] in _NAMES["which"]):
        words.pop()  # `PASSWORD_2` and `TOKEN_PROD` are judged without their last word
    if not words or words[-1] in _NAMES["about"] or "public" in words or "publishable" in words:
        return "", False
    secret, owners = _NAMES["secret"], _NAMES["key_owners"]
    say_secret = [  # for each word: True if it, alone or with the word before it, says that the value is secret
        word in secret or before + word in secret or (before in owners and word in ("key", "keys"))
        for before, word in pairwise(["", *words])
    ]
    if any(say_secret):
        return "sure", say_secret[-1]
    return ("" if _NAMES["vague"].isdisjoint(words) else "vague"), False


def _possible_values(pair: re.Match[str]) -> Iterable[str]:
    """Return all possible readings of a pair's value, such as with and without a comment, or a list item of it."""
    match pair.groupdict():
        case {"block": str(block)}:  # YAML's `key: |`, and the indented lines below
            return [line.strip() for line in block.split("\n")[1:]]
        case {"opens": str(quote)}:  # the value has several lines, as after `key = """`
            return _lines_after_quote(pair.string, pair.end("opens"), quote)
        case {"quoted": str(quoted)}:  # the lines of `"a\nb"` are values too
            return {quoted[1:-1], *(_lines_of(_unescaped(quoted[1:-1])) if quoted[0] == '"' else ())}
        case {"bare": str(bare)} if bare.startswith("["):  # a list of quoted values
            return {quoted[1:-1] for quoted in re.findall(_QUOTED, bare)}
    bare = pair["bare"].strip().rstrip(",;").rstrip()
    return {bare, re.split(r"\s+[#;]|\s+//", bare)[0].rstrip(), re.split(r"[\s,;}\])]", bare)[0]}


def _lines_after_quote(text: str, start: int, quote: str) -> Iterable[str]:
    """Return the lines of a value that begins at `start`; one line if the quote is never closed."""
    closed = _CLOSED[quote].match(text, start)
    value = closed[1] if closed else text[start : start + 4000].split("\n", 1)[0]
    lines = {line.rstrip("\\") for line in _lines_of(value)}  # a backslash at the end of a line continues it
    return lines | set(map(_unescaped, lines)) if quote.startswith('"') else lines


def _lines_of(text: str) -> Sequence[str]:
    """Return the lines of a value; none if it is JSON, whose pairs are found by themselves."""
    lines = [line.strip() for line in text.splitlines()]
    return () if len(lines) > 1 and text.lstrip().startswith(("{", "[")) else lines


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _is_rare(value: str) -> bool:
    """Return True if a value is rare enough in ordinary text to be masked wherever it occurs."""
    is_short_number = value.isdigit() and len(value) < _MIN_NUMBER_CHARS
    return not (value.lower() in _COMMON or value.startswith("-----") or is_short_number) and is_long_enough(value)
