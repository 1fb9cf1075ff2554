"""Text made safe to print: what a model, a tool or a file says must not steer the terminal."""

from __future__ import annotations

import re

# Whole escape sequences go, then what is left of control characters is shown as a picture of itself.
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}
_CONTROLS |= {0x7F: "␡"} | dict.fromkeys(range(128, 160), "�")
# Characters that turn the direction of text around can make a command look like another one.
_CONTROLS |= dict.fromkeys((*range(8234, 8239), *range(8294, 8298), 8206, 8207, 1564), "�")
_CONTROLS |= dict.fromkeys(range(0xD800, 0xE000), "�")  # lone surrogates cannot be written at all
# Characters that show nothing; in an answer they join emoji, in a command they hide something.
_INVISIBLE = re.compile(
    "[\u00ad\u180e\u200b-\u200d\u2028\u2029\u2060-\u2064\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """`text` without anything that could steer a terminal; a line end alone or after a return stays one."""
    return _SEQUENCE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n").translate(_CONTROLS)


def exposed(text: str) -> str:
    """What somebody is asked to allow: nothing is left out, a picture stands for each character that shows nothing."""
    return _INVISIBLE.sub("�", text.replace("\r\n", "\n").translate(_CONTROLS))


class PrintableStream:
    """`printable` for text that comes in pieces: a sequence that is split over two pieces is taken out whole."""

    _UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)|\x9b[0-?]*[ -/]*|\r)\Z")
    _LONGEST = 4_096  # characters held back; what is longer is no sequence a terminal would wait for

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        unfinished = self._UNFINISHED.search(text)
        end = unfinished.start() if unfinished and len(unfinished.group()) <= self._LONGEST else len(text)
        self._held = text[end:]
        return printable(text[:end])

    def close(self) -> str:
        held, self._held = self._held, ""
        return printable(held)
