"""Reads the tables beside modules: people write TOML, the program reads the same rows as JSON, twenty times faster.

`docs/make_tables.py` writes the JSON files; a test compares them with the TOML.
"""

from pathlib import Path
from typing import Any

import msgspec


def read_table(module_file: str, name: str) -> dict[str, Any]:
    """Return the table `name`.toml beside a module, whose `__file__` is `module_file`."""
    table: dict[str, Any] = msgspec.json.decode(Path(module_file).with_name(f"{name}.json").read_bytes())
    return table
