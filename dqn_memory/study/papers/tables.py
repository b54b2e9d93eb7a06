"""The four papers' published tables as printed: one CSV each in results/published, exact figures as text."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dqn_memory.runs.errors import UserError, near_names
from dqn_memory.study.statistics import HUMAN, Floats, Scale, game

FOLDER = Path(__file__).resolve().parents[3] / "results" / "published"
PAPERS: Mapping[str, str] = {
    "dbgfqn": "Bi-directional Recurrence Improves Transformer in Partially Observable Markov Decision Processes",
    "focus": "Learning to Focus: Prioritizing Informative Histories with Structured Attention Mechanisms",
    "thesis": "Exploring Attention Mechanisms in Transformers for Data-Efficient Model-Based Reinforcement Learning",
    "glam": "GLAM: Global-Local Variation Awareness in Mamba-based World Model",
}
NUMBERS: Mapping[str, int] = {"dbgfqn": 3, "focus": 4, "thesis": 3, "glam": 3}  # of tables
TABLES = tuple(f"{paper}_table{index + 1}" for paper, tables in NUMBERS.items() for index in range(tables))
LONG = ("focus_table2", "thesis_table1", "thesis_table3")  # one row a score
WIDE = ("dbgfqn_table1", "focus_table1", "glam_table1", "glam_table2")


@dataclass(frozen=True)
class Table:
    """One published table: cells as text, "" where nothing was printed."""

    name: str
    header: tuple[str, ...]
    rows: tuple[Mapping[str, str], ...]

    @property
    def key(self) -> str:
        """Name of the first column."""
        return self.header[0]

    def row(self, **wanted: str) -> Mapping[str, str]:
        """Find the one row with these cells, blanks aside; a UserError where there is none or more than one."""
        found = [row for row in self.rows if all(_same(row[column], cell) for column, cell in wanted.items())]
        if len(found) != 1:
            raise UserError(f"{self.name}.csv has {len(found)} rows with {wanted}, not one")
        return found[0]

    def games(self) -> tuple[Mapping[str, str], ...]:
        """Give the rows of Atari games, without the aggregates below them."""
        return tuple(row for row in self.rows if _is_game(row[self.key]))

    def scores(self, column: str) -> Floats:
        """Read a column of numbers over the rows of environments or games, NaN where nothing was printed: (M,)."""
        rows = self.games() if self.key == "game" else self.rows
        return np.array([number(row[column]) if row[column] else np.nan for row in rows])

    def human_normalised(self, column: str, shift: float = 0.0, own_scale: bool = False) -> Floats:
        """Read a column of Atari scores on the human scale; games without a score are left out: (M,).

        Args:
            column: the model.
            shift: moves every score by so many half units of its last digit.
            own_scale: takes random and human scores as this table rounds them instead of the usual constants.
        """
        rows = [row for row in self.games() if row[column]]
        scales = [_scale(row) if own_scale else HUMAN[game(row[self.key])] for row in rows]
        shifted = [number(row[column]) + shift * half_unit(row[column]) for row in rows]
        return np.array([scale(score) for scale, score in zip(scales, shifted, strict=True)])


@dataclass(frozen=True)
class Tables:
    """The published tables of a folder, each read when it is asked for, and parameters.csv in the folder above it."""

    folder: Path = FOLDER

    def __getitem__(self, name: str) -> Table:
        return load(name, self.folder)

    def row(self, table: str, *cells: str) -> Mapping[str, str]:
        """Find a row by its leading cells, of which "*" is any."""
        found = self[table]
        return found.row(**{column: cell for column, cell in zip(found.header, cells, strict=False) if cell != "*"})

    def cell(self, table: str, *keys: str) -> str:
        """Read the cell of a row, given by its leading cells, in the last-named column."""
        row = self.row(table, *keys[:-1])
        return next(cell for column, cell in row.items() if _same(column, keys[-1]))

    @cached_property
    def parameters(self) -> dict[tuple[str, str], str]:
        """Parameter counts of this suite, counted as the paper does, by environment and architecture."""
        path = self.folder.parent / "parameters.csv"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UserError(
                f"cannot read {path}: {error.strerror}; `python -m dqn_memory.parameters` writes it"
            ) from None
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        return {(row["world"], row["architecture"]): row["published"] for row in rows}


def load(name: str, folder: Path = FOLDER) -> Table:
    """Read one table. A UserError names a table, or a file, that is not there or has lines of unequal length."""
    if name not in TABLES:
        raise UserError(near_names("published table", name, TABLES))
    path = folder / f"{name}.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the published table {path}: {getattr(error, 'strerror', '') or error}") from None
    for index, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise UserError(f"{path}: line {index} has {len(line)} cells, the header {len(header)}")
    return Table(name, tuple(header), tuple(dict(zip(header, line, strict=True)) for line in lines))


def scores(name: str, folder: Path = FOLDER) -> dict[str, dict[str, float]]:
    """Read a table of scores by environment id or ale-py's game, then by the paper's name of the model.

    Cells that were not printed are absent; of a long table's repeated cells the first counts. A UserError names a
    table that holds no scores.
    """
    table, found = load(name, folder), dict[str, dict[str, float]]()
    if name not in LONG + WIDE:
        raise UserError(f"the published table {name} holds no scores; these do: {', '.join(LONG + WIDE)}")
    if name == "glam_table2":
        return {game(column): {row["model"]: number(row[column]) for row in table.rows} for column in table.header[1:]}
    if name in LONG:
        for row in table.rows:
            model = row["model"] if "model" in row else f"{row['parameter']} {row['value']}"
            found.setdefault(game(row["game"]), {}).setdefault(model, number(row["mean"]))
        return found
    if "id" in table.header:
        return {row["id"]: {m: number(row[m]) for m in table.header[3:] if row[m]} for row in table.rows}
    return {game(row["game"]): {m: number(row[m]) for m in table.header[1:] if row[m]} for row in table.games()}


def number(text: str) -> float:
    """Read a printed number: "1,000", "+0.001", "58.4%" (as 58.4)."""
    try:
        return float(text.replace(",", "").removesuffix("%").strip())
    except ValueError:
        raise UserError(f"'{text}' in a published table is not a number") from None


def half_unit(text: str) -> float:
    """Give half a unit of the last printed digit: how far the number before rounding may lie from the printed one."""
    decimals = re.search(r"\.(\d+)", text)
    return 0.5 * 10.0 ** -(len(decimals[1]) if decimals else 0)


def _same(cell: str, wanted: str) -> bool:
    return cell.replace(" ", "") == wanted.replace(" ", "")


def _scale(row: Mapping[str, str]) -> Scale:
    return Scale(number(row["Random"]), number(row["Human"]))


def _is_game(name: str) -> bool:
    try:
        return game(name) in HUMAN
    except UserError:
        return False
