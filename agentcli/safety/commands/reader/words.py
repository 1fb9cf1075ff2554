"""Reads one word of a shell command as bash 5 does: quotes, escapes, expansions (bash(1), QUOTING, EXPANSION).

Raises `NotUnderstood` for what it does not model exactly, and `Refused` for what bash itself refuses.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from agentcli.safety.commands.reader.syntax import Arithmetic, Literal, Piece, Script, Substitution, Variable, Word

DEEPEST = 30  # nested substitutions and compound commands; usual are two or three


class NotUnderstood(Exception):
    """Bash may run this, in a way that this reader does not model."""


class NotArithmetic(NotUnderstood):
    """Two subshells that begin like arithmetic: `((ls) && pwd)`."""


class Refused(Exception):
    """A syntax error for bash too: it runs nothing of the line."""


_RUN = re.compile(r"[^ \t\n;&|()<>\"'`$\\]+")
_RUN_IN_QUOTES = re.compile(r"[^\"`$\\]+")
_RUN_IN_HERE_TEXT = re.compile(r"[^`$\\]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPECIAL = "@*#?-$!0123456789"
_OPERATOR = re.compile(r":[-=?+]|%%?|##?|//?|\^\^?|,,?|[-=?+:@\[]")
_WITH_TEXT = (":-", "-", ":=", "=", ":?", "?", ":+", "+", "%", "%%", "#", "##", "/", "//", "^", "^^", ",", ",,")


class WordReader(ABC):
    """Reads words from `text`, starting at `at`."""

    def __init__(self, text: str, depth: int = 0) -> None:
        if depth > DEEPEST:
            raise NotUnderstood("it is nested too deeply")
        self.text = text
        self.at = 0
        self.depth = depth
        self._subshells: set[int] = set()  # positions where `((` begins two subshells

    @abstractmethod
    def _script_inside(self) -> Script:
        """The commands up to the closing `)`, which is passed over."""

    @abstractmethod
    def _script_of(self, text: str) -> Script:
        """The commands of another text."""

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise NotUnderstood("it is nested too deeply")

    def _starts_word(self) -> bool:
        self._skip_continuations()
        if self.at >= len(self.text):
            return False
        if self.text[self.at] in "<>":
            return self._next_is("(", 1)
        return self.text[self.at] not in " \t\n;&|()"

    def _next_is(self, text: str, ahead: int = 0) -> bool:
        return self.text.startswith(text, self.at + ahead)

    def _skip_continuations(self) -> None:
        while self._next_is("\\\n"):
            self.at += 2

    def _word(self) -> Word:
        """The word that begins here."""
        start = self.at
        pieces = self._pieces()
        return Word(self.text[start : self.at], pieces)

    def _pieces(self, closing: str = "") -> tuple[Piece, ...]:
        """The pieces up to the end of the word, or to an unquoted `closing` inside `${...}`, where blanks are text."""
        pieces: list[Piece] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if closing and char == closing:
                break
            if char == "\\":
                self._escape(pieces)
            elif char == "'":
                pieces.append(Literal(self._single_quoted(), quoted=True))
            elif char == '"':
                self.at += 1
                pieces.append(Literal("", quoted=True))  # an empty string is a word
                pieces += self._double_quoted()
            elif char == "`":
                pieces.append(self._backquoted(quoted=False))
            elif char == "$":
                self._dollar(pieces, quoted=False)
            elif char in "<>" and self._next_is("(", 1):
                self.at += 2
                pieces.append(Substitution(self._script_inside(), quoted=True, direction=char))
            elif not closing and char in " \t\n;&|<>()":
                break
            elif closing and char in " \t\n;&|<>()":
                pieces.append(Literal(char, quoted=False))
                self.at += 1
            else:
                found = _RUN.match(self.text, self.at)
                assert found
                run = found[0].partition(closing)[0] if closing else found[0]
                pieces.append(Literal(run, quoted=False))
                self.at += len(run)
        return _joined(pieces)

    def _escape(self, pieces: list[Piece]) -> None:
        if self._next_is("\n", 1):
            self.at += 2
            return
        if self.at + 1 >= len(self.text):
            pieces.append(Literal("\\", quoted=True))
            self.at += 1
            return
        pieces.append(Literal(self.text[self.at + 1], quoted=True))
        self.at += 2

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Refused("a quote is not closed")
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        return inside

    def _double_quoted(self, closing: str = '"') -> tuple[Piece, ...]:
        """The pieces up to `closing`, which is passed over. Empty: up to the end of a here-document."""
        pieces: list[Piece] = []
        run = _RUN_IN_QUOTES if closing else _RUN_IN_HERE_TEXT
        while self.at < len(self.text):
            char = self.text[self.at]
            if closing and char == closing:
                self.at += 1
                return tuple(pieces)
            if char == "\\":
                follower = self.text[self.at + 1 : self.at + 2]
                if follower == "\n":
                    pass
                elif follower in ("$", "`", "\\") or (follower == '"' and closing):
                    pieces.append(Literal(follower, quoted=True))
                else:
                    pieces.append(Literal("\\" + follower, quoted=True))
                self.at += 2
            elif char == "`":
                pieces.append(self._backquoted(quoted=True))
            elif char == "$":
                self._dollar(pieces, quoted=True)
            else:
                found = run.match(self.text, self.at)
                assert found
                pieces.append(Literal(found[0], quoted=True))
                self.at = found.end()
        if closing:
            raise Refused("a quote is not closed")
        return tuple(pieces)

    def _dollar(self, pieces: list[Piece], *, quoted: bool) -> None:
        text, start = self.text, self.at
        if self._next_is("\\\n", 1):
            raise NotUnderstood("a line is continued behind a dollar sign")
        if not quoted and self._next_is("'", 1):
            self.at += 1
            pieces.append(Literal(self._ansi_quoted(), quoted=True))
        elif not quoted and self._next_is('"', 1):
            self.at += 2
            pieces.append(Literal("", quoted=True))
            pieces += self._double_quoted()
        elif self._next_is("((", 1) and (arithmetic := self._arithmetic_or_none(3)) is not None:
            pieces.append(arithmetic)
        elif self._next_is("(", 1):
            self.at += 2
            pieces.append(Substitution(self._script_inside(), quoted))
        elif self._next_is("{", 1):
            self.at += 2
            pieces.append(self._parameter(quoted=quoted))
        elif self._next_is("[", 1):
            raise NotUnderstood("$[ ] is an old form")
        elif found := _NAME.match(text, start + 1):
            pieces.append(Variable(found[0], quoted, is_bare=True))
            self.at = found.end()
            if self._next_is("\\\n"):
                raise NotUnderstood("a name is continued on the next line")
        elif text[start + 1 : start + 2] and text[start + 1] in _SPECIAL:
            pieces.append(Variable(text[start + 1], quoted, is_bare=True))
            self.at += 2
        else:
            pieces.append(Literal("$", quoted=True))
            self.at += 1

    def _parameter(self, *, quoted: bool) -> Variable:
        """The inside of `${` and `}`."""
        if self._next_is("!"):
            raise NotUnderstood("an indirect expansion")
        is_length = self._next_is("#") and not self._next_is("}", 1)
        self.at += is_length
        found = _NAME.match(self.text, self.at) or re.compile(r"\d+|[@*#?$!-]").match(self.text, self.at)
        if not found:
            raise NotUnderstood("an expansion that is not known")
        self.at = found.end()
        name = found[0]
        if self._next_is("[@]}") or self._next_is("[*]}"):
            name += self.text[self.at + 1]
            self.at += 3
        if self._next_is("}"):
            self.at += 1
            return Variable(name, quoted, "length" if is_length else "")
        operator = _OPERATOR.match(self.text, self.at)
        if is_length or not operator or operator[0] not in (*_WITH_TEXT, ":"):
            raise NotUnderstood("an expansion that is not known")
        self.at = operator.end()
        if operator[0] == ":":
            bounds = re.compile(r" ?-?\d+(:-?\d+)?\}").match(self.text, self.at)
            if not bounds:
                raise NotUnderstood("a substring by an expression")
            self.at = bounds.end()
            return Variable(name, quoted, ":")
        start = self.at
        self._deeper()
        pieces = self._pieces_in_quoted_braces() if quoted else self._pieces("}")
        if not self._next_is("}"):
            raise Refused("an expansion is not closed")
        self.at += 1
        self.depth -= 1
        return Variable(name, quoted, operator[0], Word(self.text[start : self.at - 1], pieces))

    def _pieces_in_quoted_braces(self) -> tuple[Piece, ...]:
        """As inside double quotes. Quotes within quotes have special rules that are not modelled."""
        pieces: list[Piece] = []
        plain = re.compile(r"[^\"'`$\\{}]+")
        while self.at < len(self.text) and not self._next_is("}"):
            if self.text[self.at] in "'\"\\{":
                raise NotUnderstood("quotes inside a quoted expansion")
            if self._next_is("`"):
                pieces.append(self._backquoted(quoted=True))
            elif self._next_is("$"):
                self._dollar(pieces, quoted=True)
            else:
                found = plain.match(self.text, self.at)
                assert found
                pieces.append(Literal(found[0], quoted=True))
                self.at = found.end()
        return tuple(pieces)

    def _arithmetic_or_none(self, opening: int) -> Arithmetic | None:
        """Arithmetic behind `opening` characters that end in `((`; None, the cursor unmoved, for two subshells."""
        start, depth = self.at, self.depth
        if start in self._subshells:
            return None
        self.at += opening
        try:
            return self._arithmetic()
        except NotArithmetic:
            self._subshells.add(start)  # or each nested one would be read twice, exponentially
            self.at, self.depth = start, depth
            return None

    def _arithmetic(self) -> Arithmetic:
        """The inside of `((` up to `))`."""
        self._deeper()
        pieces: list[Piece] = []
        has_quotes = False
        plain = re.compile(r"[^`$()'\"\\]+")
        open_parens = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")" and not open_parens:
                if not self._next_is("))"):
                    raise NotArithmetic("an expression that ends in the middle")
                if has_quotes:
                    raise NotUnderstood("quotes inside arithmetic")
                self.at += 2
                self.depth -= 1
                return Arithmetic(tuple(pieces))
            if char in "()":
                open_parens += 1 if char == "(" else -1
                pieces.append(Literal(char, quoted=False))
                self.at += 1
            elif char == "`":
                pieces.append(self._backquoted(quoted=True))
            elif char == "$" and not self._next_is("$'"):
                self._dollar(pieces, quoted=True)
            elif found := plain.match(self.text, self.at):
                pieces.append(Literal(found[0], quoted=False))
                self.at = found.end()
            else:
                has_quotes = True
                self._pass_quotes()
        raise Refused("an arithmetic expansion is not closed")

    def _pass_quotes(self) -> None:
        if self._next_is("$'"):
            self.at += 1
            self._ansi_quoted()
        elif self._next_is("'"):
            self._single_quoted()
        elif self._next_is('"'):
            self.at += 1
            self._double_quoted()
        else:
            self.at += 2

    def _backquoted(self, *, quoted: bool) -> Substitution:
        """The inside of backquotes. Backslashes before some characters are removed."""
        inside = []
        at = self.at + 1
        while True:
            found = re.compile(r"[^`\\]*").match(self.text, at)
            assert found
            inside.append(found[0])
            at = found.end()
            if at >= len(self.text):
                raise Refused("a backquote is not closed")
            if self.text[at] == "`":
                break
            follower = self.text[at + 1 : at + 2]
            inside.append(follower if follower in ("`", "$", "\\") or (quoted and follower == '"') else "\\" + follower)
            at += 2
        self.at = at + 1
        try:
            return Substitution(self._script_of("".join(inside)), quoted)
        except Refused as refused:  # bash meets the error only here, after running what comes before
            raise NotUnderstood(str(refused)) from refused

    def _ansi_quoted(self) -> str:
        """`'...'` behind a dollar sign, with its escapes decoded (bash(1), QUOTING)."""
        found = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if not found:
            raise Refused("a quote is not closed")
        self.at = found.end()
        return unescape(found[1])


_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|c(.)|(.))", re.DOTALL
)
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip


def unescape(text: str) -> str:
    """Decode C escapes. Raises `NotUnderstood` for those that end or spoil a string, such as a NUL."""

    def undo(found: re.Match[str]) -> str:
        hexadecimal, octal, short, long, control, simple = found.groups()
        if control is not None:
            raise NotUnderstood("a control character in quotes")
        if simple is not None:
            return _SIMPLE_ESCAPES.get(simple, "\\" + simple)
        code = int(octal, 8) & 0xFF if octal else int(hexadecimal or short or long, 16)
        if code == 0 or code > 0x10FFFF or ((hexadecimal or octal) and code > 0x7F) or 0xD800 <= code < 0xE000:
            raise NotUnderstood("a byte that is no text")
        return chr(code)

    return _ESCAPE.sub(undo, text)


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Join neighbouring literals of the same kind."""
    if len(pieces) < 2:
        return tuple(pieces)
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, Literal) and isinstance(last, Literal) and piece.quoted == last.quoted:
            joined[-1] = Literal(last.text + piece.text, piece.quoted)
        else:
            joined.append(piece)
    return tuple(joined)
