"""Keys as the settings write them, as prompt_toolkit knows them, and as people read them."""

from __future__ import annotations

from agentcli.look_settings import SENT_AS

_MODIFIERS = {"c": "Ctrl", "a": "Alt", "s": "Shift"}
_NAMES = {"escape": "Esc", "pageup": "PageUp", "pagedown": "PageDown"}


def sequence(key: str) -> tuple[str, ...]:
    """What prompt_toolkit gets for one key; a terminal sends Alt as an Esc before it."""
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
