"""Lays out code and diffs in the colours of their language, with Pygments' lexers."""

import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, islice
from typing import Any, Literal

from msgspec import Struct
from pygments.lexer import ExtendedRegexLexer, Lexer, RegexLexer
from pygments.lexers import LEXERS, find_lexer_class_by_name
from pygments.token import Comment, Error, Generic, Keyword, Name, Number, Operator, String, _TokenType

from agentcli.frontends.printable import escape_hidden
from agentcli.frontends.terminal.text.fragments import Fragment, common_prefix_length, merged, wrap_line
from agentcli.patterns import lazy_pattern

log = logging.getLogger(__name__)
MAX_LINE_CHARS = 2_000  # some lexers take quadratic time for a long line
Token = tuple[_TokenType, str]
# A lexer's rules, by state: the function that matches, the action on a match, and the state that follows.
Rules = dict[str, list[tuple[Callable[[str, int], re.Match[str] | None], Any, Any]]]
# By the opening of a comment or string: its end, and its token.
Spans = dict[str, tuple[str, _TokenType]]
_ALIASES = {
    "jsonc": "json", "mjs": "js", "cjs": "js", "jsx": "js", "mts": "ts", "cts": "ts", "tsx": "ts", "svg": "xml",
    "ps1": "powershell", "yml": "yaml", "h": "c", "hpp": "cpp", "cc": "cpp", "cxx": "cpp", "htm": "html",
    "pyi": "python", "makefile": "make", "dockerfile": "docker", "patch": "diff",
}  # fmt: skip
_PLAIN = frozenset(("", "text", "txt", "plain", "plaintext", "output", "markdown", "md"))
_ROLES: dict[_TokenType, str] = {
    Comment: "comment", Comment.Preproc: "keyword", Comment.PreprocFile: "string",
    Generic.Deleted: "removed", Generic.Inserted: "added", Generic.Heading: "hunk", Generic.Subheading: "hunk",
    Keyword: "keyword", Keyword.Pseudo: "", Operator.Word: "keyword", Name.Class: "name", Name.Function: "name",
    Number: "number", String: "string",
}  # fmt: skip
# Openings and ends of constructs that some lexers know only as a single token over several lines.
_SPANS = (("/*", "*/"), ("<!--", "-->"), ('"""', '"""'), ("`", "`"), ("{-", "-}"))


@lru_cache(maxsize=1)
def prepare_highlighting() -> None:
    """Compile the rules of the most common language in a thread, before its first line is shown."""
    threading.Thread(target=lexer_for, args=("python",), daemon=True).start()


class CodeHighlighter:
    """Colours the lines of one block of code. They stay plain if the language is unknown, or if its lexer fails."""

    def __init__(self, language: str) -> None:
        self._lexer = lexer_for(language)
        is_php = getattr(self._lexer, "startinline", False)  # its lines come without the opening tag
        self._stack = ["root", "php"] if is_php else ["root"]  # the states of the lexer, the current one last
        # A comment or string that a line has left open: the text that closes it, and its token.
        self._span: tuple[str, _TokenType] | None = None

    def line(self, text: str) -> list[Fragment]:
        """Return the next line, without its line break. Only what the lines before have left open is remembered."""
        if self._lexer is None or len(text) > MAX_LINE_CHARS:
            return [("", text)] if text else []
        try:
            return _with_roles(self._tokens(self._lexer, text))
        except Exception:  # a lexer is foreign code, and an answer must not be lost for its colours
            log.debug("%s failed", self._lexer, exc_info=True)
            self._lexer = None
            return [("", text)]

    def _tokens(self, lexer: Lexer, text: str) -> Iterator[Token]:
        """Yield a line's tokens, and remember the comment or string that it leaves open for the next line.

        `_stack` keeps the lexer's states. For one of the `_spans`, which the lexer knows only as a single token,
        `_span` keeps the end to look for.
        """
        # `_lex` cannot use the rules of these lexers, so each line is tokenized alone.
        if not isinstance(lexer, RegexLexer) or isinstance(lexer, ExtendedRegexLexer):
            yield from ((token, part.rstrip("\n")) for _, token, part in lexer.get_tokens_unprocessed(text + "\n"))
            return
        start, spans = 0, _spans(lexer)
        if self._span is not None:
            closing, token = self._span
            if closing not in text:
                yield token, text
                return
            start = text.index(closing) + len(closing)
            yield token, text[:start]
            self._span = None
        for at, token, part in _lex(lexer, text + "\n", start, self._stack):
            # Within a String, such as `"/*"`, an opening opens nothing.
            opening = next((one for one in spans if text.startswith(one, at) and token not in String), "")
            if opening and spans[opening][0] not in text[at + len(opening) :]:
                self._span = spans[opening]
                yield self._span[1], text[at:]
                return
            yield token, part.rstrip("\n")


