"""Splits a Markdown file into its YAML and its body. Apart from its users, because PyYAML costs 10 ms to import."""

from __future__ import annotations

import re
from typing import Any

import yaml

_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
# People write `argument-hint: [since] [until]`, which is no YAML, or another YAML: its value is text as it stands.
_HINT = re.compile(r"^(argument-hint):[ \t]+([^\s\"'|>].*?)[ \t]*\r?$", re.MULTILINE)
# `description: Use it so: first …` is no YAML either. Lines that go on below are left alone.
_PLAIN = re.compile(r"^([\w-]+):[ \t]+([^\s\"'|>\[{&*!%@`#].*?)[ \t]*\r?$(?!\n[ \t]+\S)", re.MULTILINE)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def split_frontmatter(text: str) -> tuple[dict[str, Any], str]:
    """The keys and the body; no keys where a file does not begin with `---`. Raises `ValueError`."""
    found = _FRONT.match(text)
    if found is None:
        return {}, text
    source = _HINT.sub(_quoted, found[1])
    try:
        keys = _loaded(source)
    except ValueError as error:
        try:
            keys = _loaded(_PLAIN.sub(_quoted, source))
        except ValueError:
            raise error from error.__cause__
    if keys is None:
        keys = {}
    if isinstance(keys, dict):
        return {str(key): value for key, value in keys.items()}, text[found.end() :]
    raise ValueError("its frontmatter is no list of keys and values")


def _loaded(source: str) -> Any:
    try:
        return yaml.load(source, _Loader)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a date that is none
        raise ValueError(" ".join(str(error).split())) from error


def _quoted(found: re.Match[str]) -> str:
    value = found[2].replace("'", "''")
    return f"{found[1]}: '{value}'"
