"""Makes text safe to print: a model, a tool or a file must not control the terminal or disguise text as other text."""

import re
from collections.abc import Callable
from functools import cache

from agentcli.patterns import lazy_pattern

# In prose, whole escape sequences are removed, and other control characters are replaced with visible symbols.
_SEQUENCE = lazy_pattern(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"}  # code point -> symbol
_CONTROLS |= {0x7F: "␡"} | dict.fromkeys(range(128, 160), "�")
# Characters that change the direction of text can make a command look like another one.
_CONTROLS |= dict.fromkeys((*range(8234, 8239), *range(8294, 8298), 8206, 8207, 1564), "�")
# No terminal shows interlinear annotations, and lone surrogates cannot be written at all.
_CONTROLS |= dict.fromkeys((*range(0xFFF9, 0xFFFC), *range(0xD800, 0xE000)), "�")

MAX_LINE_ENDS = 20  # in a row; more would push earlier text off the screen
_EMOJI = "©®\u203c-\u3299\U0001f000-\U0001faff"
# Soft hyphens, word joiners, byte order marks; tags and variation selectors, which can carry whole hidden texts.
_INVISIBLE = "\u00ad\u180e\u200b\u2060-\u2064\ufeff\U000e0000-\U000e0fff"
_CJK = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Arabic, the scripts of South Asia, Khmer and Mongolian, in which a joiner selects the form of a letter.
_JOINED = "\u0600-\u109f\u1780-\u17ff\u1820-\u18af\ua800-\uabff\U00010a00-\U0001123f"
_IN_EMOJI = rf"(?<=[{_EMOJI}\ufe0f])\u200d(?=[{_EMOJI}])|(?<=[{_EMOJI}])\ufe0f"
# Greek and Cyrillic letters that look like Latin ones.
_ALIKE = "АВЕКМНОРСТХУЅІЈасеорхуѕіјһԁӏԛԝΑΒΕΖΗΙΚΜΝΟΡΤΥΧο"
_NOT_LATIN = "\u0370-\u03ff\u0400-\u052f"


def printable(text: str) -> str:
    """Return text without anything that could control a terminal. A lone carriage return becomes a line break."""
    return _remove_hidden(_without_controls(text), "")


def escape_hidden(text: str) -> str:
    """Return text for a question, with hidden characters and look-alikes of Latin letters written as escapes."""
    return _reveal_hidden(text, _escape_of)


def replace_hidden(text: str) -> str:
    """Return text for a document: like `escape_hidden`, but with a visible one-character symbol for each escape."""
    return _reveal_hidden(text, lambda character: _CONTROLS.get(ord(character), "�"))


def _reveal_hidden(text: str, symbol_for: Callable[[str], str]) -> str:
    """Replace each character that a person would not see, or would mistake for another, with its symbol."""

    def replace(match: re.Match[str]) -> str:
        found = match.groupdict()  # empty for `_unsafe_characters`, which has no groups
        if line_ends := found.get("extra_line_ends"):
            return f"… {len(line_ends):,} more line breaks\n"
        return found.get("stays") or "".join(map(symbol_for, match.group()))

    text = text.replace("\r\n", "\n")
    if not text.isascii() or not text.isprintable():
        text = _unsafe_characters().sub(replace, text)
    return _HIDDEN_IN_REQUEST.sub(replace, text) if _is_suspect(text) else text


def _without_controls(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    return _SEQUENCE.sub("", text).translate(_CONTROLS)


def _remove_hidden(text: str, before: str) -> str:
    """Return `text`, which follows `before`, without invisible characters and with � for look-alike letters."""
    full, position = before + text, len(before)
    if not _is_suspect(full):
        return text
    pieces: list[str] = []
    for hidden in _HIDDEN_IN_PROSE.finditer(full, position):
        pieces += (full[position : hidden.start()], hidden["stays"] or "�" * len(hidden["alike"] or ""))
        position = hidden.end()
    return "".join([*pieces, full[position:]])


def _is_suspect(text: str) -> bool:
    """Return True if a text may be disguised. Control characters are replaced elsewhere."""
    return "\n" * MAX_LINE_ENDS in text if text.isascii() else _SUSPECTS.search(text) is not None


# Every match of the next two patterns begins with one of these. Few texts contain any, so it is searched first.
_SUSPECTS = lazy_pattern(rf"[{_INVISIBLE}{_NOT_LATIN}\u200c\u200d\ufe00-\ufe0f\U0001f3f4]|\n{{{MAX_LINE_ENDS},}}")
# In order: invisible characters that may stay, those that may not, too many line ends, look-alike letters.
_HIDDEN_IN_PROSE = lazy_pattern(
    rf"(?P<stays>{_IN_EMOJI}|(?<=[{_JOINED}])[\u200c\u200d]|(?<=[{_CJK}])[\ufe00-\ufe0f\U000e0100-\U000e01ef]"
    rf"|(?<=[#*0-9])\ufe0f|\U0001f3f4[\U000e0020-\U000e007e]{{1,6}}\U000e007f)"
    rf"|[{_INVISIBLE}\u200c\u200d\ufe00-\ufe0f]|(?<=\n{{{MAX_LINE_ENDS}}})\n+"
    # A Russian word may end with a Latin name, and a Latin name with a Russian ending: neither is a disguise.
    rf"|(?<![{_NOT_LATIN}])(?P<alike>[{_ALIKE}]+)(?=[A-Za-z])"
)
# The same for questions: only characters within emoji may stay, and every word of mixed scripts is suspect.
_HIDDEN_IN_REQUEST = lazy_pattern(
    rf"(?P<stays>{_IN_EMOJI})|[{_INVISIBLE}\u200c\u200d\ufe00-\ufe0f]"
    rf"|(?:(?<=[A-Za-z])|(?<![{_NOT_LATIN}])(?=[{_ALIKE}]+[A-Za-z]))[{_ALIKE}]+(?![{_NOT_LATIN}])"
    rf"|(?<=\n{{{MAX_LINE_ENDS}}})(?P<extra_line_ends>\n+)"
)
_FLAG = "\U0001f3f4[\U000e0020-\U000e007e]{0,6}"
# The end of a piece of prose whose treatment depends on the next piece.
_UNDECIDED = lazy_pattern(rf"(?:\u200d(?:{_FLAG})?|{_FLAG}|(?<![{_NOT_LATIN}])[{_ALIKE}]+)\Z")


@cache
def _unsafe_characters() -> re.Pattern[str]:
    """Match characters that control a terminal, change the direction of text, or are displayed as blank."""
    blank = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2028\u2029\u206a-\u206f\u2800\u3164\uffa0"
    return re.compile(f"[{re.escape(''.join(map(chr, _CONTROLS)))}{blank}\U0001d173-\U0001d17a]")


def _escape_of(character: str) -> str:
    if character == "\r":
        return r"\r"
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class PrintableStream:
    """Does the same as `printable` for text that arrives in pieces, even if sequences are split between them."""

    _UNFINISHED = lazy_pattern(r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)|\x9b[0-?]*[ -/]*|\r)\Z")
    _MAX_HELD_CHARS = 4_096  # anything longer is not an escape sequence or a word

    def __init__(self) -> None:
        self._sequence = ""  # the beginning of an unfinished escape sequence
        # Text without control sequences: the end of what was returned, because what follows may depend on it, and then
        # what was not returned yet.
        self._text = ""
        self._returned_chars = 0  # how many characters of `_text` were returned already

    def feed(self, text: str) -> str:
        """Return the text that can be printed now, and hold back the possible beginning of a sequence."""
        text = self._sequence + text
        end = len(text)
        if (unfinished := self._UNFINISHED.search(text)) and len(unfinished.group()) <= self._MAX_HELD_CHARS:
            end = unfinished.start()
        self._sequence = text[end:]
        self._text += _without_controls(text[:end])
        end = len(self._text)
        undecided = None if self._text.isascii() else _UNDECIDED.search(self._text, self._returned_chars)
        if undecided and len(undecided.group()) <= self._MAX_HELD_CHARS:
            end = undecided.start()
        return self._return_up_to(end)

    def close(self) -> str:
        self._text += _without_controls(self._sequence)
        self._sequence = ""
        return self._return_up_to(len(self._text))

    def _return_up_to(self, end: int) -> str:
        """Return the new text up to `end`, and keep its last characters, which later text may depend on."""
        shown = _remove_hidden(self._text[self._returned_chars : end], self._text[: self._returned_chars])
        start = max(0, end - MAX_LINE_ENDS)
        self._text, self._returned_chars = self._text[start:], end - start
        return shown


def fenced(text: str, language: str = "") -> str:
    """Return a Markdown code block whose fence is longer than any fence in the text."""
    fence = "`" * (max(map(len, re.findall(r"`{3,}", text)), default=2) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def with_tilde(text: str, home: str) -> str:
    return re.sub(rf"(?<![\w.~/-]){re.escape(home)}(?=/|$)", "~", text) if len(home) > 1 and home in text else text
