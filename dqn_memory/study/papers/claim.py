"""A published figure beside the same figure recomputed, and whether they agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

from dqn_memory.study.papers.tables import half_unit, number

Verdict = Literal["agrees", "disagrees", "cannot be checked", "not claimed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Claim:
    """One claim of a paper. `recomputed` is text made of figures from the published tables.

    "not claimed" is a figure that the paper leaves out and that bears on what it says; `published` is then empty.
    """

    paper: str
    place: str
    statement: str
    published: str
    recomputed: str
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A recomputed number, with the range it may have because the table's cells are rounded."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Figure:
        """A number that rounding cannot change."""
        return cls(value, value, value)

    @classmethod
    def monotone(cls, statistic: Callable[[float], float]) -> Figure:
        """A statistic that only grows with every cell, given all cells shifted by -1, 0 or 1 half units."""
        value, low, high = statistic(0.0), statistic(-1.0), statistic(1.0)
        return cls(value, min(low, high), max(low, high))

    @classmethod
    def of_cells(cls, function: Callable[..., float], *cells: str) -> Figure:
        """A function of a few printed cells; its range is that over all corners of their rounding."""
        values = [number(cell) for cell in cells]
        steps = [half_unit(cell) for cell in cells]
        corners = [
            function(*(value + sign * step for value, sign, step in zip(values, signs, steps, strict=True)))
            for signs in product((-1, 1), repeat=len(cells))
        ]
        return cls(function(*values), min(corners), max(corners))

    def agrees(self, published: str) -> bool:
        """Whether some number within the rounding prints as `published`, which may be a percentage."""
        scale = 0.01 if published.rstrip().endswith("%") else 1.0
        target, margin = scale * number(published), scale * half_unit(published) * (1 + 1e-9)
        return self.low - margin <= target <= self.high + margin

    def text(self, decimals: int, percent: bool = False, sign: bool = False) -> str:
        """The value, and in brackets the range that rounding leaves, where it shows at these decimals."""
        low, value, high = (_shown(x, decimals, percent, sign) for x in (self.low, self.value, self.high))
        return value if low == high else f"{value} [{low}, {high}]"


def compare(paper: str, place: str, statement: str, published: str, figure: Figure, note: str = "") -> Claim:
    """A claim of one number, recomputed with one digit more than was published."""
    percent = published.rstrip().endswith("%")
    digits = published.partition(".")[2].rstrip("% ")
    text = figure.text(len(digits) + 1, percent, published.startswith("+"))
    return Claim(paper, place, statement, published, text, verdict(figure.agrees(published)), note)


def count(paper: str, place: str, statement: str, published: str, found: Sequence[bool], note: str = "") -> Claim:
    """A claim that so many of the cases are so: `published` is such as "19 of 26"."""
    text = f"{sum(found)} of {len(found)}"
    return Claim(paper, place, statement, published, text, verdict(text == published), note)


def finding(paper: str, statement: str, recomputed: str, note: str = "") -> Claim:
    """A figure that the paper does not give."""
    return Claim(paper, "-", statement, "", recomputed, "not claimed", note)


def verdict(agrees: bool) -> Verdict:
    """The word for it."""
    return "agrees" if agrees else "disagrees"


def _shown(value: float, decimals: int, percent: bool, sign: bool) -> str:
    spec = f"{'+' if sign else ''}.{decimals}f"
    return f"{100 * value:{spec}} %" if percent else f"{value:{spec}}"
