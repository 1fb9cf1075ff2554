"""Loads the rules from tokens.toml, places.toml and provider_keys.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct, convert

from agentcli.safety.secrets.rule import Rule
from agentcli.safety.secrets.tables import read_table


class _ProviderKey(Struct, forbid_unknown_fields=True):
    """A row of provider_keys.toml: names of the provider, an expression for the value, and an example of one."""

    name: str
    words: str
    value: str
    like: str


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, with the parts of its pattern filled in. Takes 5 ms; the first text that is searched pays for it."""
    tokens, places, keys = map(read_table, ("tokens", "places", "provider_keys"))
    parts = {**tokens["parts"], **places["parts"], **keys["parts"]}
    rows = [row for table in (tokens, places) for group in table["rules"].values() for row in group]
    for row in rows:
        row["pattern"] = _filled(row["pattern"], parts)
    pattern = _filled(keys["pattern"], parts)
    named = convert(keys["rules"]["keys"], list[_ProviderKey])
    return (*convert(rows, list[Rule]), *(_provider_rule(key, pattern, _filled(key.value, parts)) for key in named))


def _provider_rule(key: _ProviderKey, pattern: str, value: str) -> Rule:
    first, *_ = words = key.words.split()
    word = "|".join(word.replace("-", "[-_.]?") for word in words)
    return Rule(
        key.name,
        pattern.replace("{words}", word).replace("{value}", value),
        like=f"{first.upper().replace('-', '_')}_VALUE={key.like}",
        words=key.words,
        judge="has_random_digits",
        is_bounded=False,
    )


def _filled(pattern: str, parts: Mapping[str, str]) -> str:
    """`pattern` on one line, each name in braces replaced by that part, which may name parts itself."""
    joined = "".join(map(str.strip, pattern.split("\n"))) if "\n" in pattern else pattern
    return _PART.sub(lambda found: _filled(parts[found[1]], parts), joined)


_PART = re.compile(r"\{([A-Z_]+)\}")
