"""Notebooks: read as cells with their outputs, edited by cell, and otherwise the same bytes."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.tools.bench import Bench
from tests.unit.tools.test_hunks import narrowed

CELLS: list[dict[str, Any]] = [
    {"cell_type": "markdown", "id": "intro", "metadata": {}, "source": ["# Prices\n", "per *kg*"]},
    {
        "cell_type": "code",
        "execution_count": 3,
        "id": "load",
        "metadata": {"tags": ["x"]},
        "outputs": [
            {"name": "stdout", "output_type": "stream", "text": ["50 %\r100 %\n", "\x1b[1m7 rows\x1b[0m\n"]},
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
        "#> 100 %\n#> 7 rows\n#> [image/png]\n# %% [code] sum\nsum(rows)\n\n"
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


def test_a_changed_notebook_keeps_the_form_of_its_json(bench: Bench) -> None:
    for before in (
        CONTENT.replace("\n", "\r\n"),
        "\ufeff" + CONTENT,
        json.dumps(NOTEBOOK, separators=(",", ":"), ensure_ascii=False),
        CONTENT.replace("7 rows", "\\ud83d"),
    ):
        path = bench.put("a.ipynb", before)
        bench.call("file_edit", path="a.ipynb", old_string="per *kg*", new_string="per *l*")
        assert path.read_bytes().decode() == before.replace("per *kg*", "per *l*")


def test_writing_the_same_cells_writes_the_same_bytes(bench: Bench) -> None:
    before = CONTENT.replace('"execution_count": 3', '"execution_count":   3')
    path = bench.put("a.ipynb", before)
    bench.call("file_read", path="a.ipynb")
    cells = [f"# %% [{one['cell_type']}] {one['id']}\n{''.join(one['source'])}\n" for one in CELLS]
    bench.call("file_write", path="a.ipynb", content="".join(cells))
    assert path.read_text() == before


def test_cells_whose_ids_name_no_single_cell_are_named_by_their_number(bench: Bench) -> None:
    for ids in (("a", "a"), ("a b", "c"), ("2", None)):
        cells = [CELLS[2] | {"id": id, "source": f"source {n}"} for n, id in enumerate(ids, 1)]
        cells = [{key: value for key, value in cell.items() if value is not None} for cell in cells]
        path = bench.put("a.ipynb", json.dumps(NOTEBOOK | {"cells": cells}))
        assert bench.call("file_read", path="a.ipynb").structured["text"] == (
            "# %% [code] 1\nsource 1\n# %% [code] 2\nsource 2\n"
        )
        bench.call("file_edit", path="a.ipynb", old_string="source 2", new_string="changed\n# %% [code] 3\nnew")
        changed = cells[1] | {"source": "changed", "execution_count": None}
        *before, new = json.loads(path.read_text())["cells"]
        assert before == [cells[0], changed]
        assert (new["source"], len(new["id"])) == (["new"], 8)


def test_what_a_notebook_should_not_hold_makes_it_text(bench: Bench) -> None:
    code = CELLS[1]
    for cell in (
        {**code, "cell_type": "heading"}, {**code, "source": None}, {**code, "source": "\0"}, {**code, "outputs": None},
        {**code, "outputs": ["x"]}, {**code, "outputs": [{"text": 5}]}, ["cell_type", "source"],
        {**code, "source": "# %% [code]\r\n1"},
    ):  # fmt: skip
        path = bench.put("a.ipynb", json.dumps(NOTEBOOK | {"cells": [CELLS[0], cell]}))
        assert bench.text("file_read", path="a.ipynb").startswith('1\t{"cells": [')
        before = path.read_text()
        bench.call("file_edit", path="a.ipynb", old_string="Prices", new_string="Costs")
        assert path.read_text() == before.replace("Prices", "Costs")


def test_a_cell_is_added_among_lines_that_end_with_crlf(bench: Bench) -> None:
    path = bench.put("a.ipynb", json.dumps(NOTEBOOK | {"cells": [CELLS[2] | {"source": "1\r\n2\r\n"}]}))
    bench.call("file_edit", path="a.ipynb", old_string="2\n", new_string="2\n# %% [code] more\n3\n")
    sum, more = json.loads(path.read_text())["cells"]
    assert (sum["source"], more["source"], more["id"]) == ("1\r\n2", ["3\r\n"], "more")


def test_some_hunks_of_an_edit_change_some_cells(bench: Bench) -> None:
    path = bench.put("a.ipynb", CONTENT)
    edits = [
        {"old_string": "per *kg*", "new_string": "per *l*"},
        {"old_string": "sum(rows)", "new_string": "max(rows)"},
    ]
    narrowed(bench, "file_edit", (1,), path="a.ipynb", edits=edits)
    cells = json.loads(path.read_text())["cells"]
    assert cells == [*CELLS[:2], CELLS[2] | {"source": ["max(rows)\n"], "execution_count": None}]
