"""The settings of the terminal: keys of actions, colours of themes, its appearance and notifications."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from agentcli.errors import did_you_mean
from agentcli.patterns import lazy_pattern

THEMES = ("auto", "dark", "light", "high-contrast", "ansi", "none")
ThemeName = Annotated[str, Meta(extra={"names": THEMES})]
# A theme may set the colours of all roles that it does not name; frontends/terminal/text/theme.py uses the roles.
COLOURS = ("grey", "blue", "cyan", "magenta", "green", "red", "yellow")
ROLES = (
    *"bold italic underline strike heading1 heading2 heading3 quote link table_header added_word removed_word".split(),
    *"selected prompt dim muted marker code url rule table_rule keyword string comment number name".split(),
    *"added removed added_sign removed_sign hunk line_number ok error warning accent said completion".split(),
)
COLOUR_NAMES = (
    *"black red green yellow blue magenta cyan white".split(),
    *"bright-black bright-red bright-green bright-yellow bright-blue bright-magenta bright-cyan bright-white".split(),
    "default",
)
_RGB = lazy_pattern(r"#[0-9a-fA-F]{6}\Z")

_MOVES = "up|down|left|right|home|end|insert|delete|pageup|pagedown"
_KEYS = (  # one key, or two in a row; Ctrl with h, i and m is left out: it sends Backspace, Tab and Enter
    "(?:c-[a-gj-ln-z] )?(?:enter|tab|escape|insert|up|down|pageup|pagedown|(?:c-)?f(?:[1-9]|1[0-9]|2[0-4])|c-space|"
    f"c-enter|c-[a-gj-ln-z]|s-enter|s-tab|(?:s|c|c-s)-(?:{_MOVES})|a-(?:enter|tab|backspace|up|down|left|right|c-[a-z]|[!-~]))"
)
_KEY_HELP = (
    "write a key such as c-o (Ctrl), a-x (Alt), s-tab (Shift), enter, escape, f2, c-f2, pageup, c-up, "
    'or two in a row such as "c-x c-e"'
)
Keys = str | tuple[str, ...]


class KeySettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The keys of the input: for each action a key or a list of keys. An empty list leaves an action without a key.

    `c-` is Ctrl, `a-` Alt, `s-` Shift. `previous` takes back a queued message, or else steps through the history.
    Questions (approvals, lists) have their own keys; all other keys for editing are those of `editing_mode`.
    """

    send: Keys = ("enter",)
    newline: Keys = ("a-enter", "c-j", "s-enter")
    complete: Keys = ("tab",)
    queue: Keys = ("tab",)
    interrupt: Keys = ("escape",)
    cancel: Keys = ("c-c",)
    leave: Keys = ("c-d",)
    mode: Keys = ("s-tab",)
    previous: Keys = ("up",)
    next: Keys = ("down",)
    take_back: Keys = ("a-up",)
    search: Keys = ("c-r",)
    stash: Keys = ("c-s",)
    unfold: Keys = ("c-o",)
    todo: Keys = ("c-t",)
    background: Keys = ("c-b",)
    editor: Keys = ("c-g", "c-x c-e")
    paste_image: Keys = ("c-v",)
    redraw: Keys = ("c-l",)
    suspend: Keys = ("c-z",)

    def by_action(self) -> dict[str, tuple[str, ...]]:
        return {
            action: (keys,) if isinstance(keys, str) else tuple(keys) for action, keys in structs.asdict(self).items()
        }


class TerminalSettings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`status_command` gets the state as JSON on stdin; up to three lines of its output replace the
    figures of the status line. With `status_format = "claude"` the JSON has the form of Claude Code's.

    `notifications` come when something waits or is done while the window does not have the focus. `theme` is one of
    agentcli's themes or of `themes`. `wrap` decides who breaks lines of prose: agentcli, at words, or the terminal,
    which joins them again when you copy them.
    """

    theme: ThemeName = "auto"
    wrap: Literal["words", "terminal"] = "words"
    editing_mode: Literal["emacs", "vi"] = "emacs"
    notifications: Literal["auto", "osc9", "osc777", "bell", "off"] = "auto"
    status_command: str = ""
    status_format: Literal["agentcli", "claude"] = "agentcli"
    keys: KeySettings = KeySettings()
    themes: dict[str, dict[str, int | str]] = {}


_REQUIRED_ACTIONS = ("send", "cancel")
_MAY_SHARE = frozenset(("complete", "queue"))  # one works between turns, the other during a turn
# Keys that agentcli reads as another key: a modified Enter as Ctrl-J (see frontends/terminal/input/prompt.py).
SENT_AS = {"s-enter": "c-j", "c-enter": "c-j"}


def terminal_problems(
    keys: KeySettings, theme: str, themes: Mapping[str, Mapping[str, int | str]]
) -> Iterator[tuple[str, str]]:
    """Yield the problems of keys and themes, each as the dotted name of the setting and a sentence."""
    known = [*THEMES, *themes]
    if theme not in known:
        hint = did_you_mean(theme, known)
        yield "terminal.theme", f"unknown theme {theme!r}{hint}; choose one of {', '.join(known)}."
    for name, table in themes.items():
        if name in THEMES:
            yield f"terminal.themes.{name}", f"{name} is a built-in theme; choose another name."
        for role, colour in table.items():
            key = f"terminal.themes.{name}.{role}"
            if role not in (*ROLES, *COLOURS, "fence"):  # earlier versions showed the fences of code
                roles = [*COLOURS, *ROLES]
                yield key, f"unknown role{did_you_mean(role, roles)}; choose one of {', '.join(roles)}."
            elif not (colour in range(256) or colour in COLOUR_NAMES or _RGB.match(str(colour))):
                choices = f'"#rrggbb", a number from 0 to 255, or one of {", ".join(COLOUR_NAMES)}'
                yield key, f"{colour!r} is not a colour: write {choices}."
    if keys != KeySettings():
        yield from _key_problems(keys)


def _key_problems(settings: KeySettings) -> Iterator[tuple[str, str]]:
    """Yield problems as `terminal_problems` does: missing keys, invalid ones, and those that two actions share."""
    actions = settings.by_action()
    defaults = {field.name: field.default for field in structs.fields(KeySettings)}
    changed = [action for action, keys in actions.items() if keys != defaults[action]]
    yield from ((f"terminal.keys.{name}", "it needs a key.") for name in _REQUIRED_ACTIONS if not actions[name])
    for action in changed:  # the defaults do not clash with each other
        for key in actions[action]:
            if not re.fullmatch(_KEYS, key):
                yield f"terminal.keys.{action}", f"{key!r} is not a valid key: {_KEY_HELP}."
                continue
            for other, other_keys in actions.items():
                clash = next((one for one in other_keys if other != action and _clashes(key, one)), None)
                if clash is not None and {action, other} != _MAY_SHARE:
                    message = f"{key} is already used for {other}" + (f" ({clash})" if clash != key else "")
                    yield f"terminal.keys.{action}", f"{message}: choose another key, or change {other}."


def _clashes(key: str, other: str) -> bool:
    """Return True if two keys are the same, or one is the beginning of the other."""
    first, second = SENT_AS.get(key, key).split(), SENT_AS.get(other, other).split()
    return first[: len(second)] == second[: len(first)]
