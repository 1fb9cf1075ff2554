"""Handles what stands inside words: scripts, their certain output, and expansions with side effects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from agentcli.safety.commands.reader.expansion import HOLE, Field, State, expand, is_number
from agentcli.safety.commands.reader.syntax import (
    Arithmetic,
    Background,
    Command,
    Literal,
    Node,
    Piece,
    Script,
    Substitution,
    Variable,
    Word,
)
from agentcli.safety.commands.reader.words import NotUnderstood, unescape


def fields_of(
    words: Sequence[Word], state: State, more_output_of: Callable[[Script], str | None] = lambda script: None
) -> list[Field]:
    """The words of a command as its program gets them. `more_output_of` may know the output of more scripts."""

    def output_of(script: Script) -> str | None:
        output = _output_of(script, state)
        return more_output_of(script) if output is None else output

    return [field for word in words for field in expand(word, state, output_of)]


def scripts_in(word: Word) -> Iterator[Node]:
    """The scripts of all substitutions, also those inside expansions. `<(...)` runs beside the command."""
    for piece in word.pieces:
        yield from _scripts_of(piece)


def _scripts_of(piece: Piece) -> Iterator[Node]:
    match piece:
        case Substitution():
            yield Background(piece.script) if piece.direction else piece.script
        case Variable() if piece.argument is not None:
            yield from scripts_in(piece.argument)
        case Arithmetic():
            for inner in piece.pieces:
                yield from _scripts_of(inner)


def word_problem(word: Word, state: State) -> str:
    """The reason why expanding a word may have side effects, or an empty string."""
    for piece in word.pieces:
        match piece:
            case Arithmetic() if not _only_computes(piece, state):
                return "an expression in it may do more than compute"
            case Variable(operator=(":=" | "=")):
                return "an expansion sets a variable"
            case Variable() if piece.argument is not None:
                if why := word_problem(piece.argument, state):
                    return why
    return ""


_COMPUTES = re.compile(
    r"\s*(?:(?:[A-Za-z_]\w*|0[xX][0-9A-Fa-f]+|\d+|[()\s]|[/%](?=\s*[1-9])|<=|>=|==|!=|&&|\|\||<<(?!=)|>>(?!=)|[-+*](?![-+])|[-+*](?=[-+]\s)|[<>!](?![<>=]))\s*)*"
)


def _only_computes(arithmetic: Arithmetic, state: State) -> bool:
    """True for numbers, names and operators without side effects, with literal divisors other than zero.

    A variable is evaluated as an expression in turn, and a subscript in it can run a command. So variables that the
    command has set must hold numbers.
    """
    text = ""
    for piece in arithmetic.pieces:
        match piece:
            case Literal():
                text += piece.text
            case Variable(operator=("" | "length")) if piece.operator or _is_number(piece.name, state):
                text += " 1 "
            case _:
                return False
    names = re.findall(r"(?<![0-9A-Za-z_])[A-Za-z_]\w*", text)
    return _COMPUTES.fullmatch(text) is not None and all(_is_number(name, state) for name in names)


def _is_number(name: str, state: State) -> bool:
    if name not in state.variables:
        return True
    return is_number(state.variables[name])


_LOOKS_UP = re.compile(r"(?:which|type -[pP]|command -v) ([\w.+-]+)")


def _output_of(script: Script, state: State) -> str | None:
    """The output of `$(pwd)`, `$(echo x)` and `$(printf x)` without final newlines.

    Of `$(which x)` only the end is known, if x is found at all.
    """
    while len(script.items) == 1 and isinstance(script.items[0], Script):
        script = script.items[0]
    if len(script.items) != 1 or not isinstance(command := script.items[0], Command):
        return None
    if command.assignments or command.redirects or not command.words:
        return None
    fields = fields_of(command.words, state)
    if not fields or not all(field.is_known and not field.is_glob for field in fields):
        return None
    words = [field.text for field in fields]
    match words:
        case ["pwd"] if state.places is not None and len(state.places) == 1:
            return state.places[0]
        case ["echo", *rest] if not any(word.startswith("-") for word in rest[:1]):
            return " ".join(rest).rstrip("\n")
        case ["echo", "-n", *rest] if not any(word.startswith("-") for word in rest[:1]):
            return " ".join(rest).rstrip("\n")
        case ["which" | "type" | "command", *_] if found := _LOOKS_UP.fullmatch(" ".join(words)):
            return f"{HOLE}/{found[1]}"
        case ["printf", "%s" | "%s\\n", text]:
            return text.rstrip("\n")
        case ["printf", text] if "%" not in text and not text.startswith("-"):
            try:
                return unescape(text).rstrip("\n")
            except NotUnderstood:
                return None
    return None
