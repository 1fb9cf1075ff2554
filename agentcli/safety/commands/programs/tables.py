"""Reads the tables beside this module: sections of `name = words`, as plain text, since parsing TOML takes 5 ms."""

from __future__ import annotations

from pathlib import Path


def read_table(name: str) -> dict[str, dict[str, str]]:
    """The rows of each section, by name."""
    sections: dict[str, dict[str, str]] = {}
    for line in Path(__file__).with_name(f"{name}.ini").read_text("utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            rows = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition(" = ")
            rows[key] = value
    return sections
