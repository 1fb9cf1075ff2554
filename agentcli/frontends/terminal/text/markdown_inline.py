"""Reads emphasis, code spans and links with markdown-it-py, which takes 30 ms to import: not for the first frame."""

from __future__ import annotations

import re
from collections.abc import MutableMapping, Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Fragment, merged, plain

ROLES = ("bold", "italic", "strike", "code", "link", "url")
_OPENS = {"strong_open": "bold", "em_open": "italic", "s_open": "strike", "link_open": "link"}

# A bare address (RFC 3986, section 2) from its colon on; marks at its end close emphasis around it.
_ADDRESS = re.compile(r"://[A-Za-z0-9!#$%&'()*+,./:;=?@_~-]*[A-Za-z0-9!#$%&'()+,./:;=?@-]")
_BREAKS = re.compile(r"[\t\n]")


class _State(StateInline):
    """Lets emphasis begin and end beside scripts without spaces: CommonMark 0.31 does not close `**注意：**请`."""

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:  # noqa: N802, N803  # the library's names
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        if self.src[start] == "~" and scanned.length > 2:  # only one or two strike out (GFM 0.29, section 6.5)
            return Scanned(False, False, scanned.length)
        before, after = self.src[max(0, start - 1) : start], self.src[end : end + 1]
        if not canSplitWord or not before.strip() or not after.strip():
            return scanned
        return Scanned(scanned.can_open or _is_wide(before), scanned.can_close or _is_wide(after), scanned.length)


class _Inline(ParserInline):
    def parse(self, src: str, md: MarkdownIt, env: MutableMapping[str, Any], tokens: list[Token]) -> list[Token]:
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def inline_fragments(source: str, roles: str) -> list[Fragment]:
    """Return a paragraph's text without its marks, with `roles`."""
    tokens = _parser().parseInline(source)[0].children or []
    return merged(_fragments(tokens, {roles} if roles else set()))


def _fragments(tokens: Sequence[Token], active: set[str]) -> list[Fragment]:
    out: list[Fragment] = []
    links: list[tuple[str, int]] = []

    def add(text: str, *more: str) -> None:
        out.append((_names(frozenset((*active, *more))), text))

    for token in tokens:
        match token.type:
            case "softbreak" | "hardbreak":
                out.append(("", "\n"))
            case "code_inline":
                add(token.content, "code")
            case "text_special":  # an escape or an entity, which must not bring back what was taken out of the source
                add(_on_one_line(token.content))
            case "image":
                begin = len(out)
                out += _fragments(token.children or (), {*active, "link"})
                out += _address(str(token.attrs["src"]), plain(out[begin:]), active)
            case "link_close":
                address, begin = links.pop()
                active.discard("link")
                out += _address(address, plain(out[begin:]), active)
            case opens if opens in _OPENS:
                active.add(_OPENS[opens])
                if opens == "link_open":
                    links.append((str(token.attrs["href"]), len(out)))
            case closes if closes.endswith("_close"):
                active.discard(_OPENS[closes.replace("_close", "_open")])
            case _:
                add(token.content)
    return out


def _address(address: str, shown: str, active: set[str]) -> list[Fragment]:
    """Return the address that follows a link's text, unless the text says it."""
    address = _on_one_line(address)
    if not address or address.removeprefix("mailto:") == shown.removeprefix("mailto:"):
        return []
    return [(_names(frozenset((*active, "url"))), f" ({address})" if shown else f"({address})")]


@cache
def _names(active: frozenset[str]) -> str:
    return " ".join(sorted(active, key=lambda role: ROLES.index(role) if role in ROLES else -1))


def _on_one_line(text: str) -> str:
    return _BREAKS.sub(" ", printable(text))


def _is_wide(char: str) -> bool:
    return "\u2e80" <= char <= "\ud7ff" or "\uff00" <= char <= "\uffef"


def _take_address(state: StateInline, silent: bool) -> bool:
    """An inline rule: nothing is emphasized within an address."""
    found = _ADDRESS.match(state.src, state.pos, state.posMax)
    if found is None:
        return False
    if not silent:
        state.pending += found[0]
    state.pos = found.end()
    return True


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt()
    parser.inline = _Inline()
    parser.configure("commonmark").enable("strikethrough").disable("text_join")
    parser.inline.ruler.before("emphasis", "address", _take_address)
    # Addresses are shown as they were written, and all of them: nobody follows one unseen.
    vars(parser).update(normalizeLink=str, normalizeLinkText=str, validateLink=lambda address: True)
    return parser
