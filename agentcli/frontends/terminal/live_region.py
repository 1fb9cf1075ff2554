"""Draws the live region: running work, cards and questions, the input, the status line."""

from __future__ import annotations

from dataclasses import dataclass

from agentcli.frontends.terminal.approval.asking import Asking
from agentcli.frontends.terminal.approval.panel import marked_cell
from agentcli.frontends.terminal.cards import Cards
from agentcli.frontends.terminal.console import HINT, Console
from agentcli.frontends.terminal.controller import TerminalController
from agentcli.frontends.terminal.input.key_names import KeyLabels
from agentcli.frontends.terminal.output.screen import Frame
from agentcli.frontends.terminal.output.status_bar import status_row
from agentcli.frontends.terminal.output.status_command import StatusCommand
from agentcli.frontends.terminal.text.fragments import Row


@dataclass(eq=False)
class LiveRegion:
    """Gives the status line and the input their rows first; the rest takes the room that is left."""

    console: Console
    controller: TerminalController
    asking: Asking
    cards: Cards
    status_command: StatusCommand
    labels: KeyLabels

    def draw(self, columns: int, most: int) -> Frame:
        status = [self._status_row(columns)] if most > 2 else []
        room = most - len(status)
        if self.asking.hides_input:
            panel = self._panel_rows(columns, room)
            live = self.controller.view.live.rows(columns, room - len(panel), unfinished=self.console.screen.held_text)
            picker = self.asking.picking.picker
            row, column = (0, picker.cursor) if picker is not None else marked_cell(panel)
            return Frame([*live, *panel, *status], (len(live) + row, min(column, columns - 1)))
        area = self.console.area
        panel = self._panel_rows(columns, max(0, room - 1))
        input_rows, (row, column) = area.rows(columns, max(1, min(room - len(panel), max(3, most // 2))))
        room -= len(input_rows) + len(panel)
        menu = area.menu_rows(columns, room)
        room -= len(menu)
        live = self.controller.view.live.rows(columns, room, unfinished=self.console.screen.held_text)
        above = [*live, *panel]
        return Frame([*above, *input_rows, *menu, *status], (len(above) + row, column))

    def _panel_rows(self, columns: int, most: int) -> list[Row]:
        if most < 1:
            return []
        cards = self.cards.rows(columns)
        asked = self.asking.rows(columns, most)[:most]
        return [*cards[: most - len(asked)], *asked]

    def _status_row(self, columns: int) -> Row:
        hint = self.asking.hint or self.console.hint.text
        custom = "" if hint else self.status_command.text
        return status_row(self.controller.status, columns, custom=custom, hint=hint, vi_mode=self.console.vi_mode)

    def placeholder(self) -> str:
        """The hint in an empty input."""
        if self.asking.is_open:
            return ""
        if self.controller.is_busy:
            return self.labels.hints(send="steers", queue="queues", interrupt="interrupts")
        return (
            self.labels.hints(send="sends what waits", previous="takes it back")
            if self.controller.view.live.queued
            else HINT
        )
