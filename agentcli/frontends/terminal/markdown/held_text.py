"""Holds text back until its roles are certain."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from agentcli.frontends.terminal.text.fragments import Fragment, plain

BOLD, ITALIC, STRIKE, CODE, LINK, URL = 1, 2, 4, 8, 16, 32
_ROLE_NAMES = {BOLD: "bold", ITALIC: "italic", STRIKE: "strike", CODE: "code", LINK: "link", URL: "url"}


@dataclass(slots=True)
class Node:
    text: str
    roles: int


@dataclass(slots=True)
class Opener:
    """A delimiter that may still be closed. Its node holds those of its characters that are not used up."""

    kind: str  # `*`, `_`, `~`, `[`, or `!` for an image
    count: int
    node: int  # counted from the paragraph's start
    position: int  # of its first character, in the paragraph
    closes_too: bool = False
    length: int = 0  # as written, for the rule of three
    active: bool = True


class HeldText:
    """The text behind the first opener of a paragraph. `emit(roles, text)` gets a line's end as a text of its own."""

    def __init__(self, emit: Callable[[str, str], None]) -> None:
        self._emit = emit
        self._nodes: list[Node] = []
        self._prefixes: deque[list[Fragment]] = deque()
        self.openers: list[Opener] = []
        self.start("")

    def start(self, roles: str) -> None:
        """Begin a paragraph whose text has these roles throughout."""
        self._base = roles
        self._given = 0  # nodes
        self._lines = 0  # begun in the source and not given out

    def begin_lines(self, count: int) -> None:
        self._lines += count

    def continue_line(self, prefix: list[Fragment]) -> None:
        """Put a prefix, such as a quote mark, before the text of the line that now begins."""
        if self._lines:
            self._prefixes.append(prefix)
        else:
            for roles, text in prefix:
                self._emit(roles, text)

    def with_prefixes(self, source: str) -> str:
        """Source that is not given out, with the prefixes of its lines."""
        first, *lines = source.split("\n")
        prefixes = [plain(prefix) for prefix in self._prefixes]
        prefixes += [""] * (len(lines) - len(prefixes))
        return first + "".join(f"\n{prefix}{line}" for prefix, line in zip(prefixes, lines, strict=False))

    def add(self, text: str, roles: int = 0) -> None:
        if self._nodes:
            self._nodes.append(Node(text, roles))
        else:
            self._give(text, roles)

    def open(self, kind: str, text: str, position: int, *, closes_too: bool = False, length: int = 0) -> None:
        node = self._given + len(self._nodes)
        self.openers.append(Opener(kind, len(text), node, position, closes_too, length))
        self._nodes.append(Node(text, 0))

    def drop_before(self, oldest: int) -> None:
        """Let openers before this position of the paragraph stand for themselves."""
        if self.openers and self.openers[0].position < oldest:
            count = len(self.openers)
            del self.openers[: next((i for i, it in enumerate(self.openers) if it.position >= oldest), count)]
            self.settle()

    def settle(self) -> None:
        """Give out the text before the first opener."""
        first = self.openers[0].node - self._given if self.openers else len(self._nodes)
        if first:
            for node in self._nodes[:first]:
                self._give(node.text, node.roles)
            del self._nodes[:first]
            self._given += first

    def finish(self) -> None:
        """The paragraph ends; openers stand for themselves."""
        self.openers.clear()
        self.settle()
        self._prefixes.clear()

    def close(self, char: str, count: int, *, opens_too: bool) -> int:
        """Match a run of delimiters with the openers before it. Gives how many of its characters are left."""
        length = count
        index = len(self.openers) - 1
        while count and index >= 0:
            opener = self.openers[index]
            both = opens_too or opener.closes_too
            by_three = both and (opener.length + length) % 3 == 0 and not (opener.length % 3 == 0 == length % 3)
            if opener.kind != char or by_three:
                index -= 1
                continue
            used = 2 if min(count, opener.count) >= 2 else 1
            role = STRIKE if char == "~" else BOLD if used == 2 else ITALIC
            for node in self._behind(opener):
                node.roles |= role
            del self.openers[index + 1 :]
            count -= used
            opener.count -= used
            self._node_of(opener).text = char * opener.count
            if not opener.count:
                del self.openers[index]
                index -= 1
        self.settle()
        return count

    def text_behind(self, opener: Opener) -> str:
        return "".join(node.text for node in self._behind(opener))

    def close_link(self, index: int, url: str) -> None:
        """Make a link of the text behind a bracket; the address follows it, unless the text says it."""
        opener, shown = self.openers[index], self.text_behind(self.openers[index])
        self._node_of(opener).text = ""
        for node in self._behind(opener):
            node.roles |= LINK
        del self.openers[index:]
        for outer in self.openers:
            outer.active = outer.active and (outer.kind != "[" or opener.kind == "!")
        if url and url.removeprefix("mailto:") != shown.removeprefix("mailto:"):
            self._nodes.append(Node(f" ({url})" if shown else f"({url})", URL))
        self.settle()

    def _node_of(self, opener: Opener) -> Node:
        return self._nodes[opener.node - self._given]

    def _behind(self, opener: Opener) -> list[Node]:
        return self._nodes[opener.node - self._given + 1 :]

    def _give(self, text: str, roles: int) -> None:
        names = _names(self._base, roles)
        if "\n" not in text:
            self._emit(names, text)
            return
        first, *rest = text.split("\n")
        self._emit(names, first)
        for line in rest:
            self._emit("", "\n")
            self._lines -= 1
            if self._prefixes:
                for prefix in self._prefixes.popleft():
                    self._emit(*prefix)
            self._emit(names, line)


@lru_cache(maxsize=256)
def _names(base: str, roles: int) -> str:
    return " ".join([base] * bool(base) + [name for bit, name in _ROLE_NAMES.items() if roles & bit])
