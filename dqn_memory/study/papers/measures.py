"""Ways to recompute a published figure from the published tables; `claims.toml` beside the tables names one a claim.

Every function of MEASURES takes what is given and the settings of its claim, and returns a Result. Where a setting is a
list of cells, each cell is given as [table, leading cells of its row..., column], "*" standing for any content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np

from dqn_memory.study.papers.tables import Table, Tables, half_unit, number
from dqn_memory.study.statistics import HUMAN, Floats, Indices, Moments, iqm, known_lines, welch
from envs.errors import UserError

ALPHA = 0.05
AVERAGES: dict[str, Callable[[Floats], np.floating]] = {"mean": np.mean, "median": np.median}
SIGNIFICANT = {True: "significant", False: "not significant"}


@dataclass(frozen=True)
class Result:
    """What the tables say of a claim; `agrees` is None where nothing was published or it cannot be checked."""

    recomputed: str
    agrees: bool | None
    facts: Mapping[str, str] = field(default_factory=dict)  # what the remark of the claim may name


@dataclass(frozen=True)
class Figure:
    """A recomputed number, with the range it may have because the table's cells are rounded."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Figure:
        """Make a number that rounding cannot change."""
        return cls(value, value, value)

    @classmethod
    def monotone(cls, statistic: Callable[[float], float]) -> Figure:
        """Make a statistic that only grows with every cell, given all cells shifted by -1, 0 or 1 half units."""
        value, low, high = statistic(0.0), statistic(-1.0), statistic(1.0)
        return cls(value, min(low, high), max(low, high))

    @classmethod
    def of_cells(cls, function: Callable[..., float], *cells: str) -> Figure:
        """Make a function of a few printed cells; its range is that over all corners of their rounding."""
        values = [number(cell) for cell in cells]
        steps = [half_unit(cell) for cell in cells]
        corners = [
            function(*(value + sign * step for value, sign, step in zip(values, signs, steps, strict=True)))
            for signs in product((-1, 1), repeat=len(cells))
        ]
        return cls(function(*values), min(corners), max(corners))

    def agrees(self, published: str) -> bool:
        """Tell whether some number within the rounding prints as `published`, which may be a percentage."""
        scale = 0.01 if published.rstrip().endswith("%") else 1.0
        target, margin = scale * number(published), scale * half_unit(published) * (1 + 1e-9)
        return self.low - margin <= target <= self.high + margin

    def text(self, decimals: int, percent: bool = False, sign: bool = False) -> str:
        """Show the value, and in brackets the range that rounding leaves, where it shows at these decimals."""
        low, value, high = (_shown(x, decimals, percent, sign) for x in (self.low, self.value, self.high))
        return value if low == high else f"{value} [{low}, {high}]"

    def like(self, published: str) -> str:
        """Show the value as it was published, with one digit more."""
        digits = published.partition(".")[2].rstrip("% ")
        return self.text(len(digits) + 1, published.rstrip().endswith("%"), published.startswith("+"))


def _shown(value: float, decimals: int, percent: bool, sign: bool) -> str:
    spec = f"{'+' if sign else ''}.{decimals}f"
    return f"{100 * value:{spec}} %" if percent else f"{value:{spec}}"


@dataclass(frozen=True)
class Given(Tables):
    """The tables, and what the paper prints of the claim that is recomputed."""

    published: str = ""


def _compare(published: str, figure: Figure, **facts: str) -> Result:
    return Result(figure.like(published), figure.agrees(published), facts)


def _count(published: str, found: Iterable[bool], **facts: str) -> Result:
    """Compare how many of the cases are so with such as "19 of 26"; nothing is compared without that."""
    cases = list(found)
    text = f"{sum(cases)} of {len(cases)}"
    return Result(text, text == published if published else None, facts)


# Averages of human-normalised scores over games


def _average(table: Table, statistic: str, column: str) -> Figure:
    return Figure.monotone(lambda shift: float(AVERAGES[statistic](table.human_normalised(column, shift))))


def average(given: Given, table: str, statistic: str, column: str) -> Result:
    """Average a column of Atari scores on the human scale."""
    scores = given[table].human_normalised(column)
    rounded = float(AVERAGES[statistic](given[table].human_normalised(column, own_scale=True)))
    short = len(scores) < len(given[table].games())
    missing = f"; {len(scores)} games, the table lacks the others" if short else ""
    figure = _average(given[table], statistic, column)
    return _compare(given.published, figure, own=f"{100 * rounded:.1f} %", missing=missing)


