"""Prints lists as tables: drawn by rich on a terminal, in plain columns that are never cut elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Literal

from agentcli.cli.output import tell
from agentcli.frontends.printable import printable

Row = Sequence[str]
READABLE = 12  # columns of the terminal below which the last column is not squeezed


def draws_tables() -> bool:
    """True if stdout is a terminal, which shows more than plain text."""
    return sys.stdout.isatty()


def print_table(headings: Row, rows: Sequence[Row], *, numeric: Collection[str] = (), empty: str = "") -> None:
    """Print rows of cells under `headings`; elsewhere than on a terminal the rows alone, one a line.

    Columns whose headings are in `numeric` are aligned to the right and, where a heading names the unit, drawn without
    it: "3 entries" is a 3 then.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        tell(empty)
    elif draws_tables():
        _draw(headings, cells, numeric)
    else:
        _print_plain(cells)


def _print_plain(rows: Sequence[Row]) -> None:
    """Columns as wide as their widest cell; the last one is not padded."""
    rows = [[cell.replace("\n", " ") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        tell("  ".join([*cells, row[-1]]))


def _draw(headings: Row, rows: Sequence[Row], numeric: Collection[str]) -> None:
    """Only the last column breaks its lines, so that ids and names can be copied; all do on a narrow terminal."""
    from rich.box import SIMPLE_HEAD  # 60 ms that only a terminal needs
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [
        [cell.partition(" ")[0] if heading in numeric else cell for heading, cell in zip(headings, row, strict=True)]
        for row in rows
    ]
    console = Console(file=sys.stdout, highlight=False)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    *widths, last = (max(map(cell_len, column)) for column in zip(headings, *rows, strict=True))
    is_narrow = sum(widths) + min(last, READABLE) + 2 * len(headings) > console.width
    for n, heading in enumerate(headings):
        side: Literal["left", "right"] = "right" if heading in numeric else "left"
        table.add_column(heading, justify=side, no_wrap=not is_narrow and n < len(widths), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
