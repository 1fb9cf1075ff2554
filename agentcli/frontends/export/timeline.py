"""Draws when requests and calls ran, and what had been paid by then, as an SVG image."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from math import inf

from msgspec import Struct

from agentcli.frontends.export.markdown import money, when
from agentcli.frontends.export.story import Story
from agentcli.frontends.printable import pictured

WIDTH, HEIGHT = 1000, 120  # units of the drawing, which takes the width there is
LONGEST_PAUSE_S = 60.0  # what is longer, with nothing running, is drawn as this
_LANES = {"request": 10, "call": 64, "failed": 64}  # from the top; the cost is drawn over all
_BAR = 46


class Bar(Struct, frozen=True):
    """Something that ran from `began` to `ended`, in seconds since 1970; `turn` is where it is told."""

    kind: str
    began: float
    ended: float
    title: str
    turn: int
    usd: float = 0.0


def timeline(story: Story) -> str:
    """The image, empty where nothing ran. Colours come from the page's style sheet."""
    bars = sorted(_bars(story), key=lambda bar: bar.began)
    if not bars:
        return ""
    axis = _Axis(bars)
    requests, end = sum(bar.kind == "request" for bar in bars), max(bar.ended for bar in bars)
    told = (
        f"{requests:,} requests and {len(bars) - requests:,} calls from {when(bars[0].began)} to {when(end)}, "
        f"for {money(story.cost.cost_usd)}. Pauses over a minute are shortened."
    )
    rows = "".join(_drawn(bar, axis) for bar in bars)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-labelledby="tt td">'
        f'<title id="tt">Timeline</title><desc id="td">{told}</desc>'
        f"{''.join(axis.marks())}{rows}{_cost_line(bars, axis)}</svg><p>{told}</p>"
    )


def _bars(story: Story) -> Iterator[Bar]:
    for turn in story.turns:
        for reply in turn.replies:
            paid = reply.body.cost_usd or 0.0
            yield Bar("request", reply.began, reply.ended, f"{reply.model}, {money(paid)}", turn.number, paid)
            for call in reply.calls:
                if call.result is not None:
                    yield Bar("failed" if call.failed else "call", call.began, call.ended, call.title, turn.number)


class _Axis:
    """Where times lie on the drawing: long pauses are cut."""

    def __init__(self, bars: Sequence[Bar]) -> None:
        self._cuts: list[tuple[float, float]] = []  # the end of a pause, and what is left out by then
        end, left_out = bars[0].began, 0.0
        for bar in bars:
            if (pause := bar.began - end) > LONGEST_PAUSE_S:
                left_out += pause - LONGEST_PAUSE_S
                self._cuts.append((bar.began, left_out))
            end = max(end, bar.ended)
        self._start = bars[0].began
        self._span = max(end - left_out - self._start, 0.001)

    def x(self, time: float) -> float:
        at = bisect_right(self._cuts, (time, inf))
        left_out = self._cuts[at - 1][1] if at else 0.0
        return round(WIDTH * (time - left_out - self._start) / self._span, 2)

    def marks(self) -> Iterator[str]:
        """A line where a pause is cut."""
        for end, _ in self._cuts:
            at = self.x(end) - round(WIDTH * LONGEST_PAUSE_S / self._span / 2, 2)
            yield f'<path class="cut" d="M{at:g} 0V{HEIGHT}"/>'


def _drawn(bar: Bar, axis: _Axis) -> str:
    x, title = axis.x(bar.began), " ".join(pictured(bar.title).split())
    width = max(axis.x(bar.ended) - x, 1.0)
    told = f"{title[:120]} ({bar.ended - bar.began:.1f} s)"
    return (
        f'<a href="#t{bar.turn}"><rect class="{bar.kind}" x="{x:g}" y="{_LANES[bar.kind]}" width="{width:.3g}" '
        f'height="{_BAR}"><title>{escape(told)}</title></rect></a>'
    )


def _cost_line(bars: Iterable[Bar], axis: _Axis) -> str:
    """What had been paid, as steps up to the top; none where nothing was."""
    paid = sorted((bar.ended, bar.usd) for bar in bars if bar.usd)
    if not (whole := sum(usd for _, usd in paid)):
        return ""
    steps, so_far = f"M0 {HEIGHT}", 0.0
    for time, usd in paid:
        so_far += usd
        steps += f"H{axis.x(time):g}V{HEIGHT - so_far / whole * (HEIGHT - 4):.4g}"
    return f'<path class="cost" d="{steps}H{WIDTH}"/>'
