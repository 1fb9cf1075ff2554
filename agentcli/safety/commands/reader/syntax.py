"""Defines the syntax tree of a command and the state of the shell, and reads the words of a command.

Words are read if they are static: quotes of all kinds, `~`, `$HOME`, `$PWD`, globs. `$?` and `$(…)` leave a `HOLE` in
the word; other expansions leave a `HOLE` and a problem. The commands inside `$(…)` and the like are read, too.
"""

from __future__ import annotations

import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import PurePath

from msgspec import Struct, structs

from agentcli.safety.paths.judge import is_auto_executed, is_secret

# Marks in words, for text that only the shell knows, for the home, and for the folder the shell is in. They are
# private-use characters, which `analyse` has replaced in the command as written.
HOLE, HOME, HERE = "\ue000", "\ue001", "\ue002"


class Field(Struct, frozen=True):
    """One word of a command, without its quotes.

    `text` has a `HOLE` for each part that is not known. `is_glob`: it contains wildcards. `may_vanish`: the shell may
    turn it into no argument or several.
    """

    text: str
    is_glob: bool = False
    may_vanish: bool = False

    @property
    def is_known(self) -> bool:
        return HOLE not in self.text


def name_of(fields: Sequence[Field]) -> str:
    """Return the name of a program without its folder; empty if it is not known."""
    return fields[0].text.rpartition("/")[2] if fields and fields[0].is_known else ""


class Redirect(Struct):
    """A redirection such as `>file`. For `<<` and `<<<`, the target is the text itself; for `<<` it is set later."""

    operator: str
    target: Field


class CommandNode(Struct, frozen=True, kw_only=True):
    """A simple command, or a subshell. Without words it only sets variables or redirects."""

    text: str  # the whole command as written
    written: str  # its words as written, without assignments and redirections
    assignments: tuple[tuple[str, Field], ...]  # each a name and a value
    words: tuple[Field, ...]
    redirects: tuple[Redirect, ...]
    inside: tuple[Script, ...]  # the scripts of its substitutions
    subshell: Script | None = None


class Pipeline(Struct, frozen=True):
    """Commands joined by `|`, and the operator after them: `;`, `&`, `&&`, `||`, a newline, `)`, or nothing."""

    parts: tuple[CommandNode, ...]
    then: str


Script = tuple[Pipeline, ...]


def normal(path: str) -> str:
    """Return an absolute path without `.`, `..` and repeated slashes; symlinks are not followed."""
    return posixpath.normpath("/" + path.lstrip("/"))


_MAX_FOLDERS = 4  # folders that a shell may be in; with more, it is treated as anywhere


class State(Struct, frozen=True):
    """The state of the shell before or after a command."""

    folders: tuple[str, ...] | None  # the folders it may be in; None: any folder
    home: str | None  # the person's home; None if the command changes it
    start: str  # the folder in which the whole command starts

    def resolved(self, field: Field) -> Field:
        """Return a word with paths in place of `HOME` and `HERE`; a path that the shell may split becomes a `HOLE`."""
        if HOME not in field.text and HERE not in field.text:
            return field
        here = self.folders[0] if self.folders and len(self.folders) == 1 else None  # unknown if there are several
        text = field.text
        for mark, value in ((HOME, self.home), (HERE, here)):
            text = text.replace(mark, HOLE if value is None or re.search(r"[\s*?\[\]\\]", value) else value)
        return Field(text, field.is_glob, field.may_vanish or HOLE in text)

    def paths(self, field: Field) -> list[str]:
        """Return the absolute paths that a word may mean, which may contain `..`; none if they are not known."""
        if not field.is_known:
            return []
        return (
            [field.text] if field.text.startswith("/") else [f"{folder}/{field.text}" for folder in self.folders or ()]
        )

    def likely_paths(self, field: Field) -> list[str]:
        """Return the path of a secret or auto-executed file if the known part of a word names one, as in `$X/.env`.

        A command that may use such a file therefore leads to a question even if it cannot be read in full.
        """
        for name in (field.text.replace(HOLE, ""), field.text.rpartition(HOLE)[2].lstrip("/:")):
            path = PurePath(self.start, name.replace("*", ".x") if field.is_glob else name)
            if name and (is_secret(path, None) or is_auto_executed(PurePath(name))):
                return [normal(posixpath.join(self.start, name))]
        return []

    def anywhere(self) -> State:
        return structs.replace(self, folders=None)

    def entering(self, field: Field) -> State:
        paths = self.paths(field) if not field.is_glob else []
        return structs.replace(self, folders=tuple(dict.fromkeys(map(normal, paths))) or None)

    def or_else(self, other: State) -> State:
        both = tuple(dict.fromkeys((*(self.folders or ()), *(other.folders or ()))))
        is_known = self.folders is not None and other.folders is not None and len(both) <= _MAX_FOLDERS
        return structs.replace(self, folders=both if is_known else None)


