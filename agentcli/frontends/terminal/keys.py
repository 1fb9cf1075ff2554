"""Which key does what, and when; what it does is in app.py, asking.py and composer.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from prompt_toolkit.filters import Always, Condition, Filter, has_selection, vi_insert_mode
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from agentcli.frontends.terminal.input.key_names import label, sequence

if TYPE_CHECKING:
    from agentcli.frontends.terminal.app import TerminalApp

# For the `?` card: actions (see look_settings.py), more that is typed, and what it does.
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

_WRITING_KEYS = [chr(code) for code in range(0x20, 0x7F)]


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


def key_bindings(app: TerminalApp, chosen: Mapping[str, Sequence[str]]) -> KeyBindings:
    """The table of keys: `bind("key", "other key", to=action, when=filter)` for those that are fixed.

    `act("action", to=…, when=…)` binds what the person has chosen.
    """
    keys = KeyBindings()
    composer, asking = app.composer, app.asking
    area = composer.area
    buffer = area.buffer

    def claim(is_so: Callable[[], bool]) -> Filter:
        return Condition(is_so)

    picking = claim(lambda: asking.picker is not None)
    asked = claim(lambda: asking.picker is None and asking.takes_approval_keys)
    writing = ~picking & ~asked
    answering = claim(lambda: asking.purpose != "prompt")  # the input takes a comment or a rule
    is_busy = claim(lambda: app.is_busy)
    is_empty = claim(lambda: not buffer.text)
    menu = writing & claim(lambda: buffer.complete_state is not None and bool(buffer.complete_state.completions))
    no_menu = writing & ~menu

    def bind(*sequences: str, to: Callable[[], object], when: Filter) -> None:
        def handle(event: KeyPressEvent) -> None:
            to()

        for key in sequences:
            keys.add(*sequence(key), filter=when)(handle)

    def act(action: str, *, to: Callable[[], object], when: Filter) -> None:
        for key in chosen[action]:
            first, _, second = key.partition(" ")
            if second:
                bind(first, to=partial(app.begin_chord, first), when=when)
                bind(second, to=partial(app.end_chord, to), when=when & claim(partial(app.is_in_chord, first)))
            else:
                bind(key, to=to, when=when)

    bind("c-o", "c-z", to=lambda: None, when=Always())  # without an action, prompt_toolkit's own would empty the input

    # Sending
    act("newline", to=lambda: buffer.insert_text("\n"), when=writing)
    act("send", to=app.enter, when=no_menu)
    act("send", to=app.accept_with_menu, when=menu)
    bind("enter", to=app.accept_with_menu, when=menu)
    bind("enter", to=app.enter, when=no_menu & answering)
    act("complete", to=area.take_completion, when=menu)
    act("complete", to=buffer.start_completion, when=no_menu & ~is_busy & ~answering)
    act("queue", to=lambda: app.accept(queue=True), when=no_menu & is_busy & ~is_empty & ~answering)

    # Menus, queue, history
    bind("up", "c-p", to=lambda: area.move_in_menu(-1), when=menu)
    bind("down", "c-n", to=lambda: area.move_in_menu(1), when=menu)
    act("previous", to=buffer.auto_up, when=no_menu & ~has_selection)
    act("previous", to=app.take_back, when=no_menu & is_empty & claim(lambda: app.has_queue))
    act("next", to=buffer.auto_down, when=no_menu & ~has_selection)
    act("take_back", to=app.choose_queued, when=writing & ~answering)
    act("search", to=app.search_history, when=writing & ~answering)

    # Interrupting and leaving
    act("interrupt", to=app.escape, when=writing & (~vi_insert_mode | claim(lambda: app.escape_closes)))
    bind("escape", to=app.escape, when=writing & claim(lambda: app.has_card) | menu & ~vi_insert_mode)
    bind("<sigint>", to=app.control_c, when=Always())
    act("cancel", to=app.control_c, when=Always())
    act("leave", to=app.control_d, when=writing & is_empty)

    # Modes and views
    act("mode", to=app.next_mode, when=Always())
    act("todo", to=app.toggle_todo, when=Always())
    act("redraw", to=app.redraw, when=Always())
    act("suspend", to=app.suspend, when=Always())
    act("unfold", to=app.unfold, when=~picking)
    act("background", to=app.to_background, when=writing & claim(lambda: app.runs_command))
    act("stash", to=composer.stash, when=writing & ~answering)
    act("paste_image", to=app.paste_image, when=writing & ~answering)
    act("editor", to=app.edit_outside, when=writing & ~answering)

    # Approvals
    bind("enter", to=asking.enter_at_approval, when=asked)
    bind("escape", to=asking.escape_at_approval, when=asked)
    bind("tab", to=partial(asking.decide, "comment"), when=asked)
    bind("backspace", to=asking.erase_at_approval, when=asked)
    bind("right", to=lambda: asking.widen(1), when=asked)
    bind("left", to=lambda: asking.widen(-1), when=asked)
    bind("down", to=lambda: asking.move_choice(1), when=asked)
    bind("up", to=lambda: asking.move_choice(-1), when=asked)
    for key in _WRITING_KEYS:  # by name, since vi's keys have names, too
        bind(key if key != " " else "space", to=partial(asking.type_at_approval, key), when=asked)

    @keys.add(Keys.Any, filter=asked)
    def _(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            asking.type_at_approval(event.data)

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

    # Editing: the token of a paste is one unit
    behind_token = writing & claim(lambda: composer.token_at(ahead=False) is not None)
    before_token = writing & claim(lambda: composer.token_at(ahead=True) is not None)
    bind("backspace", to=composer.delete_token, when=behind_token)
    bind("left", to=lambda: composer.skip_token(ahead=False), when=behind_token)
    bind("right", to=lambda: composer.skip_token(ahead=True), when=before_token)

    @keys.add(Keys.BracketedPaste, filter=picking)
    def _(event: KeyPressEvent) -> None:
        asking.type_in_picker(" ".join(event.data.split()))

    @keys.add(Keys.BracketedPaste, filter=asked)
    def _(event: KeyPressEvent) -> None:
        asking.paste_at_approval(event.data)

    @keys.add(Keys.BracketedPaste, filter=writing)
    def _(event: KeyPressEvent) -> None:
        composer.paste(event.data)

    return keys
