"""Lays out the text and the tables of Markdown blocks. Imported late, because markdown-it-py takes 30 ms to import."""

import re
from collections.abc import Callable, MutableMapping, Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.parser_inline import ParserInline
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.state_inline import Scanned
from markdown_it.token import Token
from wcwidth import wcswidth

from agentcli.frontends.printable import printable
from agentcli.frontends.terminal.text.fragments import Fragment, lines_of, merged, plain, without_end_blanks, wrap_line

ROLES = ("bold", "italic", "strike", "code", "link", "url")
_OPENS = {"strong_open": "bold", "em_open": "italic", "s_open": "strike", "link_open": "link"}
# A bare address (RFC 3986, section 2) from its colon on; marks at its end close emphasis around it.
_ADDRESS = re.compile(r"://[A-Za-z0-9!#$%&'()*+,./:;=?@_~-]*[A-Za-z0-9!#$%&'()+,./:;=?@-]")
_BREAKS = re.compile(r"[\t\n]")
# Only with a sign of TeX inside is it a formula; `$5 and $6`, variables and escaped brackets are text.
# The mark of a footnote, `[^1]`, is read as a raised number.
_TEX = r"[^\\$`^_=+]*(?:[\^_=+]|\\[A-Za-z,;!])(?:[^\\$`]|\\[A-Za-z,;!\\ ])*?"
_FORMULA = re.compile(
    rf"\[(\^[0-9]+)\]|\$\$({_TEX})\$\$|\\\(({_TEX})\\\)|\\\[({_TEX})\\\]"
    rf"|(?<![\w$])\$(?=\S)({_TEX}|[A-Za-z])(?<=\S)\$(?![\w$])"
)
_SYMBOLS = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "theta": "θ", "lambda": "λ", "mu": "μ",
    "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ",
    "Pi": "Π", "Sigma": "Σ", "Phi": "Φ", "Omega": "Ω", "times": "×", "cdot": "·", "pm": "±", "to": "→",
    "le": "≤", "leq": "≤", "ge": "≥", "geq": "≥", "ne": "≠", "neq": "≠",
    "approx": "≈", "infty": "∞", "in": "∈", "sum": "∑", "prod": "∏", "int": "∫", "sqrt": "√", "partial": "∂",
    "ldots": "…", "dots": "…", "left": "", "right": "", "quad": " ", ",": " ", ";": " ", "!": "",
}  # fmt: skip
_RAISED, _LOWERED = str.maketrans("0123456789+-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"), str.maketrans("0123456789+-", "₀₁₂₃₄₅₆₇₈₉₊₋")


class _State(StateInline):
    """Lets emphasis begin and end beside scripts without spaces: CommonMark 0.31 does not close `**注意：**请`."""

    def scanDelims(self, start: int, canSplitWord: bool) -> Scanned:  # noqa: N802, N803  # the library's names
        scanned = super().scanDelims(start, canSplitWord)
        end = start + scanned.length
        if self.src[start] == "~" and scanned.length > 2:  # only one or two strike out (GFM 0.29, section 6.5)
            return Scanned(False, False, scanned.length)
        before, after = self.src[max(0, start - 1) : start], self.src[end : end + 1]
        if not canSplitWord or not before.strip() or not after.strip():  # `_`, or white space beside the marks
            return scanned
        return Scanned(scanned.can_open or _is_cjk(before), scanned.can_close or _is_cjk(after), scanned.length)


class _Inline(ParserInline):
    def parse(self, src: str, md: MarkdownIt, env: MutableMapping[str, Any], tokens: list[Token]) -> list[Token]:
        state = _State(src, md, env, tokens)
        self.tokenize(state)
        for rule in self.ruler2.getRules(""):
            rule(state)
        return state.tokens


def inline_fragments(source: str, roles: str) -> list[Fragment]:
    """Return a paragraph's text without Markdown markup; all of it also has `roles` of the theme, such as "quote"."""
    return merged(_fragments(_parser().parseInline(source)[0].children or (), {roles} if roles else set()))


