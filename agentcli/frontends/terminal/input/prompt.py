"""Owns the input: keys as the terminal sends them, their names for people, the text that is typed, lists of options."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TextIO

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import BufferControl, Layout, Window
from prompt_toolkit.layout.mouse_handlers import MouseHandlers
from prompt_toolkit.layout.processors import AfterInput, ConditionalProcessor, PasswordProcessor
from prompt_toolkit.layout.screen import Screen as Cells
from prompt_toolkit.layout.screen import WritePosition

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Row, clipped, merged, plain, row_width, width, without_end_blanks
from agentcli.patterns import lazy_pattern
from agentcli.settings.terminal import SENT_AS, KeySettings

# Enter with Shift, Alt, Ctrl or several of them, as xterm (modifyOtherKeys) and kitty's protocol report it: a new line.
ANSI_SEQUENCES.update(
    {f"\x1b[27;{modifier};13~": Keys.ControlJ for modifier in range(2, 9)}
    | {f"\x1b[13;{modifier}u": Keys.ControlJ for modifier in range(2, 9)}
    | {"\x1b[27u": Keys.Escape}
)

# Ask for the colour of the background (xterm OSC 11), whether the terminal shows the state of programs (OSC 7501), and
# whether output can be synchronized (DECRQM of mode 2026).
QUESTIONS = "\x1b]11;?\x1b\\\x1b]7501;?\x1b\\\x1b[?2026$p"
_REPORT = lazy_pattern(r"\x1b\](\d+;[^\x07\x1b]*)(?:\x07|\x1b\\)|\x1b\[(\?2026;\d\$y)|\x1b\[([IO])")
_PASTE_MARK = lazy_pattern(r"(\x1b\[20[01]~)")
# The start of a report (`ESC ]11;`, `ESC [?2026;`) or of a paste's mark (`ESC [20`), or a lone Esc, at the end.
_REPORT_START = lazy_pattern(
    r"\x1b(?:\](?:\d[^\x07\x1b]*\x1b?)?|\[(?:\?(?:2(?:0(?:2(?:6[;\d$]{0,3})?)?)?)?|2(?:0[01]?)?)?)?\Z"
)
_MAX_START_CHARS = 200  # a longer one is not a report


class TerminalInput(Vt100Input):
    """Reads keys from standard input; the terminal's reports, such as `11;rgb:…` and `?2026;2$y`, go to `on_report`."""

    def __init__(self, stdin: TextIO, on_report: Callable[[str], None]) -> None:
        super().__init__(stdin)
        self._on_report = on_report
        self._report_start = ""  # the start of a report or mark, whose end has not been read yet
        self._is_in_paste = False
        self.expects_reports = False  # while True, the start of one is held longer than a lone Esc

    def read_keys(self) -> list[KeyPress]:
        """Return the keys that have arrived. A report is held back until its end, a lone Esc until `flush_keys`."""
        data, self._report_start = self._report_start + self.stdin_reader.read(), ""
        if "\x1b" in data:
            if (found := _REPORT_START.search(data)) and len(found.group()) <= _MAX_START_CHARS:
                self._report_start, data = found.group(), data[: found.start()]
            data = self._without_reports(data)
        self.vt100_parser.feed(data)
        keys, self._buffer = self._buffer, []
        return keys

    def flush_keys(self) -> list[KeyPress]:
        """Pass on held input: prompt_toolkit calls this when nothing has followed an Esc for a moment."""
        is_report = len(self._report_start) > 2 and self.expects_reports  # nobody types three such characters so fast
        if not is_report and not self._is_in_paste:
            self.vt100_parser.feed(self._report_start)
            self._report_start = ""
        return super().flush_keys()

    def _without_reports(self, data: str) -> str:
        """Remove the terminal's reports from the input, except inside a paste."""
        parts = _PASTE_MARK.split(data)
        for number, part in enumerate(parts):
            if number % 2:  # a mark; texts and marks alternate
                self._is_in_paste = part == "\x1b[200~"
            elif not self._is_in_paste:
                parts[number] = _REPORT.sub(self._pass_on_report, part)
        return "".join(parts)

    def _pass_on_report(self, found: re.Match[str]) -> str:
        self._on_report(next(group for group in found.groups() if group))
        return ""


_MODIFIERS = {"c": "Ctrl", "a": "Alt", "s": "Shift"}
# Rows of the `?` card: an action (see settings/terminal.py), fixed keys, and the effect of both.
_HELP = (
    ("send", "", "send; while the model works: steer"),
    ("complete", "", "complete"),
    ("queue", "", "while the model works: queue"),
    ("newline", "\\ Enter", "new line"),
    ("interrupt", "", "interrupt; twice when idle: rewind"),
    ("cancel", "", "interrupt; clear the input; twice: leave"),
    ("leave", "", "leave"),
    ("mode", "", "next permission mode"),
    ("previous", "", "edit the newest queued message; history"),
    ("take_back", "", "edit the newest queued message"),
    ("search", "", "search the history"),
    ("stash", "", "stash the text in the input"),
    ("unfold", "", "show all of the last output"),
    ("todo", "", "to-do list"),
    ("background", "", "move the running command to the background"),
    ("editor", "", "external editor"),
    ("paste_image", "", "paste an image"),
    ("suspend", "", "suspend"),
    ("", "@  /  !  !!", "file · slash command · shell command · shell command that the model does not see"),
)
_NAMES = {"escape": "Esc", "pageup": "PageUp", "pagedown": "PageDown"}


