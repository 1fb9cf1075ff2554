"""Reads simple commands (assignments, words, redirections, here-documents) and what separates them."""

from __future__ import annotations

import re

from agentcli.safety.commands.reader.syntax import Assignment, Command, Literal, Piece, Redirect, Word
from agentcli.safety.commands.reader.words import NotUnderstood, Refused, WordReader

_CONTROL = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;&|()\n]")
_REDIRECT = re.compile(r"(\d*|\{[A-Za-z_]\w*(?:\[\w+\])?\})(<<<|<<-|<<|<&|<>|<|&>>|&>|>>|>&|>\||>)")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BARE = re.compile(r"[^ \t\n;&|()<>\"'`$\\]+")
_PLAIN_NAME = re.compile(r"[\w./+-]+")
_RESERVED = frozenset(
    "if then elif else fi for in do done while until case esac select function coproc time export declare typeset "
    "local readonly".split()
)
_ELEMENT = re.compile(r"[A-Za-z_]\w*\[")


class _HereDocument:
    """A here-document whose text has not been reached yet."""

    def __init__(self, redirect: Redirect) -> None:
        word = redirect.target
        if any(not isinstance(piece, Literal) for piece in word.pieces):
            raise NotUnderstood("a here-document that ends in an expansion")
        self.redirect = redirect
        self.ending = "".join(piece.text for piece in word.pieces if isinstance(piece, Literal))
        self.is_quoted = any(char in word.text for char in "'\"\\")
        self.strips_tabs = redirect.operator == "<<-"
        redirect.target = Word("", ())


class CommandReader(WordReader):
    """A cursor that reads blanks, operators and simple commands."""

    def __init__(self, text: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self._here_documents: dict[int, _HereDocument] = {}  # by position, since some are met twice

    def _simple_command(self) -> Command:
        start = end = self.at
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        while True:
            if (redirect := self._redirect()) is not None:
                redirects.append(redirect)
            elif self._starts_word():
                self._read_into(assignments, words)
            else:
                break
            end = self.at
            self._blanks()
        if not (assignments or words or redirects):
            raise Refused(f"a command is missing before {self._control() or 'the end'!r}")
        return Command(self.text[start:end].strip(), tuple(assignments), tuple(words), tuple(redirects))

    def _read_into(self, assignments: list[Assignment], words: list[Word]) -> None:
        start = self.at
        found = None if words else _ASSIGNMENT.match(self.text, start)
        if not words and _ELEMENT.match(self.text, start):
            raise NotUnderstood("an array element")
        if found and self._next_is("(", found.end() - start):
            self.at = found.end()
            assignments.append(Assignment(found[1], None, bool(found[2]), self._array()))
            return
        word = self._word()
        if self._next_is("("):
            raise NotUnderstood("a parenthesis inside a word")
        if not words and re.match(r"[^\"'$`]*\\\n", word.text) and not self._is_plain_name(word):
            raise NotUnderstood("a command's name over two lines")
        if found:
            self.at = found.end()
            value = self._word() if self._starts_word() else Word("", ())
            assignments.append(Assignment(found[1], value, bool(found[2])))
        else:
            words.append(word)

    def _is_plain_name(self, word: Word) -> bool:
        """True if a first word that continues on the next line names a program once it is joined."""
        name = word.text.replace("\\\n", "")
        end = self.at
        self._blanks()
        is_function = self._next_is("(")
        self.at = end
        return _PLAIN_NAME.fullmatch(name) is not None and name not in _RESERVED and not is_function

    def _array(self) -> tuple[Word, ...]:
        words: list[Word] = []
        self.at += 1
        while not self._next_is(")"):
            self._skip_newlines()
            if self._starts_word():
                words.append(self._word())
            elif not self._next_is(")"):
                raise NotUnderstood("an array")
        self.at += 1
        return tuple(words)

    def _redirect(self) -> Redirect | None:
        self._skip_continuations()
        found = _REDIRECT.match(self.text, self.at)
        if not found or (found[2] in ("<", ">") and self.text.startswith("(", found.end())):
            return None
        if self._next_is("\\\n", found.end() - self.at):
            raise NotUnderstood("a line is continued inside an operator")
        self.at = found.end()
        self._blanks()
        if not self._starts_word():
            raise Refused("a redirection leads nowhere")
        if found[2] in ("<&", ">&") and self._next_is(
            "-"
        ):  # one token: `>&-x` closes the descriptor, and x is the next word
            self.at += 1
            if self._next_is("#"):
                raise NotUnderstood("a comment right behind an operator")
            target = Word("-", (Literal("-", quoted=False),))
        else:
            target = self._word()
        descriptor = int(found[1]) if found[1].isdigit() else found[1].strip("{}") or None
        redirect = Redirect(found[2], descriptor, target)
        if found[2] in ("<<", "<<-"):
            self._here_documents[found.start()] = _HereDocument(redirect)
        return redirect

    # Blanks, comments, operators

    def _blanks(self) -> None:
        """Pass over blanks, continued lines and a comment."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t":
                self.at += 1
            elif self._next_is("\\\n"):
                self.at += 2
            else:
                break
        before = self.text[self.at - 1] if self.at else "\n"
        if self._next_is("#") and before in " \t\n;&|()":
            end = self.text.find("\n", self.at)
            self.at = end if end >= 0 else len(self.text)

    def _control(self) -> str:
        self._blanks()
        found = _CONTROL.match(self.text, self.at)
        if not found:
            return ""
        if found[0] == "&" and self._next_is(">", 1):
            return ""
        if self._next_is("\\\n", len(found[0])) and found[0] in ("&", "|", ";"):
            raise NotUnderstood("a line is continued inside an operator")
        return found[0]

    def _peek_bare(self) -> str:
        """The word that begins here if nothing in it is quoted or expands. The cursor stays."""
        self._blanks()
        found = _BARE.match(self.text, self.at)
        if not found:
            return ""
        end = found.end()
        follower = self.text[end : end + 1]
        is_end = not follower or (follower in " \t\n;&|()<>" and self.text[end : end + 2] not in ("<(", ">("))
        return found[0] if is_end else ""

    # Lines and here-documents

    def _skip_newlines(self) -> bool:
        """Pass over blanks and newlines, reading the here-documents that begin there. Always False."""
        self._blanks()
        while self._next_is("\n"):
            self.at += 1
            self._read_here_documents()
            self._blanks()
        return False

    def _read_here_documents(self) -> None:
        for document in self._here_documents.values():
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                line = self.text[self.at : end if end >= 0 else len(self.text)]
                self.at = end + 1 if end >= 0 else len(self.text)
                line = line.lstrip("\t") if document.strips_tabs else line
                if line == document.ending:
                    break
                lines.append(line + "\n")
            body = "".join(lines)
            pieces = (
                (Literal(body, quoted=True),) if document.is_quoted else type(self)(body, self.depth + 1).here_text()
            )
            document.redirect.target = Word(body, pieces)
        self._here_documents = {}

    def here_text(self) -> tuple[Piece, ...]:
        """The pieces of a here-document that expands."""
        try:
            return self._double_quoted(closing="")
        except Refused as refused:  # bash meets the error only here, after running what comes before
            raise NotUnderstood(str(refused)) from refused
