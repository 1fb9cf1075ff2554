"""Reads commands with tree-sitter, which recovers from errors and so finds commands where our own reader gives up.

A command counts as harmless only if both readers see the same programs in it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import tree_sitter

_MOST_NODES = 20_000


def program_words(text: str) -> Counter[str] | None:
    """The first word of each command, as written; None if tree-sitter sees an error."""
    root = _parser().parse(text.encode()).root_node
    if root.has_error:
        root = _parser().parse(_CLOSED.sub(r"\1;", text).encode()).root_node
    if root.has_error:
        return None
    return Counter(_first_word(node) for node in _commands(root))


# A closing word right behind a compound command: the grammar wants a semicolon there, bash does not.
_CLOSED = re.compile(r"([})]|\]\])(?=\s*(?:then|else|elif|fi|do|done|esac|\})(?![^\s;&|()<>]))")


def simple_commands(text: str, most: int) -> Sequence[str]:
    """The simple commands, with redirections, that can be made out in a text, however broken; at most `most`."""
    source = text.encode()
    found: list[str] = []
    for node in _commands(_parser().parse(source).root_node):
        found.append(source[node.start_byte : _end_of(node)].decode(errors="replace"))
        if len(found) >= most:
            break
    return found


@functools.cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(_grammar()))


def _grammar() -> object:
    """The extension module of the grammar. Its package imports importlib.resources, which takes 10 ms."""
    package = importlib.util.find_spec("tree_sitter_bash")
    assert package is not None
    assert package.submodule_search_locations is not None
    loader = (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)
    for folder in package.submodule_search_locations:
        found = importlib.machinery.FileFinder(folder, loader).find_spec("_binding")
        if found is not None and found.loader is not None:
            module = importlib.util.module_from_spec(found)
            found.loader.exec_module(module)
            return module.language()
    return importlib.import_module("tree_sitter_bash").language()


_KINDS = frozenset(("command", "test_command", "declaration_command", "unset_command"))


def _commands(root: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    pending = [root]
    seen = 0
    while pending and seen < _MOST_NODES:
        node = pending.pop()
        seen += 1
        if node.type in _KINDS:
            yield node
        pending += reversed(node.children)


def _first_word(node: tree_sitter.Node) -> str:
    """The name of a command. The grammar takes `time` for a program; then the name of the timed command."""
    if node.type != "command":
        return _text(node.children[0])
    children = [child for child in node.children if child.type not in ("variable_assignment", "file_redirect")]
    words = [_text(child) for child in children if not child.type.startswith("herestring")]
    while len(words) > 1 and (words[0] == "time" or (words[0] in ("-p", "--") and _text(children[0]) == "time")):
        words = words[1:]
    return words[0] if words else ""


def _end_of(node: tree_sitter.Node) -> int:
    """The end of a command. The grammar attaches its redirections to the list or pipeline that ends in it."""
    end, parent = node.end_byte, node.parent
    while parent is not None and parent.type in ("list", "pipeline") and parent.children[-1].id == node.id:
        node, parent = parent, parent.parent
    if parent is None or parent.type != "redirected_statement" or parent.children[0].id != node.id:
        return end
    return max([end, *(child.end_byte for child in parent.children[1:] if child.type == "file_redirect")])


def _text(node: tree_sitter.Node) -> str:
    return node.text.decode(errors="replace") if node.text is not None else ""