def _lex(lexer: RegexLexer, text: str, at: int, stack: list[str]) -> Iterator[tuple[int, _TokenType, str]]:
    """Tokenize as `RegexLexer.get_tokens_unprocessed` does, but keep the stack of states from line to line."""
    rules: Rules = lexer._tokens  # noqa: SLF001  Pygments has no public name for them
    for _ in range(4 * MAX_LINE_CHARS):  # more steps than a line needs, unless only the states change
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
            if isinstance(state, int):  # negative: that many states end
                del stack[max(1, len(stack) + state) :]
            else:
                for name in (state,) if isinstance(state, str) else state or ():
                    if name == "#pop":
                        del stack[max(1, len(stack) - 1) :]
                    else:
                        stack.append(stack[-1] if name == "#push" else name)
            break
        else:  # no rule matches
            if text[at] == "\n":
                stack[:] = ["root"]
            else:
                yield at, Error, text[at]
            at += 1
    raise RuntimeError("the lexer changes its state without reading text")


@lru_cache(maxsize=64)
def lexer_for(language: str) -> Lexer | None:
    """Return a lexer for the first word of a fence's info string, such as `py3`, `{.python}` or `ts:src/a.ts`."""
    name = re.findall(r"[\s{.]*([\w+#-]*)", language)[0].lower()
    name = _ALIASES.get(name, name)
    # For a name that it does not know, Pygments would import the plugins of every installed package.
    if name in _PLAIN or not any(name in aliases for _, _, aliases, _, _ in LEXERS.values()):
        return None
    try:
        kind = find_lexer_class_by_name(name)
        return kind(startinline=True) if name == "php" else kind()
    except Exception:  # foreign code: the rules of some lexers do not compile
        log.debug("no lexer for %r", name, exc_info=True)
        return None


@lru_cache(maxsize=64)
def _spans(lexer: RegexLexer) -> Spans:
    """Return the comments and strings that this lexer recognizes only if it sees all their lines at once."""
    spans: Spans = {}
    for opening, closing in _SPANS:
        text = f"{opening} a\nb {closing}"
        _, kind, part = next(token for token in lexer.get_tokens_unprocessed(text) if token[2])  # some are empty
        if part == text and (kind in Comment or kind in String):
            stack = ["root"]
            deque(_lex(lexer, f"{opening} a\n", 0, stack), maxlen=0)  # only for its effect on the stack
            if stack == ["root"]:  # else the lexer remembers by a state that the construct is open
                spans[opening] = closing, kind
    return spans


@lru_cache(maxsize=512)
def _role(token: _TokenType) -> str:
    return next((_ROLES[kind] for kind in reversed(token.split()) if kind in _ROLES), "")


def _with_roles(tokens: Iterable[Token]) -> list[Fragment]:
    """Return the roles of tokens; white space gets the role before it, because each change of colour costs bytes."""
    fragments: list[Fragment] = []
    for token, text in tokens:
        fragments.append((fragments[-1][0] if fragments and text.isspace() else _role(token), text))
    return merged(fragments)


