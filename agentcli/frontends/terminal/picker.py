"""Draws a list that the person chooses from."""

from collections.abc import Sequence

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Row, clipped, width

MAX_OPTIONS = 8  # that are shown at a time
MIN_DETAIL_COLUMNS = 12  # with the marks at the start of a row and the gap between the columns


class Picker:
    """A list to choose from: arrows move, typing narrows, Enter selects."""

    def __init__(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, can_keep: bool = False
    ) -> None:
        """`options` are a label and a detail each; the one at `current` is marked, and selected first."""
        self.title = printable(title)
        self.can_keep = can_keep
        self._options = [(printable(label), printable(detail)) for label, detail in options]
        self._current = current
        self._query = ""
        self._selected = current or 0

    @property
    def shown(self) -> list[int]:
        """The numbers of the options that have all words of the query."""
        words = self._query.lower().split()
        return [
            number
            for number, (label, detail) in enumerate(self._options)
            if all(word in f"{label} {detail}".lower() for word in words)
        ]

    @property
    def chosen(self) -> int | None:
        shown = self.shown
        return shown[min(self._selected, len(shown) - 1)] if shown else None

    def move(self, by: int) -> None:
        if count := len(self.shown):
            self._selected = (min(self._selected, count - 1) + by) % count

    def type(self, text: str) -> None:
        """Add to the text that narrows the list; an empty text removes its last character."""
        self._query = self._query + printable(text).replace("\n", " ") if text else self._query[:-1]
        self._selected = 0

    @property
    def cursor(self) -> int:
        return width(f"{self.title} {self._query}")

    def rows(self, columns: int, max_rows: int) -> list[Row]:
        shown = self.shown
        hint = "(type to narrow)" if len(self._options) > MAX_OPTIONS else ""
        head: Row = [("accent", self.title), ("muted", f" {self._query or hint}")]
        room = max(1, min(MAX_OPTIONS, max_rows - 2))
        at = min(self._selected, max(0, len(shown) - 1))
        first = max(0, min(at - room // 2, len(shown) - room))
        # Details stand behind the widest label that leaves room for the first word of one.
        widths = (width(label) for label, detail in self._options if detail)
        label_width = max((cells for cells in widths if cells <= columns - MIN_DETAIL_COLUMNS), default=0)
        rows = [clipped(head, columns)]
        for position, number in enumerate(shown[first : first + room], first):
            label, detail = self._options[number]
            mark, role = ("❯ ", "selected") if position == at else ("  ", "")
            row: Row = [("accent", mark)]
            if self._current is not None:
                row.append(("ok", "● " if number == self._current else "  "))
            row.append((role, label))
            if detail:
                row.append(("muted", " " * max(2, 2 + label_width - width(label)) + detail))
            rows.append(clipped(row, columns))
        if not shown:
            rows.append(clipped([("muted", "  no match")], columns))
        keep = " · Ctrl-S to keep it for good" if self.can_keep else ""
        count = f"{len(shown)} choice{'' if len(shown) == 1 else 's'}"
        rows.append(clipped([("muted", f"  {count} · Enter to select{keep} · Esc to cancel")], columns))
        return rows[: max(0, max_rows)]
