"""Finds the roles of code one line at a time, with Pygments' lexers."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from pygments.lexer import ExtendedRegexLexer, Lexer, RegexLexer
from pygments.lexers import LEXERS, find_lexer_class_by_name
from pygments.token import Comment, Error, Generic, Keyword, Name, Number, Operator, String, _TokenType

from agentcli.frontends.terminal.text.fragments import Fragment, merged

log = logging.getLogger(__name__)

MAX_LINE_CHARS = 2_000  # some lexers take quadratic time for a long line

Token = tuple[_TokenType, str]
# Per state of a lexer: the function that matches, the action on a match, and the state that follows.
Rules = dict[str, list[tuple[Callable[[str, int], re.Match[str] | None], Any, Any]]]
Spans = dict[str, tuple[str, _TokenType]]  # by the opening of a comment or string: its end, and its token

_ALIASES = {
    "jsonc": "json", "mjs": "js", "cjs": "js", "jsx": "js", "mts": "ts", "cts": "ts", "tsx": "ts", "svg": "xml",
    "ps1": "powershell", "yml": "yaml", "h": "c", "hpp": "cpp", "cc": "cpp", "cxx": "cpp", "htm": "html",
    "pyi": "python", "makefile": "make", "dockerfile": "docker", "patch": "diff",
}  # fmt: skip
_PLAIN = frozenset(("", "text", "txt", "plain", "plaintext", "output", "markdown", "md"))
_ROLES: dict[_TokenType, str] = {
    Comment: "comment",
    Generic.Deleted: "removed",
    Generic.Inserted: "added",
    Generic.Heading: "hunk",
    Generic.Subheading: "hunk",
    Comment.Preproc: "keyword",
    Comment.PreprocFile: "string",
    Keyword: "keyword",
    Keyword.Pseudo: "",
    Operator.Word: "keyword",
    Name.Class: "name",
    Name.Function: "name",
    Number: "number",
    String: "string",
}
# Openings and ends of constructs that some lexers know only as a single token over several lines.
_SPANS = (("/*", "*/"), ("<!--", "-->"), ('"""', '"""'), ("`", "`"), ("{-", "-}"))
_QUOTES = (('"', '"'), ("'", "'"))  # in these languages alone; elsewhere an apostrophe would paint all that follows
_QUOTES_SPAN_LINES = frozenset(("sh", "sql", "mysql", "postgresql", "sqlite3"))
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(-?)\s*(['\"]?)\\?([A-Za-z_]\w*)\2")


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Compile the rules of the commonest language in a thread, before its first line is to be shown."""
    threading.Thread(target=lexer_for, args=("python",), daemon=True).start()


class CodeHighlighter:
    """Colours the lines of one block of code. They stay plain if the language is unknown, or if its lexer fails."""

    def __init__(self, language: str) -> None:
        self._lexer = lexer_for(language)
        self._stack = ["root", "php"] if getattr(self._lexer, "startinline", False) else ["root"]
        # A comment or string that a line has left open: the pattern that closes it, and its token.
        self._span: tuple[re.Pattern[str], _TokenType] | None = None

    def line(self, text: str) -> list[Fragment]:
        """Return the next line, without its line break. The work does not depend on the lines before."""
        if self._lexer is None or len(text) > MAX_LINE_CHARS:
            return [("", text)] if text else []
        try:
            return _painted(self._tokens(self._lexer, text))
        except Exception:  # a lexer is foreign code, and an answer must not be lost for its colours
            log.debug("%s failed", self._lexer, exc_info=True)
            self._lexer = None
            return [("", text)]

    def _tokens(self, lexer: Lexer, text: str) -> Iterator[Token]:
        if not isinstance(lexer, RegexLexer) or isinstance(lexer, ExtendedRegexLexer):
            yield from ((token, part.rstrip("\n")) for _, token, part in lexer.get_tokens_unprocessed(text + "\n"))
            return
        start = 0
        if self._span is not None:
            closing, token = self._span
            found = closing.search(text)
            start = found.end() if found else len(text)
            yield token, text[:start]
            if found is None:
                return
            self._span = None
        spans = _spans(lexer)
        openings = tuple(opening for opening in spans if opening != "<<")
        for at, token, part in _lex(lexer, text + "\n", start, self._stack):
            if openings and text.startswith(openings, at) and token not in String:
                opening = next(one for one in openings if text.startswith(one, at))
                end, kind = spans[opening]
                if end not in text[at + len(opening) :]:
                    self._span = re.compile((r"(?<!\\)" if end == '"' else "") + re.escape(end)), kind
                    yield kind, text[at:]
                    return
            yield token, part.rstrip("\n")
        if "<<" in spans and (here := _HERE_DOCUMENT.search(text, start)):
            indentation = r"\t*" if here[1] else ""
            self._span = re.compile(rf"^{indentation}{here[3]}$"), String.Heredoc


