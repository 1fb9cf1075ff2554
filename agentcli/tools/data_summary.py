"""Describes in a line what a large text holds: its kind, how much of it there is, and what its parts are called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

_MAX_PARSED_CHARS = 16_000_000  # parsing holds everything else up
_MAX_NAMES = 8
_MAX_NAME_CHARS = 40
_SAMPLE_LINES = 50  # that tell a kind
_MAX_NOTES = 4  # lines that a tool adds below its output

_NUMBERS = re.compile(r"^[1-9]\d*\t", re.MULTILINE)  # what file_read puts before lines
_LEVEL = re.compile(r"\b(?:TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|(ERROR|CRITICAL|FATAL))\b", re.IGNORECASE)


def data_summary(text: str) -> str:
    """One line about JSON, JSON lines, CSV, TSV, a log, HTML, XML, or any other text."""
    text = text.strip()
    lines = (_NUMBERS.sub("", text) if text.startswith("1\t") else text).split("\n")
    for _ in range(_MAX_NOTES):
        if len(lines) > 1 and lines[-1].startswith("[") and lines[-1].endswith("]"):
            lines.pop()
    found = ""
    if lines[0].lstrip()[:1] in ("{", "["):
        found = _json(lines) or _json_lines(lines)
    elif re.match(r"\s*<[A-Za-z!?]", lines[0]):
        found = f"{'HTML' if 'html' in lines[0].lower() else 'XML or HTML'} of {_count(len(lines), 'line')}"
    plain = f"text of {_count(len(lines), 'line')}, the longest has {max(map(len, lines)):,} characters"
    return found or _log(lines) or _table(lines) or plain


def _json(lines: list[str]) -> str:
    value = _decoded("\n".join(lines)) if sum(map(len, lines)) <= _MAX_PARSED_CHARS else None
    if isinstance(value, dict):
        return f"JSON, object with {_count(len(value), 'key')}: {_listed(value)}"
    return f"JSON, list of {_count(len(value), 'item')}{_keys_of_first(value)}" if isinstance(value, list) else ""


def _json_lines(lines: list[str]) -> str:
    """Describe records one to a line; a few lines that are none do not matter."""
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


def _log(lines: list[str]) -> str:
    """Describe lines of which at least a third of the first ones name a level."""
    sample = [bool(_LEVEL.search(line, 0, 200)) for line in lines[:_SAMPLE_LINES]]
    if len(lines) < 3 or sum(sample) * 3 < len(sample):
        return ""
    levels = (_LEVEL.search(line, 0, 200) for line in lines)
    errors = [number for number, level in enumerate(levels, 1) if level and level[1]]
    where = f", {len(errors):,} with an error, the first in line {errors[0]:,}" if errors else ", none with an error"
    return f"log of {_count(len(lines), 'line')}{where}"


def _table(lines: list[str]) -> str:
    """Describe lines that nearly all have as many fields as the first: a comma in quotes makes some look longer."""
    rest = lines[1:_SAMPLE_LINES]
    for name, mark in (("TSV", "\t"), ("CSV", ","), ("CSV with semicolons", ";")):
        marks = lines[0].count(mark)
        if marks and len(rest) > 1 and sum(line.count(mark) == marks for line in rest) * 10 >= len(rest) * 8:
            names = [field.strip().strip('"') for field in lines[0].split(mark)]
            return f"{name}, {_count(len(lines) - 1, 'row')} of {marks + 1} columns: {_listed(names)}"
    return ""


def _keys_of_first(items: list[Any]) -> str:
    return f"; keys of the first: {_listed(items[0])}" if items and isinstance(items[0], dict) else ""


def _listed(names: Iterable[str]) -> str:
    shown = [" ".join(name.split()) for name in names]
    more = f" and {len(shown) - _MAX_NAMES:,} more" if len(shown) > _MAX_NAMES else ""
    short = (name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}…" for name in shown[:_MAX_NAMES])
    return ", ".join(short) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