def _fragments(tokens: Sequence[Token], active: set[str]) -> list[Fragment]:
    """Return the text of tokens, all of it in the `active` roles, with the address of a link after its text."""
    out: list[Fragment] = []
    links: list[tuple[str, int]] = []  # open links: the address, and the number of fragments before the text

    def add(text: str, *more: str) -> None:
        out.append((_joined_roles(frozenset((*active, *more))), text))

    for token in tokens:
        match token.type:
            case "softbreak" | "hardbreak":
                out.append(("", "\n"))
            case "code_inline":
                add(token.content, "code")
            case "text_special":  # an escape or an entity, which must not bring back removed control characters
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
    """Return the address that follows a link's text, unless the text is the address."""
    address = _on_one_line(address)
    is_shown = not address or address.removeprefix("mailto:") == shown.removeprefix("mailto:")
    return [] if is_shown else [(_joined_roles(frozenset((*active, "url"))), f"{' ' if shown else ''}({address})")]


@cache
def _joined_roles(active: frozenset[str]) -> str:
    return " ".join(sorted(active, key=lambda role: ROLES.index(role) if role in ROLES else -1))


def _on_one_line(text: str) -> str:
    return _BREAKS.sub(" ", printable(text))


def _is_cjk(char: str) -> bool:
    return "\u2e80" <= char <= "\ud7ff" or "\uff00" <= char <= "\uffef"


def _plain_text_rule(
    pattern: re.Pattern[str], text: Callable[[re.Match[str]], str]
) -> Callable[[StateInline, bool], bool]:
    """Return a rule of markdown-it's inline parser that takes a match as plain text, without emphasis."""

    def take(state: StateInline, silent: bool) -> bool:  # `silent` only skips the match
        if found := pattern.match(state.src, state.pos, state.posMax):
            state.pending += "" if silent else text(found)
            state.pos = found.end()
        return found is not None

    return take


def _formula_text(found: re.Match[str]) -> str:
    """Return a formula as near to it as one line of text can be."""
    tex = re.sub(r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}", r"\1", found[found.lastindex or 0])  # the group that matched
    tex = re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2", tex)
    tex = re.sub(r"\\([A-Za-z]+|[,;!])", lambda name: _SYMBOLS.get(name[1], str(name[1])), tex)
    tex = re.sub(
        r"([\^_])(?:\{([0-9n+-]+)\}|([0-9]+|n\b))",
        lambda moved: (moved[2] or moved[3]).translate(_RAISED if moved[1] == "^" else _LOWERED),
        tex,
    )
    return tex.replace("{", "(").replace("}", ")")


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt()
    parser.inline = _Inline()
    parser.configure("commonmark").enable("strikethrough").disable("text_join")  # escapes stay tokens
    parser.inline.ruler.before("emphasis", "address", _plain_text_rule(_ADDRESS, lambda found: found[0]))
    parser.inline.ruler.before("escape", "formula", _plain_text_rule(_FORMULA, _formula_text))
    # All addresses are shown, as they were written, so that nobody follows one unseen.
    vars(parser).update(normalizeLink=str, normalizeLinkText=str, validateLink=lambda address: True)
    return parser


Cell = list[Fragment]  # a cell's text, which may have line breaks
MIN_COLUMNS = 8  # the least width of a wrapped column


def _split_row(source: str) -> list[str]:
    """Return the cells of a row's source, without the pipes around them and with `\\|` as a plain pipe."""
    # A NUL, which the source cannot have, in place of each pipe after an even number of backslashes.
    inner = re.sub(r"(?<!\\)((?:\\\\)*)\|", "\\1\0", source.strip()).removeprefix("\0").removesuffix("\0")
    return [cell.strip().replace("\\|", "|") for cell in inner.split("\0")]


def column_alignments(header: str, delimiters: str) -> list[str] | None:
    """Return "", "left", "right" or "center" for each column; None if these are not the first two lines of a table."""
    matches = [re.fullmatch(r"\s*(:?)-+(:?)\s*", cell) for cell in _split_row(delimiters)]
    alignments = {("", ""): "", (":", ""): "left", ("", ":"): "right", (":", ":"): "center"}
    found = [alignments[match[1], match[2]] for match in matches if match is not None]
    return found if len(found) == len(matches) == len(_split_row(header)) else None


