"""Shows the cards above the input: the keys, a warning about file names, the to-do list."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentcli.agent.todo import todo_items
from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.approval.asking import Asking
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.input.key_names import label
from agentcli.frontends.terminal.output.tool_views import todo_lines
from agentcli.frontends.terminal.text.fragments import Row
from agentcli.frontends.terminal.text.text_width import clipped

# For the `?` card: actions (see look_settings.py), keys that are fixed, and what they do.
_HELP = (
    ("send", "", "send; while it works: steer"),
    ("complete", "", "complete; while it works: queue for afterwards"),
    ("newline", "\\ Enter", "new line"),
    ("interrupt", "", "interrupt; twice when idle: rewind"),
    ("cancel", "", "interrupt, clear, twice: leave"),
    ("leave", "", "leave"),
    ("mode", "", "next permission mode"),
    ("previous", "", "take back what is queued; history"),
    ("take_back", "", "choose what to take back"),
    ("search", "", "search the history"),
    ("stash", "", "stash what is typed"),
    ("unfold", "", "unfold the last output"),
    ("todo", "", "to-do list"),
    ("background", "", "running command to the background"),
    ("editor", "", "external editor"),
    ("paste_image", "", "paste an image"),
    ("suspend", "", "suspend"),
    ("", "@  /  !  !!", "file, command, shell, shell the model is not told of"),
)


@dataclass(eq=False)
class Cards:
    """The cards that stand open; a list to choose from takes their place."""

    controller: TerminalController
    composer: Composer
    asking: Asking
    keys: Mapping[str, Sequence[str]]
    shows_todo: bool = False

    @property
    def shows_keys(self) -> bool:
        return self.composer.asks_for_keys and self.asking.purpose == "prompt"

    @property
    def are_open(self) -> bool:
        return self.shows_keys or self.shows_todo

    def rows(self, columns: int) -> list[Row]:
        rows: list[Row] = []
        if self.asking.picking.is_open:
            return rows
        if self.shows_keys:
            rows += key_rows(columns, self.keys)
        if warning := self.composer.names.warning(self.composer.area.buffer.text):
            told = textwrap.wrap(printable(warning), max(1, columns))
            rows += [clipped([("warning", row)], columns) for row in told]
        if self.shows_todo:
            rows += self._todo_rows(columns)
        return rows

    def _todo_rows(self, columns: int) -> list[Row]:
        items = todo_items(self.controller.session.snapshot().conversation.path) if self.controller.is_open else ()
        return [clipped(line, columns) for line in todo_lines(items)] or [[("muted", "  The to-do list is empty.")]]


def key_help(keys: Mapping[str, Sequence[str]]) -> list[tuple[list[str], str]]:
    """The keys of each action that has one, and what it does."""
    rows = []
    for action, more, text in _HELP:
        if action == "complete" and keys["queue"] != keys["complete"]:
            rows += [([label(key) for key in keys["complete"]], "complete")]
            action, text = "queue", "while it works: queue for afterwards"
        labels = [label(key) for key in keys.get(action, ())]
        rows.append((labels + ([more] if more else []), text))
    return [(labels, text) for labels, text in rows if labels]


def key_rows(columns: int, keys: Mapping[str, Sequence[str]]) -> list[Row]:
    """A row for each action; a narrow window shows only the first of its keys."""
    rows = [(_fitting(labels, max(10, columns // 3)), text) for labels, text in key_help(keys)]
    width = max(len(names) for names, _ in rows) + 2
    return [clipped([("accent", f"  {names:<{width}}"), ("muted", text)], columns) for names, text in rows]


def _fitting(labels: list[str], most: int) -> str:
    while len(labels) > 1 and len(", ".join(labels)) > most:
        labels = labels[:-1]
    return ", ".join(labels)
