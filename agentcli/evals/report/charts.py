"""Draws bars and points as SVG images, which take their colours from the page's style sheet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from math import floor, log10

from msgspec import Struct

from agentcli.frontends.printable import pictured

# Units of the drawings: a little more than a pixel on a wide screen, a little less on a phone.
WIDTH, ROW, BAR = 400, 22, 14
_LABEL, _VALUE = 166, 82  # the columns left and right of the bars
_LONGEST = 22  # characters of a label
_MOST_MOVES = 20  # more lines between points hide them
_HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 260, 34, 24, 10, 26  # of points, with the room around their axes


class Row(Struct, frozen=True):
    """One bar of parts, each a class of the style sheet and a length. Without `told` it is a heading."""

    label: str
    parts: tuple[tuple[str, float], ...] = ()
    told: str = ""
    mark: float | None = None  # where a line across the bar stands


class Point(Struct, frozen=True):
    """`x` is 0 or more, `y` is 0 to 1; `before` is where a baseline has it, if it has."""

    label: str
    x: float
    y: float
    before: tuple[float, float] | None = None


def bars(name: str, rows: Sequence[Row], most: float = 0.0) -> str:
    """Rows from top to bottom; the longest takes the whole width, or one of the length `most`. Empty without bars."""
    if not any(row.parts for row in rows):
        return ""
    longest = most or max((sum(length for _, length in row.parts) for row in rows), default=0.0) or 1.0
    scale = (WIDTH - _LABEL - _VALUE) / longest
    drawn = "".join("".join(_bar(row, at * ROW, scale)) for at, row in enumerate(rows))
    return _image(name, len(rows) * ROW, drawn)


def points(name: str, found: Sequence[Point], x_told: Callable[[float], str]) -> str:
    most = _round_up(max((x for point in found for x in (point.x, (point.before or (0, 0))[0])), default=0.0))

    def place(x: float, y: float) -> tuple[str, str]:
        down = _TOP + (1 - y) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{_LEFT + x / most * (WIDTH - _LEFT - _RIGHT):.1f}", f"{down:.1f}"

    drawn = []
    for part in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(part * most, part)
        drawn.append(f'<path class="grid" d="M{_LEFT} {y}H{WIDTH - _RIGHT}M{x} {_TOP}V{_HEIGHT - _BOTTOM}"/>')
        drawn.append(f'<text class="end" x="{_LEFT - 6}" y="{float(y) + 4:.1f}">{part:g}</text>')
        if part in (0, 0.5, 1):
            drawn.append(f'<text class="middle" x="{x}" y="{_HEIGHT - 8}">{x_told(part * most)}</text>')
    for point in found:
        x, y = place(point.x, point.y)
        title = f"<title>{one_line(point.label)}: {x_told(point.x)}, score {point.y:.2f}</title>"
        if point.before:
            old_x, old_y = place(*point.before)
            if len(found) <= _MOST_MOVES:
                drawn.append(f'<path class="moved" d="M{old_x} {old_y}L{x} {y}"/>')
            drawn.append(f'<circle class="before" cx="{old_x}" cy="{old_y}" r="5">{title}</circle>')
        drawn.append(f'<circle class="now" cx="{x}" cy="{y}" r="5">{title}</circle>')
    return _image(name, _HEIGHT, "".join(drawn))


def one_line(text: str) -> str:
    """Foreign text for a page."""
    return escape(" ".join(pictured(text).split()))


def _image(name: str, height: int, drawn: str) -> str:
    told = f"{escape(name)}. The table of attempts holds the numbers."
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{told}">{drawn}</svg>'


def _bar(row: Row, y: int, scale: float) -> Iterator[str]:
    if not row.told:
        yield f'<text class="heading" x="0" y="{y + 16}">{one_line(row.label)}</text>'
        return
    yield f"<g><title>{one_line(f'{row.label}: {row.told}')}</title>"
    yield f'<text x="0" y="{y + 15}">{one_line(_shortened(row.label))}</text>'
    yield f'<rect class="track" x="{_LABEL}" y="{y + 4}" width="{WIDTH - _LABEL - _VALUE}" height="{BAR}"/>'
    x = float(_LABEL)
    for kind, length in row.parts:
        if length > 0:
            yield f'<rect class="{kind}" x="{x:.1f}" y="{y + 4}" width="{length * scale:.1f}" height="{BAR}"/>'
        x += length * scale
    if row.mark is not None:
        yield f'<path class="mark" d="M{_LABEL + row.mark * scale:.1f} {y + 1}v{BAR + 6}"/>'
    yield f'<text class="end" x="{WIDTH}" y="{y + 15}">{one_line(row.told)}</text></g>'


def _shortened(label: str) -> str:
    """Names that begin alike are told apart by their ends."""
    return label if len(label) <= _LONGEST else f"{label[:13]}…{label[-8:]}"


def _round_up(number: float) -> float:
    """To a number that reads well on an axis, also its half."""
    if number <= 0:
        return 1.0
    ten: float = 10.0 ** floor(log10(number))
    return next(step * ten for step in (1, 2, 3, 4, 5, 6, 8, 10) if number <= step * ten * 1.0001)