def average_gain(given: Given, table: str, statistic: str, new: str, old: str, row: str) -> Result:
    """Set the average of one column against that of another; `row` is where the table prints both."""
    ours, theirs = (_average(given[table], statistic, column) for column in (new, old))
    figure = Figure(ours.value / theirs.value - 1, ours.low / theirs.high - 1, ours.high / theirs.low - 1)
    printed = number(given.cell(table, row, new)) / number(given.cell(table, row, old)) - 1
    return _compare(given.published, figure, printed=f"{100 * printed:.1f} %")


def average_reaches(given: Given, table: str, statistic: str, column: str, other: str) -> Result:
    """Tell whether the average of a column may be as high as that of another."""
    ours, theirs = (_average(given[table], statistic, name) for name in (column, other))
    return Result(f"{ours.text(3)} against {theirs.text(3)}", ours.high >= theirs.low)


def average_first(given: Given, table: str, statistic: str, column: str, rivals: Sequence[str]) -> Result:
    """Tell whether a column has the highest average."""
    values = {name: _average(given[table], statistic, name).value for name in (column, *rivals)}
    best = max(rivals, key=lambda name: values[name])
    text = f"{column} {100 * values[column]:.1f} %, next {best} {100 * values[best]:.1f} %"
    return Result(text, values[column] > values[best])


def middle_order(given: Given, table: str, columns: Sequence[str]) -> Result:
    """Order columns by their interquartile mean over the games, which one game cannot carry."""
    values = {name: float(iqm(given[table].human_normalised(name)[None])) for name in columns}
    order = sorted(values, key=lambda name: -values[name])
    return Result(", ".join(f"{name} {values[name]:.3f}" for name in order), None)


def carried(given: Given, table: str, new: str, old: str) -> Result:
    """Show what of a gain in the mean outlives the one game that gives most of it."""
    games, (ours, theirs) = given[table].games(), (given[table].human_normalised(name) for name in (new, old))
    gains, names = (ours - theirs) / len(games), [row["game"] for row in games]
    most, least = int(gains.argmax()), int(gains.argmin())
    text = f"{gains.sum():+.3f}, of which {names[most]} {gains[most]:+.3f}; without it {gains.sum() - gains[most]:+.3f}"
    return Result(text, None, {"least": f"{names[least]} takes away most: {gains[least]:+.3f}"})


# Cells and columns set against each other


def wins(
    given: Given, table: str, column: str, rivals: Sequence[str],
    only: Sequence[str] = (), best_of: Sequence[str] = (),
) -> Result:  # fmt: skip
    """Count rows in which a column is above its rivals, of those whose name or id has one of the words `only`."""
    whole = given[table]
    rows = [row for row in (whole.games() or whole.rows) if _has(row, only)]
    found = [number(row[column]) > max(number(row[name]) for name in rivals if row[name]) for row in rows]
    name = "environment" if "environment" in whole.header else whole.key
    lost = [row[name] for row, won in zip(rows, found, strict=True) if not won]
    best = sum(number(row[column]) >= max(number(row[name]) for name in best_of) for row in rows) if best_of else 0
    return _count(given.published, found, lost=f"Not in {', '.join(lost)}" if lost else "", best=str(best))


def _has(row: Mapping[str, str], words: Sequence[str]) -> bool:
    text = row.get("id") or next(iter(row.values()))
    return not words or any(word in text for word in words)


def pairs(given: Given, first: Sequence[str], second: Sequence[str], each: Sequence[str], relation: str) -> Result:
    """Count the cases, named in both cells as {each}, in which two cells are equal or the first is above."""
    cells = {name: [given.cell(*_named(keys, name)) for keys in (first, second)] for name in each}
    found = {name: a == b if relation == "equal" else number(a) > number(b) for name, (a, b) in cells.items()}
    shown = {name: f"{name} {a} and {b}" for name, (a, b) in cells.items()}
    different = "; ".join(text for name, text in shown.items() if not found[name])
    return _count(given.published, found.values(), all="; ".join(shown.values()), different=different)


def _named(keys: Sequence[str], name: str) -> list[str]:
    return [key.format(each=name) for key in keys]


def same(given: Given, first: Sequence[str], second: Sequence[str]) -> Result:
    """Tell whether two tables print one score; one unit of the last digit may be rounding."""
    ours, theirs = given.cell(*first), given.cell(*second)
    return Result(theirs, abs(number(ours) - number(theirs)) < 0.15)


