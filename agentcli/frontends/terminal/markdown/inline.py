"""Emphasis, code spans, links and the like, in the text of one paragraph as it comes in."""

from __future__ import annotations

import html
import re
import string
import unicodedata
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from html.entities import html5

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Fragment, plain

LONGEST_HOLD = 2_000  # source characters: what has not been closed within them was not meant as markup
LONGEST_WORD = 200  # characters of a word that are waited for
LONGEST_RUN = 100  # delimiters side by side; more are a drawing

BOLD, ITALIC, STRIKE, CODE, LINK, URL = 1, 2, 4, 8, 16, 32
_ROLE_NAMES = {BOLD: "bold", ITALIC: "italic", STRIKE: "strike", CODE: "code", LINK: "link", URL: "url"}

_SPECIAL = re.compile(r"[*_`\[\]!<\\&~\n]")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# A place in text without spaces where a terminal may be given what came before.
_WIDE_BREAK = re.compile(
    r".*[\u2e80-\ud7ff\uff00-\uffef](?=[^\u0300-\u036f\u3099\u309a\u200d\ufe00-\ufe0f])", re.DOTALL
)
_ANGLE = re.compile(r"<([A-Za-z/!?][^<>\n]*)>")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*|[\w.!#$%&'*+/=?^`{|}~-]+@[A-Za-z0-9.-]+")
_TAG = re.compile(
    r"""[A-Za-z][A-Za-z0-9-]*(?:\s+[A-Za-z_:][\w.:-]*(?:\s*=\s*(?:[^\s"'=<>`]+|'[^']*'|"[^"]*"))?)*\s*/?"""
    r"|/[A-Za-z][A-Za-z0-9-]*\s*|!--.*--|\?.*\?|![A-Za-z].*"
)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{0,31});")
_ENTITY_BEGUN = re.compile(r"&(?:#(?:[0-9]{0,7}|[xX][0-9a-fA-F]{0,6})|[A-Za-z][A-Za-z0-9]{0,31})?\Z")
_TARGET = re.compile(
    r"""\([ \t]*"""
    r"""(?:<((?:[^<>\\\n]|\\.)*)>|((?!<)(?:[^\s()\\]|\\(?:.|(?!.))|\((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*\))*))"""
    r"""(?:[ \t]+(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|\((?:[^()\\\n]|\\.)*\)))?[ \t]*\)"""
)
_NO_TARGET = re.compile(r"""\([ \t]*(?:[^\n]*\n|[^\s()<>\\"']+[ \t]+[^ \t"'()])""")
_LABEL = re.compile(r"\[((?:[^\[\]\\\n]|\\.)*)\]")
_NO_LABEL = re.compile(r"\[(?:[^\[\]\\\n]|\\.)*[\[\n]")
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])|" + _ENTITY.pattern)

# What a bare address is made of (RFC 3986, section 2), but for brackets.
_ADDRESS_CHARACTERS = "".join(sorted(_PUNCTUATION - set('"<>[]\\^`{|}'))) + string.ascii_letters + string.digits

# What must come before a construct that is waited for is looked at again.
_ANGLE_WAKES = re.compile(r"[<>\n]")
_BACKTICK_WAKES = re.compile("`")
_TARGET_WAKES = re.compile(r"[)\n]")
_LABEL_WAKES = re.compile(r"[\[\]\n]")
_WORD_WAKES = re.compile(r"[^ \t]")
_ANYTHING = re.compile("")


@dataclass(slots=True)
class _Node:
    text: str
    roles: int


@dataclass(slots=True)
class _Opener:
    """A delimiter that something may still close. Its node holds those of its characters that are not used up."""

    kind: str  # `*`, `_`, `~`, `[`, or `!` for an image
    count: int
    node: int  # counted from the paragraph's start
    position: int  # of its first character, in the paragraph
    closes_too: bool = False
    length: int = 0  # as written, for the rule of three
    active: bool = True


