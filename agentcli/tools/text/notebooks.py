"""Shows a Jupyter notebook as its cells, and turns changed cells back into a notebook.

Each cell begins with a line such as `# %% [code] 3f2a`: its type, and its id or its number from 1. Its source follows.
Format: nbformat 4 (nbformat.readthedocs.io, "The notebook file format").
"""

import json
import re
import uuid
from typing import Any

EMPTY_NOTEBOOK = b'{\n "cells": [],\n "metadata": {},\n "nbformat": 4,\n "nbformat_minor": 5\n}\n'
MAX_OUTPUT_CHARS = 2_000  # of one cell's output that is shown
_MARK = re.compile(r"^# %% \[(code|markdown|raw)\](?: (\S+))?$", re.MULTILINE)
_UNFIT = re.compile(rf"{_MARK.pattern}|[\ud800-\udfff]", re.MULTILINE)  # a mark, or half of a surrogate pair
_INDENT = re.compile(rb"\{\r?\n( +|\t)")

Cell = dict[str, Any]


def cells_as_text(content: bytes, *, with_outputs: bool = False) -> str | None:
    """Return a notebook's cells as text; None if it is no notebook of version 4, or its source cannot be shown so.

    With outputs, each cell is followed by what it printed as lines `#> …`; these are not part of what is edited.
    """
    notebook = _parse(content)
    if notebook is None:
        return None
    parts = []
    for name, cell in _named_cells(notebook):
        source = _joined(cell["source"])
        if _UNFIT.search(source):
            return None
        parts.append(f"# %% [{cell['cell_type']}] {name}\n{source}\n")
        if with_outputs and (output := _output_text(cell)):
            cut = output[:MAX_OUTPUT_CHARS]
            left = f"\n[{len(output) - len(cut):,} more characters]" if len(output) > len(cut) else ""
            parts += [f"#> {line}\n" for line in (cut + left).splitlines()]
    return "".join(parts)


def notebook_from_text(text: str, before: bytes) -> bytes:
    """Return the notebook `before` with the cells of `text`; a cell whose source is the same keeps its outputs.

    Raises `ValueError` for text before the first mark, for a cell that is named twice, and if `before` is no notebook.
    """
    notebook = _parse(before)
    if notebook is None:
        raise ValueError("it is no notebook of version 4")
    marks = list(_MARK.finditer(text))
    if text[: marks[0].start() if marks else len(text)].strip():
        raise ValueError("it does not begin with a line such as `# %% [code]`, which begins each cell")
    cells = dict(_named_cells(notebook))
    has_ids = (notebook["nbformat"], notebook.get("nbformat_minor", 0)) >= (4, 5)
    changed = []
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True):
        source = text[mark.end() + 1 : end].removesuffix("\n")
        old = cells.pop(mark[2], None) if mark[2] else None
        if old is None and mark[2] and any(mark[2] == other[2] for other in marks if other.start() < mark.start()):
            raise ValueError(f"the cell {mark[2]} is there twice: leave the name out for a new cell")
        changed.append(_with_source(old, mark[1], source, has_ids=has_ids))
    return _as_written_before({**notebook, "cells": changed}, before)


def _parse(content: bytes) -> dict[str, Any] | None:
    try:
        notebook = json.loads(content)
        is_notebook = notebook["nbformat"] == 4 and all(
            {"cell_type", "source"} <= {*cell} for cell in notebook["cells"]
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return notebook if is_notebook else None


def _named_cells(notebook: dict[str, Any]) -> list[tuple[str, Cell]]:
    return [(cell.get("id") or str(number), cell) for number, cell in enumerate(notebook["cells"], 1)]


def _with_source(old: Cell | None, kind: str, source: str, *, has_ids: bool) -> Cell:
    """Return the cell with this source; outputs of another source are dropped, because they are no longer true."""
    if old and (_joined(old["source"]), old["cell_type"]) == (source, kind):
        return old
    cell = {**(old or ({"id": uuid.uuid4().hex[:8]} if has_ids else {})), "cell_type": kind}
    cell["metadata"] = cell.get("metadata", {})
    cell["source"] = source if old and isinstance(old["source"], str) else source.splitlines(keepends=True)
    for name in ("outputs", "execution_count"):
        cell.pop(name, None)
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return dict(sorted(cell.items()))  # the order in which Jupyter writes


def _as_written_before(notebook: dict[str, Any], before: bytes) -> bytes:
    """Return the JSON with the indentation, escapes and final newline that the file had."""
    found = _INDENT.search(before)
    indent = (len(found[1]) if found[1] != b"\t" else "\t") if found else None
    written = json.dumps(notebook, indent=indent, ensure_ascii=before.isascii() and b"\\u" in before)
    return (written + ("\n" if before.endswith(b"\n") else "")).encode()


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def _output_text(cell: Cell) -> str:
    """Return what the cell printed and returned, its errors, and the types of what is no text."""
    parts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if output.get("output_type") == "error":
            parts.append(f"{output.get('ename')}: {output.get('evalue')}")
        elif "text" in output or "text/plain" in data:
            parts.append(_joined(output.get("text") or data["text/plain"]).rstrip("\n"))
        parts += [f"[{media_type}]" for media_type in data if media_type.startswith(("image/", "application/"))]
    return "\n".join(parts)
