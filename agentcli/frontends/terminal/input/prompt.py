"""Holds the text that the person types, and draws its rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout import BufferControl, Layout, Window
from prompt_toolkit.layout.mouse_handlers import MouseHandlers
from prompt_toolkit.layout.processors import AfterInput, ConditionalProcessor, PasswordProcessor
from prompt_toolkit.layout.screen import Screen as Cells
from prompt_toolkit.layout.screen import WritePosition

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Row, clipped, width, without_end_blanks

MAX_MENU_ROWS = 6


class PromptBuffer(Buffer):
    """A buffer whose history is elsewhere: `recall` steps back in it, or forwards for a number below 0."""

    recall: Callable[[int], None] | None = None

    def history_backward(self, count: int = 1) -> None:
        if self.recall is not None:
            self.recall(count)

    def history_forward(self, count: int = 1) -> None:
        if self.recall is not None:
            self.recall(-count)


class PromptArea:
    """The input: a prompt_toolkit buffer and window. `mark` and `placeholder` are called for each frame."""

    def __init__(self, *, placeholder: Callable[[], str]) -> None:
        self.mark: Callable[[], str] = lambda: "› "
        self.placeholder = placeholder
        self._columns = 0
        self.buffer = PromptBuffer(
            complete_while_typing=Condition(lambda: self.completes),
            multiline=True,
            name="prompt",
        )
        self.completes = True
        self._completed: Document | None = None  # the text and cursor after the last completion
        self.is_secret = False  # the text is shown as stars
        hint = ConditionalProcessor(
            AfterInput(lambda: [("class:muted", self._fitting_placeholder())]), Condition(lambda: not self.buffer.text)
        )
        stars = ConditionalProcessor(PasswordProcessor(), Condition(lambda: self.is_secret))
        self.window = Window(
            BufferControl(self.buffer, input_processors=[hint, stars], focusable=True),
            wrap_lines=True,
            get_line_prefix=self._prefix,
            always_hide_cursor=False,
        )
        self.layout = Layout(self.window)

    def _prefix(self, line: int, wraps: int) -> StyleAndTextTuples:
        mark = self.mark()
        return [("class:prompt", mark if line == 0 and wraps == 0 else " " * width(mark))]

    def _fitting_placeholder(self) -> str:
        hint = self.placeholder()
        while len(hint) > self._columns - 3 and hint:
            hint = hint.rpartition(" · ")[0]
        return hint

    def rows(self, columns: int, max_rows: int) -> tuple[list[Row], tuple[int, int]]:
        """Return at most `max_rows` rows, and the cell of the cursor among them (row, column)."""
        self._columns = columns
        height = max(1, min(self.window.preferred_height(columns, max_rows).preferred, max_rows))
        cells = Cells()
        position = WritePosition(xpos=0, ypos=0, width=columns, height=height)
        self.window.write_to_screen(cells, MouseHandlers(), position, parent_style="", erase_bg=False, z_index=None)
        at = cells.get_cursor_position(self.window)
        return [_row(cells, y, columns) for y in range(height)], (at.y, min(at.x, columns - 1))

    def menu_rows(self, columns: int, max_rows: int) -> list[Row]:
        """Return the completions on offer; the one that Enter takes is marked."""
        state = self.buffer.complete_state
        if state is None or not state.completions or max_rows < 1:
            return []
        room = min(MAX_MENU_ROWS, max_rows)
        at = state.complete_index or 0
        first = max(0, min(at - room // 2, len(state.completions) - room))
        shown = state.completions[first : first + room]
        label_width = min(max(width(c.display_text) for c in shown), max(8, columns // 2))
        rows: list[Row] = []
        for number, completion in enumerate(shown, first):
            label = printable(completion.display_text)
            gap = " " * max(0, label_width - width(label))
            mark, role = ("❯ ", "selected") if number == at else ("  ", "")
            row: Row = [("accent", mark), (role, label)]
            if meta := printable(completion.display_meta_text):
                row.append(("muted", f"{gap}  {meta}"))
            rows.append(clipped(row, columns))
        return rows

    def take_completion(self) -> None:
        """Insert the marked completion; behind a folder, completion goes on with its contents."""
        buffer = self.buffer
        state = buffer.complete_state
        if state is None or not state.completions:
            return
        if state.complete_index is None:
            buffer.apply_completion(state.completions[0])
        else:
            buffer.complete_state = None
        self._completed = buffer.document
        if buffer.document.text_before_cursor.endswith("/") and not buffer.text.startswith("/"):
            buffer.start_completion()

    @property
    def has_own_space(self) -> bool:
        """True behind a space that comes from a completion."""
        state, document = self.buffer.complete_state, self.buffer.document
        is_completed = document == self._completed or (state is not None and state.current_completion is not None)
        return is_completed and document.text_before_cursor.endswith(" ")

    def take_own_space(self) -> None:
        """Let a typed space be the one that comes from a completion."""
        self._completed = self.buffer.complete_state = None

    def move_in_menu(self, by: int) -> None:
        buffer = self.buffer
        state = buffer.complete_state
        assert state is not None
        if state.complete_index is None and by > 0 and len(state.completions) > 1:
            buffer.go_to_completion(1)  # the first one is drawn as marked
        elif by > 0:
            buffer.complete_next()
        else:
            buffer.complete_previous()

    def replace_text(self, text: str) -> None:
        """Replace the text for good: undo does not bring it back."""
        self.buffer.reset(Document(text))
        self.buffer.on_text_changed.fire()

    def set_text(self, text: str) -> None:
        """Replace the text, as one step that can be undone."""
        self.buffer.save_to_undo_stack()
        self.buffer.text = text
        self.buffer.cursor_position = len(text)


def _row(cells: Cells, y: int, columns: int) -> Row:
    line = cells.data_buffer[y]
    row: Row = []
    for x in range(columns):
        cell = line[x]
        roles = _roles(cell.style)
        if row and row[-1][0] == roles:
            row[-1] = (roles, row[-1][1] + cell.char)
        elif cell.char:
            row.append((roles, cell.char))
    return without_end_blanks(row)


@lru_cache(maxsize=256)
def _roles(style: str) -> str:
    """Return the roles of a style such as `class:prompt class:muted`, without prompt_toolkit's own classes."""
    names = [part.removeprefix("class:") for part in style.split() if part.startswith("class:")]
    return " ".join(name for name in names if name in ("prompt", "muted", "selected", "accent"))