MIN_NUMBER_COLUMNS = 24  # a narrower window has no room for line numbers
_MAX_COMPARED_CHARS = 500  # of a line
_HUNK = lazy_pattern(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")  # first line and count: old, new
_FILE_LINES = ("--- ", "+++ ", "diff --git ", "index ", "new file mode ", "deleted file mode ")
_WORD = lazy_pattern(r"\w+|\s+|[^\w\s]")  # a word, white space or one other character
_Kind = Literal["added", "removed", "", "muted", "hunk"]
_SIGNS: dict[_Kind, str] = {"added": "+ ", "removed": "- ", "": "  ", "muted": "  ", "hunk": "⋯"}


class _DiffLine(Struct, frozen=True):
    """A line of the diff, with its numbers in both files; a number is None if the file has no such line."""

    kind: _Kind
    text: str = ""
    old: int | None = None
    new: int | None = None


def diff_fragments(
    diff: str, *, width: int, max_lines: int | None, hint: str = "", wraps: bool = False
) -> list[Fragment]:
    """Return the diff without its file lines. A window of `width` columns may have room for line numbers.

    Lines beyond `max_lines` are only counted; `hint` follows their number. With `wraps`, the rows of a long line are
    indented to its text.
    """
    lines = diff.removesuffix("\n").split("\n") if diff else []
    rows = _read_diff(lines)
    shown = list(islice(rows, max_lines))
    hidden = sum(1 for _ in rows)  # the rows that `shown` has left in the iterator
    texts = [_shown_text(row) for row in shown]
    changed_words = _changed_words(shown, texts)
    digits = len(str(max((row.new or row.old or 1 for row in shown), default=1)))
    # The language is that of the changed file's ending or, without an ending, of its name.
    names = [line[4:].split("\t")[0] for line in lines[:2] if line[:4] in ("--- ", "+++ ")]
    name = next((name for name in reversed(names) if name != "/dev/null"), "").rpartition("/")[2]
    coloured = _coloured(shown, texts, name.rpartition(".")[2])
    fragments: list[Fragment] = []
    for index, (row, parts) in enumerate(zip(shown, coloured, strict=True)):
        number = f"{row.new or row.old or '':>{digits}} " if width >= MIN_NUMBER_COLUMNS and row.kind != "hunk" else ""
        line = [*_line_fragments(row, _mark_changed(row, parts, changed_words.get(index, (0, 0))), number)]
        hang = [("", " " * (len(number) + len(_SIGNS[row.kind])))]
        fragments += wrap_line(line, width, hang, breaks_words=True) if wraps else line
        fragments.append(("", "\n"))
    if hidden:
        fragments += [("muted", f"… {hidden:,} more {'line' if hidden == 1 else 'lines'}{hint}"), ("", "\n")]
    return fragments


def _coloured(rows: Sequence[_DiffLine], texts: Sequence[str], language: str) -> Iterator[list[Fragment]]:
    """Yield the texts in the colours of their language; both files are read from top to bottom."""
    old, new = CodeHighlighter(language), CodeHighlighter(language)
    for row, text in zip(rows, texts, strict=True):
        if row.kind in ("muted", "hunk"):  # lines are missing here, so nothing that was open continues
            old, new = CodeHighlighter(language), CodeHighlighter(language)
            yield [("", text)]
        else:
            if not row.kind:  # a line of both files: `old` reads it, too, and its colours are those of `new`
                old.line(text)
            yield (old if row.kind == "removed" else new).line(text)


def _read_diff(lines: Sequence[str]) -> Iterator[_DiffLine]:
    """Yield the lines of a diff, except those that name files, with a separator before each hunk but the first.

    Within a hunk, whose header counts its lines, `--- a` is the removed line `-- a`; outside it names a file. Other
    lines with `-` or `+` are changes outside of hunks, too, because a header may count too few.
    """
    old = new = 0  # the numbers of the next line in both files, 0 in a file that does not exist
    old_left = new_left = 0  # how many lines of the current hunk follow in both files
    is_first_hunk = True
    for line in lines:
        mark, text = line[:1], line[1:]
        if found := _HUNK.match(line):
            old, new = int(found[1]), int(found[3])
            old_left, new_left = int(found[2] or 1), int(found[4] or 1)
            if not is_first_hunk:
                yield _DiffLine("hunk")  # a separator: its sign is all that is shown
            is_first_hunk = False
        elif mark == "\\":  # `\ No newline at end of file`
            yield _DiffLine("muted", line)
        elif mark == "-" and (old_left > 0 or not line.startswith(_FILE_LINES)):
            yield _DiffLine("removed", text, old=old or None)
            old, old_left = old + 1, old_left - 1
        elif mark == "+" and (new_left > 0 or not line.startswith(_FILE_LINES)):
            yield _DiffLine("added", text, new=new or None)
            new, new_left = new + 1, new_left - 1
        elif old_left > 0 and new_left > 0 and mark in {" ", ""}:
            yield _DiffLine("", text, old, new)
            old, old_left, new, new_left = old + 1, old_left - 1, new + 1, new_left - 1
        elif line and not line.startswith(_FILE_LINES):
            yield _DiffLine("muted", line)


def _shown_text(row: _DiffLine) -> str:
    """Return a line with spaces in place of tabs; spaces at its end become dots if they can be the change."""
    text = row.text
    if not (text.isascii() and text.isprintable()):
        text = escape_hidden(text.removesuffix("\r")).expandtabs(8)
    stripped = text.rstrip()
    return stripped + "·" * (len(text) - len(stripped)) if row.kind in {"added", "removed"} else stripped


def _line_fragments(row: _DiffLine, parts: Sequence[Fragment], number: str) -> Iterator[Fragment]:
    """Yield a line of a diff as it is shown: its number, its sign, and `parts`, the fragments of its text."""
    sign = _SIGNS[row.kind]
    is_blank = not (sign.strip() or parts)  # then no spaces are printed
    if number:
        yield "line_number", number.rstrip() if is_blank else number
    if not is_blank:
        role = f"{row.kind}_sign" if row.kind in ("added", "removed") else row.kind
        yield role, sign if parts else sign.rstrip()
    for roles, text in parts:
        yield f"{row.kind} {roles}".strip(), text


def _mark_changed(row: _DiffLine, parts: Sequence[Fragment], changed: tuple[int, int]) -> list[Fragment]:
    """Give the changed part of a line (the offsets of its start and end) a role of its own."""
    out: list[Fragment] = []
    position = 0
    for roles, text in parts:
        first, end = (max(0, min(at - position, len(text))) for at in changed)
        changed_roles = f"{row.kind}_word {roles}".strip()
        out += [(roles, text[:first]), (changed_roles, text[first:end]), (roles, text[end:])]
        position += len(text)
    return merged(out)


def _changed_words(rows: Sequence[_DiffLine], texts: Sequence[str]) -> dict[int, tuple[int, int]]:
    """Compare each removed line with its replacement; return start and end of the difference, by the lines' indices."""
    changed: dict[int, tuple[int, int]] = {}
    removed: list[int] = []
    lines = [index for index, row in enumerate(rows) if row.kind != "muted"]
    for kind, group in groupby(lines, key=lambda index: rows[index].kind):
        run = list(group)
        if kind == "added":  # the first line replaces the first removed one, and so on
            for old, new in zip(removed, run, strict=False):
                changed[old], changed[new] = _differences(texts[old], texts[new])
        removed = run if kind == "removed" else []
    return changed


def _differences(old: str, new: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return start and end of the words in each line that differ."""
    # Nothing is marked if less than half of the characters are the same, or if a line is too long to be compared.
    if max(len(old), len(new)) > _MAX_COMPARED_CHARS:
        return (0, 0), (0, 0)
    old_words, new_words = _WORD.findall(old), _WORD.findall(new)
    same = common_prefix_length(old_words, new_words)
    same_at_end = common_prefix_length(old_words[same:][::-1], new_words[same:][::-1])
    before, after = len("".join(old_words[:same])), len("".join(old_words[len(old_words) - same_at_end :]))
    if 4 * (before + after) < len(old) + len(new):
        return (0, 0), (0, 0)
    return (before, len(old) - after), (before, len(new) - after)