class InlineScanner:
    """Gives out the text of paragraphs, each as soon as its roles are certain.

    Decides from left to right: the first delimiter that can close does. An opener holds back what follows it until it
    is closed, or `LONGEST_HOLD` characters have passed, or the paragraph ends; then it stands for itself. Whether
    a delimiter can open or close is CommonMark's rule (0.31, section 6.2). Within an address nothing opens.
    `emit(roles, text)` gets whole lines' ends as a text of their own.
    """

    def __init__(self, emit: Callable[[str, str], None], references: Mapping[str, str]) -> None:
        self._emit = emit
        self._references = references
        self._handlers: dict[str, Callable[[int, bool], int | None]] = {
            "*": self._delimiters,
            "_": self._delimiters,
            "~": self._delimiters,
            "`": self._code,
            "[": self._bracket,
            "!": self._image,
            "]": self._link,
            "<": self._angle,
            "&": self._entity,
            "\\": self._escape,
            "\n": self._line_end,
        }
        self._nodes: list[_Node] = []
        self._openers: list[_Opener] = []
        self._prefixes: deque[list[Fragment]] = deque()
        self._sleeping: list[str] = []
        self.start("")

    def start(self, roles: str) -> None:
        """Begin a paragraph whose text has these roles throughout."""
        self._base = roles
        self._buffer = ""  # source: from the first character that is held back
        self._at = 0  # where in the buffer to go on
        self._origin = 0  # where in the paragraph the buffer begins
        self._before = "\n"  # the character before the buffer
        self._word = ""  # what matters of the word that the buffer's start may continue
        self._word_origin = 0  # where in the paragraph it begins, at the earliest: behind the last link
        self._given = 0  # nodes
        self._lines_held = 0
        self._wake = _ANYTHING
        self._sleep_for = 0  # characters after which to look again in any case

    def feed(self, text: str) -> None:
        if self._sleep_for > 0:
            self._sleeping.append(text)
            self._sleep_for -= len(text)
            if "\n" in text:
                self._lines_held += text.count("\n")
            if self._sleep_for > 0 and self._wake.search(text) is None:
                return
            text = "".join(self._sleeping)
            self._sleeping.clear()
        elif "\n" in text:
            self._lines_held += text.count("\n")
        self._buffer += text
        self._scan(final=False)

    def continue_line(self, prefix: list[Fragment]) -> None:
        """What stands before the text of the line that now begins, such as a quote mark."""
        if self._lines_held:
            self._prefixes.append(prefix)
        else:
            for roles, text in prefix:
                self._emit(roles, text)

    def finish(self) -> None:
        """The paragraph ends; what is open stands for itself."""
        self._buffer += "".join(self._sleeping)
        self._sleeping.clear()
        self._scan(final=True)
        self._openers.clear()
        self._settle()
        self._prefixes.clear()
        self.start("")

    @property
    def held(self) -> str:
        """The source of what has not been given out."""
        lines = (self._buffer + "".join(self._sleeping)).split("\n")
        prefixes = [plain(prefix) for prefix in self._prefixes]
        prefixes += [""] * (len(lines) - 1 - len(prefixes))
        return lines[0] + "".join(f"\n{prefix}{line}" for prefix, line in zip(prefixes, lines[1:], strict=False))

    def _scan(self, *, final: bool) -> None:
        self._sleep_for = 0
        buffer = self._buffer
        at = self._at
        while at < len(buffer):
            found = _SPECIAL.search(buffer, at)
            if found is None:
                end = len(buffer.rstrip(" \t")) if final else self._certain_end(at)
                if end > at:
                    self._add(buffer[at:end])
                at = len(buffer) if final else max(at, end)
                break
            start = found.start()
            char = buffer[start]
            if start > at:
                self._add(buffer[at:start].rstrip(" \t") if char == "\n" else buffer[at:start])
            self._at = start
            after = self._handlers[char](start, final)
            if after is None:
                at = start
                break
            at = after
        self._at = at
        if self._openers:
            self._drop_expired(at)
        self._trim()

    def _certain_end(self, at: int) -> int:
        """Where the last word that is whole ends, in text without markup from `at` to the end."""
        buffer = self._buffer
        end = len(buffer)
        words_end = len(buffer.rstrip(" \t"))
        if words_end <= at:
            self._sleep(_WORD_WAKES, 1 << 60)  # spaces are dropped at the end of a line
            return at
        if words_end < end:
            return words_end
        space = max(buffer.rfind(" ", at), buffer.rfind("\t", at)) + 1
        if space:
            return space
        if end - at > LONGEST_WORD:
            return end - 1
        return at if buffer.isascii() else _last_wide(buffer, at)

    def _sleep(self, wake: re.Pattern[str], characters: int) -> None:
        self._wake = wake
        self._sleep_for = characters

    def _trim(self) -> None:
        """Forget the source of what has been given out, but for what the next delimiter needs to know."""
        cut = self._openers[0].position - self._origin if self._openers else self._at
        if not cut:
            return
        done = self._buffer[:cut]
        self._before = done[-1]
        word = self._word_until(cut)
        self._word = "://" if "://" in word else word[-2:]
        self._buffer = self._buffer[cut:]
        self._at -= cut
        self._origin += cut

    def _word_until(self, end: int) -> str:
        """The text before `end` in the buffer, as far back as an address could reach."""
        first = max(0, self._word_origin - self._origin)
        text = self._buffer[first:end]
        begin = len(text.rstrip(_ADDRESS_CHARACTERS))
        return text[begin:] if begin or first else self._word + text

    def _add(self, text: str, roles: int = 0) -> None:
        if self._nodes:
            self._nodes.append(_Node(text, roles))
        else:
            self._give(text, roles)

    def _give(self, text: str, roles: int) -> None:
        names = _names(self._base, roles)
        if "\n" not in text:
            self._emit(names, text)
            return
        first, *rest = text.split("\n")
        self._emit(names, first)
        for line in rest:
            self._emit("", "\n")
            self._lines_held -= 1
            if self._prefixes:
                for prefix in self._prefixes.popleft():
                    self._emit(*prefix)
            self._emit(names, line)

    def _settle(self) -> None:
        """Give out what stands before the first opener."""
        first = self._openers[0].node - self._given if self._openers else len(self._nodes)
        if first:
            for node in self._nodes[:first]:
                self._give(node.text, node.roles)
            del self._nodes[:first]
            self._given += first

    def _open(self, kind: str, text: str, start: int, *, closes_too: bool = False, length: int = 0) -> None:
        node = self._given + len(self._nodes)
        self._openers.append(_Opener(kind, len(text), node, self._origin + start, closes_too, length))
        self._nodes.append(_Node(text, 0))

    def _drop_expired(self, at: int) -> None:
        oldest = self._origin + at - LONGEST_HOLD
        if self._openers and self._openers[0].position < oldest:
            expired = next((i for i, it in enumerate(self._openers) if it.position >= oldest), len(self._openers))
            del self._openers[:expired]
            self._settle()

    def _nodes_behind(self, opener: _Opener) -> list[_Node]:
        return self._nodes[opener.node - self._given + 1 :]

    def _delimiters(self, start: int, final: bool) -> int | None:
        buffer = self._buffer
        char = buffer[start]
        end = start + 1
        most = min(len(buffer), start + LONGEST_RUN)
        while end < most and buffer[end] == char:
            end += 1
        if end == len(buffer) and not final and end - start < LONGEST_RUN:
            return None
        count = end - start
        if count == LONGEST_RUN or (char == "~" and count != 2):
            self._add(buffer[start:end])
            return end
        before = _kind(buffer[start - 1] if start else self._before)
        after = _kind(buffer[end] if end < len(buffer) else "\n")
        opens = after != " " and (after != "." or before != "a")
        closes = before != " " and (before != "." or after != "a")
        if char == "_":
            opens, closes = opens and (not closes or before == "."), closes and (not opens or after == ".")
        if opens and "://" in self._word_until(start):
            opens = False
        left = self._close(char, count, start, opens_too=opens) if closes else count
        if left and opens:
            self._open(char, char * left, start, closes_too=closes, length=count)
        elif left:
            self._add(char * left)
        return end

    def _close(self, char: str, count: int, start: int, *, opens_too: bool) -> int:
        """Match a run of delimiters with the openers before it. Gives how many of its characters are left."""
        self._drop_expired(start)
        length = count
        index = len(self._openers) - 1
        while count and index >= 0:
            opener = self._openers[index]
            both = opens_too or opener.closes_too
            by_three = both and (opener.length + length) % 3 == 0 and not (opener.length % 3 == 0 == length % 3)
            if opener.kind != char or by_three:
                index -= 1
                continue
            used = 2 if min(count, opener.count) >= 2 else 1
            role = STRIKE if char == "~" else BOLD if used == 2 else ITALIC
            for node in self._nodes_behind(opener):
                node.roles |= role
            del self._openers[index + 1 :]
            count -= used
            opener.count -= used
            self._nodes[opener.node - self._given].text = char * opener.count
            if not opener.count:
                del self._openers[index]
                index -= 1
        self._settle()
        return count

    def _code(self, start: int, final: bool) -> int | None:
        buffer = self._buffer
        end = start + 1
        most = min(len(buffer), start + LONGEST_RUN)
        while end < most and buffer[end] == "`":
            end += 1
        count = end - start
        if end == len(buffer) and not final and count < LONGEST_RUN:
            return None
        closing = None if count == LONGEST_RUN else _closing_run(count).search(buffer, end)
        if closing is not None and closing.end() == len(buffer) and not final:
            return None
        if closing is None and not final and count < LONGEST_RUN and len(buffer) - start <= LONGEST_HOLD + count:
            self._sleep(_BACKTICK_WAKES, LONGEST_HOLD + count + 1 - (len(buffer) - start))
            return None
        if closing is None or closing.start() - start > LONGEST_HOLD:
            self._add(buffer[start:end])
            return end
        text = buffer[end : closing.start()]
        if text[0] == " " == text[-1] and text.strip(" "):
            text = text[1:-1]
        self._add(text, CODE)
        return closing.end()

    def _bracket(self, start: int, final: bool) -> int:
        self._open("[", "[", start)
        return start + 1

    def _image(self, start: int, final: bool) -> int | None:
        if start + 1 == len(self._buffer) and not final:
            return None
        if not self._buffer.startswith("[", start + 1):
            self._add("!")
            return start + 1
        self._open("!", "![", start)
        return start + 2

    def _link(self, start: int, final: bool) -> int | None:
        self._drop_expired(start)
        index = next((i for i in reversed(range(len(self._openers))) if self._openers[i].kind in "[!"), -1)
        opener = self._openers[index] if index >= 0 else None
        if opener is None or not opener.active:
            if opener is not None:
                del self._openers[index]
            self._add("]")
            self._settle()
            return start + 1
        found = self._target(opener, start, final)
        if found is None:
            return None
        url, end = found
        content = self._nodes_behind(opener)
        shown = "".join(node.text for node in content)
        if not end or not (shown or url):
            del self._openers[index]
            self._add("]")
            self._settle()
            return start + 1
        self._nodes[opener.node - self._given].text = ""
        for node in content:
            node.roles |= LINK
        self._word_origin = self._origin + end
        del self._openers[index:]
        for outer in self._openers:
            outer.active = outer.active and (outer.kind != "[" or opener.kind == "!")
        if url and url.removeprefix("mailto:") != shown.removeprefix("mailto:"):
            self._nodes.append(_Node(f" ({url})" if shown else f"({url})", URL))
        self._settle()
        return end

    def _target(self, opener: _Opener, start: int, final: bool) -> tuple[str, int] | None:
        """The address that a link's `]` leads to and where it ends: ("", 0) when this is no link, None for wait."""
        buffer = self._buffer
        no_link = "", 0
        follows = buffer[start + 1 : start + 2]
        if not follows and not final:
            return None
        can_come = not final and len(buffer) - start <= LONGEST_HOLD
        if follows == "(":
            found = _TARGET.match(buffer, start + 1)
            if found is not None and found.end() - start <= LONGEST_HOLD:
                return as_address(found[1] or found[2] or ""), found.end()
            if found is None and can_come and not _NO_TARGET.match(buffer, start + 1):
                self._sleep(_TARGET_WAKES, LONGEST_HOLD + 1 - (len(buffer) - start))
                return None
        if not self._references:
            return no_link
        label = buffer[opener.position - self._origin + (2 if opener.kind == "!" else 1) : start]
        end = start + 1
        if follows == "[":
            found = _LABEL.match(buffer, start + 1)
            if found is None and can_come and not _NO_LABEL.match(buffer, start + 1):
                self._sleep(_LABEL_WAKES, LONGEST_HOLD + 1 - (len(buffer) - start))
                return None
            if found is not None and found.end() - start <= LONGEST_HOLD:
                label = found[1] or label
                end = found.end()
        url = self._references.get(normalized(label))
        return no_link if url is None else (url, end)

    def _angle(self, start: int, final: bool) -> int | None:
        buffer = self._buffer
        found = _ANGLE.match(buffer, start)
        if found is not None and found.end() - start <= LONGEST_HOLD:
            if _ADDRESS.fullmatch(found[1]):
                self._add(found[1], LINK)
                return found.end()
            if _TAG.fullmatch(found[1]):
                self._add(found[0])
                return found.end()
        elif found is None and not final and len(buffer) - start <= LONGEST_HOLD:
            follows = buffer[start + 1 : start + 2]
            may_be = not follows or follows in "/!?" or (follows.isascii() and follows.isalpha())
            if may_be and not _ANGLE_WAKES.search(buffer, start + 1):
                self._sleep(_ANGLE_WAKES if follows else _ANYTHING, LONGEST_HOLD + 1 - (len(buffer) - start))
                return None
        self._add("<")
        return start + 1

    def _entity(self, start: int, final: bool) -> int | None:
        found = _ENTITY.match(self._buffer, start)
        if found is None:
            if not final and _ENTITY_BEGUN.match(self._buffer, start):
                return None
            self._add("&")
            return start + 1
        self._add(_as_character(found))
        return found.end()

    def _escape(self, start: int, final: bool) -> int | None:
        follows = self._buffer[start + 1 : start + 2]
        if not follows and not final:
            return None
        if follows == "\n":  # a hard break, unless the paragraph ends here, perhaps in a Windows path
            ends = start + 2 == len(self._buffer)
            if ends and not final:
                return None
            self._add("\\" if ends else "")
            return start + 1
        if follows not in _PUNCTUATION:
            self._add("\\")
            return start + 1
        self._add(follows)
        return start + 2

    def _line_end(self, start: int, final: bool) -> int:
        self._add("\n")
        return start + 1


