"""Reads the TOML tables beside this module."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def read_table(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text("utf-8"))
