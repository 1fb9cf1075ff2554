"""The YAML at the beginning of a Markdown file. Apart from its only user, because PyYAML costs 10 ms to import."""

from __future__ import annotations

import re
from typing import Any

import yaml

# People write `argument-hint: [since] [until]`, which is no YAML: the values of these keys are text as they stand.
_PLAIN = re.compile(r"^(description|argument-hint):[ \t]+([^\s\"'|>].*?)[ \t]*\r?$", re.MULTILINE)
_FRONT = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


def split_frontmatter(text: str) -> tuple[dict[str, Any], str]:
    """The keys and the body; no keys where a file does not begin with `---`. Raises `ValueError`."""
    found = _FRONT.match(text)
    if found is None:
        return {}, text
    try:
        keys = yaml.safe_load(_PLAIN.sub(_quoted, found[1]))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    if keys is None:
        keys = {}
    if isinstance(keys, dict):
        return {str(key): value for key, value in keys.items()}, text[found.end() :]
    raise ValueError("its frontmatter is no list of keys and values")


def _quoted(found: re.Match[str]) -> str:
    value = found[2].replace("'", "''")
    return f"{found[1]}: '{value}'"
