"""Expands words as bash does where the result is certain: variables, `~`, braces and splitting."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct
from msgspec.structs import replace as replace_struct

from agentcli.safety.commands.reader.syntax import Arithmetic, Literal, Node, Script, Substitution, Variable, Word
from agentcli.safety.commands.reader.trimming import TRIMS, trimmed

# In a field: text that only the shell knows. A private-use character, which no command as written contains.
HOLE = "\ue000"
# Behind text that may be something else altogether: of `${x:-/}`, or of a variable that one branch sets.
MAYBE = "\ue001"
# In place of the file name that `<(...)` becomes.
PROCESS = "\ue003"

LONGEST_VALUE = 10_000  # characters of a word or variable, or a loop of `x=$x$x` would fill the memory
MOST_FIELDS = 256  # that the braces of one word may make
_MOST_PLACES = 4

# Environment variables that hold no secret, so that they may be shown.
_SHOWABLE = frozenset(
    (
        "HOME PWD OLDPWD USER LOGNAME SHELL PATH LANG LANGUAGE TERM TMPDIR HOSTNAME UID EUID PPID SHLVL RANDOM SECONDS "
        "LINENO BASH BASH_VERSION BASHPID COLUMNS LINES EDITOR VISUAL PAGER DISPLAY VIRTUAL_ENV CONDA_PREFIX NODE_ENV "
        "CI TZ PYTHONPATH GOPATH GOROOT CARGO_HOME JAVA_HOME NVM_DIR OSTYPE HOSTTYPE MACHTYPE EPOCHSECONDS COLORTERM"
    ).split()
)
_NEVER_SET = re.compile(r"[@*#?$!_-]|\d+")  # the shell's own. The parameters of `bash -c` are empty


class Field(Struct, frozen=True):
    """One argument as a program would get it.

    `text` has a `HOLE` for each part that cannot be told. `is_glob`: it contains wildcards. `may_vanish`: it may become
    no or several arguments. `shows_secret`: it may contain a variable that holds a secret.
    """

    text: str
    is_glob: bool = False
    may_vanish: bool = False
    shows_secret: bool = False

    @property
    def is_known(self) -> bool:
        return HOLE not in self.text and MAYBE not in self.text


class Secret(Struct, frozen=True):
    """The value of a variable that was set from an environment variable which may hold a secret."""


class Matches(Struct, frozen=True):
    """One of the names that a glob finds."""

    glob: str


class Number(Struct, frozen=True):
    """An integer that cannot be told."""


# What a variable set by the command holds; None for what cannot be told.
Value = str | Matches | Number | Secret | None


def is_number(value: Value) -> bool:
    return isinstance(value, Number) or (isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) is not None)


@dataclass(frozen=True)
class State:
    """The state of the shell at one point of a command.

    `places` are the folders it may be in, None for any. `variables` are those the command has set. An array `name` has
    its elements, joined by blanks, as `name@` and `name*`.
    """

    places: tuple[str, ...] | None
    home: str
    variables: Mapping[str, Value] = field(default_factory=dict)
    functions: Mapping[str, Node] = field(default_factory=dict)

    def set(self, name: str, value: Value) -> State:
        if f"{name}@" in self.variables:  # a single element of an array
            return self.with_array(name, [Field(HOLE, shows_secret=isinstance(value, Secret))], appends=True)
        return replace(self, variables={**self.variables, name: value})

    def with_array(self, name: str, fields: Sequence[Field], *, appends: bool) -> State:
        """With an array, or more elements of it. The bare name is its first element."""
        before = self.variables.get(f"{name}@") if appends else ""
        if isinstance(before, Secret) or any(field.shows_secret for field in fields):
            value: Value = Secret()
        else:
            more = _joined(fields)
            whole = f"{before} {more}".strip()
            is_known = isinstance(before, str) and more is not None and len(whole) <= LONGEST_VALUE
            value = whole if is_known else None
        one = Secret() if isinstance(value, Secret) else None
        return replace(self, variables={**self.variables, name: one, f"{name}@": value, f"{name}*": value})

    def at(self, *places: str) -> State:
        return replace(self, places=tuple(dict.fromkeys(normal(place) for place in places)))

    def entering(self, target: str) -> State:
        """In a folder below each of the places, or in an absolute one."""
        if target.startswith("/"):
            return self.at(target)
        return self if self.places is None else self.at(*(f"{place}/{target}" for place in self.places))

    def anywhere(self) -> State:
        """In an unknown folder, with unknown variables."""
        return replace(self.forgetting(), places=None)

    def forgetting(self) -> State:
        """Without the values that were set."""
        secrets = {name: value for name, value in self.variables.items() if isinstance(value, Secret)}
        return replace(self, variables={**dict.fromkeys((*self.variables, *"123456789@*")), **secrets})

    def with_parameters(self, fields: Sequence[Field]) -> State:
        """With `$0`, `$1` and the rest as given."""
        values = {str(at): field.text if field.is_known else None for at, field in enumerate(fields)}
        whole = _joined(fields[1:])
        return replace(self, variables={**self.variables, **values, "@": whole, "*": whole})

    def in_child(self, parameters: Sequence[Field]) -> State:
        """In a child shell with parameters. The variables it inherits are unknown."""
        return replace(self, variables=dict.fromkeys(self.variables), functions={}).with_parameters(parameters)

    def with_open(self, after: State) -> State:
        """With everything unknown that differs in the other state."""
        places = self.places if self.places == after.places else None
        variables = {name: self._either(after, name) for name in {*self.variables, *after.variables}}
        return replace(self, places=places, variables=variables)

    def _either(self, other: State, name: str) -> Value:
        mine, its = self.variables.get(name), other.variables.get(name)
        if mine == its and (name in self.variables) == (name in other.variables):
            return mine
        if isinstance(mine, Secret) or isinstance(its, Secret):
            return Secret()
        if (isinstance(mine, Number) or isinstance(its, Number)) and is_number(mine) and is_number(its):
            return Number()
        text = its if isinstance(its, str) else mine
        return text.rstrip(MAYBE) + MAYBE if isinstance(text, str) else None

    def or_else(self, other: State) -> State:
        """Either of two states: what they disagree on is unknown."""
        if self == other:
            return self
        places = None
        if self.places is not None and other.places is not None:
            both = tuple(dict.fromkeys((*self.places, *other.places)))
            places = both if len(both) <= _MOST_PLACES else None
        variables = {name: self._either(other, name) for name in {*self.variables, *other.variables}}
        return State(places, self.home, variables, {**self.functions, **other.functions})


def _joined(fields: Sequence[Field]) -> str | None:
    """`"$@"` as text that is split: None unless every parameter is known and free of blanks and wildcards."""
    is_plain = all(field.is_known and re.fullmatch(r"[^\s*?\[\]]+", field.text) for field in fields)
    whole = " ".join(field.text for field in fields)
    return whole if is_plain and len(whole) <= LONGEST_VALUE else None


def normal(path: str) -> str:
    """An absolute path without `.`, `..` and repeated slashes. Only the text: symlinks are not followed."""
    return posixpath.normpath("/" + path.lstrip("/"))


def expand(word: Word, state: State, output_of: Callable[[Script], str | None]) -> list[Field]:
    """The fields a word becomes. `output_of` gives the output of a substitution, if it is certain."""
    if len(word.pieces) == 1:
        (piece,) = word.pieces
        if isinstance(piece, Literal) and (piece.quoted or not _SPECIAL.search(piece.text)):
            return [Field(piece.text)]
    match word.pieces:
        case (Literal(text="", quoted=True), Variable(quoted=True) as variable) if variable.name.endswith("@"):
            word = Word(word.text, (replace_struct(variable, quoted=False),))  # `"$@"` without parameters is no word
    atoms = _atoms(word, state, output_of)
    if _LONE_DOLLAR.search(word.text) and any(not atom.quoted and not atom.is_literal for atom in atoms):
        return [Field(HOLE, may_vanish=True)]  # bash 5 does not split here, but does not document it
    if any(atom.is_literal and "{" in atom.text for atom in atoms):
        if any(isinstance(piece, Variable) and piece.is_bare and not piece.quoted for piece in word.pieces):
            return [Field(HOLE, may_vanish=True)]  # braces come first: `$x{a,b}` is `$xa $xb`
        return [each for some in _braces(atoms) for each in _split(_with_home(some, state))]
    return _split(_with_home(atoms, state))


_SPECIAL = re.compile(r"[~*?\[{]")
_LONE_DOLLAR = re.compile(r"\$(?![\w{(\"'@*#?$!-])")


class _Atom(Struct, frozen=True):
    """A part of a word with its value. Braces and `~` are expanded in literal ones only."""

    text: str
    quoted: bool
    is_literal: bool = False
    is_glob: bool = False
    secret: bool = False


def _atoms(word: Word, state: State, output_of: Callable[[Script], str | None]) -> list[_Atom]:
    atoms: list[_Atom] = []
    length = 0
    for piece in word.pieces:
        length += len(atoms[-1].text) if atoms and not isinstance(piece, Literal) else 0
        if length > LONGEST_VALUE:
            return [*atoms, _Atom(HOLE, quoted=False)]
        match piece:
            case Literal():
                atoms.append(_Atom(piece.text, piece.quoted, is_literal=not piece.quoted))
            case Variable():
                atoms.append(_value_of(piece, state, output_of))
            case Substitution():
                value = None if piece.direction else output_of(piece.script)
                hole = PROCESS if piece.direction == "<" else HOLE
                atoms.append(_Atom(hole if value is None else value, piece.quoted))
            case Arithmetic():
                atoms.append(_Atom(HOLE, quoted=True))
    return atoms


def _value_of(variable: Variable, state: State, output_of: Callable[[Script], str | None]) -> _Atom:
    name, operator = variable.name, variable.operator
    quoted = variable.quoted and not name.endswith("@")
    is_set = name in state.variables
    value = state.variables.get(name)
    if not is_set and name == "HOME":
        is_set, value = True, state.home
    if not is_set and name == "PWD" and state.places is not None and len(state.places) == 1:
        is_set, value = True, state.places[0]
    secret = isinstance(value, Secret) or (not is_set and not may_be_shown(name))
    if value == "" and variable.quoted and not quoted:
        return _Atom(HOLE, quoted, secret=secret)  # `"$@$x"` with nothing in either may leave an empty word or none
    if "IFS" in state.variables and (not quoted or name.endswith("*")):
        return _Atom(HOLE, quoted, secret=secret)
    if operator in ("", ":-", "-", ":?", "?", ":=", "=") and isinstance(value, str):
        if value or operator in ("", "-", "?", "="):
            return _Atom(value, quoted)
        return _argument(variable, state, output_of)
    if operator in (":+", "+") and isinstance(value, str):
        return _argument(variable, state, output_of) if value or operator == "+" else _Atom("", quoted)
    if operator in TRIMS and isinstance(value, str) and (rest := trimmed(value.rstrip(MAYBE), variable)) is not None:
        return _Atom(rest + MAYBE if value.endswith(MAYBE) else rest, quoted)
    if operator == "" and isinstance(value, Number):
        return _Atom(HOLE, quoted=True)
    if operator == "" and isinstance(value, Matches):
        return _Atom(value.glob, quoted, is_glob=True)
    if operator in (":-", "-", ":=", "=") and not is_set and name not in _SHOWABLE:
        default = _argument(variable, state, output_of)
        return _Atom(default.text + MAYBE, quoted, secret=secret or default.secret)
    if operator == "length":
        return _Atom(HOLE, quoted=True)
    if variable.argument is not None:
        secret = secret or _argument(variable, state, output_of).secret
    return _Atom(HOLE, quoted, secret=secret)


def _argument(variable: Variable, state: State, output_of: Callable[[Script], str | None]) -> _Atom:
    """The text behind an operator such as `:-`."""
    parts = _atoms(variable.argument, state, output_of) if variable.argument else []
    text = "".join(part.text for part in parts)
    if text.startswith("~") and parts[0].is_literal:
        text = HOLE if text not in ("~", "~/") and not text.startswith("~/") else state.home + text[1:]
    return _Atom(text, variable.quoted, secret=any(part.secret for part in parts))


def may_be_shown(name: str) -> bool:
    """True if an environment variable of this name holds no secret."""
    return name in _SHOWABLE or name.startswith(("LC_", "XDG_")) or _NEVER_SET.fullmatch(name) is not None


def _with_home(atoms: list[_Atom], state: State) -> list[_Atom]:
    """Replace a leading `~` by the home. Of other users' homes only root's is known."""
    if not atoms or not atoms[0].is_literal or not atoms[0].text.startswith("~"):
        return atoms
    first = atoms[0]
    user, slash, rest = first.text[1:].partition("/")
    if not slash and len(atoms) > 1:
        return [_Atom(HOLE, quoted=True), *atoms[1:]]  # `~$x`, `~"x"`: left alone, or somebody's home
    home = state.variables.get("HOME", state.home) if not user else "/root" if user == "root" else None
    if not isinstance(home, str):
        home = HOLE
    tail = [_Atom(slash + rest, quoted=False, is_literal=True)] if slash else []
    return [_Atom(home, quoted=True), *tail, *atoms[1:]]


def _split(atoms: list[_Atom]) -> list[Field]:
    """The fields of a word: unquoted values are split at blanks, and vanish if empty."""
    is_glob = any(atom.is_glob for atom in atoms) or _may_be_glob(atoms)
    may_vanish = any(not atom.quoted and not atom.is_literal and _HOLES.search(atom.text) for atom in atoms)
    secret = any(atom.secret for atom in atoms)
    done: list[str] = []
    text, is_there = "", False
    for atom in atoms:
        if atom.quoted or atom.is_literal:
            text, is_there = text + atom.text, True
            continue
        first, *others = re.split(r"[ \t\n]+", atom.text)
        text, is_there = text + first, is_there or bool(first)
        for other in others:
            if is_there:
                done.append(text)
            text, is_there = other, bool(other)
    if is_there:
        done.append(text)
    return [Field(each, is_glob and _GLOB.search(each) is not None, may_vanish, secret) for each in done]


_HOLES = re.compile(f"[{HOLE}{MAYBE}]")
_GLOB = re.compile(r"[*?]|\[.*\]")


def _may_be_glob(atoms: list[_Atom]) -> bool:
    """True if unquoted parts contain wildcards."""
    return _GLOB.search("".join("a" if atom.quoted else atom.text for atom in atoms)) is not None


def _braces(atoms: list[_Atom]) -> list[list[_Atom]]:
    """The words that `{a,b}` and `{1..3}` make of one (bash(1), Brace Expansion)."""
    characters: list[_Atom] = []
    for atom in atoms:
        if atom.is_literal:
            characters += [_Atom(char, quoted=False, is_literal=True) for char in atom.text]
        else:
            characters.append(atom)
    return [_rejoined(some) for some in _alternatives(characters)]


def _alternatives(atoms: list[_Atom]) -> list[list[_Atom]]:
    for start, atom in enumerate(atoms):
        if not (atom.is_literal and atom.text == "{"):
            continue
        parts = _parts(atoms, start)
        if parts is None:
            continue
        end, choices = parts
        tails = _alternatives(atoms[end + 1 :])
        heads = [inner for choice in choices for inner in _alternatives(choice)]
        if len(heads) * len(tails) > MOST_FIELDS:
            return [[*atoms[:start], _Atom(HOLE, quoted=False)]]
        return [[*atoms[:start], *head, *tail] for head, tail in itertools.product(heads, tails)]
    return [atoms]


def _parts(atoms: list[_Atom], start: int) -> tuple[int, list[list[_Atom]]] | None:
    """The position of the closing brace and the alternatives; None if the brace is only text."""
    depth, commas = 0, []
    for at in range(start, len(atoms)):
        text = atoms[at].text if atoms[at].is_literal else ""
        if text == "{":
            depth += 1
        elif text == "," and depth == 1:
            commas.append(at)
        elif text == "}":
            depth -= 1
            if depth == 0:
                if commas:
                    cuts = [start, *commas, at]
                    return at, [atoms[left + 1 : right] for left, right in itertools.pairwise(cuts)]
                return _sequence(atoms[start + 1 : at], at)
    return None


def _sequence(inside: list[_Atom], end: int) -> tuple[int, list[list[_Atom]]] | None:
    text = "".join(atom.text if atom.is_literal else "\0" for atom in inside)
    if ".." not in text:
        return None
    found = re.fullmatch(r"(-?[1-9]\d{0,3}|0)\.\.(-?[1-9]\d{0,3}|0)", text)
    if found and abs(int(found[2]) - int(found[1])) < MOST_FIELDS:
        first, last = int(found[1]), int(found[2])
        numbers = range(first, last + 1) if last >= first else range(first, last - 1, -1)
        return end, [[_Atom(str(number), quoted=True)] for number in numbers]
    return end, [[_Atom(HOLE, quoted=False)]]


def _rejoined(atoms: list[_Atom]) -> list[_Atom]:
    joined: list[_Atom] = []
    for atom in atoms:
        if joined and atom.is_literal and joined[-1].is_literal:
            joined[-1] = _Atom(joined[-1].text + atom.text, quoted=False, is_literal=True)
        else:
            joined.append(atom)
    return joined