def same_rounded(given: Given, first: Sequence[str], second: Sequence[str]) -> Result:
    """Tell whether a row's mean and error are those of a row with more digits."""
    here, there = given.row(*first), given.row(*second)
    return Result(f"{there['mean']} ± {there['error']}", Figure.of_cells(float, there["mean"]).agrees(here["mean"]))


def same_columns(given: Given, table: str, other: str, columns: Sequence[str]) -> Result:
    """Count cells of two tables of the same games that are equal within half a point."""
    wrong, rows = [], list(zip(given[table].games(), given[other].games(), strict=True))
    for ours, theirs in rows:
        for column in columns:
            if abs(number(ours[column]) - number(theirs[column])) > 0.5 + 1e-9:
                wrong.append(f"{ours['game']} {column.lower()} {ours[column]} and {theirs[column]}")
    total = len(columns) * len(rows)
    return Result(f"{total - len(wrong)} of {total}", not wrong, {"different": "; ".join(wrong)})


def descending(given: Given, row: Sequence[str], columns: Sequence[str]) -> Result:
    """Tell whether the cells of a row fall from column to column."""
    cells = [given.row(*row)[column] for column in columns]
    falls = all(number(high) > number(low) for high, low in pairwise(cells))
    return Result((" > " if falls else ", ").join(cells), falls)


def change(given: Given, new: Sequence[str], old: Sequence[str], game: str = "") -> Result:
    """Compute the relative change from one cell to another; of a game also as a share of the way to a human."""
    cells = given.cell(*new), given.cell(*old)
    figure = Figure.of_cells(lambda after, before: (after - before) / abs(before), *cells)
    if not game:
        return _compare(given.published, figure)
    points = HUMAN[game].one - HUMAN[game].zero
    share = (number(cells[0]) - number(cells[1])) / points
    return _compare(given.published, figure, points=f"{points:.1f}", share=f"{100 * share:.0f} %")


def loss_over(given: Given, new: Sequence[str], old: Sequence[str], least: float) -> Result:
    """Tell whether the way from one cell to another may cost more than a share of the first."""
    cells = given.cell(*new), given.cell(*old)
    figure = Figure.of_cells(lambda after, before: 1 - after / before, *cells)
    upwards = Figure.of_cells(lambda after, before: before / after - 1, *cells)
    return Result(figure.text(1, percent=True), figure.high > least, {"upwards": upwards.text(1, percent=True)})


# Welch's test between rows with a mean and a standard error


def p_value(first: Mapping[str, str], second: Mapping[str, str], seeds: int, one_sided: bool = False) -> Figure:
    """Compute the p value, two-sided or against a larger first mean, over the range that the rounding leaves."""

    def p(mean: float, error: float, other_mean: float, other_error: float) -> float:
        # an error printed as 0.0 may be rounded down to below zero at a corner, which no error is
        left, right = Moments(mean, max(error, 0.0), seeds), Moments(other_mean, max(other_error, 0.0), seeds)
        test = welch(left, right)
        return test.one_sided if one_sided else test.p

    return Figure.of_cells(p, first["mean"], first["error"], second["mean"], second["error"])


def welch_test(
    given: Given, first: Sequence[str], second: Sequence[str], seeds: int, shows: str, other_seeds: int = 0
) -> Result:
    """Test whether two rows differ, which is published as a p value or as "significant" or "not significant".

    `shows` says how the outcome is told: with the p value, the verdict, and both means.
    """
    rows = given.row(*first), given.row(*second)
    test, other = p_value(*rows, seeds), p_value(*rows, other_seeds or seeds)
    word = SIGNIFICANT[test.value < ALPHA]
    facts = {
        "p": test.text(4), "p3": test.text(3), "word": word, "first": rows[0]["mean"], "second": rows[1]["mean"],
        "other": other.text(4), "other_word": SIGNIFICANT[other.value < ALPHA],
        "one_sided": p_value(*rows, seeds, one_sided=True).text(4),
    }  # fmt: skip
    in_words = given.published in SIGNIFICANT.values()
    agrees = word == given.published if in_words else test.agrees(given.published)
    return Result(shows.format(**facts), agrees, facts)


