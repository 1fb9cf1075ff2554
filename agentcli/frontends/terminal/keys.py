"""Which key does what, and when; what it does is in app.py, asking.py and composer.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from prompt_toolkit.filters import Always, Condition, Filter, vi_insert_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from agentcli.frontends.terminal.approval import Choice

if TYPE_CHECKING:
    from agentcli.frontends.terminal.app import TerminalApp

# For /help and the `?` card.
KEY_HELP = (
    ("Enter", "send; while it works: steer"),
    ("Tab", "complete; while it works: queue for afterwards"),
    ("Alt-Enter, Ctrl-J, \\ Enter", "new line"),
    ("Esc", "interrupt; twice when idle: rewind"),
    ("Ctrl-C", "interrupt, clear, twice: leave"),
    ("Ctrl-D", "leave"),
    ("Shift-Tab", "next permission mode"),
    ("Up, Alt-Up", "take back what is queued (Alt: choose which); history"),
    ("Ctrl-R", "search the history"),
    ("Ctrl-S", "stash what is typed"),
    ("Ctrl-O", "unfold the last output"),
    ("Ctrl-T", "to-do list"),
    ("Ctrl-B", "running command to the background"),
    ("Ctrl-G", "external editor"),
    ("Ctrl-V", "paste an image"),
    ("Ctrl-Z", "suspend"),
    ("@  /  !  !!", "file, command, shell, shell the model is not told of"),
)

_CHOICES: tuple[tuple[str, Choice], ...] = (
    ("y", "once"),
    ("s", "session"),
    ("a", "always"),
    ("t", "try"),
    ("n", "no"),
    ("tab", "comment"),
    ("h", "hunks"),
)


def key_bindings(app: TerminalApp) -> KeyBindings:
    """The table of keys: `bind("key", "other key", to=action, when=filter)`; a space joins the keys of a sequence."""
    keys = KeyBindings()
    composer, asking = app.composer, app.asking
    area = composer.area
    buffer = area.buffer

    def claim(is_so: Callable[[], bool]) -> Filter:
        return Condition(is_so)

    picking = claim(lambda: asking.picker is not None)
    asked = claim(lambda: asking.picker is None and asking.takes_approval_keys)
    in_hunks = asked & claim(lambda: asking.approval is not None and asking.approval.hunk is not None)
    approving = asked & ~in_hunks
    writing = ~picking & ~asked
    answering = claim(lambda: asking.purpose != "prompt")  # the input takes a comment or a rule
    is_busy = claim(lambda: app.is_busy)
    is_empty = claim(lambda: not buffer.text)
    menu = writing & claim(lambda: buffer.complete_state is not None and bool(buffer.complete_state.completions))
    no_menu = writing & ~menu

    def bind(*sequences: str, to: Callable[[], object], when: Filter) -> None:
        def handle(event: KeyPressEvent) -> None:
            to()

        for sequence in sequences:
            keys.add(*sequence.split(), filter=when)(handle)

    # Sending
    bind("enter", to=app.enter, when=no_menu)
    bind("enter", to=app.accept_with_menu, when=menu)
    bind("escape enter", "c-j", to=lambda: buffer.insert_text("\n"), when=writing)
    bind("tab", to=area.take_completion, when=menu)
    bind("tab", to=lambda: app.accept(queue=True), when=no_menu & is_busy & ~is_empty & ~answering)
    bind("tab", to=buffer.start_completion, when=no_menu & ~is_busy & ~answering)

    # Menus, queue, history
    bind("up", "c-p", to=lambda: area.move_in_menu(-1), when=menu)
    bind("down", "c-n", to=lambda: area.move_in_menu(1), when=menu)
    bind("up", to=app.take_back, when=no_menu & is_empty & claim(lambda: app.has_queue))
    bind("escape up", to=app.choose_queued, when=writing & ~answering)
    bind("c-r", to=app.search_history, when=writing & ~answering)

    # Interrupting and leaving
    bind("escape", to=app.escape, when=writing & (~vi_insert_mode | is_empty))
    bind("c-c", "<sigint>", to=app.control_c, when=Always())
    bind("c-d", to=app.control_d, when=writing & is_empty)

    # Approvals
    for key, choice in _CHOICES:
        bind(key, to=partial(asking.decide, choice), when=approving)
    for number in range(6):
        bind(str(number + 1), to=partial(asking.decide_number, number), when=approving)
    bind("enter", to=lambda: asking.decide(None), when=approving)
    bind("escape", to=lambda: asking.decide("no"), when=approving)
    bind("right", to=lambda: asking.widen(1), when=approving)
    bind("left", to=lambda: asking.widen(-1), when=approving)
    bind("down", to=lambda: asking.move_choice(1), when=approving)
    bind("up", to=lambda: asking.move_choice(-1), when=approving)
    bind("e", to=asking.edit_rule, when=approving)
    bind("v", to=asking.view_whole_request, when=approving)
    bind("y", to=lambda: asking.decide_hunk(accepted=True), when=in_hunks)
    bind("n", to=lambda: asking.decide_hunk(accepted=False), when=in_hunks)
    bind("a", to=asking.accept_remaining_hunks, when=in_hunks)
    bind("tab", to=lambda: asking.decide("comment"), when=in_hunks)
    bind("escape", to=asking.leave_hunks, when=in_hunks)
    bind("<any>", to=lambda: None, when=asked)  # a stray letter must neither answer nor land in the prompt

    # Pickers
    for key, by in (("up", -1), ("down", 1), ("c-p", -1), ("c-n", 1), ("pageup", -5), ("pagedown", 5)):
        bind(key, to=partial(asking.move_picker, by), when=picking)
    bind("enter", to=lambda: asking.end_picker(taken=True), when=picking)
    keeping = claim(lambda: asking.picker is not None and asking.picker.can_keep)
    bind("c-s", to=lambda: asking.end_picker(taken=True, keeps=True), when=keeping)
    bind("escape", to=lambda: asking.end_picker(taken=False), when=picking)
    bind("backspace", to=lambda: asking.type_in_picker(""), when=picking)

    @keys.add(Keys.Any, filter=picking)
    def _(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            asking.type_in_picker(event.data)

    # Modes and views
    bind("s-tab", to=app.next_mode, when=Always())
    bind("c-t", to=app.toggle_todo, when=Always())
    bind("c-l", to=app.redraw, when=Always())
    bind("c-z", to=app.suspend, when=Always())
    bind("c-o", to=app.unfold, when=~picking)
    bind("c-b", to=app.to_background, when=writing & claim(lambda: app.runs_command))
    bind("c-s", to=composer.stash, when=writing & ~answering)
    bind("c-v", to=app.paste_image, when=writing & ~answering)
    bind("c-g", to=app.edit_outside, when=writing & ~answering)
    bind("c-x", to=app.control_x, when=writing & ~answering)
    bind("c-e", to=app.edit_outside, when=writing & claim(lambda: app.ctrl_x_pressed))

    # Editing: the token of a paste is one unit
    behind_token = writing & claim(lambda: composer.token_at(ahead=False) is not None)
    before_token = writing & claim(lambda: composer.token_at(ahead=True) is not None)
    bind("backspace", to=composer.delete_token, when=behind_token)
    bind("left", to=lambda: composer.skip_token(ahead=False), when=behind_token)
    bind("right", to=lambda: composer.skip_token(ahead=True), when=before_token)

    @keys.add(Keys.BracketedPaste, filter=picking)
    def _(event: KeyPressEvent) -> None:
        asking.type_in_picker(" ".join(event.data.split()))

    @keys.add(Keys.BracketedPaste, filter=~picking)
    def _(event: KeyPressEvent) -> None:
        composer.paste(event.data)

    return keys
