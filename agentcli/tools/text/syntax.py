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
_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    ".py": (_PYTHON, ast.parse),
    ".json": ("JSON", json.loads),
    ".toml": ("TOML", tomllib.loads),
}


def syntax_note(path: Path, content: bytes) -> str:
    """A sentence on the first thing that does not parse; empty where all does, or where nobody here can tell."""
    name, read = _READERS.get(path.suffix, ("", None))
    if read is None or not content.strip() or len(content) > LARGEST:
        return ""
    try:
        with warnings.catch_warnings(action="ignore"):
            read(content.decode("utf-8-sig"))
    except SyntaxError as error:
        return f"Note: this is no valid {name}: line {error.lineno}: {error.msg}."
    except UnicodeDecodeError:  # another encoding, which the file may name
        return ""
    except (ValueError, RecursionError, MemoryError) as error:
        return f"Note: this is no valid {name}: {error}."
    return ""
