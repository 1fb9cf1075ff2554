"""Defines the syntax tree of a command and the state of the shell, and reads the words of a command.

Words are read if they are static: quotes of all kinds, `~`, `$HOME`, `$PWD`, globs. `$?` and `$(…)` leave
`UNKNOWN_TEXT` in the word; other expansions also leave a problem. The commands in `$(…)` and the like are read, too.
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
UNKNOWN_TEXT, HOME_MARK, CWD_MARK = "\ue000", "\ue001", "\ue002"


class Field(Struct, frozen=True):
    """One word of a command, without its quotes.

    `text` has `UNKNOWN_TEXT` for each part that is not known. `is_glob`: it contains wildcards. `may_vanish`: the shell
    may turn it into no argument or several.
    """

    text: str
    is_glob: bool = False
    may_vanish: bool = False

    @property
    def is_known(self) -> bool:
        return UNKNOWN_TEXT not in self.text

    @property
    def needs_state(self) -> bool:
        return HOME_MARK in self.text or CWD_MARK in self.text  # `State.expand` replaces the marks


def name_of(fields: Sequence[Field]) -> str:
    """Return the name of a program without its folder; empty if it is not known."""
    return fields[0].text.rpartition("/")[2] if fields and fields[0].is_known else ""


class Redirect(Struct):
    """A redirection such as `>file`. For `<<` and `<<<`, the target is the text itself; for `<<` it is set later."""

    operator: str
    target: Field
    descriptor: str = ""  # the text before the operator: `2`, `{name}`; "" for the standard input or output


class CommandNode(Struct, kw_only=True):
    """A simple command, or a subshell. Without words it only sets variables or redirects."""

    text: str = ""  # the whole command as written
    words_text: str = ""  # its words as written, without assignments and redirections
    assignments: list[tuple[str, Field]] = []  # each a name and a value
    words: list[Field] = []
    redirects: list[Redirect] = []
    substitutions: list[Script] = []  # the scripts of its substitutions
    subshell: Script | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.words or self.assignments or self.redirects or self.subshell is not None)


class Pipeline(Struct, frozen=True):
    """Commands joined by `|`, and the operator after them: `;`, `&`, `&&`, `||`, a newline, `)`, or nothing."""

    parts: tuple[CommandNode, ...]
    operator_after: str


Script = tuple[Pipeline, ...]


def normal(path: str) -> str:
    """Return an absolute path without `.`, `..` and repeated slashes; symlinks are not followed."""
    return posixpath.normpath("/" + path.lstrip("/"))


_MAX_FOLDERS = 4  # folders that a shell may be in; with more, it is treated as anywhere


class State(Struct, frozen=True):
    """The state of the shell before or after a command."""

    folders: tuple[str, ...] | None  # the folders it may be in; None: any folder
    home: str  # the person's home
    start: str  # the folder in which the whole command starts

    def expand(self, field: Field) -> Field:
        """Return a word with the paths of the home and of the current folder in place of their marks."""
        if not field.needs_state:
            return field
        cwd = self.folders[0] if self.folders and len(self.folders) == 1 else None
        text = field.text
        for mark, path in ((HOME_MARK, self.home), (CWD_MARK, cwd)):
            is_split = path is not None and re.search(r"[\s*?\[\]\\]", path)  # into several words
            text = text.replace(mark, UNKNOWN_TEXT if path is None or is_split else path)
        return Field(text, field.is_glob, field.may_vanish or UNKNOWN_TEXT in text)

    def paths(self, field: Field) -> list[str]:
        """Return the absolute paths that a word may mean, which may contain `..`; none if they are not known."""
        if not field.is_known:
            return []
        if field.text.startswith("/"):
            return [field.text]
        return [f"{folder}/{field.text}" for folder in self.folders or ()]

    def likely_paths(self, field: Field) -> list[str]:
        """Return the path of a secret or auto-executed file if the known part of a word names one, as in `$X/.env`.

        A command that may use such a file therefore leads to a question even if it cannot be read in full.
        """
        # The word as it is if all unknown parts are empty, and what follows the last of them.
        for name in (field.text.replace(UNKNOWN_TEXT, ""), field.text.rpartition(UNKNOWN_TEXT)[2].lstrip("/:")):
            # `.env*` may match `.env.x`.
            path = PurePath(self.start, name.replace("*", ".x") if field.is_glob else name)
            if name and (is_secret(path, None) or is_auto_executed(PurePath(name))):
                return [normal(posixpath.join(self.start, name))]
        return []

    def in_unknown_folder(self) -> State:
        return structs.replace(self, folders=None)

    def entering(self, field: Field) -> State:
        paths = self.paths(field) if not field.is_glob else []
        return structs.replace(self, folders=tuple(dict.fromkeys(map(normal, paths))) or None)

    def or_else(self, other: State) -> State:
        """Return a state for a shell that is in one of the two states, and thus in a folder of either."""
        if self.folders is None or other.folders is None:
            return self.in_unknown_folder()
        folders = tuple(dict.fromkeys((*self.folders, *other.folders)))
        return structs.replace(self, folders=folders if len(folders) <= _MAX_FOLDERS else None)


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
        self.syntax_error = ""  # because of it, bash would run nothing of the text
        self.substitutions: list[Script] = []  # scripts substituted in the command that is being read

    @abstractmethod
    def _read_script_in_parentheses(self) -> Script:
        """Read the commands up to and including the closing `)`."""

    @abstractmethod
    def _read_script_in(self, text: str) -> Script:
        """Read the commands in a part of a word, such as those in backquotes."""

    def _note(self, problem: str) -> None:
        self.problem = self.problem or problem

    def _note_syntax_error(self, problem: str) -> None:
        """Note a problem that is also a `syntax_error` if all before it was understood and ran nothing."""
        if not self.problem and "\n" not in self.text:
            self.syntax_error = problem
        self._note(problem)

    def _next_is(self, text: str | tuple[str, ...], ahead: int = 0) -> bool:
        return self.text.startswith(text, self.at + ahead)

    def _read_word(self) -> Field:
        """Read up to the end of a word, and return it without its quotes."""
        parts: list[str] = []
        shape: list[str] = []  # the unquoted text, with an `a` for each quoted part, which is never special
        may_vanish = False
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;&|()" or (char in "<>" and not self._next_is("(", 1)):
                break
            shape_of_part = "a"
            if found := _RUN.match(self.text, self.at):
                text = shape_of_part = found[0]
                self.at = found.end()
            elif self._next_is("\\\n"):
                self._note("a line is continued in the middle of a word")
                text = shape_of_part = ""
                self.at += 2
            elif char == "\\":
                text = self.text[self.at + 1 : self.at + 2] or "\\"  # at the end of the text, a backslash is literal
                self.at += 2
            elif char == "'":
                text = self._read_single_quotes()
            elif char == '"':
                self.at += 1
                text = self._read_double_quotes()
            elif char == "`":
                text = self._read_backquotes()
                may_vanish = True
            elif char == "$":
                text = self._read_expansion(quoted=False)
                is_number = self.text[self.at - 2 : self.at] == "$?"  # the exit status, which is always one word
                may_vanish = may_vanish or (UNKNOWN_TEXT in text and not is_number)
            else:  # `<(` or `>(`
                self.at += 2
                self._note("it uses a process substitution")
                text = self._read_substitution()
            parts.append(text)
            shape.append(shape_of_part)
        return self._make_field("".join(parts), "".join(shape), may_vanish=may_vanish)

    def _make_field(self, text: str, shape: str, *, may_vanish: bool) -> Field:
        """Interpret what is special outside quotes: braces, `~`, brackets and wildcards.

        `shape` is the word as in the command, with an `a` for each quoted part.
        """
        braced = shape[shape.find("{") : shape.rfind("}")] if "{" in shape else ""
        if "," in braced or ".." in braced:
            self._note("braces make several words of one")
            return Field(UNKNOWN_TEXT, may_vanish=True)
        if "~" in shape:
            if shape == "~" or shape.startswith("~/"):
                text = HOME_MARK + text[1:]
            elif re.match(r"~|[A-Za-z_]\w*\+?=(?s:.*[=:])?~", shape):  # `~name`; `PATH=/bin:~`
                self._note("it uses a form of ~ that agentcli can't read")
                text = "/root" + text.removeprefix("~root") if re.match(r"~root(/|$)", shape) else UNKNOWN_TEXT
        is_bracket = -1 < shape.find("[") < shape.rfind("]")
        if is_bracket and not text.endswith(shape[shape.find("[") :]):  # it, or text after it, is quoted
            self._note("a pattern is partly quoted")
        return Field(text, is_glob="*" in shape or "?" in shape or is_bracket, may_vanish=may_vanish)

    def _read_single_quotes(self) -> str:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self._note_syntax_error("a quote is not closed")
            end = len(self.text)
        start, self.at = self.at + 1, end + 1
        return self.text[start:end]

    def _read_double_quotes(self) -> str:
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
                next_char = self.text[self.at + 1 : self.at + 2]
                if next_char not in '$`"\\\n':  # before other characters the backslash stays
                    parts.append("\\")
                parts.append(next_char.removeprefix("\n"))  # a continued line
                self.at += 2
            elif char == "`":
                parts.append(self._read_backquotes())
            else:
                parts.append(self._read_expansion(quoted=True))
        self._note_syntax_error("a quote is not closed")
        return "".join(parts)

    def _read_expansion(self, *, quoted: bool) -> str:
        """Read past a `$` and what belongs to it; return its text, or `UNKNOWN_TEXT` if its value is not known."""
        next_char = self.text[self.at + 1 : self.at + 2]
        if not quoted and next_char == "'":
            self.at += 1
            return self._read_ansi_quotes()
        if next_char == "(":
            self.at += 2
            return self._read_substitution()
        if found := _KNOWN_VARIABLE.match(self.text, self.at):
            self.at = found.end()
            return HOME_MARK if "HOME" in found.groups() else CWD_MARK
        if next_char == "?":  # `$?` is a number, which is never a problem
            self.at += 2
            return UNKNOWN_TEXT
        # If a `${…}` is not simple, the rest of it is read like ordinary text of the word.
        if found := _NAME.match(self.text, self.at + 1) or _BRACED_NAME.match(self.text, self.at + 1):
            self._note("it uses a variable")
            self.at = found.end()
            return UNKNOWN_TEXT
        self.at += 1
        if next_char in ("\\", "[") or (not quoted and next_char == '"'):
            self._note("it uses a form of $ that agentcli can't read")
            return UNKNOWN_TEXT
        return "$"

    def _read_substitution(self) -> str:
        """Read the commands after `$(`, `<(` or `>(`, up to the closing `)`."""
        if self.depth >= MAX_DEPTH:
            self._note("it is nested too deeply")  # the commands inside are read as if they were outside
        else:
            self.substitutions.append(self._read_script_in_parentheses())
        return UNKNOWN_TEXT

    def _read_backquotes(self) -> str:
        """Read the commands in backquotes, where a backslash before a backquote, `$` or backslash is removed."""
        found = re.compile(r"`((?:[^`\\]|\\.)*)(`?)", re.DOTALL).match(self.text, self.at)
        assert found
        if not found[2]:
            self._note_syntax_error("a backquote is not closed")
        self._note("it uses backquotes")
        self.at = found.end()
        self.substitutions.append(self._read_script_in(re.sub(r"\\([`$\\])", r"\1", found[1])))
        return UNKNOWN_TEXT

    def _read_ansi_quotes(self) -> str:
        """Read `$'…'` from its first quote on, and decode its escapes (bash(1), QUOTING)."""
        found = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if not found:
            self._note_syntax_error("a quote is not closed")
            self.at = len(self.text)
            return UNKNOWN_TEXT
        self.at = found.end()
        if (text := unescape(found[1])) is None:
            self._note("its quotes contain bytes that are not text")
            return UNKNOWN_TEXT
        return text


_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|(c|.))", re.DOTALL)
_SIMPLE_ESCAPES = {
    "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "'": "'", '"': '"', "?": "?",
}  # fmt: skip


def unescape(text: str) -> str | None:
    """Decode C escapes; None if one of them ends the string, or its character cannot be part of a word."""
    parts, end = [], 0  # the text up to index `end` is decoded
    for found in _ESCAPE.finditer(text):
        hexadecimal, octal, short, long, letter = found.groups()
        parts.append(text[end : found.start()])
        end = found.end()
        if letter == "c":  # for printf and echo, it ends the string
            return None
        if letter is not None:
            parts.append(_SIMPLE_ESCAPES.get(letter, "\\" + letter))
            continue
        code = int(octal, 8) & 0xFF if octal else int(hexadecimal or short or long, 16)
        is_byte = hexadecimal is not None or octal is not None
        # A NUL, a byte of a UTF-8 sequence, a surrogate, or a private-use character such as `HOME_MARK`.
        if code == 0 or code > 0x10FFFF or (is_byte and code > 0x7F) or 0xD800 <= code < 0xF900:
            return None
        parts.append(chr(code))
    return "".join((*parts, text[end:]))
