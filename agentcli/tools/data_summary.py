"""Says in a line what a large text holds: its kind, how much of it there is, and what its parts are called."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

_MAX_PARSED_CHARS = 16_000_000  # parsing holds everything else up
_MAX_NAMES = 8
_MAX_NAME_CHARS = 40
_SAMPLE_LINES = 50  # that tell a kind
_MAX_NOTES = 4  # lines that a tool adds below its output
_HEAD_CHARS = 20_000  # in which a page says its title

_NUMBERS = re.compile(r"^[1-9]\d*\t", re.MULTILINE)  # what file_read puts before lines
_LEVEL = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|(ERROR|CRITICAL|FATAL))\b", re.IGNORECASE)
_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{1,500})</title>", re.IGNORECASE)
_ELEMENT = re.compile(r"<[A-Za-z]")


def data_summary(text: str) -> str:
    """One line about JSON, JSON lines, CSV, a log, HTML, XML, or any other text."""
    text = text.strip()
    lines = (_NUMBERS.sub("", text) if text.startswith("1\t") else text).split("\n")
    for _ in range(_MAX_NOTES):
        if len(lines) > 1 and lines[-1].startswith("[") and lines[-1].endswith("]"):
            lines.pop()
    start = lines[0].lstrip()[:1]
    found = ""
    if start in ("{", "["):
        found = _json(lines) or _json_lines(lines)
    elif start == "<":
        found = _markup("\n".join(lines))
    plain = f"text of {_count(len(lines), 'line')}, the longest has {max(map(len, lines)):,} characters"
    return found or _log(lines) or _table(lines) or plain


def _json(lines: Sequence[str]) -> str:
    value = _decoded("\n".join(lines)) if sum(map(len, lines)) <= _MAX_PARSED_CHARS else None
    if isinstance(value, dict):
        return f"JSON, object with {_count(len(value), 'key')}: {_listed(list(value))}"
    return f"JSON, list of {_count(len(value), 'item')}{_keys_of_first(value)}" if isinstance(value, list) else ""


def _json_lines(lines: Sequence[str]) -> str:
    """Records one to a line; a few lines that are none do not matter."""
    filled = [line for line in lines if line.strip()]
    sample = [record for line in filled[:_SAMPLE_LINES] if isinstance(record := _decoded(line), dict)]
    if len(filled) < 2 or len(sample) * 2 < len(filled[:_SAMPLE_LINES]):
        return ""
    return f"JSON lines, {_count(len(filled), 'record')}{_keys_of_first(sample)}"


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def _markup(text: str) -> str:
    count = len(_ELEMENT.findall(text))
    title = _TITLE.search(text[:_HEAD_CHARS])
    kind = "HTML" if title or "<html" in text[:_HEAD_CHARS].lower() else "XML"
    return f"{kind}{f' «{_short(title[1])}»' if title else ''}, {_count(count, 'element')}" if count else ""


def _log(lines: Sequence[str]) -> str:
    """Lines of which at least a third of the first ones name a level."""
    sample = lines[:_SAMPLE_LINES]
    if len(lines) < 3 or sum(bool(_LEVEL.search(line[:200])) for line in sample) * 3 < len(sample):
        return ""
    levels = ((number, _LEVEL.search(line, 0, 200)) for number, line in enumerate(lines, 1))
    errors = [number for number, level in levels if level and level[1]]
    where = f", {len(errors):,} with an error, the first in line {errors[0]:,}" if errors else ", none with an error"
    return f"log of {_count(len(lines), 'line')}{where}"


def _table(lines: Sequence[str]) -> str:
    """Lines that nearly all have as many fields as the first one: a comma between quotes makes some look longer."""
    rest = lines[1:_SAMPLE_LINES]
    for name, mark in (("TSV", "\t"), ("CSV", ","), ("CSV with semicolons", ";")):
        marks = lines[0].count(mark)
        if marks and len(rest) > 1 and sum(line.count(mark) == marks for line in rest) * 10 >= len(rest) * 8:
            names = [field.strip().strip('"') for field in lines[0].split(mark)]
            return f"{name}, {_count(len(lines) - 1, 'row')} of {marks + 1} columns: {_listed(names)}"
    return ""


def _keys_of_first(items: Sequence[Any]) -> str:
    return f"; keys of the first: {_listed(list(items[0]))}" if items and isinstance(items[0], dict) else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(_short, names[:_MAX_NAMES])) + more


def _short(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
