"""Ways to recompute a published figure from the published tables; `claims.toml` beside the tables has a row a claim.

A claim names its operands: cells ([table, leading cells of the row..., column], where "*" stands for any content, of
several cells the highest, or the lowest of the operand `lowest`), averages over games ([table, statistic, model]), what
random actions reach (["random", environment]), and plain numbers. A measure makes a number or a verdict of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study.papers.tables import Figure, Row, Tables, cell, games, half_unit, human_normalised, number
from dqn_memory.study.statistics import Moments, iqm, welch
from envs import baselines

ALPHA, SEEDS = 0.05, 5
AVERAGES: dict[str, Callable[..., Any]] = {"mean": np.mean, "median": np.median, "IQM": lambda x, _: iqm(x[:, None])}
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
    facts: Mapping[str, object] = field(default_factory=dict)  # what the remark of the claim may name


class Operand(NamedTuple):
    """A number of a claim as it is printed, with its range, and the row that it stands in."""

    text: str
    figure: Figure
    row: Row

    def __format__(self, spec: str) -> str:
        return format(self.figure.value, spec) if spec else self.text


def operand(given: Tables, address: Any, pick: Callable[..., tuple[str, Row]] = max) -> Operand | None:
    """Look up one operand; None where nothing was printed."""
    if not isinstance(address, list):
        return Operand(str(address), exact(address), {})
    table, *keys, column = address
    _, own, statistic = keys[0].rpartition("own ") if keys else ("", "", "")
    if table == "random" and (lines := baselines.lines(column)):
        value = lines.random.success.mean
        return Operand(f"{value:.3f}", exact(value), {})
    if statistic in AVERAGES:
        ends = AVERAGES[statistic](human_normalised(given[table], column, bool(own)), -1)
        return Operand("", Figure(*map(float, ends)), {})
    rows = given.rows(table, *map(str, keys))
    if not rows:
        raise UserError(f"{table}.csv has no row with {', '.join(keys)}")
    cells = [(text, row) for row in rows if (text := cell(row, column))]
    if not cells:
        return None
    text, row = pick(cells, key=lambda each: number(each[0]))
    return Operand(text, Figure.of_cell(text), row)


def formula(function: Callable[..., float]) -> Callable[..., Figure]:
    """Make a measure of a function of numbers."""
    return lambda *operands: Figure.of(function, *(each.figure for each in operands))


def p_value(one: Operand, other: Operand, seeds: int = SEEDS, alternative: str = "two-sided") -> Figure:
    """Compute Welch's p value of two rows, two-sided or against a larger first mean, over the rounding's range."""

    def p(mean: float, error: float, other_mean: float, other_error: float) -> float:
        # an error printed as 0.0 may be rounded down to below zero at a corner, which no error is
        sides = Moments(mean, max(error, 0.0), seeds), Moments(other_mean, max(other_error, 0.0), seeds)
        return welch(*sides, alternative)

    return Figure.of(p, *(Figure.of_cell(side.row[name]) for side in (one, other) for name in ("mean", "error")))


def differs(one: Operand, other: Operand, seeds: int = SEEDS) -> bool:
    """Tell whether two rows differ significantly."""
    return p_value(one, other, seeds).value < ALPHA


def top(one: Operand, *others: Operand) -> bool:
    """Tell whether no other operand is above the first."""
    return all(one.figure.value >= other.figure.value for other in others)


def above(one: Operand, *others: Operand) -> bool:
    """Tell whether the first operand is above all others."""
    return all(one.figure.value > other.figure.value for other in others)


MEASURES: dict[str, Callable[..., Figure | bool | None]] = {
    "shown": lambda *_: None,
    "value": formula(lambda value: value),
    "change": formula(lambda new, old: (new - old) / abs(old)),
    "loss": formula(lambda new, old: 1 - new / old),
    "share": formula(lambda new, old, whole: (new - old) / whole),
    "hours": formula(lambda samples, frames, rate: samples * frames / rate / 3600),
    "p": p_value,
    "differs": differs,
    "alike": lambda one, other: not differs(one, other),
    "gains": lambda one, other: above(one, other) and differs(one, other),
    "above": above,
    "top": top,
    "falls": lambda *cells: all(above(*pair) for pair in pairwise(cells)),
    "equal": lambda one, other: one.text == other.text,
    "near": lambda one, other: abs(one.figure.value - other.figure.value) <= 0.5 + 1e-9,
    "reaches": lambda one, other: one.figure.high >= other.figure.low,
    "horizon": lambda *counts: exact(horizon(*(int(each.figure.value) for each in counts))),
}


def exact(value: float) -> Figure:
    """Make a number that is not rounded."""
    return Figure(value, value, value)


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
    """The name of one of MEASURES."""
    of: Mapping[str, Any]
    """Its operands by name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the measure."""
    each: Names = ()
    """What is repeated over: verdicts are counted, such as "19 of 26", and numbers have the range of all."""
    shows: str = ""
    """How the outcome is shown, where not as it was published."""
    tells: str = "{name}"
    """How a case is told of; `all` of these, those that are `different` and the `least` may stand in remarks."""
    join: str = "; "
    """What stands between them."""
    words: tuple[str, str] | None = None
    """How a verdict that does not hold, and one that does, are published."""
    unless: str = ""
    """The count that would contradict what is published in words."""
    scale: int = 1
    """What ordered values are multiplied by."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """More recipes by name, for texts and remarks, of the same operands where they name none."""


def recompute(given: Given, recipe: Recipe) -> Result:
    """Recompute one claim; a UserError names an unknown measure."""
    if recipe.measure not in MEASURES:
        raise UserError(f"there is no measure '{recipe.measure}' for a claim; there are {', '.join(MEASURES)}")
    results: list[Any] = []
    lines, found = list[str](), dict[str, Operand]()
    for case in cases(recipe.each) or [{}]:
        cells = {
            name: operand(given, filled(address, case), min if name == "lowest" else max)
            for name, address in recipe.of.items()
        }
        found = {name: each for name, each in cells.items() if each is not None}
        results.append(MEASURES[recipe.measure](*found.values(), **recipe.options))
        p = MEASURES["p"](*found.values()) if "{p" in recipe.tells else ""
        lines.append(recipe.tells.format(name=" ".join(case.values()), p=p, **found))
    values: dict[str, Any] = {**found, "all": recipe.join.join(lines), "least": min(lines)}
    for name, fact in recipe.facts.items():
        values[name] = recompute(replace(given, published=""), Recipe(**{"of": recipe.of, **fact})).recomputed
    if isinstance(results[0], Figure):
        whole = Figure(results[0].value, min(each.low for each in results), max(each.high for each in results))
        values |= {"result": whole, "percent": 100 * whole.value, "low": 100 * whole.low, "high": 100 * whole.high}
        text, agrees = whole.like(given.published), bool(given.published) and whole.agrees(given.published)
    elif recipe.each:
        text = f"{sum(results)} of {len(results)}"
        different = recipe.join.join(words for words, holds in zip(lines, results, strict=True) if not holds)
        values |= {"held": sum(results), "count": text, "different": different}
        agrees = text != recipe.unless if recipe.unless else text == given.published
    else:
        values["word"] = text = recipe.words[bool(results[0])] if recipe.words else ""
        agrees = text == given.published if recipe.words else results[0]
    ordered = sorted(found.items(), key=lambda each: -each[1].figure.value)
    places = [part for name, each in ordered for part in (name, recipe.scale * each.figure.value)]
    text = recipe.shows.format(*places, **values) if recipe.shows else text
    return Result(text, agrees if given.published else None, values)


# What single claims need


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
    readings = [Figure(mean, low, high), *(exact(x) for x in (median(gains.values()), ratio, *moved))]
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


SINGLE: dict[str, Callable[..., Result]] = {"carried": carried, "relative_gain": relative_gain}
