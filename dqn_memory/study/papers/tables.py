"""The four papers' published tables as printed: one CSV each in results/published, exact figures as text."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.statistics import HUMAN, Floats, Scale, game
from envs.files import read_text

FOLDER = Path(__file__).resolve().parents[3] / "results" / "published"
PAPERS: Mapping[str, str] = {
    "dbgfqn": "Bi-directional Recurrence Improves Transformer in Partially Observable Markov Decision Processes",
    "focus": "Learning to Focus: Prioritizing Informative Histories with Structured Attention Mechanisms",
    "thesis": "Exploring Attention Mechanisms in Transformers for Data-Efficient Model-Based Reinforcement Learning",
    "glam": "GLAM: Global-Local Variation Awareness in Mamba-based World Model",
}
SIZES = "parameters"  # the table of this suite's parameter counts, in the folder above the published ones
PLACES = ("number", "environment", "id", "game")  # columns that say where a score was reached
Row = Mapping[str, str]  # cells by column, "" where nothing was printed


@dataclass(frozen=True)
class Tables:
    """The published tables of a folder, and `parameters` in the folder above it, each read when it is asked for."""

    folder: Path = FOLDER

    def __getitem__(self, name: str) -> list[Row]:
        """Read one table; a UserError names a file that is not there or has lines of unequal length."""
        folder, what = self.folder, "the published table "
        if name == SIZES:
            folder, what = self.folder.parent, "what `python -m dqn_memory.parameters --write FOLDER` makes, "
        path = folder / f"{name}.csv"
        lines = (line for line in read_text(path, what).splitlines() if not line.startswith("#"))
        header, *rows = list(csv.reader(lines)) or [[]]
        if not header:
            raise UserError(f"{path} is empty")
        for index, row in enumerate(rows, 2):
            if len(row) != len(header):
                raise UserError(f"{path}: line {index} has {len(row)} cells, the header {len(header)}")
        return [dict(zip(header, row, strict=True)) for row in rows]

    def rows(self, table: str, *cells: str) -> list[Row]:
        """Find rows by patterns of their leading cells, of which "*" is any; blanks and case do not count."""
        return [row for row in self[table] if all(map(_same, row.values(), cells))]


def cell(row: Row, column: str) -> str:
    """Read the cell of a row in a column."""
    return next(text for name, text in row.items() if _same(name, column))


def _same(cell: str, wanted: str) -> bool:
    return fnmatchcase(*(text.replace(" ", "").lower() for text in (cell, wanted)))


def games(rows: Sequence[Row]) -> list[Row]:
    """Leave out the aggregates below the rows of Atari games."""
    return [row for row in rows if "game" not in row or game(row["game"])]


def human_normalised(rows: Sequence[Row], column: str, own_scale: bool = False) -> Floats:
    """Read a column of Atari scores on the human scale, and both ends of their rounding: (3, M).

    Games without a score are left out. With `own_scale` random and human scores are as this table rounds them.
    """
    found = []
    for row in games(rows):
        own = Scale(number(row["Random"]), number(row["Human"])) if own_scale else HUMAN[game(row["game"])]
        found += [[own(end) for end in Figure.of_cell(row[column]).range]] if row[column] else []
    return np.array(found).T


def scores(name: str) -> dict[str, dict[str, float]]:
    """Read a table of scores by environment id or ale-py's game, then by the paper's name of the model.

    Cells that were not printed are absent; of a long table's repeated cells the first counts.
    """
    found: dict[str, dict[str, float]] = {}
    for row in Tables()[name]:
        for place, model, text in _scores(row):
            if text:
                found.setdefault(game(place) or place, {}).setdefault(model, number(text))
    return found


def _scores(row: Row) -> Iterator[tuple[str, str, str]]:
    """Give place, model and score of every cell of a row with one score, one model, or one place."""
    if "mean" in row:
        yield row["game"], row.get("model") or f"{row['parameter']} {row['value']}", row["mean"]
    elif "model" in row:
        yield from ((column, row["model"], cell) for column, cell in row.items() if column != "model")
    else:
        place = row.get("id") or row["game"]
        yield from ((place, column, cell) for column, cell in row.items() if column not in PLACES)


def number(text: str) -> float:
    """Read a printed number: "1,000", "+0.001", "58.4%" (as 58.4), "over 26 %", "-6.9 ± 1.8" (the mean)."""
    try:
        return float(text.partition("±")[0].removeprefix("over ").replace(",", "").rstrip("% "))
    except ValueError:
        raise UserError(f"'{text}' in a published table is not a number") from None


def half_unit(text: str) -> float:
    """Give half a unit of the last printed digit: how far the number before rounding may lie from the printed one."""
    decimals = re.search(r"\.(\d+)", text)
    return 0.5 * 10.0 ** -(len(decimals[1]) if decimals else 0)


@dataclass(frozen=True)
class Figure:
    """A number, with the range it may have because the table's cells are rounded; of a cell also its text and row."""

    value: float
    low: float
    high: float
    printed: str = ""
    row: Row = field(default_factory=dict)

    @property
    def range(self) -> tuple[float, float, float]:
        """The value and both ends of its range."""
        return self.value, self.low, self.high

    @classmethod
    def of_cell(cls, text: str, row: Row | None = None) -> Figure:
        """Read a printed cell."""
        return cls(number(text), number(text) - half_unit(text), number(text) + half_unit(text), text, row or {})

    @classmethod
    def of(cls, function: Callable[..., float], *operands: Figure) -> Figure:
        """Compute a function; its range is that over all corners of the operands' ranges."""
        corners = [function(*ends) for ends in product(*(figure.range[1:] for figure in operands))]
        return cls(function(*(figure.value for figure in operands)), min(corners), max(corners))

    def agrees(self, published: str) -> bool:
        """Tell whether some number within the rounding prints as `published`, which may be a percentage."""
        scale = 0.01 if published.endswith("%") else 1.0
        target, margin = scale * number(published), scale * half_unit(published) * (1 + 1e-9)
        return self.high > target if published.startswith("over") else self.low - margin <= target <= self.high + margin

    def text(self, decimals: int, percent: bool = False, sign: str = "") -> str:
        """Show the value, and in brackets the range that rounding leaves, where it shows at these decimals."""
        scale, unit = (100, " %") if percent else (1, "")
        value, low, high = (f"{scale * number:{sign}.{decimals}f}{unit}" for number in self.range)
        return value if low == high else f"{value} [{low}, {high}]"

    def __format__(self, form: str) -> str:
        """Show it as it was printed; with a number of decimals and its range; or its value in any other form."""
        return self.printed if not form else self.text(int(form)) if form.isdigit() else format(self.value, form)

    def like(self, published: str) -> str:
        """Show the value as it was published, with one digit more."""
        digits = published.partition(".")[2].rstrip("% ")
        return self.text(len(digits) + 1, published.endswith("%"), "+" if published.startswith("+") else "")


def exact(value: float, printed: str = "") -> Figure:
    """Make a number that is not rounded."""
    return Figure(value, value, value, printed)
