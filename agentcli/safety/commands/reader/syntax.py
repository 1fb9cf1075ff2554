"""Defines the syntax tree of shell commands: words made of pieces, simple commands, and what nests them."""

from __future__ import annotations

from msgspec import Struct


class Literal(Struct, frozen=True):
    """Literal text. Unquoted it may still contain `~`, braces and globs."""

    text: str
    quoted: bool


class Variable(Struct, frozen=True):
    """`$name`, or `${name}` with an operator such as `:-` and its argument. `is_bare`: without braces.

    The operator of `${#name}` is "length". `${name[@]}` and `${name[*]}` have the names `name@` and `name*`.
    """

    name: str
    quoted: bool
    operator: str = ""
    argument: Word | None = None
    is_bare: bool = False


class Substitution(Struct, frozen=True):
    """`$(...)` or backquotes. `direction` is "<" or ">" for a process substitution."""

    script: Script
    quoted: bool
    direction: str = ""


class Arithmetic(Struct, frozen=True):
    """`$((...))` with its pieces."""

    pieces: tuple[Piece, ...]


Piece = Literal | Variable | Substitution | Arithmetic


class Word(Struct, frozen=True):
    """A word as written, and its pieces."""

    text: str
    pieces: tuple[Piece, ...]

    @property
    def bare(self) -> str:
        """The text if no character of it is quoted or expands, as in reserved words; else an empty string."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Literal) and not self.pieces[0].quoted:
            return self.pieces[0].text if self.pieces[0].text == self.text else ""
        return ""


class Redirect(Struct):
    """`2>&1` and the like. For `<<` and `<<<` the target is the text that is read.

    The descriptor of `{name}>x` is the name of the variable that gets its number. The text of a here-document is filled
    in when the reader reaches it.
    """

    operator: str
    descriptor: int | str | None
    target: Word


class Assignment(Struct, frozen=True):
    """`name=value`. For an array the value is None, and there are elements."""

    name: str
    value: Word | None
    appends: bool = False
    elements: tuple[Word, ...] = ()

    @property
    def words(self) -> tuple[Word, ...]:
        return self.elements if self.value is None else (self.value,)


class Command(Struct, frozen=True):
    """A simple command."""

    text: str
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


class Pipeline(Struct, frozen=True):
    parts: tuple[Node, ...]


class AndOr(Struct, frozen=True):
    """`left && right`, `left || right`."""

    left: Node
    operator: str
    right: Node


class Script(Struct, frozen=True):
    """Commands one after the other."""

    items: tuple[Node, ...]


class Background(Struct, frozen=True):
    node: Node


class Group(Struct, frozen=True):
    """A compound command with redirections, or in a subshell."""

    body: Node
    redirects: tuple[Redirect, ...] = ()
    is_subshell: bool = False


class If(Struct, frozen=True):
    """Pairs of condition and branch. For `else` the condition is an empty script."""

    branches: tuple[tuple[Script, Script], ...]


class Loop(Struct, frozen=True):
    """`while` and `until`."""

    condition: Script
    body: Script


class For(Struct, frozen=True):
    """`words` is None for the positional parameters."""

    name: str
    words: tuple[Word, ...] | None
    body: Script


class Case(Struct, frozen=True):
    subject: Word
    patterns: tuple[Word, ...]
    arms: tuple[Script, ...]


class Function(Struct, frozen=True):
    name: str
    body: Node


class Condition(Struct, frozen=True):
    """`[[ ... ]]`. Operators are words too."""

    text: str
    words: tuple[Word, ...]


class NotJudged(Struct, frozen=True):
    """A form that is parsed only to look inside; its own effect is not modelled."""

    text: str
    inside: tuple[Node, ...]
    words: tuple[Word, ...] = ()


Node = (
    Command | Pipeline | AndOr | Script | Background | Group | If | Loop | For | Case | Function | Condition | NotJudged
)
