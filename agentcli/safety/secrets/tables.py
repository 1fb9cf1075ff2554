"""Reads the TOML tables beside this module."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any


def read_table(name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text("utf-8"))
