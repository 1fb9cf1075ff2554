"""Cards that can stand above the input: the keys, the to-do list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentcli.frontends.terminal.keys import key_help
from agentcli.frontends.terminal.output.screen import Row
from agentcli.frontends.terminal.output.todo_list import todo_lines
from agentcli.frontends.terminal.text.text_width import clipped
from agentcli.tools.builtin.arguments import TodoItem


def key_rows(columns: int, keys: Mapping[str, Sequence[str]]) -> list[Row]:
    """A row for each action; where the window is narrow only the first of its keys."""
    rows = [(_fitting(labels, max(10, columns // 3)), text) for labels, text in key_help(keys)]
    width = max(len(names) for names, _ in rows) + 2
    return [clipped([("accent", f"  {names:<{width}}"), ("muted", text)], columns) for names, text in rows]


def _fitting(labels: list[str], most: int) -> str:
    while len(labels) > 1 and len(", ".join(labels)) > most:
        labels = labels[:-1]
    return ", ".join(labels)


def todo_rows(items: Sequence[TodoItem], columns: int) -> list[Row]:
    rows = [clipped(line, columns) for line in todo_lines(items)]
    return rows or [[("muted", "  The to-do list is empty.")]]
