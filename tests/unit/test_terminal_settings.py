"""Keys and themes of one's own: what is taken, what is refused, and what they are called."""

from __future__ import annotations

from typing import Any

import pytest
from prompt_toolkit.key_binding import KeyBindings

from agentcli.frontends.terminal.input.prompt import KeyLabels, label, sequence
from agentcli.settings.terminal import KeySettings, terminal_problems
from tests.rows import each_row

DEFAULTS = KeySettings().by_action()


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"stash": "f2"},
        {"stash": (), "editor": ()},
        {"stash": "c-o", "unfold": ("f2", "a-o")},
        {"send": "a-enter", "newline": ("enter", "c-j")},
        {"complete": "c-space", "queue": ("a-q", "c-up")},
        {"interrupt": "escape"},
        {"editor": "c-x c-e", "redraw": "c-x c-l"},
        {"newline": ("s-enter", "c-enter", "c-j")},
    ],
)
def test_what_is_not_a_clash_is_taken(keys: dict[str, Any]) -> None:
    assert list(terminal_problems(KeySettings(**keys), "auto", {})) == []


@each_row(
    "keys, action, says",
    [
        ({"stash": "c-o"}, "stash", "c-o is already used for unfold"),
        ({"queue": "s-enter"}, "queue", "s-enter is already used for newline (c-j)"),
        ({"todo": "c-x"}, "todo", "c-x is already used for editor (c-x c-e)"),
        ({"todo": "f2", "mode": ("f3", "f2")}, "mode", "f2 is already used for todo"),
        ({"send": ()}, "send", "it needs a key"),
        ({"stash": "x"}, "stash", "'x' is not a valid key"),
        ({"stash": "ctrl-o"}, "stash", "'ctrl-o' is not a valid key"),
        ({"stash": ("f2", "c-é")}, "stash", "'c-é' is not a valid key"),
        ({"stash": ""}, "stash", "'' is not a valid key"),
        ({"stash": "c-m"}, "stash", "'c-m' is not a valid key"),
        ({"stash": "c-x c-y c-z"}, "stash", "is not a valid key"),
        ({"complete": "enter"}, "complete", "enter is already used for send"),
    ],
)
def test_what_clashes_or_is_not_a_key_is_reported(keys: dict[str, Any], action: str, says: str) -> None:
    found = dict(terminal_problems(KeySettings(**keys), "auto", {}))
    assert says in found[f"terminal.keys.{action}"]


@pytest.mark.parametrize(
    ("theme", "themes", "key", "says"),
    [
        ("pink", {}, "terminal.theme", "choose one of auto, dark, "),
        ("mien", {"mine": {}}, "terminal.theme", "(did you mean mine?)"),
        ("auto", {"dark": {}}, "terminal.themes.dark", "is a built-in theme"),
        ("auto", {"mine": {"keywrd": 1}}, "terminal.themes.mine.keywrd", "(did you mean keyword?)"),
        ("auto", {"mine": {"keyword": 256}}, "terminal.themes.mine.keyword", "256 is not a colour"),
        ("auto", {"mine": {"keyword": "#12345"}}, "terminal.themes.mine.keyword", "'#12345' is not a colour"),
        ("auto", {"mine": {"keyword": "pink"}}, "terminal.themes.mine.keyword", "bright-black"),
    ],
)
def test_a_theme_that_cannot_be_is_reported(theme: str, themes: dict[str, Any], key: str, says: str) -> None:
    assert says in dict(terminal_problems(KeySettings(), theme, themes))[key]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("c-o", "Ctrl-O"),
        ("s-tab", "Shift-Tab"),
        ("escape", "Esc"),
        ("a-up", "Alt-Up"),
        ("c-x c-e", "Ctrl-X Ctrl-E"),
        ("c-s-pageup", "Ctrl-Shift-PageUp"),
        ("f12", "F12"),
        ("a--", "Alt--"),
        ("a-c-b", "Alt-Ctrl-B"),
    ],
)
def test_keys_are_called_as_people_call_them(key: str, name: str) -> None:
    assert label(key) == name


@each_row(
    "key",
    [key for keys in DEFAULTS.values() for key in keys]
    + "f1 f24 c-f24 c-space a-x a-! a-- a-c-b a-backspace s-up c-s-left c-pagedown s-insert c-delete pageup".split(),
)
def test_every_key_that_can_be_written_can_be_bound(key: str) -> None:
    assert not list(terminal_problems(KeySettings(background=key), "auto", {})) or key in sum(DEFAULTS.values(), ())
    for one in key.split():
        KeyBindings().add(*sequence(one))(lambda event: None)


def test_the_card_shows_the_keys_that_were_chosen() -> None:
    rows = KeyLabels(KeySettings(stash=(), unfold="f2", queue="a-q", mode=("f3", "f4"))).help()
    by_text = {text: labels for labels, text in rows}
    assert "stash the text in the input" not in by_text
    assert by_text["show all of the last output"] == ["F2"]
    assert by_text["next permission mode"] == ["F3", "F4"]
    assert (by_text["complete"], by_text["while the model works: queue"]) == (["Tab"], ["Alt-Q"])