def _lex(lexer: RegexLexer, text: str, at: int, stack: list[str]) -> Iterator[tuple[int, _TokenType, str]]:
    """Do as `RegexLexer.get_tokens_unprocessed`, with a stack of states that is kept from line to line."""
    rules: Rules = lexer._tokens  # noqa: SLF001  Pygments has no public name for them
    for _ in range(4 * MAX_LINE_CHARS):
        if at >= len(text):
            return
        for match, action, state in rules[stack[-1]]:
            if (found := match(text, at)) is None:
                continue
            if type(action) is _TokenType:
                yield at, action, found[0]
            elif action is not None:
                yield from action(lexer, found)
            at = found.end()
            if isinstance(state, int):
                del stack[max(1, len(stack) + state) :]
            else:
                for name in (state,) if isinstance(state, str) else state or ():
                    if name == "#pop":
                        del stack[max(1, len(stack) - 1) :]
                    else:
                        stack.append(stack[-1] if name == "#push" else name)
            break
        else:
            if text[at] == "\n":
                stack[:] = ["root"]
            else:
                yield at, Error, text[at]
            at += 1
    raise RuntimeError("the lexer changes its state without end")


def lexer_for(language: str) -> Lexer | None:
    """Return a lexer for the first word of a fence's info string, such as `py3`, `{.python}` or `ts:src/a.ts`."""
    found = re.match(r"[\s{.]*([\w+#-]*)", language)
    name = found[1].lower() if found else ""
    return None if name in _PLAIN else _lexer(_ALIASES.get(name, name))


@lru_cache(maxsize=64)
def _lexer(name: str) -> Lexer | None:
    # For a name that it does not know, Pygments would import the plugins of every installed package.
    if not any(name in aliases for _, _, aliases, _, _ in LEXERS.values()):
        return None
    try:
        kind = find_lexer_class_by_name(name)
        return kind(startinline=True) if name == "php" else kind()
    except Exception:  # as above: a lexer whose rules do not compile
        log.debug("no lexer for %r", name, exc_info=True)
        return None


@lru_cache(maxsize=64)
def _spans(lexer: RegexLexer) -> Spans:
    """Return the comments and strings that this lexer knows in two lines together, but not in the first alone."""
    spans: Spans = {}
    quotes = _QUOTES if _QUOTES_SPAN_LINES.intersection(lexer.aliases) else ()
    for opening, closing in (*_SPANS, *quotes):
        text = f"{opening} a\nb {closing}"
        tokens = [(token, part) for _, token, part in lexer.get_tokens_unprocessed(text) if part]
        kind, part = tokens[0]
        if part == text and (kind in Comment or kind in String) and not _is_remembered(lexer, opening):
            spans[opening] = closing, kind
    tokens = [(token, part) for _, token, part in lexer.get_tokens_unprocessed("<<X\na b\nX")]
    if tokens[0][0] in String and "a b" in tokens[0][1]:
        spans["<<"] = "", String.Heredoc
    return spans


def _is_remembered(lexer: RegexLexer, opening: str) -> bool:
    """Return True if the lexer itself has a state for a construct that is open at the end of a line."""
    stack = ["root"]
    deque(_lex(lexer, f"{opening} a\n", 0, stack), maxlen=0)
    return stack != ["root"]


@lru_cache(maxsize=512)
def _role(token: _TokenType) -> str:
    kind: _TokenType | None = token
    while kind is not None:
        if kind in _ROLES:
            return _ROLES[kind]
        kind = kind.parent
    return ""


def _painted(tokens: Iterable[Token]) -> list[Fragment]:
    """Return the roles of tokens; white space takes the role before it, because each change of colour costs bytes."""
    fragments: list[Fragment] = []
    for token, text in tokens:
        fragments.append((fragments[-1][0] if fragments and text.isspace() else _role(token), text))
    return merged(fragments)