class KeyLabels:
    def __init__(self, settings: KeySettings) -> None:
        self.keys = settings.by_action()

    def first(self, action: str) -> str:
        return next((label(key) for key in self.keys[action]), "")

    def hints(self, **actions: str) -> str:
        """Return a text such as `Enter to steer · Esc to interrupt`, without actions that have no key."""
        return " · ".join(f"{key} {does}" for action, does in actions.items() if (key := self.first(action)))

    def help(self) -> list[tuple[list[str], str]]:
        """Return each action's keys and effect, without actions that have no key."""
        rows = (([*map(label, self.keys.get(action, ())), fixed_keys], use) for action, fixed_keys, use in _HELP)
        return [(shown, use) for labels, use in rows if (shown := [*filter(None, labels)])]


def sequence(key: str) -> tuple[str, ...]:
    """Return a key as prompt_toolkit names it; a terminal sends Alt as an Esc before the key."""
    key = SENT_AS.get(key, key)
    return ("escape", key[2:]) if key.startswith("a-") else (key,)


def label(key: str) -> str:
    """Return `c-o` as `Ctrl-O`, `c-x c-e` as `Ctrl-X Ctrl-E`."""
    return " ".join(_label(one) for one in key.split())


def _label(key: str) -> str:
    *modifiers, name = re.findall(r"[cas]-(?=.)|.+", key)
    return "-".join([*(_MODIFIERS[modifier[0]] for modifier in modifiers), _NAMES.get(name, name.capitalize())])


MAX_MENU_ROWS = 6  # of the menu of completions


class PromptBuffer(Buffer):
    """A buffer whose history is elsewhere: `go_back_in_history(by)` shows an older entry, a newer one if `by` < 0."""

    go_back_in_history: Callable[[int], None] = staticmethod(lambda by: None)

    def history_backward(self, count: int = 1) -> None:
        self.go_back_in_history(count)

    def history_forward(self, count: int = 1) -> None:
        self.go_back_in_history(-count)


