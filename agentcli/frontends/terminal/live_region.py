"""Draws the live region: running work, cards and questions, the input, the status line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from agentcli.agent.state import todo_items
from agentcli.frontends.terminal.asking import MAX_ROWS_BESIDE, Asking
from agentcli.frontends.terminal.console import HINT, Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.composer import Composer
from agentcli.frontends.terminal.input.keyboard import KeyLabels
from agentcli.frontends.terminal.output.screen import Frame
from agentcli.frontends.terminal.output.tool_views import todo_lines
from agentcli.frontends.terminal.panel import marked_cell
from agentcli.frontends.terminal.status import StatusCommand, status_row
from agentcli.frontends.terminal.text.fragments import Row, clipped
from agentcli.tools.builtin.arguments import TodoItem

MAX_TASKS = 5  # of the list that are shown while a turn runs
EMPTY_LIST = "  The to-do list is empty."


@dataclass(eq=False)
class LiveRegion:
    """Lays out the live region: the status line and the input get their rows first, cards or a list stand above."""

    console: Console
    controller: TerminalController
    composer: Composer
    asking: Asking
    status_command: StatusCommand
    labels: KeyLabels
    shows_todo: bool = False

    @property
    def shows_keys(self) -> bool:
        return self.composer.asks_for_keys and self.asking.purpose == "prompt"

    def draw(self, columns: int, max_rows: int) -> Frame:
        """Lay out at most `max_rows` rows, and run the status command if the figures have changed."""
        self.status_command.refresh(self.controller.status)
        hint = self.asking.hint or self.console.hint.text
        custom, vi_mode = "" if hint else self.status_command.text, self.console.vi_mode
        line = status_row(self.controller.status, columns, custom=custom, hint=hint, vi_mode=vi_mode)
        status = [line] if max_rows > 2 else []
        room = max_rows - len(status)
        activity_rows = partial(self.controller.view.activity.rows, interrupt_key=self.labels.first("interrupt"))
        if self.asking.hides_input:
            panel = self._panel_rows(columns, room)
            room -= len(panel)
            above = activity_rows(columns, min(room, MAX_ROWS_BESIDE) if self.asking.takes_keys else room)
            picker = self.asking.picker
            row, column = (0, picker.cursor) if picker is not None else marked_cell(panel)
            return Frame([*above, *panel, *status], (len(above) + row, min(column, columns - 1)))
        area = self.console.area
        panel = self._panel_rows(columns, max(0, room - 1))
        input_rows, (row, column) = area.rows(columns, max(1, min(room - len(panel), max(3, max_rows // 2))))
        room -= len(input_rows) + len(panel)
        menu = area.menu_rows(columns, room)
        above = [*activity_rows(columns, room - len(menu)), *panel]
        return Frame([*above, *input_rows, *menu, *status], (len(above) + row, column))

    def placeholder(self) -> str:
        """Return the hint in an empty input."""
        if self.asking.is_open or self.asking.purpose != "prompt":
            return ""
        if self.controller.is_busy:
            return self.labels.hints(send="steers", queue="queues", interrupt="interrupts")
        waiting = self.controller.view.activity.queued
        return self.labels.hints(send="sends what waits", previous="takes it back") if waiting else HINT

    def _panel_rows(self, columns: int, max_rows: int) -> list[Row]:
        if max_rows < 1:
            return []
        cards = [] if self.asking.picker else self._card_rows(columns)
        asked = self.asking.rows(columns, max_rows)[:max_rows]
        return [*cards[: max_rows - len(asked)], *asked]

    def _card_rows(self, columns: int) -> list[Row]:
        rows: list[Row] = []
        if self.shows_keys:  # a row for each action; a narrow window shows only the first of its keys
            keys = [(_fitting(labels, max(10, columns // 3)), text) for labels, text in self.labels.help()]
            width = max(len(names) for names, _ in keys) + 2
            rows = [clipped([("accent", f"  {names:<{width}}"), ("muted", text)], columns) for names, text in keys]
        if self.shows_todo:
            rows += [clipped(line, columns) for line in todo_lines(self._tasks())] or [[("muted", EMPTY_LIST)]]
        elif self.controller.is_busy and not self.asking.is_open and self.asking.purpose == "prompt":
            rows += self._open_tasks(columns)
        return rows

    def _open_tasks(self, columns: int) -> list[Row]:
        """Return a few rows of the list that the turn works on, around the first task that is not done."""
        items = self._tasks()
        first = next((number for number, item in enumerate(items) if item.status != "completed"), None)
        if first is None:
            return []
        begin = max(0, min(first - 1, len(items) - MAX_TASKS))
        rows = [clipped(line, columns) for line in todo_lines(items[begin : begin + MAX_TASKS])]
        hidden = len(items) - len(rows)
        more = f"  and {hidden} more ({self.labels.first('todo')})"
        return [*rows, clipped([("muted", more)], columns)] if hidden else rows

    def _tasks(self) -> Sequence[TodoItem]:
        return todo_items(self.controller.session.snapshot().conversation.path) if self.controller.is_open else ()


def _fitting(labels: list[str], max_columns: int) -> str:
    while len(labels) > 1 and len(", ".join(labels)) > max_columns:
        labels = labels[:-1]
    return ", ".join(labels)
