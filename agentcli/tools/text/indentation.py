"""The difference between the margin of some lines and of the same lines in a file; new lines with that margin."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentcli.errors import ToolError

# How many characters a step of indentation has: margins are to each other as two of these.
_STEPS = (1, 2, 3, 4, 8)

_Rule = Callable[[str], str | None]


def learn_shift(lines: Sequence[str], own: Sequence[str]) -> Callable[[str], str] | None:
    """Return a function that gives a line like `lines` the margin it needs among `own`, or raises `ToolError`.

    None when the margins do not all differ in the same way.
    """
    pairs = {(_margin(line), _margin(mine)) for line, mine in zip(lines, own, strict=True) if line.strip()}
    known = dict(pairs)
    if len(known) < len(pairs):
        return None
    rule = _added(known) or _removed(known) or _scaled(known)
    if rule is None:
        return None

    def shifted(line: str) -> str:
        if not line.strip():
            return line
        margin = _margin(line)
        if (wanted := known.get(margin, rule(margin))) is None:
            raise ToolError(
                "old_string matched apart from indentation, but new_string has a line whose indentation cannot be told "
                f"from it: {line.strip()[:80]!r}. Give both as the file is indented.",
                kind="validation_error",
            )
        return wanted + line[len(margin) :]

    return shifted


def _margin(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _added(known: dict[str, str]) -> _Rule | None:
    """The file has the same more in front of every line."""
    more = {mine.removesuffix(margin) if mine.endswith(margin) else None for margin, mine in known.items()}
    if len(more) > 1 or None in more:
        return None
    (front,) = more
    return lambda margin: _unless_mixed(str(front), margin)


def _unless_mixed(front: str, margin: str) -> str | None:
    """Tabs before spaces that stood alone would be a guess at how wide a tab is."""
    whole = front + margin
    is_mixed = len(set(whole)) > 1 and len(set(front)) < 2 and len(set(margin)) < 2
    return None if is_mixed else whole


def _removed(known: dict[str, str]) -> _Rule | None:
    """The file has the same less in front of every line."""
    less = {margin.removesuffix(mine) if margin.endswith(mine) else None for margin, mine in known.items()}
    if len(less) > 1 or None in less:
        return None
    (front,) = less
    return lambda margin: margin.removeprefix(str(front)) if margin.startswith(str(front)) else None


def _scaled(known: dict[str, str]) -> _Rule | None:
    """Tabs for so many spaces, or so many spaces for each: wide margins differ as narrow ones do."""
    signs, own_signs = set("".join(known)), set("".join(known.values()))
    if len(signs) != 1 or len(own_signs) != 1:
        return None
    (sign,), (own_sign,) = signs, own_signs
    widths = sorted((len(margin), len(mine)) for margin, mine in known.items())
    (first, own_first), (last, own_last) = (0, 0) if len(widths) == 1 else widths[0], widths[-1]
    step, own_step = last - first, own_last - own_first
    if not any(own_step * one == step * other for one in _STEPS for other in _STEPS):
        return None
    if any((own - own_first) * step != own_step * (width - first) for width, own in widths):
        return None

    def scaled(margin: str) -> str | None:
        more, rest = divmod(own_step * (len(margin) - first), step)
        is_known = set(margin) <= {sign} and not rest and own_first + more >= 0
        return own_sign * (own_first + more) if is_known else None

    return scaled
