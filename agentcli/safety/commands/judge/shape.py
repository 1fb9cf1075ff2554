"""Recognizes compound commands by their shape: fork bombs, and shells at the end of a pipe."""

from __future__ import annotations

import re
from collections.abc import Iterator

from agentcli.safety.commands.judge.calls import Call
from agentcli.safety.commands.judge.handover import NETWORK_CLIENTS
from agentcli.safety.commands.reader.syntax import (
    AndOr,
    Background,
    Case,
    Command,
    For,
    Function,
    Group,
    If,
    Loop,
    Node,
    Pipeline,
    Script,
    Word,
)

_SHELLS = frozenset("sh bash dash zsh ksh ash".split())
_BEFORE = frozenset("sudo doas exec nohup command env time setsid busybox".split())


def is_fork_bomb(function: Function) -> bool:
    """True if a function, with its own arguments, starts itself in the background or twice in a pipeline."""
    return any(_starts_itself(node, function.name) for node in _nodes(function.body))


def _starts_itself(node: Node, name: str) -> bool:
    match node:
        case Background():
            return any(_is_call(inner, name) for inner in _nodes(node.node))
        case Pipeline():
            return sum(_is_call(inner, name) for part in node.parts for inner in _nodes(part)) > 1
    return False


def _is_call(node: Node, name: str) -> bool:
    """With other arguments, as in `walk "$1/a" &`, a recursive function may come to an end."""
    match node:
        case Command(words=(program, *arguments)):
            return program.bare == name and all(_is_everything_given(word) for word in arguments)
    return False


def _is_everything_given(word: Word) -> bool:
    return re.fullmatch(r"(\"?)\$([@*]|\{[@*]\})\1", word.text) is not None


def _nodes(node: Node) -> Iterator[Node]:
    """A node and all commands inside it."""
    yield node
    match node:
        case Background():
            parts: tuple[Node, ...] = (node.node,)
        case Pipeline():
            parts = node.parts
        case AndOr():
            parts = (node.left, node.right)
        case Script():
            parts = node.items
        case Group():
            parts = (node.body,)
        case Loop():
            parts = (node.condition, node.body)
        case If():
            parts = tuple(script for branch in node.branches for script in branch)
        case For():
            parts = (node.body,)
        case Case():
            parts = node.arms
        case _:
            parts = ()
    for part in parts:
        yield from _nodes(part)


def program_of(node: Node) -> str:
    """The program of one part of a pipeline; "shell" for a shell that reads its commands from its input."""
    if not isinstance(node, Command):
        return ""
    words = [word.text.strip("\"'\\").rpartition("/")[2] for word in node.words]
    while len(words) > 1 and words[0] in _BEFORE:
        words = words[1:]
    if words and words[0] in _SHELLS and all(word.startswith("-") and "c" not in word for word in words[1:]):
        return "shell"
    return words[0] if words else ""


def traits_of(call: Call, *, connects: bool) -> set[str]:
    """The parts of a reverse shell that a command contributes. `connects`: it redirects to another machine."""
    traits = {"connects"} if connects else set()
    if call.is_bare_shell:
        traits.add("shell")
    if not call.name or (call.name == "eval" and call.problem):
        traits.add("runs what it reads")
    if call.name in NETWORK_CLIENTS:
        traits.add("client")
    if call.name in ("mkfifo", "mknod"):
        traits.add("fifo")
    return traits


def makes_reverse_shell(traits: set[str]) -> bool:
    """True for a connection and a shell that is fed by something, or both joined by a named pipe."""
    if "connects" in traits and traits & {"shell", "runs what it reads"}:
        return True
    return {"fifo", "shell", "client"} <= traits
