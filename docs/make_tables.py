"""Writes the JSON beside each TOML table of the package: python docs/make_tables.py."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "agentcli"


def tables() -> dict[Path, str]:
    """Return the text of each JSON file; files of `evals/tasks` are no tables."""
    files = (file for file in PACKAGE.rglob("*.toml") if "tasks" not in file.parts)
    return {
        file.with_suffix(".json"): json.dumps(
            tomllib.loads(file.read_text("utf-8")), ensure_ascii=False, separators=(",", ":")
        )
        + "\n"
        for file in sorted(files)
    }


if __name__ == "__main__":
    for path, text in tables().items():
        path.write_text(text, "utf-8")
