"""Reads files of separated values. See README.md."""

from pathlib import Path


def read(path, *, sep=",", quote='"', comment=None, encoding="utf-8"):
    """The rows of a file, each a dict by the names in its first line."""
    text = Path(path).read_text(encoding=encoding)
    lines = [line for line in text.splitlines() if line.strip() and not (comment and line.startswith(comment))]
    names, *rows = [_fields(line, sep, quote) for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise ValueError(f"row {number} has {len(row)} fields, not {len(names)}")
    return [dict(zip(names, row)) for row in rows]


def cents(text, *, decimal="."):
    """A price as a whole number of cents; the other of point and comma parts thousands."""
    units, _, rest = text.strip().replace("." if decimal == "," else ",", "").partition(decimal)
    return 100 * int(units) + int(rest.ljust(2, "0"))


def _fields(line, sep, quote):
    fields, field, is_quoted, position = [], "", False, 0
    while position < len(line):
        char = line[position]
        if is_quoted and char == quote and line[position + 1 : position + 2] == quote:
            field, position = field + quote, position + 1
        elif char == quote:
            is_quoted = not is_quoted
        elif char == sep and not is_quoted:
            fields, field = [*fields, field], ""
        else:
            field += char
        position += 1
    return [*fields, field]
