"""Reads emphasis, code spans, links and the like in the text of one paragraph as it comes in."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache

from agentcli.frontends.terminal.markdown.held_text import CODE, LINK, HeldText
from agentcli.frontends.terminal.markdown.links import ENTITY, Wait, as_character, link_target
from agentcli.frontends.terminal.text.fragments import Fragment

LONGEST_HOLD = 2_000  # source characters: an opener that is not closed within them was not meant as markup
LONGEST_WORD = 200  # characters of a word that are waited for
LONGEST_RUN = 100  # delimiters side by side; more are a drawing

_SPECIAL = re.compile(r"[*_`\[\]!<\\&~\n]")
_ANGLE = re.compile(r"<([A-Za-z/!?][^<>\n]*)>")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*|[\w.!#$%&'*+/=?^`{|}~-]+@[A-Za-z0-9.-]+")
_TAG = re.compile(
    r"""[A-Za-z][A-Za-z0-9-]*(?:\s+[A-Za-z_:][\w.:-]*(?:\s*=\s*(?:[^\s"'=<>`]+|'[^']*'|"[^"]*"))?)*\s*/?"""
    r"|/[A-Za-z][A-Za-z0-9-]*\s*|!--.*--|\?.*\?|![A-Za-z].*"
)
_ENTITY_BEGUN = re.compile(r"&(?:#(?:[0-9]{0,7}|[xX][0-9a-fA-F]{0,6})|[A-Za-z][A-Za-z0-9]{0,31})?\Z")

PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
# The characters of a bare address (RFC 3986, section 2), but for brackets.
_ADDRESS_CHARACTERS = "".join(sorted(PUNCTUATION - set('"<>[]\\^`{|}'))) + string.ascii_letters + string.digits

# The characters that must come before a construct that is waited for is looked at again.
_ANGLE_WAKES = re.compile(r"[<>\n]")
_BACKTICK_WAKES = re.compile("`")
_WORD_WAKES = re.compile(r"[^ \t]")
_ANYTHING = re.compile("")


class InlineScanner:
    """Gives out the text of paragraphs, each as soon as its roles are certain.

    Decides from left to right: the first delimiter that can close does. An opener holds back the text behind it until
    it is closed, or `LONGEST_HOLD` characters have passed, or the paragraph ends; then it stands for itself. Within
    an address nothing opens. `emit(roles, text)` gets a line's end as a text of its own.
    """

    def __init__(self, emit: Callable[[str, str], None], references: Mapping[str, str]) -> None:
        self._held = HeldText(emit)
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
        self._sleeping: list[str] = []
        self.start("")

    def start(self, roles: str) -> None:
        """Begin a paragraph whose text has these roles throughout."""
        self._held.start(roles)
        self._buffer = ""  # source: from the first character that is held back
        self._at = 0  # where in the buffer to go on
        self._origin = 0  # where in the paragraph the buffer begins
        self._before = "\n"  # the character before the buffer
        self._word = ""  # the part that matters of a word that the buffer's start may continue
        self._word_origin = 0  # where in the paragraph it begins, at the earliest: behind the last link
        self._wake = _ANYTHING
        self._sleep_for = 0  # characters after which to look again in any case

    def feed(self, text: str) -> None:
        if self._sleep_for > 0:
            self._sleeping.append(text)
            self._sleep_for -= len(text)
            if "\n" in text:
                self._held.begin_lines(text.count("\n"))
            if self._sleep_for > 0 and self._wake.search(text) is None:
                return
            text = "".join(self._sleeping)
            self._sleeping.clear()
        elif "\n" in text:
            self._held.begin_lines(text.count("\n"))
        self._buffer += text
        self._scan(final=False)

    def continue_line(self, prefix: list[Fragment]) -> None:
        """Put a prefix, such as a quote mark, before the text of the line that now begins."""
        self._held.continue_line(prefix)

    def finish(self) -> None:
        """The paragraph ends; openers stand for themselves."""
        self._buffer += "".join(self._sleeping)
        self._sleeping.clear()
        self._scan(final=True)
        self._held.finish()
        self.start("")

    @property
    def held(self) -> str:
        """The source of the text that has not been given out."""
        return self._held.with_prefixes(self._buffer + "".join(self._sleeping))

    def _scan(self, *, final: bool) -> None:
        self._sleep_for = 0
        buffer = self._buffer
        at = self._at
        while at < len(buffer):
            found = _SPECIAL.search(buffer, at)
            if found is None:
                end = len(buffer.rstrip(" \t")) if final else self._certain_end(at)
                if end > at:
                    self._held.add(buffer[at:end])
                at = len(buffer) if final else max(at, end)
                break
            start = found.start()
            char = buffer[start]
            if start > at:
                self._held.add(buffer[at:start].rstrip(" \t") if char == "\n" else buffer[at:start])
            self._at = start
            after = self._handlers[char](start, final)
            if after is None:
                at = start
                break
            at = after
        self._at = at
        self._drop_expired(at)
        self._trim()

    def _certain_end(self, at: int) -> int:
        """The end of the last whole word, in text without markup from `at` to the end."""
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
        """Forget the source of text that has been given out, but for its end, which the next delimiter looks at."""
        openers = self._held.openers
        cut = openers[0].position - self._origin if openers else self._at
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

    def _drop_expired(self, at: int) -> None:
        self._held.drop_before(self._origin + at - LONGEST_HOLD)

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
            self._held.add(buffer[start:end])
            return end
        before, after = buffer[start - 1] if start else self._before, buffer[end] if end < len(buffer) else "\n"
        opens, closes = _flanks(char, before, after)
        if opens and "://" in self._word_until(start):
            opens = False
        left = count
        if closes:
            self._drop_expired(start)
            left = self._held.close(char, count, opens_too=opens)
        if left and opens:
            self._held.open(char, char * left, self._origin + start, closes_too=closes, length=count)
        elif left:
            self._held.add(char * left)
        return end

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
            self._held.add(buffer[start:end])
            return end
        text = buffer[end : closing.start()]
        if text[0] == " " == text[-1] and text.strip(" "):
            text = text[1:-1]
        self._held.add(text, CODE)
        return closing.end()

    def _bracket(self, start: int, final: bool) -> int:
        self._held.open("[", "[", self._origin + start)
        return start + 1

    def _image(self, start: int, final: bool) -> int | None:
        if start + 1 == len(self._buffer) and not final:
            return None
        if not self._buffer.startswith("[", start + 1):
            self._held.add("!")
            return start + 1
        self._held.open("!", "![", self._origin + start)
        return start + 2

    def _link(self, start: int, final: bool) -> int | None:
        self._drop_expired(start)
        held, openers = self._held, self._held.openers
        index = next((i for i in reversed(range(len(openers))) if openers[i].kind in "[!"), -1)
        if index < 0 or not openers[index].active:
            return self._no_link(start, index)
        opener = openers[index]
        label = self._buffer[opener.position - self._origin + (2 if opener.kind == "!" else 1) : start]
        found = link_target(self._buffer, start, label, self._references, final=final, longest=LONGEST_HOLD)
        if isinstance(found, Wait):
            if found.wakes is not None:
                self._sleep(found.wakes, LONGEST_HOLD + 1 - (len(self._buffer) - start))
            return None
        if not found.end or not (held.text_behind(opener) or found.url):
            return self._no_link(start, index)
        self._word_origin = self._origin + found.end
        held.close_link(index, found.url)
        return found.end

    def _no_link(self, start: int, index: int) -> int:
        """The bracket stands for itself, and so does its opener, if it has one."""
        if index >= 0:
            del self._held.openers[index]
        self._held.add("]")
        self._held.settle()
        return start + 1

    def _angle(self, start: int, final: bool) -> int | None:
        buffer = self._buffer
        found = _ANGLE.match(buffer, start)
        if found is not None and found.end() - start <= LONGEST_HOLD:
            if _ADDRESS.fullmatch(found[1]):
                self._held.add(found[1], LINK)
                return found.end()
            if _TAG.fullmatch(found[1]):
                self._held.add(found[0])
                return found.end()
        elif found is None and not final and len(buffer) - start <= LONGEST_HOLD:
            follows = buffer[start + 1 : start + 2]
            may_be = not follows or follows in "/!?" or (follows.isascii() and follows.isalpha())
            if may_be and not _ANGLE_WAKES.search(buffer, start + 1):
                self._sleep(_ANGLE_WAKES if follows else _ANYTHING, LONGEST_HOLD + 1 - (len(buffer) - start))
                return None
        self._held.add("<")
        return start + 1

    def _entity(self, start: int, final: bool) -> int | None:
        found = ENTITY.match(self._buffer, start)
        if found is None:
            if not final and _ENTITY_BEGUN.match(self._buffer, start):
                return None
            self._held.add("&")
            return start + 1
        self._held.add(as_character(found))
        return found.end()

    def _escape(self, start: int, final: bool) -> int | None:
        follows = self._buffer[start + 1 : start + 2]
        if not follows and not final:
            return None
        if follows == "\n":  # a hard break, unless the paragraph ends here, perhaps in a Windows path
            ends = start + 2 == len(self._buffer)
            if ends and not final:
                return None
            self._held.add("\\" if ends else "")
            return start + 1
        if follows not in PUNCTUATION:
            self._held.add("\\")
            return start + 1
        self._held.add(follows)
        return start + 2

    def _line_end(self, start: int, final: bool) -> int:
        self._held.add("\n")
        return start + 1


@lru_cache(maxsize=LONGEST_RUN)
def _closing_run(count: int) -> re.Pattern[str]:
    return re.compile(rf"(?<!`)`{{{count}}}(?!`)")


def _flanks(char: str, before: str, after: str) -> tuple[bool, bool]:
    """True for each if a delimiter between two characters can open, and can close (CommonMark 0.31, section 6.2)."""
    left, right = _kind(before), _kind(after)
    opens = right != " " and (right != "." or left != "a")
    closes = left != " " and (left != "." or right != "a")
    if char == "_":
        return opens and (not closes or left == "."), closes and (not opens or right == ".")
    return opens, closes


@lru_cache(maxsize=1024)
def _kind(char: str) -> str:
    """A space " ", punctuation ".", a letter of a script without spaces "c", or anything else "a".

    CommonMark (0.31, section 2.1) does not know "c", and so does not close `**注意：**请`.
    """
    if char.isspace():
        return " "
    if char in PUNCTUATION or (not char.isascii() and unicodedata.category(char)[0] in "PS"):
        return "."
    return "c" if _is_wide(char) else "a"


def _last_wide(text: str, at: int) -> int:
    """The end of the last character of a script without spaces that nothing can join any more; `at` without one."""
    for end in range(len(text) - 1, at, -1):
        if _is_wide(text[end - 1]) and unicodedata.category(text[end])[0] not in "MC":
            return end
    return at


def _is_wide(char: str) -> bool:
    return "\u2e80" <= char <= "\ud7ff" or "\uff00" <= char <= "\uffef"
