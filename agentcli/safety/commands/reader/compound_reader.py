"""Reads commands of every kind: simple and compound ones, functions, conditions (bash(1), Compound Commands)."""

from __future__ import annotations

import re
from abc import abstractmethod

from agentcli.safety.commands.reader.command_reader import CommandReader
from agentcli.safety.commands.reader.syntax import (
    Case,
    Condition,
    For,
    Function,
    Group,
    If,
    Literal,
    Loop,
    Node,
    NotJudged,
    Script,
    Word,
)
from agentcli.safety.commands.reader.words import NotUnderstood, Refused

_EMPTY_PARENS = re.compile(r"[ \t]*\([ \t]*\)")
_REGEX = re.compile(r"(?:[^\s;&|<>'\"`$\\()]|\\\S|\$(?=[\s)|])|\((?:[^\s'\"`$\\()]|\\\S)*\))+(?=[ \t\n])")
_FUNCTION_NAME = re.compile(r"[^\s\"'`$\\<>;&|(){}=]+")
# Words that end a list of commands if they stand where a command could begin.
ENDINGS = frozenset("then else elif fi do done esac }".split())
_COMPOUND = frozenset("{ if while until for select case function [[".split())


class CompoundReader(CommandReader):
    """A cursor that reads compound commands. The lists of commands inside them are for the subclass."""

    @abstractmethod
    def _and_ors(self, *, stop_at_newline: bool = False) -> list[Node]:
        """Commands separated by `;`, `&` and newlines, up to what ends them."""

    def _command(self) -> Node:
        self._blanks()
        bare = self._peek_bare()
        if bare in ENDINGS:
            raise Refused(f"{bare!r} stands where a command must begin")
        if self._next_is("((") and (arithmetic := self._arithmetic_command()) is not None:
            return arithmetic
        if self._starts_compound():
            return self._redirected(self._subshell() if self._next_is("(") else self._compound(bare))
        if bare == "coproc":
            return self._coprocess()
        found = _FUNCTION_NAME.match(self.text, self.at)
        if found and _EMPTY_PARENS.match(self.text, found.end()):
            return self._function()
        return self._simple_command()

    def _starts_compound(self) -> bool:
        return self._next_is("(") or self._peek_bare() in _COMPOUND

    def _compound(self, bare: str) -> Node:
        match bare:
            case "{":
                return self._group()
            case "if":
                return self._if()
            case "while" | "until":
                return self._while()
            case "for" | "select":
                return self._for()
            case "case":
                return self._case()
            case "[[":
                return self._condition()
            case _:
                return self._function()

    def _redirected(self, node: Node) -> Node:
        redirects = []
        self._blanks()
        while (redirect := self._redirect()) is not None:
            redirects.append(redirect)
            self._blanks()
        if self._starts_word() and (redirects or self._peek_bare() not in ENDINGS):
            raise Refused("a word stands behind a compound command")
        if not redirects:
            return node
        if isinstance(node, Group):
            return Group(node.body, tuple(redirects), node.is_subshell)
        return Group(node, tuple(redirects))

    def _list_until(self, *endings: str) -> Script:
        """Read commands up to one of the words, and pass over it."""
        self._skip_newlines()
        items = self._and_ors()
        if self._peek_bare() not in endings:
            raise Refused(f"{' or '.join(endings)} is missing")
        return Script(tuple(items))

    def _take(self, *expected: str) -> str:
        self._skip_newlines()
        bare = self._peek_bare()
        if bare not in expected:
            raise Refused(f"{' or '.join(expected)} is missing")
        self._word()
        self._blanks()
        return bare

    def _subshell(self) -> Node:
        self.at += 1
        self._deeper()
        self._skip_newlines()
        items = self._and_ors()
        if not self._next_is(")"):
            raise Refused(") is missing")
        self.at += 1
        self.depth -= 1
        self._blanks()
        return Group(Script(tuple(items)), is_subshell=True)

    def _group(self) -> Node:
        self._take("{")
        self._deeper()
        body = self._list_until("}")
        self._take("}")
        self.depth -= 1
        return Group(body)

    def _if(self) -> Node:
        self._take("if")
        self._deeper()
        branches = []
        word = "if"
        while word != "fi":
            condition = Script(()) if word == "else" else self._list_until("then")
            if word != "else":
                self._take("then")
            body = self._list_until("fi") if word == "else" else self._list_until("elif", "else", "fi")
            branches.append((condition, body))
            word = self._take("elif", "else", "fi")
        self.depth -= 1
        return If(tuple(branches))

    def _while(self) -> Node:
        self._take("while", "until")
        self._deeper()
        condition = self._list_until("do")
        body = self._do_group()
        self.depth -= 1
        return Loop(condition, body)

    def _do_group(self, opening: str = "do", closing: str = "done") -> Script:
        self._take(opening)
        body = self._list_until(closing)
        self._take(closing)
        return body

    def _body_of_for(self) -> Script:
        """The body between `do` and `done`, or between braces, which bash accepts here without documenting it."""
        self._skip_separator()
        return self._do_group("{", "}") if self._peek_bare() == "{" else self._do_group()

    def _for(self) -> Node:
        start = self.at
        is_select = self._take("for", "select") == "select"
        self._deeper()
        if self._next_is("(("):
            self.at += 2
            word = Word(self.text[start : self.at], (self._arithmetic(),))
            body = self._body_of_for()
            self.depth -= 1
            return NotJudged(self.text[start : self.at], (body,), (word,))
        name = self._peek_bare()
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise Refused("a loop needs a name")
        self._word()
        self._skip_newlines()
        words: list[Word] | None = None
        if self._peek_bare() == "in":
            self._word()
            self._blanks()
            words = []
            while self._starts_word():
                words.append(self._word())
                self._blanks()
        body = self._body_of_for()
        self.depth -= 1
        if is_select:
            return NotJudged(self.text[start : self.at], (body,), tuple(words or ()))
        return For(name, None if words is None else tuple(words), body)

    def _skip_separator(self) -> None:
        self._blanks()
        if self._control() == ";":
            self.at += 1
        self._skip_newlines()

    def _case(self) -> Node:
        self._take("case")
        self._deeper()
        if not self._starts_word():
            raise Refused("case needs a word")
        subject = self._word()
        self._take("in")
        patterns: list[Word] = []
        arms: list[Script] = []
        while self._skip_newlines() or self._peek_bare() != "esac":
            if self._next_is("("):
                self.at += 1
                self._blanks()
            patterns += self._case_patterns()
            self._skip_newlines()
            if self._control() in (";;", ";&", ";;&") or self._peek_bare() == "esac":
                arms.append(Script(()))
            else:
                arms.append(Script(tuple(self._and_ors())))
            self._skip_newlines()
            if (end := self._control()) in (";;", ";&", ";;&"):
                self.at += len(end)
            elif self._peek_bare() != "esac":
                raise Refused("esac is missing")
        self._take("esac")
        self.depth -= 1
        return Case(subject, tuple(patterns), tuple(arms))

    def _case_patterns(self) -> list[Word]:
        patterns = []
        while True:
            if not self._starts_word():
                raise Refused("a pattern is missing")
            patterns.append(self._word())
            self._blanks()
            if self._next_is(")"):
                self.at += 1
                return patterns
            if self._control() != "|":
                raise NotUnderstood("a pattern")
            self.at += 1
            self._blanks()

    def _function(self) -> Node:
        if self._peek_bare() == "function":
            self._word()
            self._blanks()
        found = _FUNCTION_NAME.match(self.text, self.at)
        if not found:
            raise NotUnderstood("the name of a function")
        self.at = found.end()
        parens = _EMPTY_PARENS.match(self.text, self.at)
        self.at = parens.end() if parens else self.at
        self._skip_newlines()
        self._deeper()
        if not self._starts_compound():
            raise Refused("a function needs a compound command")
        body = self._command()
        self.depth -= 1
        return Function(found[0], body)

    def _coprocess(self) -> Node:
        start = self.at
        self._word()
        self._blanks()
        unnamed = self.at
        if self._starts_word() and self._peek_bare() not in _COMPOUND:
            self._word()  # a name if a compound command follows it
            is_array = self._next_is("(")
            self._blanks()
            self.at = self.at if self._starts_compound() and not is_array else unnamed
        body = self._command()
        return NotJudged(self.text[start : self.at], (body,))

    def _arithmetic_command(self) -> Node | None:
        start = self.at
        arithmetic = self._arithmetic_or_none(2)
        if arithmetic is None:
            return None
        text = self.text[start : self.at]
        return self._redirected(NotJudged(text, (), (Word(text, (arithmetic,)),)))

    def _condition(self) -> Node:
        start = self.at
        self._take("[[")
        words: list[Word] = []
        while True:
            self._skip_newlines()
            if self._peek_bare() == "]]":
                self._word()
                if not words:
                    raise NotUnderstood("an empty condition")
                text = self.text[start : self.at]
                self._blanks()
                return Condition(text, tuple(words))
            if operator := re.compile(r"&&|\|\||[()<>]").match(self.text, self.at):
                self.at = operator.end()
                words.append(Word(operator[0], (Literal(operator[0], quoted=False),)))
            elif self._peek_bare() == "=~":
                self._word()
                self._blanks()
                words += self._regular_expression()
            elif not self._starts_word():
                raise NotUnderstood("a condition")
            else:
                words.append(self._word())
                if self._next_is("("):
                    raise NotUnderstood("a pattern")

    def _regular_expression(self) -> tuple[Word, Word]:
        """The operator and its operand behind `=~`, as words, if nothing in the operand is quoted or expands."""
        found = _REGEX.match(self.text, self.at)
        if not found:
            raise NotUnderstood("a regular expression that is not plain")
        self.at = found.end()
        return Word("=~", (Literal("=~", quoted=True),)), Word(found[0], (Literal(found[0], quoted=True),))
