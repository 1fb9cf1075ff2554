"""Translates keys from the settings' spelling to prompt_toolkit's and to people's."""

from __future__ import annotations

from agentcli.settings.terminal import SENT_AS, KeySettings

_MODIFIERS = {"c": "Ctrl", "a": "Alt", "s": "Shift"}
# For the `?` card: actions (see settings/terminal.py), keys that are fixed, and what they do.
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
_NAMES = {"escape": "Esc", "pageup": "PageUp", "pagedown": "PageDown"}


class KeyLabels:
    """Names the keys that the person has chosen for each action."""

    def __init__(self, settings: KeySettings) -> None:
        self.keys = settings.by_action()

    def first(self, action: str) -> str:
        """The action's first key; empty when it has none."""
        return next((label(key) for key in self.keys[action]), "")

    def hints(self, **actions: str) -> str:
        """`Enter sends · Esc interrupts`, without actions that have no key."""
        return " · ".join(f"{key} {does}" for action, does in actions.items() if (key := self.first(action)))

    def help(self) -> list[tuple[list[str], str]]:
        """The keys of each action that has one, and what it does."""
        rows = []
        for action, more, text in _HELP:
            if action == "complete" and self.keys["queue"] != self.keys["complete"]:
                rows.append(([label(key) for key in self.keys["complete"]], "complete"))
                action, text = "queue", "while it works: queue for afterwards"
            labels = [label(key) for key in self.keys.get(action, ())]
            rows.append((labels + ([more] if more else []), text))
        return [(labels, text) for labels, text in rows if labels]


def sequence(key: str) -> tuple[str, ...]:
    """One key for prompt_toolkit; a terminal sends Alt as an Esc before the key."""
    key = SENT_AS.get(key, key)
    return ("escape", key[2:]) if key.startswith("a-") and len(key) > 2 else (key,)


def label(key: str) -> str:
    """`c-o` as `Ctrl-O`, `c-x c-e` as `Ctrl-X Ctrl-E`."""
    return " ".join(_label(one) for one in key.split())


def _label(key: str) -> str:
    parts = []
    while len(key) > 2 and key[1] == "-" and key[0] in _MODIFIERS:
        parts.append(_MODIFIERS[key[0]])
        key = key[2:]
    return "-".join([*parts, _NAMES.get(key, key.capitalize())])