def significant_pairs(
    given: Given, first: Sequence[str], second: Sequence[str], each: Sequence[str], seeds: int
) -> Result:
    """Count the cases, named in both rows as {each}, in which two rows differ significantly."""
    tested = {name: p_value(given.row(*_named(first, name)), given.row(*_named(second, name)), seeds) for name in each}
    shown = ", ".join(f"{name} {p.text(3)}" for name, p in tested.items())
    return _count(given.published, (p.value < ALPHA for p in tested.values()), shown=shown)


def little_effect(given: Given, table: str, parameter: str, each: Sequence[str], seeds: int) -> Result:
    """Count the games in which the best and the worst value of a parameter cannot be told apart."""
    shown, alike = [], []
    for game in each:
        rows = [row for row in given[table].rows if (row["parameter"], row["game"]) == (parameter, game)]
        rows.sort(key=lambda row: number(row["mean"]))
        p = p_value(rows[-1], rows[0], seeds)
        alike.append(p.value >= ALPHA)
        shown.append(f"{game} {rows[0]['mean']} to {rows[-1]['mean']} (p {p.text(3)})")
    return _count(given.published, alike, shown="; ".join(shown))


def significant_gains(given: Given, table: str, game: str, baseline: str, seeds: int) -> Result:
    """Count the models that are significantly above the baseline in a game."""
    base = given[table].row(model=baseline, game=game)
    rows = [row for row in given[table].rows if row["game"] == game and row["model"] != baseline]
    tested = [p_value(row, base, seeds) for row in rows]
    gained = [
        p.value < ALPHA and number(row["mean"]) > number(base["mean"]) for row, p in zip(rows, tested, strict=True)
    ]
    return _count(given.published, gained, smallest=min(tested, key=lambda p: p.value).text(3))


# What single claims need


def relative_gains(scores: Floats, others: Floats) -> tuple[Floats, Indices]:
    """Compute relative gains over others, NaN where nothing was printed, and the rows (K,) that have one.

    A row where the other is 0 has none: there is nothing to divide by.
    """
    rows = np.flatnonzero(~np.isnan(scores) & (others > 0))
    return scores[rows] / others[rows] - 1, rows


def relative_gain(given: Given, table: str, models: Sequence[str], other: str) -> Result:
    """Read an average gain of the last model over another in every way it may have been meant.

    Rows with one cell less than models are taken to lack the first model's; were it another's, the cells before it
    would be one column further to the left.
    """
    columns = {model: given[table].scores(model) for model in models}
    ours, theirs, step = columns[models[-1]], columns[other], half_unit("0.0000")
    relative, rows = relative_gains(ours, theirs)
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    ratio = float(ours[both].mean() / theirs[both].mean() - 1)
    divisor = np.where(theirs == 0, np.nan, theirs)  # a score of 0 has no gain, whatever it was before rounding
    rounded = Figure.monotone(lambda shift: _mean_gain(ours + shift * step, divisor - shift * step))
    moved = [_mean_gain_without(columns, models, missing, other) for missing in models[1:-1]]
    readings = [*map(Figure.exact, (float(np.median(relative)), ratio, *moved)), rounded]
    undefined = f", {both.sum() - len(rows)} of them with nothing to divide by" if both.sum() > len(rows) else ""
    largest = given[table].rows[rows[relative.argmax()]]["environment"]
    facts = {
        "rows": f"{both.sum()} rows{undefined}; {largest} alone gives {100 * relative.max():+.0f} %",
        "tried": ", ".join(f"{100 * value:+.1f} %" for value in moved),
    }
    text = (
        f"median {100 * np.median(relative):+.1f} %; ratio of mean scores {100 * ratio:+.1f} %; "
        f"mean of relative gains {100 * relative.mean():+.1f} %"
    )
    return Result(text, any(figure.agrees(given.published) for figure in readings), facts)


def _mean_gain(scores: Floats, others: Floats) -> float:
    return float(relative_gains(scores, others)[0].mean())


def _mean_gain_without(columns: Mapping[str, Floats], models: Sequence[str], missing: str, other: str) -> float:
    """Average relative gains where the rows that are one cell short lack another model's than the first's."""
    short = np.isnan(columns[models[0]])
    kept = [model for model in models if model != missing]
    moved = {new: columns[old][short] for new, old in zip(kept, models[1:], strict=True)}
    ours, theirs = columns[models[-1]].copy(), columns[other].copy()
    ours[short], theirs[short] = moved.get(models[-1], np.nan), moved.get(other, np.nan)
    return _mean_gain(ours, theirs)


