"""Says in a line what a large text holds: its kind, how much of it there is, and what its parts are called."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

MOST_PARSED = 16_000_000  # characters of JSON; parsing holds everything else up
MOST_NAMES = 8
LONGEST_NAME = 40  # characters
SAMPLE = 50  # lines that tell a kind
MOST_NOTES = 4  # lines that a tool adds below its output
HEAD = 20_000  # characters in which a page says its title

_NUMBERS = re.compile(r"^[1-9]\d*\t", re.MULTILINE)  # what file_read puts before lines
_LEVEL = re.compile(r"\b(TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_SERIOUS = ("FATAL", "CRITICAL", "ERROR", "WARN", "NOTICE", "INFO", "DEBUG", "TRACE")
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{1,500})</title>", re.IGNORECASE)
_ELEMENT = re.compile(r"<([A-Za-z][\w:.-]*)")


def data_summary(text: str) -> str:
    """One line about JSON, JSON lines, CSV, a log, HTML, XML, or any other text."""
    text = text.strip()
    lines = (_NUMBERS.sub("", text) if text.startswith("1\t") else text).split("\n")
    for _ in range(MOST_NOTES):
        if len(lines) > 1 and lines[-1].startswith("[") and lines[-1].endswith("]"):
            lines.pop()
    start = lines[0].lstrip()[:1]
    told = ""
    if start in ("{", "["):
        told = _json(lines) or _json_lines(lines)
    elif start == "<":
        told = _markup("\n".join(lines))
    return told or _log(lines) or _table(lines) or _plain(lines)


def _json(lines: list[str]) -> str:
    if sum(map(len, lines)) > MOST_PARSED:
        return ""
    try:
        value = msgspec.json.decode("\n".join(lines))
    except (msgspec.DecodeError, RecursionError):
        return ""
    if isinstance(value, list):
        return f"JSON, {_of_value(value)}{_first(value)}"
    parts = [f"{_short(key)} ({_of_value(item)})" for key, item in list(value.items())[:MOST_NAMES]]
    return f"JSON, object with {_count(len(value), 'key')}: {_listed(parts, len(value))}"


def _json_lines(lines: list[str]) -> str:
    """Records one to a line; a few lines that are none do not matter."""
    filled = [line for line in lines if line.strip()]
    sample = [record for line in filled[:SAMPLE] if isinstance(record := _record(line), dict)]
    if len(filled) < 2 or len(sample) * 2 < len(filled[:SAMPLE]):
        return ""
    return f"JSON lines, {_count(len(filled), 'record')}{_first(sample)}"


def _record(line: str) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return None


def _markup(text: str) -> str:
    names = Counter(_ELEMENT.findall(text))
    if not names:
        return ""
    title = _TITLE.search(text[:HEAD])
    common = [f"{count:,} {_short(name)}" for name, count in names.most_common(4)]
    if title or "html" in map(str.lower, list(names)[:3]):
        return f"HTML{f' «{_short(title[1])}»' if title else ''}, {_count(names.total(), 'element')}"
    return f"XML, root {_short(next(iter(names)))}, {_count(names.total(), 'element')}: {', '.join(common)}"


def _log(lines: list[str]) -> str:
    """Lines of which at least a third of the first ones name a level."""
    if sum(bool(_LEVEL.search(line[:200])) for line in lines[:SAMPLE]) * 3 < min(len(lines), SAMPLE) or len(lines) < 3:
        return ""
    levels: Counter[str] = Counter()
    first_serious = 0
    for number, line in enumerate(lines, 1):
        if found := _LEVEL.search(line, 0, 200):
            level = found[1].upper().removesuffix("ING")
            levels[level] += 1
            first_serious = first_serious or number * (level in _SERIOUS[:3])
    told = ", ".join(f"{levels[level]:,} {level}" for level in _SERIOUS if levels[level])
    where = f"; the first error is in line {first_serious:,}" if first_serious else ""
    return f"log of {_count(len(lines), 'line')}: {told}{where}"


def _table(lines: list[str]) -> str:
    """Lines that all have as many fields as the first one."""
    for name, mark in (("TSV", "\t"), ("CSV", ","), ("CSV with semicolons", ";")):
        columns = lines[0].count(mark) + 1
        # A comma between quotes makes single lines look longer.
        same = sum(line.count(mark) + 1 == columns for line in lines[1:SAMPLE])
        if columns > 1 and len(lines) > 2 and same * 10 >= len(lines[1:SAMPLE]) * 8:
            names = [field.strip().strip('"') for field in lines[0].split(mark, MOST_NAMES)[:MOST_NAMES]]
            shown = _listed(map(_short, names), columns)
            return f"{name}, {_count(len(lines) - 1, 'row')} of {columns} columns: {shown}"
    return ""


def _plain(lines: list[str]) -> str:
    return f"text of {_count(len(lines), 'line')}, the longest has {max(map(len, lines)):,} characters"


def _of_value(value: Any) -> str:
    match value:
        case list():
            return f"list of {_count(len(value), 'item')}"
        case dict():
            return f"object with {_count(len(value), 'key')}"
        case str():
            return "text"
        case bool() | None:
            return str(value).lower().replace("none", "null")
        case _:
            return "number"


def _first(items: list[Any]) -> str:
    """The keys of the first item, or what it is."""
    if not items:
        return ""
    if isinstance(items[0], dict):
        keys = list(items[0])
        return f"; keys of the first: {_listed(map(_short, keys[:MOST_NAMES]), len(keys))}"
    return f"; the first is a {_of_value(items[0])}"


def _listed(names: Iterable[str], total: int) -> str:
    return ", ".join(names) + (f" and {total - MOST_NAMES:,} more" if total > MOST_NAMES else "")


def _short(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
