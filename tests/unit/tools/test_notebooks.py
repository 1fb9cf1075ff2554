"""Notebooks: read as cells with their outputs, edited by cell, and otherwise the same bytes."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.tools.bench import Bench

CELLS: list[dict[str, Any]] = [
    {"cell_type": "markdown", "id": "intro", "metadata": {}, "source": ["# Prices\n", "per *kg*"]},
    {
        "cell_type": "code",
        "execution_count": 3,
        "id": "load",
        "metadata": {"tags": ["x"]},
        "outputs": [
            {"name": "stdout", "output_type": "stream", "text": ["7 rows\n"]},
            {"data": {"image/png": "AAAA"}, "metadata": {}, "output_type": "display_data"},
        ],
        "source": ["rows = load()\n", "print(len(rows))"],
    },
    {"cell_type": "code", "execution_count": 4, "id": "sum", "metadata": {}, "outputs": [], "source": ["sum(rows)\n"]},
]
NOTEBOOK = {"cells": CELLS, "metadata": {"kernel": "é"}, "nbformat": 4, "nbformat_minor": 5}
CONTENT = json.dumps(NOTEBOOK, indent=1, ensure_ascii=False) + "\n"


def test_a_notebook_is_read_as_its_cells_with_what_they_printed(bench: Bench) -> None:
    bench.put("a.ipynb", CONTENT)
    text = bench.call("file_read", path="a.ipynb").structured["text"]
    assert text == (
        "# %% [markdown] intro\n# Prices\nper *kg*\n# %% [code] load\nrows = load()\nprint(len(rows))\n"
        "#> 7 rows\n#> [image/png]\n# %% [code] sum\nsum(rows)\n\n"
    )


def test_an_edited_cell_loses_its_outputs_and_nothing_else_changes(bench: Bench) -> None:
    path = bench.put("a.ipynb", CONTENT)
    bench.call("file_read", path="a.ipynb")
    output = bench.call("file_edit", path="a.ipynb", old_string="rows = load()", new_string="rows = load('b')")
    assert "-rows = load()\n+rows = load('b')\n" in output.content
    changed = {**CELLS[1], "source": ["rows = load('b')\n", "print(len(rows))"], "outputs": [], "execution_count": None}
    expected = {**NOTEBOOK, "cells": [CELLS[0], changed, CELLS[2]]}
    assert path.read_text() == json.dumps(expected, indent=1, ensure_ascii=False) + "\n"


def test_cells_are_added_moved_and_deleted_by_writing_them(bench: Bench) -> None:
    path = bench.put("a.ipynb", CONTENT)
    bench.call("file_read", path="a.ipynb")
    bench.call(
        "file_write",
        path="a.ipynb",
        content="# %% [code] sum\nsum(rows)\n\n# %% [raw]\nnew\n# %% [markdown] intro\nShort\n",
    )
    cells = json.loads(path.read_text())["cells"]
    assert [cell["source"] for cell in cells] == [["sum(rows)\n"], ["new"], ["Short"]]
    assert cells[0] == CELLS[2]
    assert cells[1]["id"] not in ("intro", "load", "sum")
    assert cells[2]["id"] == "intro"


def test_a_new_notebook_is_written_as_cells(bench: Bench) -> None:
    bench.call("file_write", path="new.ipynb", content="# %% [code]\n1 + 1\n")
    notebook = json.loads((bench.ws / "new.ipynb").read_text())
    assert (notebook["nbformat"], [cell["source"] for cell in notebook["cells"]]) == (4, [["1 + 1"]])


def test_text_without_a_first_mark_is_refused_and_the_notebook_stays(bench: Bench) -> None:
    path = bench.put("a.ipynb", CONTENT)
    bench.call("file_read", path="a.ipynb")
    error = bench.fails("file_write", path="a.ipynb", content="print(1)\n")
    assert "# %% [code]" in str(error)
    assert path.read_text() == CONTENT


def test_what_is_no_notebook_is_read_and_edited_as_text(bench: Bench) -> None:
    bench.put("old.ipynb", '{"nbformat": 3, "worksheets": []}\n')
    assert bench.call("file_read", path="old.ipynb").content == '1\t{"nbformat": 3, "worksheets": []}'
    bench.call("file_edit", path="old.ipynb", old_string="3", new_string="2")
    assert (bench.ws / "old.ipynb").read_text() == '{"nbformat": 2, "worksheets": []}\n'
