"""Shows a Jupyter notebook as its cells, and turns changed cells back into a notebook.

Each cell begins with a line such as `# %% [code] 3f2a`: its type, and its id or its number from 1. Its source follows.
Format: nbformat 4 (nbformat.readthedocs.io, "The notebook file format").
"""

import codecs
import json
import re
import uuid
from typing import Any, Literal

import msgspec

from agentcli.tools.observation import as_shown

EMPTY_NOTEBOOK = b'{\n "cells": [],\n "metadata": {},\n "nbformat": 4,\n "nbformat_minor": 5\n}\n'
MAX_OUTPUT_CHARS = 2_000  # shown of one cell's output
_MARK = re.compile(r"^# %% \[(code|markdown|raw)\](?: (\S+))?[ \t]*\r?$", re.MULTILINE)
_UNFIT = re.compile(rf"{_MARK.pattern}|[\0\ud800-\udfff]", re.MULTILINE)  # a source with it cannot be read back
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, which is not a character
_ID = re.compile(r"[\w-]{1,64}", re.ASCII)

Cell = dict[str, Any]


class _Output(msgspec.Struct, kw_only=True):
    output_type: str = ""
    text: str | list[str] = ""
    data: dict[str, Any] = {}
    ename: str | None = None
    evalue: str | None = None


class _Cell(msgspec.Struct):
    cell_type: Literal["code", "markdown", "raw"]
    source: str | list[str]
    id: str = ""
    outputs: list[_Output] = []


class _Notebook(msgspec.Struct):
    """The parts of a notebook that are read here. Cells are written as in the file, with all their keys."""

    nbformat: Literal[4]
    cells: list[_Cell]
    nbformat_minor: int = 0

    @property
    def names(self) -> list[str]:
        """A name for each cell: its id, or its number if not every cell has an id of its own."""
        ids = [cell.id for cell in self.cells if _ID.fullmatch(cell.id)]
        is_unique = len(ids) == len(set(ids)) == len(self.cells)
        return ids if is_unique else [str(number) for number in range(1, len(self.cells) + 1)]


def cells_as_text(content: bytes, *, with_outputs: bool = False) -> str | None:
    """Return a notebook's cells as text; None if it is not of version 4, or has a source that contains a mark.

    With outputs, each cell is followed by its output in lines `#> …`, which are not part of the editable text.
    """
    _, notebook = _parse(content) or ({}, None)
    if notebook is None:
        return None
    parts = []
    for name, cell in zip(notebook.names, notebook.cells, strict=True):
        source = _joined(cell.source)
        if _UNFIT.search(source):
            return None
        parts.append(f"# %% [{cell.cell_type}] {name}\n{source}\n")
        if with_outputs and (output := _output_text(cell)):
            more = len(output) - MAX_OUTPUT_CHARS
            note = f"\n[{more:,} more characters]" if more > 0 else ""
            parts += [f"#> {line}\n" for line in (output[:MAX_OUTPUT_CHARS] + note).splitlines()]
    return "".join(parts)


def notebook_from_text(text: str, before: bytes) -> bytes:
    """Return the notebook `before` with the cells of `text`; a cell whose source is the same keeps its outputs.

    Raises `ValueError` for text before the first mark, for a cell named twice, or if `before` is not a notebook.
    """
    file, notebook = _parse(before) or ({}, None)
    if notebook is None:
        raise ValueError("it is not a notebook of version 4")
    marks = list(_MARK.finditer(text))
    if text[: marks[0].start() if marks else len(text)].strip():
        raise ValueError("it does not begin with a line such as `# %% [code]`, which begins each cell")
    old_cells = dict(zip(notebook.names, file["cells"], strict=True))
    used_names: set[str] = set()
    cells: list[Cell] = []
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(text)], strict=True):
        kind, name = mark[1], mark[2] or ""  # a new cell may have no name
        if name and name in used_names:
            raise ValueError(f"the cell {name} appears twice: leave the name out for a new cell")
        used_names.add(name)
        source, old = text[mark.end() + 1 : end].removesuffix("\n"), old_cells.get(name)
        # With CRLF line ends, a \r may be left from a cell's last line, whose \n was removed above. It is kept only if
        # the old source ends with \r, too, and so belongs to the source.
        if old is None or not _joined(old["source"]).endswith("\r"):
            source = source.removesuffix("\r")
        if old is not None and (_joined(old["source"]), old["cell_type"]) == (source, kind):
            cells.append(old)
        else:
            cells.append(_with_source(old or _new_cell(name, notebook), kind, source))
    return _as_written_before({**file, "cells": cells}, before)


def _parse(content: bytes) -> tuple[dict[str, Any], _Notebook] | None:
    """Return the whole JSON of a notebook, and the parts of it that are read here; None if its form is unknown."""
    try:
        file = json.loads(content.decode("utf-8-sig"))
        return file, msgspec.convert(file, _Notebook)
    except (ValueError, RecursionError):
        return None


def _new_cell(name: str, notebook: _Notebook) -> Cell:
    """Return an empty cell, with an id if the notebook's cells have ids: the given name, if that can be one."""
    if notebook.nbformat_minor < 5:  # its cells have no ids
        return {}
    is_id = _ID.fullmatch(name) and not name.isdecimal()  # a number may be meant as the cell's place
    is_free = is_id and all(name != cell.id for cell in notebook.cells)
    return {"id": name if is_free else uuid.uuid4().hex[:8]}


def _with_source(cell: Cell, kind: str, source: str) -> Cell:
    """Return the cell with this source; outputs of the old source are dropped, because they are no longer true."""
    changed = {
        **{key: value for key, value in cell.items() if key not in ("outputs", "execution_count")},
        "cell_type": kind,
        "metadata": cell.get("metadata", {}),
        "source": source if isinstance(cell.get("source"), str) else source.splitlines(keepends=True),
        **({"execution_count": None, "outputs": []} if kind == "code" else {}),
    }
    if kind == "code":
        changed.pop("attachments", None)  # only other cells have them
    return dict(sorted(changed.items()))  # the order in which Jupyter writes


def _as_written_before(notebook: dict[str, Any], before: bytes) -> bytes:
    """Return the JSON with the indentation, escapes, line ends and byte order mark that the file had."""
    indented = re.search(rb"\{\r?\n( +|\t)", before)
    indent = indented[1].decode() if indented else None  # None: all on one line
    is_without_blanks = indent is None and re.match(rb'\s*\{"\w+":\S', before)
    separators = (",", ":") if is_without_blanks else None
    is_escaped = before.isascii() and b"\\u" in before
    written = json.dumps(notebook, indent=indent, separators=separators, ensure_ascii=is_escaped)
    written = _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", written)
    written += "\n" if before.endswith(b"\n") else ""
    if b"\r\n" in before:
        written = written.replace("\n", "\r\n")
    return (codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b"") + written.encode()


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def _output_text(cell: _Cell) -> str:
    """Return the cell's output as a terminal shows it, its errors, and the types of other data."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "error":
            parts.append(f"{output.ename}: {output.evalue}")
        elif output.text or "text/plain" in output.data:
            parts.append(_joined(output.text or output.data["text/plain"]).rstrip("\n"))
        parts += [f"[{media_type}]" for media_type in output.data if media_type.startswith(("image/", "application/"))]
    return as_shown("\n".join(parts))
