"""Finds the line of a setting in the text of a TOML or JSON file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec


def line_of(text: str, key: str, *, item: str = "") -> int | None:
    """The line of a dotted key in a TOML or JSON file, or of what holds it; of an item, where a list has one."""
    lines = _lines_in_json(text) if text.lstrip().startswith("{") else _lines_in_toml(text)
    found = next((lines[part] for part in _key_and_those_above(key) if part in lines), None)
    if item and found is not None:
        written = text.splitlines()
        return next((n for n in range(found, len(written) + 1) if item in written[n - 1]), found)
    return found


def _key_and_those_above(key: str) -> Iterator[str]:
    while key:
        yield key
        key = key.rpartition(".")[0]


def _lines_in_toml(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+([^\[\],]+)\]+\s*(?:#|$)", line):
            section = here = _dotted(header.group(1))
        elif assigned := re.match(r"([^=#]+)=", line):
            here = ".".join(part for part in (section, _dotted(assigned.group(1))) if part)
        else:
            continue
        for part in _key_and_those_above(here):
            lines.setdefault(part, number)
    return lines


def _dotted(written: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in written.split("."))


def _lines_in_json(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    for line, key, _ in keys_in_json(text):
        lines.setdefault(key, line)
    return lines


def keys_in_json(text: str) -> Iterator[tuple[int, str, bool]]:
    """The line of each key, its dotted name, and whether its object had it before."""
    number, name, said, path = 1, "", "", [""]
    known: list[set[str]] = [set()]
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,\n]', text):
        match token:
            case "\n":
                number += 1
            case "{" | "[":
                path.append(name)
                known.append(set())
                name = ""
            case "}" | "]":
                path.pop()
                known.pop()
            case ":":
                name = said
                yield number, ".".join(part for part in (*path, name) if part), name in known[-1]
                known[-1].add(name)
            case ",":
                name = ""
            case _:
                said = msgspec.json.decode(token)
