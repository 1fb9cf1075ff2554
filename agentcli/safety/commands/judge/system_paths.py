"""Recognizes paths whose loss ruins the system (the root, homes, …), and `find` commands that ruin them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from agentcli.safety.commands.programs.effects import sources_and_targets
from agentcli.safety.commands.programs.find import read_find
from agentcli.safety.commands.programs.wrappers import take_off
from agentcli.safety.commands.reader.expansion import HOLE, MAYBE, Field, State, normal
from agentcli.safety.commands.reader.globs import finds, is_open
from agentcli.safety.commands.reader.parser import read_commands
from agentcli.safety.commands.reader.substitution import fields_of
from agentcli.safety.commands.reader.syntax import (
    AndOr,
    Background,
    Case,
    Command,
    For,
    Group,
    If,
    Loop,
    Node,
    Pipeline,
    Script,
)

_SYSTEM = frozenset(
    (
        "/ /home /usr /etc /var /bin /sbin /lib /lib32 /lib64 /libx32 /boot /root /opt /dev /proc /sys /nix /Users "
        "/System /Library /Applications /private /usr/bin /usr/sbin /usr/lib /usr/lib64 /usr/share /var/lib /boot/efi "
        "/sys/firmware/efi /sys/firmware/efi/efivars /System/Library /private/etc /private/var"
    ).split()
)


def is_system_path(field: Field, state: State, *, of_home: bool = True) -> bool:
    """True for the root, a folder the system stands on, a home, or everything inside one of them.

    With `of_home` false the home itself counts, but not everything inside it.
    """
    text = field.text.replace(MAYBE, "")
    if HOLE in text or not text:
        return False
    paths = [text] if text.startswith("/") else [f"{place}/{text}" for place in state.places or ()]
    return any(_is_system_path(normal(path), field.is_glob, normal(state.home), of_home=of_home) for path in paths)


def _is_system_path(path: str, is_glob: bool, home: str, *, of_home: bool) -> bool:
    places = {*_SYSTEM, *_with_parents(home)}
    if not is_glob:
        return path in places
    parts = _parts(path)
    while parts and is_open(parts[-1]):
        parts = parts[:-1]
    if not of_home and parts == _parts(home):
        return path == home
    return any(_finds_path(parts, _parts(place)) for place in places)


def _with_parents(path: str) -> list[str]:
    parts = _parts(path)
    return ["/" + "/".join(parts[:count]) for count in range(len(parts) + 1)]


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _finds_path(globs: Sequence[str], parts: Sequence[str]) -> bool:
    return len(globs) == len(parts) and all(map(finds, globs, parts))


def find_ruins_system(arguments: Sequence[Field], state: State) -> bool:
    """True if `find` deletes everything below such a path, or has a program change it."""
    call = read_find(arguments)
    if not any(is_system_path(start, state) for start in call.starts or [Field(".")]):
        return False
    return call.deletes_all or any(_ruins(words, state) for words in call.runs_on_all)


_MOST_LAYERS = 8
_FOUND = re.compile(r"(\./)?\{\}(/+[*.?]*)?")  # stands for the found file in `-exec`


def _ruins(words: Sequence[Field], state: State, depth: int = 0) -> bool:
    """True if a command deletes or spoils the files that were found, also behind wrappers and in scripts of shells."""
    if not words or depth > _MOST_LAYERS:
        return False
    if victims := _RUINING.get(words[0].text.rpartition("/")[2]):
        return any(_FOUND.fullmatch(field.text) for field in victims(words[1:]))
    layer = take_off(words)
    if layer is None:
        return False
    if layer.script is not None:
        inside = state.in_child(layer.parameters)
        commands = _commands(read_commands(layer.script).script, inside)
        return any(_ruins(fields, inside, depth + 1) for fields in commands)
    return any(_ruins(inner, state, depth + 1) for inner in (layer.inner, *layer.candidates))


def _to(arguments: Sequence[Field]) -> list[Field]:
    return sources_and_targets(arguments)[1]


# By program: the arguments that it deletes or spoils.
_RUINING: dict[str, Callable[[Sequence[Field]], Sequence[Field]]] = {
    **dict.fromkeys("rm srm unlink shred truncate chmod chown chgrp".split(), lambda arguments: arguments),
    "mv": lambda arguments: sources_and_targets(arguments)[0],
    "cp": _to,
    "install": _to,
    "dd": lambda arguments: [Field(field.text[3:]) for field in arguments if field.text.startswith("of=")],
}


def _commands(node: Node, state: State) -> Iterator[list[Field]]:
    """The simple commands of a short script, with its parameters, and the variables set from them, filled in."""
    variables = dict(state.variables)
    for each in _in_order(node):
        match each:
            case Command():
                here = replace(state, variables=variables)
                for given in each.assignments:
                    values = fields_of([given.value], here) if given.value else []
                    variables[given.name] = values[0].text if len(values) == 1 else None
                yield fields_of(each.words, here)
            case For():
                here = replace(state, variables=variables)
                first = fields_of(each.words or (), here)[:1]
                variables[each.name] = first[0].text if first else variables.get("1")


def _in_order(node: Node) -> Iterator[Node]:
    """A node and the nodes inside it."""
    yield node
    match node:
        case Script():
            inner: tuple[Node, ...] = node.items
        case Pipeline():
            inner = node.parts
        case AndOr():
            inner = (node.left, node.right)
        case Background():
            inner = (node.node,)
        case Group() | For():
            inner = (node.body,)
        case Loop():
            inner = (node.condition, node.body)
        case If():
            inner = tuple(script for branch in node.branches for script in branch)
        case Case():
            inner = node.arms
        case _:
            inner = ()
    for each in inner:
        yield from _in_order(each)
