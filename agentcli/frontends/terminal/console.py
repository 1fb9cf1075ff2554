"""Owns the terminal while the program runs in it: frames, early keys, hints, notifications.

It needs few imports, so that the first frame appears at once; the rest of the program is loaded after that frame.
"""

import asyncio
import io
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import chain
from typing import Any, Protocol, TypeVar

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding import DynamicKeyBindings, KeyBindings, KeyPressEvent
from prompt_toolkit.output.vt100 import Vt100_Output

from agentcli.frontends.printable import printable
from agentcli.frontends.run_end import leave_on_signals
from agentcli.frontends.terminal.input.prompt import QUESTIONS, PromptArea, TerminalInput
from agentcli.frontends.terminal.output.screen import Frame, Screen
from agentcli.frontends.terminal.text.fragments import Fragment, Row, clipped
from agentcli.frontends.terminal.text.theme import Theme

FRAME_S = 1 / 30  # the shortest time between two frames
ESCAPE_ALONE_S = 0.02  # an Esc that nothing follows for this long is a key, not the start of a sequence
REPORTS_DUE_S = 10.0  # until then, the start of a terminal's report is not taken for keys: ssh can be slow
SWITCH_S = 0.001  # a key press waits at most this long for a busy thread; Python's default is 5 ms
HINT = "Ask, or describe a change · @ file · / command · ! shell · ? keys"
log = logging.getLogger(__name__)
T = TypeVar("T")


class ConsoleView(Protocol):
    """The view that takes over the console once it is loaded."""

    def draw(self, columns: int, max_rows: int) -> Frame: ...

    def handle_terminal_report(self, report: str) -> None:
        """React to a terminal's report: `11;rgb:…` is its background, `I` and `O` say that it has or lost the focus."""

    def close(self) -> Awaitable[None]: ...


class _PrintLog(io.TextIOBase):
    """Sends the output of other code, which would garble the screen, to the log."""

    def write(self, text: str) -> int:
        if text.strip():
            log.warning("printed: %s", text.rstrip())
        return len(text)


