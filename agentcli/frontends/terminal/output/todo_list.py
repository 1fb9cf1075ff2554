"""Shows the model's to-do list, with the same signs wherever it stands."""

from __future__ import annotations

from collections.abc import Sequence

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Fragment
from agentcli.tools.builtin.arguments import TodoItem

_SIGNS = {"completed": ("ok", "✓"), "in_progress": ("accent", "▸"), "pending": ("muted", "○")}


def todo_lines(items: Sequence[TodoItem]) -> list[list[Fragment]]:
    """A line for each item, indented by two columns, without line ends."""
    return [
        [
            ("", "  "),
            _SIGNS[item.status],
            ("muted" if item.status == "completed" else "", " " + " ".join(printable(item.content).split())),
        ]
        for item in items
    ]