def table_lines(sources: Sequence[str], alignments: Sequence[str], width: int) -> list[list[Fragment]]:
    """Return a table in lines of at most `width` columns; if that is too little, `header: value` lines of each row."""
    header, _, *rows = [_cells(source, len(alignments)) for source in sources]
    columns = [[plain(cell) for cell in cells] for cells in zip(header, *rows, strict=True)]
    natural_widths = [max(1, *(_width(line) for text in texts for line in text.split("\n"))) for texts in columns]
    word_widths = [max([1, *(_width(word) for text in texts for word in text.split())]) for texts in columns]
    if (widths := _fitted_widths(natural_widths, word_widths, width - len(" │ ") * (len(header) - 1))) is None:
        return _record_lines(header, rows)
    titles = [[("table_header", text) for _, text in cell] for cell in header]
    rule = [("table_rule", "─┼─".join("─" * cells for cells in widths))]
    body = [_row_lines(row, widths, alignments) for row in rows]
    between = [rule] if any(len(lines) > 1 for lines in body) else []  # wrapped rows would run together
    below = [line for lines in body for line in (*between, *lines)]  # each row below its rule, if there is one
    return [*_row_lines(titles, widths, alignments), *([] if between and body else [rule]), *below]


def _fitted_widths(natural_widths: list[int], word_widths: list[int], available: int) -> list[int] | None:
    """Return the columns' widths: wide columns share the room that the others leave. None if there is too little.

    Where there is room for the longest word of each column (`word_widths`), no word is broken.
    """
    if sum(natural_widths) <= available:
        return natural_widths
    narrowest = [min(width, MIN_COLUMNS) for width in natural_widths]
    if sum(narrowest) > available:
        return None
    widths = list(natural_widths)
    min_widths = word_widths if sum(word_widths) <= available else narrowest
    # Each column gets an equal share of what is left, or less if it is narrower: the rest is for the wider ones.
    narrow_first = sorted(range(len(natural_widths)), key=natural_widths.__getitem__)
    for number, column in enumerate(narrow_first):
        # The wider columns, which come next, need at least their minimum.
        room = available - sum(min_widths[other] for other in narrow_first[number + 1 :])
        share = max(available // (len(natural_widths) - number), min_widths[column])
        widths[column] = min(natural_widths[column], share, room)
        available -= widths[column]
    return widths


def _row_lines(row: Sequence[Cell], widths: list[int], alignments: Sequence[str]) -> list[list[Fragment]]:
    cells = [_wrapped_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*cells, fillvalue=list[Fragment]()):
        line: list[Fragment] = []
        for part, width, alignment in zip(parts, widths, alignments, strict=True):
            spare = width - _width(plain(part))
            before = {"right": spare, "center": spare // 2}.get(alignment, 0)
            separator = [("", " "), ("table_rule", "│"), ("", " ")] if line else []
            line += [*separator, ("", " " * before), *part, ("", " " * (spare - before))]
        lines.append(without_end_blanks(merged(line)))
    return lines


def _record_lines(header: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> list[list[Fragment]]:
    """Return a line `header: value` for each cell, with a rule between rows; only the headers if there are no rows."""
    names = [plain(cell).replace("\n", " ") for cell in header]
    if not rows:
        return [[("table_header", name)] for name in names if name]
    lines: list[list[Fragment]] = []
    for row in rows:
        lines += [[("table_rule", "──")]] if lines else []
        for name, cell in zip(names, row, strict=True):
            title = [("table_header", f"{name}: ")] if name else []
            lines.append(merged([*title, *((roles, text.replace("\n", " ")) for roles, text in cell)]))
    return lines


def _cells(source: str, count: int) -> list[Cell]:
    """Return as many cells as the header has: missing ones are empty, surplus ones stay in the last."""
    texts = _split_row(source)
    texts = [*texts[: count - 1], " | ".join(texts[count - 1 :])] + [""] * (count - len(texts))
    sources = (re.sub(r"(?i) ?<br ?/?> ?", "\n", " ".join(text.split())).removesuffix("\n") for text in texts[:count])
    return [inline_fragments(source, "") for source in sources]


def _wrapped_cell(cell: Cell, columns: int) -> list[Cell]:
    lines: list[Cell] = []
    for line in lines_of(cell, keeps_empty_end=True):
        fits = _width(plain(line)) <= columns
        lines += [line] if fits else lines_of(wrap_line(line, columns, breaks_words=True), keeps_empty_end=True)
    return lines


def _width(text: str) -> int:
    """Return the columns on the screen; characters that are joined into one count once."""
    return len(text) if text.isascii() else max(0, wcswidth(text))