def normalized(label: str) -> str:
    """A reference's name, in which case and the amount of space do not count."""
    return " ".join(label.split()).casefold()


def as_address(source: str) -> str:
    """A link's destination without its escapes, on one line."""
    return _ESCAPE.sub(lambda found: found[1] or _as_character(found), source)


def _as_character(entity: re.Match[str]) -> str:
    """What an entity stands for, made printable: it must not bring back what was taken out of the source."""
    name = entity[0]
    text = html.unescape(name) if name[1] == "#" else html5.get(name[1:], name)
    return re.sub(r"[\t\n]", " ", printable(text))


def _last_wide(text: str, at: int) -> int:
    """Where the last character of a script without spaces ends that nothing can join any more."""
    for end in range(len(text) - 1, at, -1):
        if _is_wide(text[end - 1]) and unicodedata.category(text[end])[0] not in "MC":
            return end
    return at


def _is_wide(char: str) -> bool:
    return "\u2e80" <= char <= "\ud7ff" or "\uff00" <= char <= "\uffef"


@lru_cache(maxsize=256)
def _names(base: str, roles: int) -> str:
    return " ".join([base] * bool(base) + [name for bit, name in _ROLE_NAMES.items() if roles & bit])


@lru_cache(maxsize=LONGEST_RUN)
def _closing_run(count: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!`)`{{{count}}}(?!`)")


@lru_cache(maxsize=1024)
def _kind(char: str) -> str:
    """A space " ", punctuation ".", a letter of a script without spaces "c", or anything else "a".

    CommonMark (0.31, section 2.1) does not know "c", and so does not close `**注意：**请`.
    """
    if char.isspace():
        return " "
    if char in _PUNCTUATION or (not char.isascii() and unicodedata.category(char)[0] in "PS"):
        return "."
    return "c" if _is_wide(char) else "a"
