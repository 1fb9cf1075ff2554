"""Reads one word of a shell command as bash 5 does: quotes, escapes, substitutions (bash(1), QUOTING, EXPANSION).

Only static words are read: quotes of all kinds, `~`, `$HOME`, `$PWD`, globs; also `$?` and `$(…)`, whose commands are
read, though not what they print. Other expansions leave a hole and a problem, but the commands inside them are read.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from agentcli.safety.commands.reader.syntax import HERE, HOLE, HOME, Field, Script

MAX_DEPTH = 30  # of substitutions and subshells; two or three are usual

_RUN = re.compile(r"[^ \t\n;&|()<>\"'`$\\]+")
_RUN_IN_QUOTES = re.compile(r"[^\"`$\\]+")
_NAME = re.compile(r"[A-Za-z_]\w*|[-@*#$!\d]", re.ASCII)
_BRACED_NAME = re.compile(r"\{[^}$`'\"\\]*\}?")
_KNOWN_VARIABLE = re.compile(r"\$(?:(HOME|PWD)(?!\w|\\\n)|\{(HOME|PWD)\})", re.ASCII)


class WordReader(ABC):
    """Reads words from `text`, starting at `at`.

    `depth` counts the substitutions and subshells around them. `problem` says why the text is more than its words,
    `refusal` is the syntax error for which bash would run nothing of it.
    """

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        self.depth = depth
        self.problem = ""
        self.refusal = ""
        self.has_ended_line = False
        self.inside: list[Script] = []  # scripts substituted in the command that is being read

    @abstractmethod
    def _script_inside(self) -> Script:
        """Read the commands up to the closing `)`, and the parenthesis."""

    @abstractmethod
    def _script_of(self, text: str) -> Script:
        """Read the commands of another text."""

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _refuse(self, problem: str) -> None:
        """Note a syntax error. It is not certain behind text that is not read, or a line that bash has run by then."""
        if not self.problem and not self.has_ended_line:
            self.refusal = problem
        self._note(problem)

    def _next_is(self, text: str | tuple[str, ...], ahead: int = 0) -> bool:
        return self.text.startswith(text, self.at + ahead)

    def _word(self) -> Field:
        parts: list[str] = []
        shape: list[str] = []  # the unquoted text, with an `a` for each quoted part
        may_vanish = False
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;&|()" or (char in "<>" and not self._next_is("(", 1)):
                break
            quoted = "a"
            if found := _RUN.match(self.text, self.at):
                text = quoted = found[0]
                self.at = found.end()
            elif char == "\\":
                text = quoted = ""
                if self._next_is("\n", 1):
                    self._note("a line is continued in the middle of a word")
                else:
                    text, quoted = self.text[self.at + 1 : self.at + 2] or "\\", "a"
                self.at += 2
            elif char == "'":
                text = self._single_quoted()
            elif char == '"':
                self.at += 1
                text = self._double_quoted()
            elif char == "`":
                text = self._backquoted()
                may_vanish = True
            elif char == "$":
                text = self._expansion(quoted=False)
                may_vanish = may_vanish or (HOLE in text and self.text[self.at - 2 : self.at] != "$?")
            else:
                self.at += 2
                self._note("it uses a process substitution")
                text = self._substitution()
            parts.append(text)
            shape.append(quoted)
        return self._field("".join(parts), "".join(shape), may_vanish=may_vanish)

    def _field(self, text: str, shape: str, *, may_vanish: bool) -> Field:
        braced = shape[shape.find("{") : shape.rfind("}")] if "{" in shape else ""
        if "," in braced or ".." in braced:
            self._note("braces make several words of one")
            return Field(HOLE, may_vanish=True)
        if "~" in shape:
            if shape == "~" or shape.startswith("~/"):
                text = HOME + text[1:]
            elif re.match(r"~|[A-Za-z_]\w*\+?=(?s:.*[=:])?~", shape):
                self._note("it names a home in a way that is not read")
                text = f"/root{text[5:]}" if re.match(r"~root(/|$)", shape) else HOLE
        is_bracket = -1 < shape.find("[") < shape.rfind("]")
        if is_bracket and not text.endswith(shape[shape.find("[") :]):
            self._note("a pattern is partly quoted")
        is_glob = "*" in shape or "?" in shape or is_bracket
        return Field(text, is_glob, may_vanish)

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._refuse("a quote is not closed")
            end = len(self.text)
        start, self.at = self.at + 1, end + 1
        return self.text[start:end]

    def _double_quoted(self) -> str:
        """Read the text up to the closing quote, and the quote."""
        parts: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if found := _RUN_IN_QUOTES.match(self.text, self.at):
                parts.append(found[0])
                self.at = found.end()
            elif char == '"':
                self.at += 1
                return "".join(parts)
            elif char == "\\":
                follower = self.text[self.at + 1 : self.at + 2]
                parts.append("" if follower == "\n" else follower if follower in '$`"\\' else "\\" + follower)
                self.at += 2
            elif char == "`":
                parts.append(self._backquoted())
            else:
                parts.append(self._expansion(quoted=True))
        self._refuse("a quote is not closed")
        return "".join(parts)

    def _expansion(self, *, quoted: bool) -> str:
        follower = self.text[self.at + 1 : self.at + 2]
        if not quoted and follower == "'":
            self.at += 1
            return self._ansi_quoted()
        if follower == "(":
            self.at += 2
            return self._substitution()
        if found := _KNOWN_VARIABLE.match(self.text, self.at):
            self.at = found.end()
            return HOME if "HOME" in found.groups() else HERE
        if follower == "?":  # a number
            self.at += 2
            return HOLE
        # If `${…}` is not simple, its text is read as that of the word.
        if found := _NAME.match(self.text, self.at + 1) or _BRACED_NAME.match(self.text, self.at + 1):
            self._note("it uses a variable")
            self.at = found.end()
            return HOLE
        self.at += 1
        if follower in ("\\", "[") or (not quoted and follower == '"'):
            self._note("it uses a dollar sign in a way that is not read")
            return HOLE
        return "$"

    def _substitution(self) -> str:
        if self.depth >= MAX_DEPTH:
            self._note("it is nested too deeply")  # its commands are read as if they were outside
        else:
            inside, self.inside = self.inside, []
            self.inside = [*inside, self._script_inside()]
        return HOLE

    def _backquoted(self) -> str:
        """Read the commands in backquotes, without the backslashes before some characters."""
        self._note("it uses backquotes")
        found = re.compile(r"`((?:[^`\\]|\\.)*)(`?)", re.DOTALL).match(self.text, self.at)
        assert found
        if not found[2]:
            self.problem = "" if self.problem == "it uses backquotes" else self.problem
            self._refuse("a backquote is not closed")
        self.at = found.end()
        self.inside.append(self._script_of(re.sub(r"\\([`$\\])", r"\1", found[1])))
        return HOLE

    def _ansi_quoted(self) -> str:
        """Read `'…'` behind a dollar sign, with its escapes decoded (bash(1), QUOTING)."""
        found = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if not found:
            self._refuse("a quote is not closed")
            self.at = len(self.text)
            return HOLE
        self.at = found.end()
        if (text := unescape(found[1])) is None:
            self._note("quotes hold what is no text")
            return HOLE
        return text


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(c|.))", re.DOTALL)
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip


def unescape(text: str) -> str | None:
    """Decode C escapes; None if one ends or spoils the string, such as a NUL."""
    parts, end = [], 0
    for found in _ESCAPE.finditer(text):
        hexadecimal, octal, short, long, simple = found.groups()
        parts.append(text[end : found.start()])
        end = found.end()
        if simple is not None:
            if simple == "c":
                return None
            parts.append(_SIMPLE_ESCAPES.get(simple, "\\" + simple))
            continue
        code = int(octal, 8) & 0xFF if octal else int(hexadecimal or short or long, 16)
        is_byte = hexadecimal is not None or octal is not None
        if code == 0 or code > 0x10FFFF or (is_byte and code > 0x7F) or 0xD800 <= code < 0xF900:
            return None
        parts.append(chr(code))
    return "".join((*parts, text[end:]))
