"""Moves the cursor, relative to where it is (codes of ECMA-48)."""

from __future__ import annotations


def up(rows: int) -> str:
    return f"\x1b[{rows}A" if rows > 1 else "\x1b[A" if rows == 1 else ""


def down(rows: int) -> str:
    return f"\x1b[{rows}B" if rows > 1 else "\x1b[B" if rows == 1 else ""


def vertical(rows: int) -> str:
    """Down, or up for a negative number."""
    return down(rows) if rows > 0 else up(-rows)


def to_column(column: int) -> str:
    return f"\x1b[{column + 1}G" if column else "\r"
