"""The published tables as printed: one CSV each in results/published, exact figures as text."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.study.statistics import HUMAN, Floats, Scale, game

FOLDER = Path(__file__).resolve().parents[3] / "results" / "published"

DBGFQN = "Bi-directional Recurrence Improves Transformer in Partially Observable Markov Decision Processes"
FOCUS = "Learning to Focus: Prioritizing Informative Histories with Structured Attention Mechanisms"
THESIS = "Exploring Attention Mechanisms in Transformers for Data-Efficient Model-Based Reinforcement Learning"
GLAM = "GLAM: Global-Local Variation Awareness in Mamba-based World Model"

SOURCES: Mapping[str, tuple[str, int, str]] = {
    "dbgfqn_table1": (DBGFQN, 1, "mean success rate in 23 worlds"),
    "dbgfqn_table2": (DBGFQN, 2, "hyperparameters"),
    "dbgfqn_table3": (DBGFQN, 3, "parameter counts"),
    "focus_table1": (FOCUS, 1, "Atari 100k scores"),
    "focus_table2": (FOCUS, 2, "initial values of the priors, mean and standard error of 5 seeds"),
    "focus_table3": (FOCUS, 3, "parameters and operations"),
    "focus_table4": (FOCUS, 4, "hyperparameters"),
    "thesis_table1": (THESIS, 1, "four Atari games, mean and standard error"),
    "thesis_table2": (THESIS, 2, "hyperparameters"),
    "thesis_table3": (THESIS, 3, "windows and initial values of the priors, mean and standard error of 5 seeds"),
    "glam_table1": (GLAM, 1, "Atari 100k scores"),
    "glam_table2": (GLAM, 2, "inference modules, four games"),
    "glam_table3": (GLAM, 3, "hyperparameters"),
}


@dataclass(frozen=True)
class Table:
    """One published table: cells as text, "" where nothing was printed."""

    name: str
    header: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]

    @property
    def key(self) -> str:
        """Name of the first column, by which rows are found."""
        return self.header[0]

    def row(self, **wanted: str) -> Mapping[str, str]:
        """The one row with these cells; a UserError where there is none or more than one."""
        found = [row for row in self.rows if all(row.get(column) == value for column, value in wanted.items())]
        if len(found) != 1:
            raise UserError(f"{self.name}.csv has {len(found)} rows with {wanted}, not one")
        return found[0]

    def cell(self, row: str, column: str) -> str:
        """The text in a column of the row that starts with `row`."""
        return self.row(**{self.key: row})[column]

    def games(self) -> tuple[Mapping[str, str], ...]:
        """Rows of Atari games, without the aggregates below them."""
        return tuple(row for row in self.rows if _is_game(row[self.key]))

    def scores(self, column: str) -> Floats:
        """A column of numbers over the rows of worlds or games, NaN where nothing was printed: (M,)."""
        rows = self.games() if self.key == "game" else self.rows
        return np.array([number(row[column]) if row[column] else np.nan for row in rows])

    def human_normalised(self, column: str, shift: float = 0.0, own_scale: bool = False) -> Floats:
        """A column of Atari scores on the human scale; games without a score are left out: (M,).

        `shift` moves every score by so many half units of its last digit. `own_scale` takes random and human scores
        as this table rounds them instead of the usual constants.
        """
        rows = [row for row in self.games() if row[column]]
        scales = [_scale(row) if own_scale else HUMAN[game(row[self.key])] for row in rows]
        shifted = [number(row[column]) + shift * half_unit(row[column]) for row in rows]
        return np.array([scale(score) for scale, score in zip(scales, shifted, strict=True)])


def tables(folder: Path = FOLDER) -> dict[str, Table]:
    """All published tables by name."""
    return {name: load(name, folder) for name in SOURCES}


def load(name: str, folder: Path = FOLDER) -> Table:
    """One table. A UserError names a table, or a file, that is not there or has lines of unequal length."""
    if name not in SOURCES:
        raise UserError(near_names("published table", name, SOURCES))
    path = folder / f"{name}.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the published table {path}: {getattr(error, 'strerror', '') or error}") from None
    for place, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise UserError(f"{path}: line {place} has {len(line)} cells, the header {len(header)}")
    return Table(name, tuple(header), tuple(dict(zip(header, line, strict=True)) for line in lines))


def number(text: str) -> float:
    """A printed number: "1,000", "+0.001", "58.4%" (as 58.4)."""
    try:
        return float(text.replace(",", "").removesuffix("%").strip())
    except ValueError:
        raise UserError(f"'{text}' in a published table is not a number") from None


def half_unit(text: str) -> float:
    """Half a unit of the last printed digit: how far the number before rounding may lie from the printed one."""
    decimals = re.search(r"\.(\d+)", text)
    return 0.5 * 10.0 ** -(len(decimals[1]) if decimals else 0)


def _scale(row: Mapping[str, str]) -> Scale:
    return Scale(number(row["Random"]), number(row["Human"]))


def _is_game(name: str) -> bool:
    try:
        return game(name) in HUMAN
    except UserError:
        return False
