"""Ways to recompute a published figure from the published tables; `claims.toml` beside the tables names one a claim.

Every function of MEASURES takes what is given and the settings of its claim. A cell is [table, leading cells of its
row..., column], where "*" stands for any content and the column "±" for mean and error. `each` repeats a measure over
names, which fill "{each}" in the settings, over tables of names, or over all combinations of a table of lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from statistics import fmean, median
from typing import Any

import numpy as np

from dqn_memory.study.papers.tables import Figure, Row, Tables, games, half_unit, human_normalised, number
from dqn_memory.study.statistics import Moments, iqm, welch
from envs import baselines

ALPHA, SEEDS = 0.05, 5
SIGNIFICANT = {True: "significant", False: "not significant"}
AVERAGES: dict[str, Callable[..., Any]] = {"mean": np.mean, "median": np.median, "IQM": lambda x, _: iqm(x[:, None])}
FORMULAS: dict[str, Callable[..., float]] = {
    "value": lambda value: value,
    "change": lambda new, old: (new - old) / abs(old),
    "loss": lambda new, old: 1 - new / old,
    "share": lambda new, old, whole: (new - old) / whole,
    "hours": lambda samples, frames, rate: samples * frames / rate / 3600,
}
RELATIONS: dict[str, Callable[[str, str], bool]] = {
    "above": lambda one, other: number(one) > number(other),
    "equal": lambda one, other: one == other,
    "near": lambda one, other: abs(number(one) - number(other)) <= 0.5 + 1e-9,
    "differs": lambda one, other: p_value(one, other).value < ALPHA,
    "alike": lambda one, other: p_value(one, other).value >= ALPHA,
    "gains": lambda one, other: number(one) > number(other) and p_value(one, other).value < ALPHA,
}
Cell = Sequence[str]
Names = Sequence[str | Mapping[str, str]] | Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Given(Tables):
    """The tables, and what the paper prints of the claim that is recomputed."""

    published: str = ""


@dataclass(frozen=True)
class Result:
    """What the tables say of a claim; `agrees` is None where nothing was published or it cannot be checked."""

    recomputed: str
    agrees: bool | None
    facts: Mapping[str, str] = field(default_factory=dict)  # what the remark of the claim may name


def filled(value: Any, case: Mapping[str, str]) -> Any:
    """Put the names of one case into the texts of some settings; other braces are left for later."""
    if isinstance(value, dict):
        return {key: filled(item, case) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, case) for item in value]
    for name, text in case.items() if isinstance(value, str) else ():
        value = value.replace(f"{{{name}}}", text)
    return value


def cases(each: Names) -> list[Mapping[str, str]]:
    """List the names that a measure is repeated over, see above."""
    if isinstance(each, Mapping):
        return [dict(zip(each, names, strict=True)) for names in product(*each.values())]
    return [{"each": names} if isinstance(names, str) else names for names in each]


def counted(given: Given, holds: Sequence[bool], text: str = "{count}", unless: str = "", **facts: str) -> Result:
    """Compare how many of the cases are so with such as "19 of 26"; nothing is compared without that.

    Where a number of cases would contradict what is published in words it is `unless`.
    """
    count = f"{sum(holds)} of {len(holds)}"
    agrees = count != unless if unless else count == given.published
    return Result(text.format(count=count), agrees if given.published else None, facts)


# Cells set against each other


def cell(given: Given, cell: Cell, shows: str = "{0}") -> Result:
    """Show a cell, and what random actions reach in the environment of its row."""
    row, text = given.row(*cell[:-1]), given.cells(*cell)[0]
    lines = baselines.lines(row.get("id", ""))
    words = shows.format(text, **row, random="" if lines is None else f"{lines.random.success.mean:.3f}")
    return Result(words, Figure.of_cell(text).agrees(given.published) if given.published else None)


def descending(given: Given, row: Cell, columns: Sequence[str]) -> Result:
    """Tell whether the cells of a row fall from column to column."""
    found = [given.row(*row)[column] for column in columns]
    falls = all(number(high) > number(low) for high, low in pairwise(found))
    return Result((" > " if falls else ", ").join(found), falls)


def one_value(given: Given, cell: Cell) -> Result:
    """Show the values of a cell that a table has more than once."""
    found = given.cells(*cell)
    return Result(" and ".join(found), len(set(found)) == 1)


def best_setting(given: Given, rows: Cell) -> Result:
    """Tell whether the published setting is the best of some rows."""
    scores = [(number(row["mean"]), row) for row in given.rows(*rows)]
    high, best = max(scores, key=lambda pair: pair[0])
    mine = max(score for score, row in scores if row["model"] == given.published)
    return Result(f"{best['model']}: {best['mean']} (Table 1's: {mine:g})", mine >= high)


def count(
    given: Given, first: Cell, second: Cell, each: Names, relation: str,
    shows: str = "{name} {one} and {other}", join: str = "; ", **told: str,
) -> Result:  # fmt: skip
    """Count the cases in which two cells are in a relation; of several cells the highest and the lowest are compared.

    `shows` tells of a case; the remark may name `all` cases, and those that are `different`.
    """
    holds, shown = [], []
    for case in cases(each):
        one = max(given.cells(*filled(first, case)), key=number)
        other = min(given.cells(*filled(second, case)), key=number)
        p = p_value(one, other).text(3) if "±" in one else ""
        means = {"one": one.partition(" ±")[0], "other": other.partition(" ±")[0]}
        holds.append(RELATIONS[relation](one, other))
        shown.append(shows.format(name=" ".join(case.values()), p=p, **means))
    different = join.join(text for text, held in zip(shown, holds, strict=True) if not held)
    return counted(given, holds, all=join.join(shown), different=different, least=min(shown), **told)


def wins(
    given: Given, table: str, column: str, rivals: Sequence[str], only: Sequence[str] = ("",),
    best_of: Sequence[str] = (), name: str = "game",
) -> Result:  # fmt: skip
    """Count rows in which a column is above its rivals, of those whose name or id has one of the words `only`."""
    rows = [row for row in games(given[table]) if any(word in row.get("id", row[name]) for word in only)]
    found = [number(row[column]) > max(number(row[rival]) for rival in rivals if row[rival]) for row in rows]
    lost = ", ".join(row[name] for row, won in zip(rows, found, strict=True) if not won)
    best = sum(number(row[column]) == max(number(row[each]) for each in (column, *best_of)) for row in rows)
    return counted(given, found, lost=f"Not in {lost}" if lost else "", best=str(best))


# Figures from cells and from averages of human-normalised scores over games


def figure(
    given: Given, formula: str, of: Any, each: Names = ({},), shows: str = "", facts: Mapping[str, Any] | None = None
) -> Result:
    """Compute a formula of numbers, cells, and averages over games ([table, statistic, column]).

    Of several cases it is the range of all. Each of `facts` is a formula of its own, shown with so many decimals.
    """
    found = [Figure.of(FORMULAS[formula], *_operands(given, filled(of, case))) for case in cases(each)]
    whole = Figure(found[0].value, min(each.low for each in found), max(each.high for each in found))
    told = {name: _fact(given, **settings) for name, settings in (facts or {}).items()}
    text = shows.format(*(f"{100 * end:.1f} %" for end in whole)) if shows else whole.like(given.published)
    return Result(text, whole.agrees(given.published), told)


def _fact(given: Given, formula: str, of: Sequence[Any], decimals: int = 1) -> str:
    return f"{100 * Figure.of(FORMULAS[formula], *_operands(given, of)).value:.{decimals}f} %"


def _operands(given: Given, of: Sequence[Any]) -> list[Figure]:
    exact = [each if isinstance(each, list) else Figure(each, each, each) for each in of]
    return [each if isinstance(each, Figure) else _operand(given, *each) for each in exact]


def _operand(given: Given, table: str, *keys: str) -> Figure:
    _, own, statistic = keys[0].rpartition("own ")
    if statistic not in AVERAGES:
        return Figure.of_cell(given.cells(table, *keys)[0])
    return Figure(*map(float, AVERAGES[statistic](human_normalised(given[table], keys[1], bool(own)), -1)))


def average_reaches(given: Given, table: str, statistic: str, column: str, other: str) -> Result:
    """Tell whether the average of a column may be as high as that of another."""
    ours, theirs = (_operand(given, table, statistic, name) for name in (column, other))
    return Result(f"{ours.text(3)} against {theirs.text(3)}", ours.high >= theirs.low)


def average_order(
    given: Given, table: str, statistic: str, columns: Sequence[str], shows: str, scale: int = 1
) -> Result:
    """Order columns by their average; where something is published the first of `columns` must come first."""
    values = {name: _operand(given, table, statistic, name).value for name in columns}
    order = sorted(values, key=lambda name: -values[name])
    shown = [part for name in order for part in (name, scale * values[name])]
    return Result(shows.format(*shown), order[0] == columns[0] if given.published else None)


def carried(given: Given, table: str, new: str, old: str) -> Result:
    """Show what of a gain in the mean outlives the one game that gives most of it."""
    names = [row["game"] for row in games(given[table])]
    gains = (human_normalised(given[table], new) - human_normalised(given[table], old))[0] / len(names)
    most, least = int(gains.argmax()), int(gains.argmin())
    text = f"{gains.sum():+.3f}, of which {names[most]} {gains[most]:+.3f}; without it {gains.sum() - gains[most]:+.3f}"
    return Result(text, None, {"least": f"{names[least]} takes away most: {gains[least]:+.3f}"})


def relative_gain(given: Given, table: str, models: Sequence[str], other: str) -> Result:
    """Read an average gain of the last model over another in every way it may have been meant.

    Rows with one cell less than models are taken to lack the first model's; were it another's, the cells before it
    would be one column further to the left.
    """
    rows, (first, *between, last) = given[table], models
    gains = relative_gains(rows, models, other, first)
    both = [(number(row[last]), number(row[other])) for row in rows if row[other]]
    mean, low, high = (fmean(relative_gains(rows, models, other, first, shift).values()) for shift in (0, -1, 1))
    moved = [fmean(relative_gains(rows, models, other, missing).values()) for missing in between]
    ratio = sum(ours for ours, _ in both) / sum(theirs for _, theirs in both) - 1
    readings = [Figure(mean, low, high), *(Figure(x, x, x) for x in (median(gains.values()), ratio, *moved))]
    largest, undefined = max(gains, key=lambda name: gains[name]), len(both) - len(gains)
    lacking = f", {undefined} of them with nothing to divide by" if undefined else ""
    facts = {
        "rows": f"{len(both)} rows{lacking}; {largest} alone gives {100 * gains[largest]:+.0f} %",
        "tried": ", ".join(f"{100 * value:+.1f} %" for value in moved),
    }
    text = f"median {100 * median(gains.values()):+.1f} %; ratio of mean scores {100 * ratio:+.1f} %; "
    text += f"mean of relative gains {100 * mean:+.1f} %"
    return Result(text, any(reading.agrees(given.published) for reading in readings), facts)


def relative_gains(
    rows: Sequence[Row], models: Sequence[str], other: str, missing: str, shift: float = 0.0
) -> dict[str, float]:
    """Compute gains of the last model over another by environment, where both were printed and the other is not 0.

    Args:
        rows: the table.
        models: its columns.
        other: the one that is divided by.
        missing: the model that rows lack which are one cell short.
        shift: half units by which the last model's scores are moved up, and the other's down.
    """
    gains = {}
    for row in rows:
        printed = [row[model] for model in models if row[model]]
        names = [model for model in models if len(printed) == len(models) or model != missing]
        score = {name: number(text) for name, text in zip(names, printed, strict=True)}
        if models[-1] in score and score.get(other):
            step = shift * half_unit(printed[0])
            gains[row["environment"]] = (score[models[-1]] + step) / (score[other] - step) - 1
    return gains


def imagination_horizon(given: Given, table: str) -> Result:
    """Compute the horizon of GLAM's Equation 11 with the constants in the places the equation gives them."""
    symbols = ("n_0", "Delta n", "n_i", "n_max")
    n0, delta, n_i, most = (int(given.row(table, "*", symbol)["value"]) for symbol in symbols)
    step = 25_000
    as_printed, exchanged = min(n0 + step // delta * n_i, most), min(n0 + step // n_i * delta, most)
    return Result(str(as_printed), str(as_printed) == given.published, {"exchanged": str(exchanged)})


# Welch's test between cells with a mean and a standard error


def p_value(first: str, second: str, seeds: int = SEEDS, alternative: str = "two-sided") -> Figure:
    """Compute the p value, two-sided or against a larger first mean, over the range that the rounding leaves."""

    def p(mean: float, error: float, other_mean: float, other_error: float) -> float:
        # an error printed as 0.0 may be rounded down to below zero at a corner, which no error is
        sides = Moments(mean, max(error, 0.0), seeds), Moments(other_mean, max(other_error, 0.0), seeds)
        return welch(*sides, alternative)

    return Figure.of(p, *(Figure.of_cell(text) for cell in (first, second) for text in cell.split(" ± ")))


def welch_test(given: Given, first: Cell, second: Cell, shows: str, seeds: int = SEEDS) -> Result:
    """Test whether two cells differ, which is published as a p value or as "significant" or "not significant".

    `shows` says how the outcome is told: with the p value, the verdict, and both means.
    """
    one, other = given.cells(*first)[0], given.cells(*second)[0]
    test, fewer = p_value(one, other, seeds), p_value(one, other)
    word = SIGNIFICANT[test.value < ALPHA]
    facts = {
        "p": test.text(4), "p3": test.text(3), "word": word, "one": one.split()[0], "other": other.split()[0],
        "fewer": fewer.text(4), "fewer_word": SIGNIFICANT[fewer.value < ALPHA],
        "one_sided": p_value(one, other, seeds, "greater").text(4),
    }  # fmt: skip
    in_words = given.published in SIGNIFICANT.values()
    agrees = word == given.published if in_words else test.agrees(given.published)
    return Result(shows.format(**facts), agrees, facts)


MEASURES: dict[str, Callable[..., Result]] = {
    measure.__name__: measure
    for measure in (
        average_order, average_reaches, best_setting, carried, cell, count, descending, figure, imagination_horizon,
        one_value, relative_gain, welch_test, wins,
    )
}  # fmt: skip
