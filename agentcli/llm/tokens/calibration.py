"""Learns from what providers count how many tokens each model makes of a byte."""

from __future__ import annotations

from agentcli.llm.tokens.estimates import BYTES_PER_TOKEN, Size

LEAST = 20  # estimated tokens; of fewer, what a request holds beside its texts is too large a part
FADES = 1_000  # estimated tokens after which what the factor was learned from counts half
KINDS_FADE = 8_000  # the same for the kinds of bytes: a text of each comes more rarely
HOLD = 60  # estimated tokens that the factor weighs against what was learned of each kind
BOUNDS = 0.2, 4.0  # counted for each estimated token; beyond, something else was counted than was estimated


class _Learned:
    """Of one model: sums for its factor over all bytes, and for a least-squares fit over the kinds of bytes."""

    def __init__(self) -> None:
        self.estimated = self.counted = 0.0
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3

    @property
    def factor(self) -> float:
        return self.counted / self.estimated

    def add(self, kinds: list[float], counted: int) -> None:
        estimated = sum(kinds)
        kept = 0.5 ** (estimated / FADES)
        self.estimated, self.counted = self.estimated * kept + estimated, self.counted * kept + counted
        kept = 0.5 ** (estimated / KINDS_FADE)
        for n, kind in enumerate(kinds):
            self._targets[n] = self._targets[n] * kept + kind * counted / estimated
            row = self._products[n]
            row[:] = [old * kept + kind * other / estimated for old, other in zip(row, kinds, strict=True)]

    def factors(self) -> list[float]:
        """A factor for each kind of bytes; for one that never came, the factor of all."""
        rows = [[*row, target + HOLD * self.factor] for row, target in zip(self._products, self._targets, strict=True)]
        for n, row in enumerate(rows):
            row[n] += HOLD
        for n, pivot in enumerate(rows):  # HOLD keeps the diagonal above zero
            for row in rows:
                if row is not pivot:
                    share = row[n] / pivot[n]
                    row[:] = [value - share * above for value, above in zip(row, pivot, strict=True)]
        return [row[3] / row[n] for n, row in enumerate(rows)]


class Calibration:
    """What the models of a session make of texts. It knows no conversation.

    Letters, symbols and characters beyond ASCII are learned apart, so that JSON after prose is told right once some of
    it was seen. What was learned last counts most, and a large text more than a small one.
    """

    def __init__(self) -> None:
        self._models: dict[str, _Learned] = {}

    def learn(self, model: str, size: Size, counted: int) -> None:
        """The provider counted `counted` tokens for texts of this size."""
        estimated = size.bytes / BYTES_PER_TOKEN
        if estimated >= LEAST and BOUNDS[0] <= counted / estimated <= BOUNDS[1]:
            self._models.setdefault(model, _Learned()).add(_kinds(size), counted)

    def factor(self, model: str, default: float = 1.0) -> float:
        """Tokens for each three bytes of text, for `provider/model`; `default` before anything is learned of it."""
        return self._models[model].factor if model in self._models else default

    def tokens(self, model: str, size: Size, default: float = 1.0) -> int:
        """The estimate for texts and media of this size."""
        learned = self._models.get(model)
        factors = learned.factors() if learned else [default] * 3
        return round(sum(kind * factor for kind, factor in zip(_kinds(size), factors, strict=True))) + size.media


def _kinds(size: Size) -> list[float]:
    return [part / BYTES_PER_TOKEN for part in size[:3]]
