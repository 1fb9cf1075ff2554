"""Notifies the person, who is at another window, that something waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentcli.frontends.printable import printable


class Notifier:
    """Sends notifications through `write` while the window has not the focus."""

    def __init__(self, write: Callable[[str], None], how: str, environment: Mapping[str, str]) -> None:
        self._write = write
        self._how = how
        self._environment = environment
        self.has_focus: bool | None = None  # until the terminal says so

    def notify(self, text: str, *, is_urgent: bool = False) -> None:
        is_away = self.has_focus is False or (is_urgent and self.has_focus is None)
        if is_away and (codes := notification(text, self._how, self._environment)):
            self._write(codes)


def notification(text: str, how: str, environment: Mapping[str, str]) -> str:
    """The bytes of a desktop notification (OSC 9: iTerm2, kitty, WezTerm, Ghostty; OSC 777: rxvt, VTE), or a bell."""
    words = " ".join(printable(text).replace(";", ",").split())[:200]
    kind = _kind(environment) if how == "auto" else how
    match kind:
        case "osc9":
            return _through_tmux(f"\x1b]9;{words}\x07", environment)
        case "osc777":
            return _through_tmux(f"\x1b]777;notify;agentcli;{words}\x07", environment)
        case "bell":
            return "\x07"
        case _:
            return ""


def _kind(environment: Mapping[str, str]) -> str:
    program = environment.get("TERM_PROGRAM", "")
    if program in ("iTerm.app", "WezTerm", "ghostty") or environment.get("KITTY_WINDOW_ID"):
        return "osc9"
    return "osc777" if environment.get("VTE_VERSION") else "bell"


def _through_tmux(sequence: str, environment: Mapping[str, str]) -> str:
    """Wrap a sequence so that tmux passes it on (its option allow-passthrough)."""
    if not environment.get("TMUX"):
        return sequence
    return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