class PromptArea:
    """The input: a prompt_toolkit buffer and window. `mark` and `placeholder` are called for each frame."""

    def __init__(self, *, placeholder: Callable[[], str]) -> None:
        self.mark: Callable[[], str] = lambda: "› "
        self.placeholder = placeholder
        self._columns = 0  # of the screen, at the newest frame
        self.buffer = PromptBuffer(complete_while_typing=Condition(lambda: self.takes_prompt), multiline=True)
        self.takes_prompt = True  # False at questions and while the input takes an answer
        self.is_secret = False  # the text is shown as stars
        # Of the placeholder's parts, those are shown that fit into the row after the mark and before its last column.
        hint = ConditionalProcessor(
            AfterInput(lambda: [("class:muted", join_fitting(self.placeholder().split(" · "), self._columns - 3))]),
            Condition(lambda: not self.buffer.text),
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
        """Return the completions on offer; the one that Enter selects is marked."""
        if (state := self.buffer.complete_state) is None or not state.completions or max_rows < 1:
            return []
        room = min(MAX_MENU_ROWS, max_rows)
        at = state.complete_index or 0
        first = max(0, min(at - room // 2, len(state.completions) - room))  # so that the marked one is in the middle
        shown = state.completions[first : first + room]
        label_width = min(max(width(c.display_text) for c in shown), max(8, columns // 2))
        texts = ((printable(c.display_text), printable(c.display_meta_text)) for c in shown)
        rows = [
            option_row(label, detail, is_marked=number == at, label_width=label_width, columns=columns)
            for number, (label, detail) in enumerate(texts, first)
        ]
        if (hidden := len(state.completions) - len(shown)) and max_rows > room:
            rows.append(clipped([("muted", f"  {hidden} more · ↓ or type to narrow")], columns))
        return rows

    def take_completion(self) -> None:
        """Insert the marked completion, or else the first; after a folder, completion continues with its contents."""
        buffer, state = self.buffer, self.buffer.complete_state
        if state is None or not state.completions:
            return
        if state.complete_index is None:
            buffer.apply_completion(state.completions[0])
        else:  # the marked one is in the text already; this closes the menu
            buffer.complete_state = None
        if buffer.document.text_before_cursor.endswith("/") and not buffer.text.startswith("/"):  # not in a command
            buffer.start_completion()

    def move_in_menu(self, by: int) -> None:
        buffer, state = self.buffer, self.buffer.complete_state
        assert state is not None
        if state.complete_index is None and by > 0 and len(state.completions) > 1:
            buffer.go_to_completion(1)  # the second, because the first is drawn as marked from the start
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
    return without_end_blanks(merged([(_roles(line[x].style), line[x].char) for x in range(columns)]))


@lru_cache(maxsize=256)
def _roles(style: str) -> str:
    """Return the roles of a style such as `class:prompt class:muted`, without prompt_toolkit's own classes."""
    return " ".join(name for name in ("prompt", "muted", "selected", "accent") if f"class:{name}" in style.split())


MAX_OPTIONS = 8  # shown at a time


def join_fitting(parts: Sequence[str], columns: int, gap: str = " · ") -> str:
    joined = (gap.join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((text for text in joined if width(text) <= columns), "")


def option_row(
    label: str, detail: str, *, is_marked: bool, label_width: int, columns: int, signs: Row | None = None
) -> Row:
    """Lay out an option with its `signs` before its label; the details of all options begin in one column."""
    mark, role = ("❯ ", "selected") if is_marked else ("  ", "")
    gap = " " * max(2, 2 + label_width - width(label)) if detail else ""
    head: Row = [("accent", mark), *(signs or []), (role, label), ("muted", gap)]
    room = columns - row_width(head)
    if width(detail) > room > 0:
        from agentcli.conversation.history import shorten

        detail = shorten(detail, room)
    return clipped([*head, ("muted", detail)], columns)


class Picker:
    """A list to choose from: arrows move, typing narrows, Enter selects.

    `options` are labels with details; the one at `current` is marked, and selected first. With `is_startup` the
    input stays, and typed text goes there.
    """

    def __init__(
        self, title: str, options: Sequence[tuple[str, str]], *, current: int | None = None, is_startup: bool = False
    ) -> None:
        self.title, self.is_startup = printable(title), is_startup
        self._options = [(printable(label), printable(detail)) for label, detail in options]
        self._current_index = None if is_startup else current  # of the option that applies now, if one does
        self._marked_position = current or 0  # of the marked option among those that match the query
        self._query = ""  # typed to narrow the list

    @property
    def matching_indices(self) -> list[int]:
        words = self._query.lower().split()
        texts = (f"{label} {detail}".lower() for label, detail in self._options)
        return [index for index, text in enumerate(texts) if all(word in text for word in words)]

    @property
    def marked_index(self) -> int | None:
        shown = self.matching_indices
        return shown[min(self._marked_position, len(shown) - 1)] if shown else None

    def move(self, by: int) -> None:
        if count := len(self.matching_indices):
            self._marked_position = (min(self._marked_position, count - 1) + by) % count

    def type(self, text: str) -> bool:
        """Add to the query, or remove its last character if `text` is empty; return True if it selects Yes or No."""
        from agentcli.frontends.choices import yes_or_no  # not for the first frame

        # Only the first character is an answer: `y` after others narrows the list.
        answer = None if self._query else yes_or_no(text, [label for label, _ in self._options])
        if answer is not None:
            self._marked_position = answer
            return True
        self._query = self._query + printable(text).replace("\n", " ") if text else self._query[:-1]
        self._marked_position = 0
        return False

    def paste(self, text: str) -> bool:
        """Narrow the list by a pasted text. One that nothing matches is not shown, because it may be a secret."""
        before, self._query = self._query, self._query + printable(text).replace("\n", " ")
        if is_found := bool(self.matching_indices):
            self._marked_position = 0
        else:
            self._query = before
        return is_found

    @property
    def cursor(self) -> int:
        return width(f"{self.title} {self._query}")

    def rows(self, columns: int, max_rows: int) -> list[Row]:
        """Return the title, the options around the marked one, its detail in full if it was cut, and the keys."""
        matching = self.matching_indices
        # Details begin after the widest label that leaves them half of the row.
        widths = (width(label) for label, detail in self._options if detail)
        label_width = max((cells for cells in widths if cells <= columns // 2), default=0)
        room = max(1, min(MAX_OPTIONS, max_rows - 3))  # without the title, a detail in full and the last row
        marked = min(self._marked_position, max(0, len(matching) - 1))
        first = max(0, min(marked - room // 2, len(matching) - room))  # so that the marked one is in the middle
        hint = "(type to narrow)" if len(self._options) > MAX_OPTIONS else ""
        rows = [clipped([("accent", self.title), ("muted", f" {self._query or hint}")], columns)]
        draw = partial(option_row, label_width=label_width, columns=columns)
        for position, index in enumerate(matching[first : first + room], first):
            label, detail = self._options[index]
            sign = "● " if index == self._current_index else "  "
            signs: Row = [] if self._current_index is None else [("ok", sign)]
            row = draw(label, detail, is_marked=position == marked, signs=signs)
            rows.append(row)
            if position == marked and " ".join(detail.split()) not in " ".join(plain(row).split()):  # it was cut
                rows.append(clipped([("muted", f"    {detail}")], columns))
        if not matching:
            rows.append(clipped([("muted", "  no match")], columns))
        count = f"{len(matching)} choice{'' if len(matching) == 1 else 's'}"
        cancel = [] if self.is_startup else ["Esc to cancel"]  # a first start needs a model before anything else
        keys = join_fitting([count, "Enter to select", *cancel], columns - 2)
        rows.append(clipped([("muted", f"  {keys}")], columns))
        return rows[: max(0, max_rows)]
