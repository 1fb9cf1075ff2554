"""Translates keys from the settings' spelling to prompt_toolkit's and to people's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentcli.look_settings import SENT_AS

_MODIFIERS = {"c": "Ctrl", "a": "Alt", "s": "Shift"}
_NAMES = {"escape": "Esc", "pageup": "PageUp", "pagedown": "PageDown"}


class KeyLabels:
    """Names the keys that the person has chosen for each action."""

    def __init__(self, keys: Mapping[str, Sequence[str]]) -> None:
        self._keys = keys

    def first(self, action: str) -> str:
        """The action's first key; empty when it has none."""
        return next((label(key) for key in self._keys[action]), "")

    def hints(self, **actions: str) -> str:
        """`Enter sends · Esc interrupts`, without actions that have no key."""
        return " · ".join(f"{key} {does}" for action, does in actions.items() if (key := self.first(action)))


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
