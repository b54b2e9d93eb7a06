"""Ways to recompute a published figure from the published tables; `claims.toml` beside the tables has a row a claim.

A claim names its operands: cells ([table, leading cells of the row..., column], where "*" stands for any content, of
several cells the highest, or the lowest of the operand `lowest`), averages over games ([table, statistic, model]), what
random actions reach (["random", environment]), and plain numbers. A measure makes a number or a verdict of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.papers.tables import Figure, Row, Tables, cell, exact, games, half_unit, human_normalised, number
from dqn_memory.study.statistics import Moments, iqm, welch
from envs import baselines

ALPHA, SEEDS = 0.05, 5
AVERAGES: dict[str, Callable[..., Any]] = {"mean": np.mean, "median": np.median, "IQM": lambda x, _: iqm(x[:, None])}
Names = Sequence[str | Mapping[str, str]] | Mapping[str, Sequence[str]]


class Result(NamedTuple):
    """What the tables say of a claim; `agrees` is None where nothing was published or it cannot be checked."""

    recomputed: str
    agrees: bool | None
    facts: Mapping[str, object]  # what the remark of the claim may name


def operands(tables: Tables, addresses: Mapping[str, Any]) -> dict[str, Figure]:
    """Look up operands by name, without those of which nothing was printed."""
    found = {name: operand(tables, address, min if name == "lowest" else max) for name, address in addresses.items()}
    return {name: figure for name, figure in found.items() if figure is not None}


def operand(tables: Tables, address: Any, pick: Callable[..., Figure] = max) -> Figure | None:
    """Look up one operand; None where nothing was printed."""
    if not isinstance(address, list):
        return exact(address, str(address))
    table, *keys, column = address
    _, own, statistic = keys[0].rpartition("own ") if keys else ("", "", "")
    if table == "random" and (lines := baselines.lines(column)):
        value = lines.random.success.mean
        return exact(value, f"{value:.3f}")
    if statistic in AVERAGES:
        value, low, high = map(float, AVERAGES[statistic](human_normalised(tables[table], column, bool(own)), -1))
        return Figure(value, low, high)
    rows = tables.rows(table, *map(str, keys))
    if not rows:
        raise UserError(f"{table}.csv has no row with {', '.join(keys)}")
    found = [Figure.of_cell(text, row) for row in rows if (text := cell(row, column))]
    return pick(found, key=lambda each: each.value) if found else None


def p_value(one: Figure, other: Figure, seeds: int = SEEDS, alternative: str = "two-sided") -> Figure:
    """Compute Welch's p value of two rows, two-sided or against a larger first mean, over the rounding's range."""

    def p(mean: float, error: float, other_mean: float, other_error: float) -> float:
        # an error printed as 0.0 may be rounded down to below zero at a corner, which no error is
        sides = Moments(mean, max(error, 0.0), seeds), Moments(other_mean, max(other_error, 0.0), seeds)
        return welch(*sides, alternative)

    return Figure.of(p, *(Figure.of_cell(side.row[name]) for side in (one, other) for name in ("mean", "error")))


def differs(one: Figure, other: Figure, seeds: int = SEEDS) -> bool:
    """Tell whether two rows differ significantly."""
    return p_value(one, other, seeds).value < ALPHA


def above(one: Figure, *others: Figure) -> bool:
    """Tell whether the first operand is above all others."""
    return all(one.value > other.value for other in others)


MEASURES: dict[str, Callable[..., Figure | bool | None]] = {
    "shown": lambda *_: None,
    "value": lambda figure: figure,
    "change": partial(Figure.of, lambda new, old: (new - old) / abs(old)),
    "loss": partial(Figure.of, lambda new, old: 1 - new / old),
    "share": partial(Figure.of, lambda new, old, whole: (new - old) / whole),
    "hours": partial(Figure.of, lambda samples, frames, rate: samples * frames / rate / 3600),
    "p": p_value,
    "differs": differs,
    "alike": lambda one, other: not differs(one, other),
    "gains": lambda one, other: above(one, other) and differs(one, other),
    "above": above,
    "top": lambda one, *others: not any(other.value > one.value for other in others),
    "falls": lambda *cells: all(above(*pair) for pair in pairwise(cells)),
    "equal": lambda one, other: one.printed == other.printed,
    "near": lambda one, other: abs(one.value - other.value) <= 0.5 + 1e-9,
    "reaches": lambda one, other: one.high >= other.low,
    "horizon": lambda *counts: exact(horizon(*(int(each.value) for each in counts))),
}


def horizon(first: int, growth: int, every: int, most: int, step: int) -> int:
    """Compute GLAM's imagination horizon by Equation 11, with the constants in the places the equation gives them."""
    return min(first + step // growth * every, most)


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
    """List what a claim is repeated over: names (of "{each}"), tables of names, or all combinations of named lists."""
    if isinstance(each, Mapping):
        return [dict(zip(each, names, strict=True)) for names in product(*each.values())]
    return [{"each": names} if isinstance(names, str) else names for names in each]


@dataclass(frozen=True)
class Recipe:
    """How a claim is recomputed: the settings of its row."""

    measure: str
    """Name of one of MEASURES."""
    of: Mapping[str, Any]
    """Operands by name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the measure."""
    each: Names = ()
    """What is repeated over: verdicts are counted, such as "19 of 26", and numbers have the range of all."""
    shows: str = ""
    """How the outcome is shown, where not as it was published."""
    tells: str = "{name}"
    """How a case is named; `all` of these, those that are `different` and the `least` may stand in remarks."""
    join: str = "; "
    """What stands between them."""
    words: Sequence[str] = ()
    """How a verdict that does not hold, in some case, and one that does are published."""
    scale: int = 1
    """What ordered values are multiplied by."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More claims by name, for texts and remarks, of the same operands where they name none."""


def recompute(tables: Tables, published: str, recipe: Recipe) -> Result:
    """Recompute one claim, of which the paper prints `published`; a UserError names an unknown measure."""
    if recipe.measure not in MEASURES:
        raise UserError(f"there is no measure '{recipe.measure}' for a claim; there are {', '.join(MEASURES)}")
    results, lines, found = list[Any](), list[str](), dict[str, Figure]()
    for case in cases(recipe.each) or [{}]:
        found = operands(tables, filled(recipe.of, case))
        results.append(MEASURES[recipe.measure](*found.values(), **recipe.options))
        p = MEASURES["p"](*found.values()) if "{p" in recipe.tells else ""
        lines.append(recipe.tells.format(name=" ".join(case.values()), p=p, **found))
    values: dict[str, Any] = {**found, "all": recipe.join.join(lines), "least": min(lines)}
    for name, fact in recipe.facts.items():
        values[name] = recompute(tables, "", Recipe(**{"of": recipe.of, **fact})).recomputed
    if isinstance(results[0], Figure):
        whole = Figure(results[0].value, min(one.low for one in results), max(one.high for one in results))
        values |= {"result": whole, "percent": 100 * whole.value, "low": 100 * whole.low, "high": 100 * whole.high}
        text, agrees = whole.like(published), bool(published) and whole.agrees(published)
    else:
        count = f"{sum(map(bool, results))} of {len(results)}"
        different = recipe.join.join(line for line, holds in zip(lines, results, strict=True) if not holds)
        word = recipe.words[all(results)] if recipe.words else ""
        values |= {"held": sum(map(bool, results)), "count": count, "different": different, "word": word}
        text = word or (count if recipe.each else "")
        agrees = text == published if text else results[0]
    ordered = sorted(found.items(), key=lambda named: -named[1].value)
    places = [part for name, figure in ordered for part in (name, recipe.scale * figure.value)]
    text = recipe.shows.format(*places, **values) if recipe.shows else text
    return Result(text, agrees if published else None, values)


# What single claims need


def carried(tables: Tables, published: str, table: str, new: str, old: str) -> Result:
    """Show what of a gain in the mean outlives the one game that gives most of it."""
    names = [row["game"] for row in games(tables[table])]
    gains = (human_normalised(tables[table], new) - human_normalised(tables[table], old))[0] / len(names)
    most, least = int(gains.argmax()), int(gains.argmin())
    text = f"{gains.sum():+.3f}, of which {names[most]} {gains[most]:+.3f}; without it {gains.sum() - gains[most]:+.3f}"
    return Result(text, None, {"least": f"{names[least]} takes away most: {gains[least]:+.3f}"})


def relative_gain(tables: Tables, published: str, table: str, models: Sequence[str], other: str) -> Result:
    """Read an average gain of the last model over another in every way it may have been meant.

    Rows with one cell less than models are taken to lack the first model's; were it another's, the cells before it
    would be one column further to the left.
    """
    rows, (first, *between, last) = tables[table], models
    gains = relative_gains(rows, models, other, first)
    both = [(number(row[last]), number(row[other])) for row in rows if row[other]]
    mean, low, high = (fmean(relative_gains(rows, models, other, first, shift).values()) for shift in (0, -1, 1))
    moved = [fmean(relative_gains(rows, models, other, missing).values()) for missing in between]
    ratio = sum(ours for ours, _ in both) / sum(theirs for _, theirs in both) - 1
    readings = [Figure(mean, low, high), *(exact(x) for x in (median(gains.values()), ratio, *moved))]
    largest, undefined = max(gains, key=lambda name: gains[name]), len(both) - len(gains)
    lacking = f", {undefined} of them with nothing to divide by" if undefined else ""
    facts = {
        "rows": f"{len(both)} rows{lacking}; {largest} alone gives {100 * gains[largest]:+.0f} %",
        "tried": ", ".join(f"{100 * value:+.1f} %" for value in moved),
    }
    text = f"median {100 * median(gains.values()):+.1f} %; ratio of mean scores {100 * ratio:+.1f} %; "
    text += f"mean of relative gains {100 * mean:+.1f} %"
    return Result(text, any(reading.agrees(published) for reading in readings), facts)


def relative_gains(
    rows: Sequence[Row], models: Sequence[str], other: str, missing: str, shift: float = 0.0
) -> dict[str, float]:
    """Compute gains of the last model over another by environment, where both were printed and the other is not 0.

    Rows that are one cell short lack the model `missing`. The last model's scores are moved up by `shift` half units of
    the last printed digit, and the other's down.
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


SINGLE: dict[str, Callable[..., Result]] = {"carried": carried, "relative_gain": relative_gain}