MAX_DEPTH = 30  # of substitutions and subshells inside each other; two or three are usual

_RUN = re.compile(r"[^ \t\n;&|()<>\"'`$\\]+")  # unquoted text without special characters
_RUN_IN_QUOTES = re.compile(r"[^\"`$\\]+")  # the same in double quotes
_NAME = re.compile(r"[A-Za-z_]\w*|[-@*#$!\d]", re.ASCII)  # the name of a variable or special parameter
_BRACED_NAME = re.compile(r"\{[^}$`'\"\\]*\}?")  # the rest of a `${…}`, if it is simple
_KNOWN_VARIABLE = re.compile(r"\$(?:(HOME|PWD)(?!\w|\\\n)|\{(HOME|PWD)\})", re.ASCII)  # `$HOME`, `${PWD}`


class WordReader(ABC):
    """Reads the words of a text, one after the other, as bash 5 does (bash(1), QUOTING, EXPANSION)."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0  # the position in the text up to which it was read
        self.depth = depth  # the number of substitutions and subshells around that position
        self.problem = ""  # why commands other than those that were read may run
        self.refusal = ""  # a syntax error because of which bash would run nothing of the text
        self.has_ended_line = False  # True once bash would have run a line
        self.inside: list[Script] = []  # scripts substituted in the command that is being read

    @abstractmethod
    def _script_inside(self) -> Script:
        """Read the commands up to and including the closing `)`."""

    @abstractmethod
    def _script_of(self, text: str) -> Script:
        """Read the commands of another text."""

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _refuse(self, problem: str) -> None:
        """Note a syntax error. It is a refusal only if all before it was understood and bash has run no line yet."""
        if not self.problem and not self.has_ended_line:
            self.refusal = problem
        self._note(problem)

    def _next_is(self, text: str | tuple[str, ...], ahead: int = 0) -> bool:
        return self.text.startswith(text, self.at + ahead)

    def _word(self) -> Field:
        """Read up to the end of a word, and return it without its quotes."""
        parts: list[str] = []
        shape: list[str] = []  # the unquoted text, with an `a` for each quoted part
        may_vanish = False
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;&|()" or (char in "<>" and not self._next_is("(", 1)):
                break
            quoted = "a"  # what the part adds to `shape`
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
                is_number = self.text[self.at - 2 : self.at] == "$?"
                may_vanish = may_vanish or (HOLE in text and not is_number)
            else:
                self.at += 2
                self._note("it uses a process substitution")
                text = self._substitution()
            parts.append(text)
            shape.append(quoted)
        return self._field("".join(parts), "".join(shape), may_vanish=may_vanish)

    def _field(self, text: str, shape: str, *, may_vanish: bool) -> Field:
        # Braces, `~` and brackets are special only in `shape`, the unquoted text (see `_word`).
        braced = shape[shape.find("{") : shape.rfind("}")] if "{" in shape else ""
        if "," in braced or ".." in braced:
            self._note("braces make several words of one")
            return Field(HOLE, may_vanish=True)
        if "~" in shape:
            if shape == "~" or shape.startswith("~/"):
                text = HOME + text[1:]
            elif re.match(r"~|[A-Za-z_]\w*\+?=(?s:.*[=:])?~", shape):
                self._note("it uses a form of ~ that agentcli can't read")
                text = f"/root{text.removeprefix('~root')}" if re.match(r"~root(/|$)", shape) else HOLE
        is_bracket = -1 < shape.find("[") < shape.rfind("]")
        if is_bracket and not text.endswith(shape[shape.find("[") :]):  # it, or text after it, is quoted
            self._note("a pattern is partly quoted")
        return Field(text, is_glob="*" in shape or "?" in shape or is_bracket, may_vanish=may_vanish)

    def _single_quoted(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._refuse("a quote is not closed")
            end = len(self.text)
        start, self.at = self.at + 1, end + 1
        return self.text[start:end]

    def _double_quoted(self) -> str:
        """Read the text up to and including the closing quote, and return it without that quote."""
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
                is_escape = follower in '$`"\\'  # before other characters the backslash stays
                parts.append("" if follower == "\n" else follower if is_escape else "\\" + follower)
                self.at += 2
            elif char == "`":
                parts.append(self._backquoted())
            else:
                parts.append(self._expansion(quoted=True))
        self._refuse("a quote is not closed")
        return "".join(parts)

    def _expansion(self, *, quoted: bool) -> str:
        """Read past a `$` and what belongs to it; return its text, or a `HOLE` if its value is not known."""
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
        if follower == "?":  # `$?` is a number, which is never a problem
            self.at += 2
            return HOLE
        # If a `${…}` is not simple, the rest of it is read like ordinary text of the word.
        if found := _NAME.match(self.text, self.at + 1) or _BRACED_NAME.match(self.text, self.at + 1):
            self._note("it uses a variable")
            self.at = found.end()
            return HOLE
        self.at += 1
        if follower in ("\\", "[") or (not quoted and follower == '"'):
            self._note("it uses a form of $ that agentcli can't read")
            return HOLE
        return "$"

    def _substitution(self) -> str:
        if self.depth >= MAX_DEPTH:
            self._note("it is nested too deeply")  # the commands inside are read as if they were outside
        else:
            before, self.inside = self.inside, []  # while the script is read, `inside` is that of its commands
            self.inside = [*before, self._script_inside()]
        return HOLE

    def _backquoted(self) -> str:
        """Read the commands in backquotes, where a backslash before a backquote, `$` or backslash is removed."""
        self._note("it uses backquotes")
        found = re.compile(r"`((?:[^`\\]|\\.)*)(`?)", re.DOTALL).match(self.text, self.at)
        assert found
        if not found[2]:
            # `_refuse` has an effect only if nothing was noted before.
            self.problem = "" if self.problem == "it uses backquotes" else self.problem
            self._refuse("a backquote is not closed")
        self.at = found.end()
        self.inside.append(self._script_of(re.sub(r"\\([`$\\])", r"\1", found[1])))
        return HOLE

    def _ansi_quoted(self) -> str:
        """Read `$'…'` from its first quote on, and decode its escapes (bash(1), QUOTING)."""
        found = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if not found:
            self._refuse("a quote is not closed")
            self.at = len(self.text)
            return HOLE
        self.at = found.end()
        if (text := unescape(found[1])) is None:
            self._note("its quotes contain bytes that are not text")
            return HOLE
        return text


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(c|.))", re.DOTALL)
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip


def unescape(text: str) -> str | None:
    """Decode C escapes; None if one of them ends the string or is not a character."""
    parts, end = [], 0  # `end`: of the last escape
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
        # A NUL, a byte of a UTF-8 sequence, a surrogate, or a private-use character, which may be one of the marks.
        if code == 0 or code > 0x10FFFF or (is_byte and code > 0x7F) or 0xD800 <= code < 0xF900:
            return None
        parts.append(chr(code))
    return "".join((*parts, text[end:]))
