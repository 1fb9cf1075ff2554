"""Cards that can stand above the input: the keys, the to-do list."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.frontends.terminal.keys import KEY_HELP
from agentcli.frontends.terminal.screen import Row
from agentcli.frontends.terminal.text_width import clipped
from agentcli.frontends.terminal.todo_list import todo_lines
from agentcli.tools.builtin.arguments import TodoItem


def key_rows(columns: int) -> list[Row]:
    return [clipped([("accent", f"  {key:<28}"), ("muted", text)], columns) for key, text in KEY_HELP]


def todo_rows(items: Sequence[TodoItem], columns: int) -> list[Row]:
    rows = [clipped(line, columns) for line in todo_lines(items)]
    return rows or [[("muted", "  The to-do list is empty.")]]
