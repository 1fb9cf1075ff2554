"""Says where a file that was just written does not parse, so that the model need not find out by a run."""

from __future__ import annotations

import ast
import json
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGEST = 200_000  # bytes; parsing takes about 5 ms for each 10,000
IS_INVALID = "Note: this is no valid"
_LONGEST_LINE = 200  # characters
_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".py": (f"Python {sys.version_info.major}.{sys.version_info.minor}", ast.parse),
    ".json": ("JSON", json.loads),
    ".toml": ("TOML", tomllib.loads),
}


def syntax_note(path: Path, content: bytes) -> str:
    """A sentence on the first thing that does not parse; empty where all does, or where nobody here can tell."""
    name, read = _READERS.get(path.suffix, ("", None))
    if read is None or not content.strip() or len(content) > LARGEST:
        return ""
    try:
        text = content.decode("utf-8-sig")
        with warnings.catch_warnings(action="ignore"):
            read(text)
    except SyntaxError as error:
        lines = text.splitlines()[(error.lineno or 0) - 1 : error.lineno]
        line = f"\n{lines[0][:_LONGEST_LINE]}" if lines else ""
        return f"{IS_INVALID} {name}: line {error.lineno}: {error.msg}.{line}"
    except UnicodeDecodeError:  # another encoding, which the file may name
        return ""
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{IS_INVALID} {name}: {error}."
    return ""