class Console:
    """The terminal: text is printed above the live region, which stays at the bottom."""

    at_line_start = True  # always, because only whole lines are printed

    def __init__(self, theme: Theme, environment: Mapping[str, str], *, editing_mode: str) -> None:
        self.theme, self.environment = theme, environment
        self.exit_code = 0
        self.banner: Sequence[Row] = ()  # shown at the top of the live region until the first text is printed
        self._has_title = False  # True once the window's title is ours
        self.shows_status = False  # True once the terminal has reported that it shows program states
        self._status = ""  # the program state that was reported last
        self._view: ConsoleView | None = None
        self.early_lines, self.early_reports = list[str](), list[str]()  # received before the view
        self._frame_timer: asyncio.TimerHandle | None = None  # draws the next frame
        self._last_frame = 0.0  # when it was drawn, by the event loop's clock
        self._failure: BaseException | None = None  # raised at the end of `run`
        self._loading: asyncio.Task[None] | None = None
        self._lent_to: asyncio.Task[Any] | None = None  # runs another program, which has the terminal
        self.output = Vt100_Output.from_pty(sys.stdout, term=environment.get("TERM"))
        self.screen = Screen(self.output, theme, self._draw, environment=environment, draw_later=self._draw_later)
        self.area = PromptArea(placeholder=lambda: HINT)
        self.hint = Hint(self.area.buffer, self.draw_soon)
        self.keys = self._first_keys()
        self._input = TerminalInput(sys.stdin, self._handle_terminal_report)
        self.app: Application[None] = Application(
            layout=self.area.layout,
            key_bindings=DynamicKeyBindings(lambda: self.keys),
            editing_mode=EditingMode.VI if editing_mode == "vi" else EditingMode.EMACS,
            include_default_pygments_style=False,
            terminal_size_polling_interval=None,
            input=self._input,
            output=self.output,
        )
        self.app.renderer = self.screen
        # The times after a lone Esc, and after a key that begins a longer binding. Chords are timed by keys.py instead.
        self.app.ttimeoutlen = self.app.timeoutlen = ESCAPE_ALONE_S

    async def run(self, load: Callable[[], Awaitable[ConsoleView]]) -> int:
        """Show the input, then `load` the view that takes over; return the exit code. Raises the view's errors."""

        def begin_loading(_: Any) -> None:  # after the first frame, so that it need not wait for imports
            if self._loading is None:
                self._loading = asyncio.ensure_future(self._load(load))

        self.app.after_render += begin_loading
        sys.setswitchinterval(SWITCH_S)
        self.write_codes("\r\x1b[K")  # erases keys that were typed, and echoed, before
        leave_on_signals(self._leave_with)
        with redirect_stdout(_PrintLog()), redirect_stderr(_PrintLog()):
            try:
                await self.app.run_async(set_exception_handler=False)
            except (OSError, EOFError):  # the terminal is gone
                self.exit_code = 128 + signal.SIGHUP
            finally:
                await self._close()
        if self._failure is not None:
            raise self._failure
        return self.exit_code

    async def _load(self, load: Callable[[], Awaitable[ConsoleView]]) -> None:
        """Ask the terminal what it can do, and load the view meanwhile."""
        if self.environment.get("TERM") not in ("dumb", "linux"):
            self._input.expects_reports = True
            asyncio.get_running_loop().call_later(REPORTS_DUE_S, setattr, self._input, "expects_reports", False)
            self.write_codes(QUESTIONS)
        try:
            self._view = await load()
            self.draw_soon()
        except Exception as error:  # noqa: BLE001 - raised again once the terminal is restored
            self.fail(error)

    async def _close(self) -> None:
        """Print the last lines, then leave the terminal as it was; it may be gone."""
        if self._frame_timer is not None:
            self._frame_timer.cancel()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        self.print([])  # moves the banner into the transcript, if it is still shown
        try:
            if self._view is not None:
                await self._view.close()
        finally:
            try:
                self.report_status("state=clear")
                if self._has_title:
                    self.write_codes("\x1b]2;\x07\x1b[23;0t")  # empties the title, then restores a stored one
                self.screen.finish()
            except OSError:
                self.exit_code = 128 + signal.SIGHUP

    def _leave_with(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.leave()

    def fail(self, error: BaseException) -> None:
        """Leave; `run` raises the error once the terminal is restored."""
        self._failure = error
        self.leave()

    def leave(self) -> None:
        if self._lent_to is not None:
            self._lent_to.cancel()
        if self.app.is_running and not self.app.is_done:
            self.app.exit()

    def _first_keys(self) -> KeyBindings:
        """Return the keys until the view is loaded: Enter keeps a line for the view, the others leave."""
        keys, buffer = KeyBindings(), self.area.buffer

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            if text := buffer.text.strip():
                self.early_lines.append(text)
                self.area.replace_text("")

        @keys.add("c-c")
        @keys.add("<sigint>")
        @keys.add("c-d", filter=Condition(lambda: not buffer.text))
        def _(event: KeyPressEvent) -> None:
            self.leave()

        return keys

    def print(self, fragments: Sequence[Fragment], *, is_banner: bool = False) -> None:
        """Add to the transcript; with `is_banner`, replace the banner if it is still shown."""
        banner, self.banner = self.banner, ()
        if banner and not is_banner:
            self.screen.print([*chain.from_iterable((*row, ("", "\n")) for row in banner if row), ("", "\n")])
        self.screen.print(fragments)
        self.draw_soon()

    def draw_soon(self) -> None:
        """Draw a frame soon; at most thirty a second."""
        self._draw_later(self._last_frame + FRAME_S - asyncio.get_running_loop().time())

    def _draw_later(self, seconds: float) -> None:
        """Draw a frame after some seconds, unless one is due already."""
        loop = asyncio.get_running_loop()

        def draw() -> None:
            self._frame_timer, self._last_frame = None, loop.time()
            self.app.invalidate()

        if self.app.is_running and self._frame_timer is None:
            self._frame_timer = loop.call_later(seconds, draw)

    def redraw(self) -> None:
        self.screen.clear()
        self.app.invalidate()

    def set_title(self, text: str) -> None:
        """Set the window's title; the previous one is restored at the end, if the terminal can store it."""
        store = "" if self._has_title else "\x1b[22;0t"  # xterm's stack of titles
        self._has_title = True
        self.write_codes(f"{store}\x1b]2;{text}\x07")

    def report_status(self, status: str) -> None:
        """Report a state such as `state=blocked:kind=question` (OSC 7501, revision 0.4) to a terminal that shows it."""
        if self.shows_status and status != self._status:
            self._status = status
            self.write_codes(f"\x1b]7501;{status}\x1b\\")

    def write_codes(self, codes: str) -> None:
        """Write codes that do not move the cursor: queries, notifications, the clipboard."""
        self.output.write_raw(codes)
        self.output.flush()

    @property
    def columns(self) -> int:
        return self.output.get_size().columns

    @property
    def vi_mode(self) -> str:
        """The vi mode of the input; empty with Emacs keys."""
        if self.app.editing_mode != EditingMode.VI:
            return ""
        if self.area.buffer.selection_state is not None:
            return "VISUAL"
        mode = self.app.vi_state.input_mode.name.partition("_")[0]  # such as INSERT of INSERT_MULTIPLE
        return "NORMAL" if mode == "NAVIGATION" else mode

    def begin_inserting(self) -> None:
        """Return to vi's insert mode for the next text; with Emacs keys nothing changes."""
        self.app.vi_state.reset()

    def _draw(self, columns: int, max_rows: int) -> Frame:
        """Lay out the banner, and the view below it; without a view or after an error in it, only the input."""
        banner = [clipped(row, columns) for row in self.banner[: max(0, max_rows - 3)]]  # three rows stay for the input
        frame, room = None, max_rows - len(banner)
        try:
            frame = self._view.draw(columns, room) if self._view else None
        except Exception:  # a bug in the view must not remove the input from the screen
            log.exception("a frame could not be drawn")
        frame = frame or Frame(*self.area.rows(columns, room))
        return Frame([*banner, *frame.rows], (len(banner) + frame.cursor[0], frame.cursor[1]))

    def _handle_terminal_report(self, report: str) -> None:
        """Apply what the terminal can do; pass reports about its colours and the focus on to the view."""
        if report.startswith("?2026;"):
            mode = report.removeprefix("?2026;")[:1]
            self.screen.synchronizes = mode in ("1", "2", "3")  # 0 means unknown, 4 permanently off (DECRPM)
        elif report.startswith("7501;?"):
            self.shows_status = True
            self.draw_soon()
        elif self._view is not None:
            self._view.handle_terminal_report(report)
        else:
            self.early_reports.append(report)

    def suspend(self) -> None:
        self.screen.finish()
        self.report_status("state=clear")  # the next frame reports the state again
        self.app.suspend_to_background()

    async def lend_to(self, program: Awaitable[T]) -> T:
        """Leave the terminal to another program until its end; `leave` cancels that program."""
        async with in_terminal():
            self.screen.finish()
            self._lent_to = asyncio.current_task()
            try:
                return await program
            finally:
                self._lent_to = None


class Hint:
    """The hint in the status line; it disappears after some seconds, or when the input changes."""

    def __init__(self, buffer: Buffer, draw_soon: Callable[[], None]) -> None:
        self._draw_soon = draw_soon
        buffer.on_text_changed += self._forget
        self._text, self._until = "", 0.0

    @property
    def text(self) -> str:
        return self._text if time.monotonic() < self._until else ""

    def _forget(self, _: Buffer) -> None:
        self._text = ""

    def show(self, text: str, seconds: float = 4.0) -> None:
        self._text, self._until = printable(text), time.monotonic() + seconds
        self._draw_soon()
        asyncio.get_running_loop().call_later(seconds + 0.05, self._draw_soon)


def notification(text: str, method: str, environment: Mapping[str, str]) -> str:
    """Return the codes of a desktop notification, or a bell; `method` is "auto", "osc9", "osc777", "bell" or "off".

    iTerm2, kitty, WezTerm and Ghostty understand OSC 9; rxvt and VTE understand OSC 777.
    """
    words = " ".join(printable(text).replace(";", ",").split())[:200]  # a semicolon would end a field of OSC 777
    if method == "auto":
        program, kitty = environment.get("TERM_PROGRAM"), environment.get("KITTY_WINDOW_ID")
        has_osc9 = kitty or program in ("iTerm.app", "WezTerm", "ghostty")
        method = "osc9" if has_osc9 else "osc777" if environment.get("VTE_VERSION") else "bell"
    by_method = {"osc9": f"\x1b]9;{words}\x07", "osc777": f"\x1b]777;notify;agentcli;{words}\x07", "bell": "\x07"}
    codes = by_method.get(method, "")
    if environment.get("TMUX") and codes.startswith("\x1b"):  # tmux passes them on if allow-passthrough is set
        return "\x1bPtmux;" + codes.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    return codes
