"""Reads keys as the terminal sends them, takes its answers to questions out of them, and names keys for people."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TextIO

from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyPress
from prompt_toolkit.keys import Keys

from agentcli.settings.terminal import SENT_AS, KeySettings

# Enter with Shift, Alt, Ctrl or several of them, as xterm (modifyOtherKeys) and kitty's protocol report it: a new line.
ANSI_SEQUENCES.update(
    {f"\x1b[27;{modifier};13~": Keys.ControlJ for modifier in range(2, 9)}
    | {f"\x1b[13;{modifier}u": Keys.ControlJ for modifier in range(2, 9)}
    | {"\x1b[27u": Keys.Escape}
)

# What colour is the background (xterm OSC 11)? Is output synchronized on request (DECRQM of mode 2026)?
QUESTIONS = "\x1b]11;?\x1b\\\x1b[?2026$p"
_REPORT = re.compile(r"\x1b\](\d+;[^\x07\x1b]*)(?:\x07|\x1b\\)|\x1b\[(\?2026;\d\$y)|\x1b\[([IO])")
_PASTE_MARK = re.compile(r"(\x1b\[20[01]~)")
# The start of a report or of a paste's mark, at the end of what was read.
_BEGUN = re.compile(r"\x1b(?:\](?:\d[^\x07\x1b]*\x1b?)?|\[(?:\?(?:2(?:0(?:2(?:6[;\d$]{0,3})?)?)?)?|2(?:0[01]?)?)?)?\Z")
_LONGEST_BEGUN = 200  # characters; anything longer is no report


class TerminalInput(Vt100Input):
    """Standard input without the terminal's reports, such as `11;rgb:…` and `?2026;2$y`, which go to `on_report`."""

    def __init__(self, stdin: TextIO, on_report: Callable[[str], None]) -> None:
        super().__init__(stdin)
        self._on_report = on_report
        self._begun = ""
        self._is_in_paste = False
        self.expects_reports = False  # while true, the start of one is held for longer than an Esc

    def read_keys(self) -> list[KeyPress]:
        data = self._begun + self.stdin_reader.read()
        self._begun = ""
        if "\x1b" in data:
            begun = _BEGUN.search(data)
            if begun and len(begun.group()) <= _LONGEST_BEGUN:
                self._begun, data = begun.group(), data[: begun.start()]
            data = self._without_reports(data)
        self.vt100_parser.feed(data)
        keys, self._buffer = self._buffer, []
        return keys

    def flush_keys(self) -> list[KeyPress]:
        is_sure = len(self._begun) > 2 and self.expects_reports  # no hand types so much of one so fast
        if self._begun and not is_sure and not self._is_in_paste:
            self.vt100_parser.feed(self._begun)
            self._begun = ""
        return super().flush_keys()

    def _without_reports(self, data: str) -> str:
        """Take reports out, but for those inside a paste."""
        parts = _PASTE_MARK.split(data)
        for number, part in enumerate(parts):
            if number % 2:
                self._is_in_paste = part == "\x1b[200~"
            elif not self._is_in_paste:
                parts[number] = _REPORT.sub(self._reported, part)
        return "".join(parts)

    def _reported(self, found: re.Match[str]) -> str:
        self._on_report(next(group for group in found.groups() if group))
        return ""


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
