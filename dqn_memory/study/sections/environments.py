"""Compare properties of environments with gains: research questions 3 to 5 of the DBGFQN paper."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dqn_memory.study import statistics
from dqn_memory.study.collect import Data
from dqn_memory.study.page import Part, Picture, Section
from dqn_memory.study.plots import gains_figure
from dqn_memory.study.sections.scores import REPETITIONS, interval
from dqn_memory.study.statistics import FEWEST, Estimate, Floats, rank_correlation, welch
from dqn_memory.study.world_properties import DEFINITIONS, Properties, control_twin, properties
from envs.registry import WORLDS
from envs.tables import Table

Pair = tuple[Sequence[float], Sequence[float]]
FEEDFORWARD = ("dtqn4", "dtqn")  # two names of one network
# One cell each in one direction and in both.
DIRECTIONS: Mapping[str, str] = {"drfqn": "dbrfqn", "dlfqn": "dblfqn", "dgfqn": "dbgfqn"}
BOTH, RECURRENCE = "both directions over one", "recurrence over feed-forward"
TITLE = "Which environments reward recurrence (RQ3, RQ4)"
PHANTOMS = "Hallucinated structure (RQ5)"


def difference(pairs: Sequence[Pair], repetitions: int = REPETITIONS) -> Estimate:
    """Average the first's mean less the second's over pairs, with an interval by resampling the runs of every side.

    A sample that is a side of several pairs (the same object) is drawn once for all of them: its noise is shared, and
    drawn for each pair apart it would be averaged away.
    """
    point = float(np.mean([np.mean(first) - np.mean(second) for first, second in pairs]))
    if min(len(side) for pair in pairs for side in pair) < 2:
        return Estimate(point, math.nan, math.nan)
    generator = np.random.default_rng(0)
    samples = {id(side): side for pair in pairs for side in pair}
    drawn = {name: _means(side, generator, repetitions) for name, side in samples.items()}
    low, high = statistics.percentiles(np.mean([drawn[id(first)] - drawn[id(second)] for first, second in pairs], 0))
    return Estimate(point, float(low), float(high))


def _means(values: Sequence[float], generator: np.random.Generator, repetitions: int) -> Floats:
    chosen = generator.integers(0, len(values), (repetitions, len(values)))
    return np.asarray(np.asarray(values, np.float64)[chosen].mean(1))


def gains(data: Data, world: str) -> dict[str, Estimate | None]:
    """Compute the gains in success in an environment, None where the study lacks the runs for them."""
    scores = {name: list(data.scores(world, name).values()) for name in (*DIRECTIONS, *DIRECTIONS.values())}
    rival = next((list(found.values()) for name in FEEDFORWARD if (found := data.scores(world, name))), [])
    both = [(scores[two], scores[one]) for one, two in DIRECTIONS.items() if scores[one] and scores[two]]
    plain = [(scores[one], rival) for one in DIRECTIONS if scores[one] and rival]
    return {BOTH: difference(both) if both else None, RECURRENCE: difference(plain) if plain else None}


def properties_section(data: Data) -> Section:
    """Tabulate properties of every environment and its gains, with rank correlations."""
    worlds = [world for world in data.worlds if _id(data, world) in WORLDS]
    found = {world: gains(data, world) for world in worlds}
    if not any(gain for each in found.values() for gain in each.values()):
        cells = ", ".join(f"{one} and {two}" for one, two in DIRECTIONS.items())
        need = (
            f"It needs finished runs of {FEEDFORWARD[0]} and a recurrent cell, or of one cell in both forms ({cells})."
        )
        return Section(TITLE, (need,))
    known = {world: properties(_id(data, world)) for world in worlds}
    parts: list[Part] = [
        "Gains are differences of final success with 95 % intervals over seeds.",
        _world_table(worlds, known, found),
        Table(("column", "meaning"), _legend()),
    ]
    by_property = {name: [known[world].named()[name] for world in worlds] for name in DEFINITIONS}
    by_gain = {name: [found[world][name] for world in worlds] for name in (BOTH, RECURRENCE)}
    by_gain = {name: values for name, values in by_gain.items() if any(values)}
    figure = gains_figure(by_property, by_gain)
    parts.append(
        Picture("worlds", figure, "Gains over properties; the numbers are those of the environments in the table.")
    )
    return Section(TITLE, (*parts, *_correlations(by_property, by_gain)))


def _legend() -> tuple[tuple[str, str], ...]:
    cells = ", ".join(f"{two} less {one}" for one, two in DIRECTIONS.items())
    return (
        (BOTH, f"mean over the cells that have runs of {cells}"),
        (RECURRENCE, f"mean over those that have runs of {', '.join(DIRECTIONS)}, less {FEEDFORWARD[0]}"),
        *DEFINITIONS.items(),
    )


def _id(data: Data, world: str) -> str:
    return data.of(world)[0].env.removeprefix("envs:")


def _world_table(
    worlds: Sequence[str], known: Mapping[str, Properties], found: Mapping[str, Mapping[str, Estimate | None]]
) -> Table:
    rows = []
    for number, world in enumerate(worlds, 1):
        values = ["" if value is None else f"{value:.3g}" for value in known[world].named().values()]
        rows.append(
            (str(number), world, *values, *("" if gain is None else str(gain) for gain in found[world].values()))
        )
    return Table(("", "environment", *DEFINITIONS, BOTH, RECURRENCE), tuple(rows))


def _correlations(
    places: Mapping[str, Sequence[float | None]], values: Mapping[str, Sequence[Estimate | None]]
) -> tuple[Part, ...]:
    rows = [(name, *(_correlation(places[name], values[gain]) for gain in values)) for name in places]
    words = (
        "Spearman's rank correlation over environments with its 95 % interval by resampling them, and the number of "
        f"those that have both; none is given below {FEWEST} environments, or where one side is constant. These are "
        f"{len(places) * len(values)} correlations, so that some may seem to differ from 0 by chance alone, and "
        "environments of one family share several properties."
    )
    return words, Table(("property", *values), tuple(rows))


def _correlation(places: Sequence[float | None], values: Sequence[Estimate | None]) -> str:
    pairs = [(x, y.point) for x, y in zip(places, values, strict=True) if x is not None and y is not None]
    x, y = np.array(pairs, np.float64).reshape(-1, 2).T
    if len(pairs) < FEWEST or min(len(set(x)), len(set(y))) < 2:
        return f"- (of {len(pairs)})"
    return f"{rank_correlation(x, y)} (of {len(pairs)})"


def hallucination_section(data: Data) -> Section:
    """Compare environments with phantom structure with the same ones without it."""
    twins = {world: control_twin(_id(data, world)) for world in data.worlds}
    pairs = [(world, other) for world in data.worlds for other in data.worlds if twins[world] == _id(data, other)]
    if not pairs:
        return Section(
            PHANTOMS, ("The study has no finished runs of an environment with phantom rooms and of its twin.",)
        )
    rows = [_effect(data, world, twin, name) for world, twin in pairs for name in data.series]
    header = ("environment", "without it", "series", "seeds", "with", "without", "effect", "with beats without", "p")
    words = (
        "Phantom rooms are seen and can be walked through. Final success with them and in the same environment "
        "without them, and the difference, with 95 % intervals over seeds; the chance that a run with them beats one "
        "without, ties half; Welch's p, two-sided, not corrected for the number of tests."
    )
    return Section(PHANTOMS, (words, Table(header, tuple(row for row in rows if row))))


def _effect(data: Data, world: str, twin: str, series: str) -> tuple[str, ...]:
    ours, theirs = (list(data.scores(each, series).values()) for each in (world, twin))
    if not ours or not theirs:
        return ()
    beats = statistics.improvement(np.array(ours)[:, None], np.array(theirs)[:, None])
    p = welch(ours, theirs).p if min(len(ours), len(theirs)) > 1 else math.nan
    seeds = f"{len(ours)}" if len(ours) == len(theirs) else f"{len(ours)} and {len(theirs)}"
    numbers = (str(interval(ours)), str(interval(theirs)), str(difference([(ours, theirs)])), str(beats))
    return (world, twin, series, seeds, *numbers, "" if math.isnan(p) else f"{p:.3f}")