def beside_random(given: Given, row: Sequence[str], columns: Sequence[str]) -> Result:
    """Show cells of a row beside what random actions reach in its environment."""
    cells = given.row(*row)
    random = known_lines(cells["id"]).random.success.mean
    shown = ", ".join(f"{column} {cells[column]}" for column in columns)
    return Result(f"{shown} with the rooms; random actions {random:.3f}", None)


def parameter_counts(given: Given, table: str) -> Result:
    """Count the cells of a table of parameter counts that are this suite's."""
    cells = [(row["id"], model.lower(), row[model]) for row in given[table].rows for model in given[table].header[2:]]
    return _count(given.published, (given.parameters.get((id, model)) == count for id, model, count in cells))


def fewer_parameters(given: Given, table: str, small: str, large: str) -> Result:
    """Tell whether a share of one architecture's parameters may be what another saves, environment by environment."""
    sizes = [[number(given.parameters[row["id"], name]) for name in (small, large)] for row in given[table].rows]
    saved = sorted(1 - ours / theirs for ours, theirs in sizes)
    target, margin = number(given.published) / 100, half_unit("0.25")
    agrees = saved[0] - margin <= target <= saved[-1] + margin
    return Result(f"{100 * saved[0]:.1f} % to {100 * saved[-1]:.1f} %, by world", agrees)


def best_setting(given: Given, table: str, game: str, kind: str) -> Result:
    """Tell whether the given.published setting is the best of its kind in a game."""
    rows = [row for row in given[table].rows if row["game"] == game and row["model"].startswith(kind)]
    best = max(rows, key=lambda row: number(row["mean"]))
    mine = max(number(row["mean"]) for row in rows if row["model"] == given.published)
    return Result(f"{best['model']}: {best['mean']} (Table 1's: {mine:g})", mine >= number(best["mean"]))


def different_runs(given: Given, table: str, other: str, settings: Sequence[Sequence[str]], baseline: str) -> Result:
    """Count the cells of two tables that have the same mean; `settings` are (game, model, its name in the other)."""
    names = {(game, model): name for game, model, name in settings}
    same = []
    for row in given[table].rows:
        name = baseline if row["model"] == "UniZero" else names.get((row["game"], row["model"]))
        there = [cells for cells in given[other].rows if (cells["game"], cells["model"]) == (row["game"], name)]
        same += [row["mean"] == there[0]["mean"]] if there else []
    return Result(f"{sum(same)} of {len(same)} shared cells have the same mean", not all(same))


def one_value(given: Given, table: str, model: str, game: str) -> Result:
    """Show the values of a setting that a table has more than once."""
    rows = [row for row in given[table].rows if (row["model"], row["game"]) == (model, game)]
    shown = [f"{row['mean']} ± {row['error']}" for row in rows]
    return Result(" and ".join(shown), len(set(shown)) == 1)


def hours_of_play(given: Given, samples: int, frames: int, rate: int) -> Result:
    """Compute how long a number of samples takes a human player."""
    return _compare(given.published, Figure.exact(samples * frames / rate / 3600))


def imagination_horizon(given: Given, table: str) -> Result:
    """Compute the horizon of GLAM's Equation 11 with the constants in the places the equation gives them."""
    cells = (given[table].row(symbol=symbol)["value"] for symbol in ("n_0", "Delta n", "n_i", "n_max"))
    n0, delta, n_i, most = (int(number(cell)) for cell in cells)
    step = n_i
    as_printed, exchanged = min(n0 + step // delta * n_i, most), min(n0 + step // n_i * delta, most)
    return Result(str(as_printed), str(as_printed) == given.published, {"exchanged": str(exchanged)})


MEASURES: dict[str, Callable[..., Result]] = {
    measure.__name__: measure
    for measure in (
        average, average_gain, average_reaches, average_first, middle_order, carried, wins, pairs, same, same_rounded,
        same_columns, descending, change, loss_over, welch_test, significant_pairs, little_effect,
        significant_gains, relative_gain, beside_random, parameter_counts, fewer_parameters, best_setting,
        different_runs, one_value, hours_of_play, imagination_horizon,
    )
}  # fmt: skip


def recompute(measure: str, given: Given, settings: Mapping[str, Any]) -> Result:
    """Recompute one claim; a UserError names an unknown measure."""
    if measure not in MEASURES:
        raise UserError(f"there is no measure '{measure}' for a claim; there are {', '.join(MEASURES)}")
    return MEASURES[measure](given, **settings)
