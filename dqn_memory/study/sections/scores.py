"""Show scores: by environment with every number of the summaries, over all environments, without the memory."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence

import numpy as np

from dqn_memory.runs.errors import UserError
from dqn_memory.study import statistics
from dqn_memory.study.collect import Data, Entry, column, meaning
from dqn_memory.study.page import Part, Picture, Section, counted, slug
from dqn_memory.study.plots import curves_figure, looks, parameters_figure, profile_figure
from dqn_memory.study.run_summary import LEVELS, MEANINGS, Reached, median_steps
from dqn_memory.study.statistics import Estimate, Floats, game, welch
from envs.tables import Table

REPETITIONS = 10_000  # of a single cell's bootstrap
READ: dict[str, Callable[[Entry], float]] = {
    "last average": lambda entry: entry.summary.last_average,
    "mean average": lambda entry: entry.summary.mean_average,
    "final": lambda entry: float(entry.summary.final or 0.0),
    "area": lambda entry: entry.summary.area,
}  # a finished run has a final evaluation, see `read_entry`
ABLATION = "memory_ablation/"  # how the names of metrics begin that were evaluated without the memory
THRESHOLDS = 101  # of a performance profile
TABLE = "Mean over seeds with its 95 % bootstrap interval; with one seed there is none."
NOTHING = "No run is finished yet."
UNSCALED = "There is no finished run in an environment whose random and best scores are known."


def interval(scores: Sequence[float]) -> Estimate:
    """Average over runs, with the bootstrap interval."""
    return statistics.estimate(column(scores), statistics.mean, repetitions=REPETITIONS)


def curves_section(data: Data) -> Section:
    """Draw the learning curves of each environment."""
    styles = looks(data.series)
    parts: list[Part] = [
        (
            "Mean over seeds at each evaluation; the band is its 95 % bootstrap interval (none with one seed). "
            "Only steps count at which all runs of a series were evaluated."
        )
    ]
    for world in data.worlds:
        series = {name: data.of(world, name) for name in data.series if data.of(world, name)}
        seeds = ", ".join(f"{name}: {len(runs)}" for name, runs in series.items())
        figure = curves_figure(series, styles, world, data.scale(world))
        parts.append(Picture(f"curves-{slug(world)}", figure, f"Learning curves in {world}; seeds: {seeds}."))
    return Section("Learning curves", tuple(parts) if data.worlds else (NOTHING,))


def table_section(data: Data) -> Section:
    """Tabulate every number of every environment and series, beside random and best-known play."""
    if not data.entries:
        return Section("Scores by environment", (NOTHING,))
    steps = tuple(f"steps to {level:g}" for level in LEVELS)
    rival = f"p against {data.series[0]}"
    header = ("environment", "series", "seeds", "parameters", "random", "best", *READ, *steps, rival)
    rows = tuple(_row(data, world, name) for world in data.worlds for name in data.series if data.of(world, name))
    legend = Table(("column", "meaning"), _legend(data, data.series[0]))
    return Section("Scores by environment", (f"{TABLE} {_narrow()}", Table(header, rows), legend))


def _narrow() -> str:
    """Say what intervals of few seeds are worth."""
    shares = ", ".join(f"{100 * share:.0f} with {seeds}" for seeds, share in statistics.COVERAGE.items())
    return f"It is too narrow where seeds are few: of 100 such intervals of normal scores the mean lies in {shares}."


def _legend(data: Data, rival: str) -> tuple[tuple[str, str], ...]:
    lines = (
        "score of random actions, and of the best player known; in Atari games a human's, in CartPole the most that an "
        "episode can give"
    )
    own = _own_lines(data, data.worlds).strip()
    lines += f". {own}" if own else ""
    p = f"Welch's t-test of the final scores against {rival}, two-sided, not corrected for the number of tests"
    return (
        ("random, best", lines),
        *((name, meaning(data, name.replace(" ", "_"))) for name in READ),
        ("steps to", f"{MEANINGS['steps_to']}; median over seeds, and how many of them got there where some did"),
        ("p", p),
    )


def _row(data: Data, world: str, series: str) -> tuple[str, ...]:
    runs, scale = data.of(world, series), data.scale(world)
    values = [str(interval([read(run) for run in runs])) for read in READ.values()]
    steps = [_steps([run.summary.steps_to[number] for run in runs]) for number in range(len(LEVELS))]
    steps = steps if runs[0].success else [""] * len(LEVELS)
    lines = ("", "") if scale is None else (f"{scale.zero:.3f}", f"{scale.one:.3f}")
    size = "" if runs[0].parameters is None else f"{runs[0].parameters:,}"
    return (world, series, str(len(runs)), size, *lines, *values, *steps, _p(data, world, series))


def _steps(reached: Sequence[Reached]) -> str:
    count = sum(each.steps is not None for each in reached)
    some = f" ({count} of {len(reached)})" if 0 < count < len(reached) else ""
    try:
        return f"{median_steps(reached)}{some}"
    except UserError:  # runs of different budgets, whose censored ones have no order
        return ", ".join(str(each) for each in reached)


def _p(data: Data, world: str, series: str) -> str:
    ours, theirs = (list(data.scores(world, name).values()) for name in (series, data.series[0]))
    if series == data.series[0] or min(len(ours), len(theirs)) < 2:
        return ""
    p = welch(ours, theirs).p
    return "no variance" if math.isnan(p) else "< 0.001" if p < 0.0005 else f"{p:.3f}"


def matrices(data: Data) -> tuple[dict[str, Floats], list[str], list[str]]:
    """Give the normalised scores (R, M) of each series over the environments that all share; these; and remarks.

    An environment counts if it has a scale and every series that has finished runs at all has some there; of a series
    count the seeds that it has in all of these environments.
    """
    present = [name for name in data.series if data.of(series=name)]
    scaled = [world for world in data.worlds if data.scale(world) is not None]
    shared = [world for world in scaled if all(data.of(world, name) for name in present)]
    found, remarks = {}, []
    for name in present:
        seeds = [set(data.scores(world, name)) for world in shared]
        common = sorted(set.intersection(*seeds)) if seeds else []
        if common:
            found[name] = np.array([[_normalised(data, world, name, seed) for world in shared] for seed in common])
        if seeds and not common:
            remarks.append(f"{name} is left out, as no seed of it has finished in all of these environments")
        elif seeds and set.union(*seeds) != set(common):
            remarks.append(
                f"of {name} only the seeds that it has in all of these environments: {', '.join(map(str, common))}"
            )
    missing = [world for world in data.worlds if world not in shared]
    if missing:
        remarks.append(f"left out, as no scale is known or a series has no finished run there: {', '.join(missing)}")
    return found, shared, remarks


def _normalised(data: Data, world: str, series: str, seed: int) -> float:
    scale = data.scale(world)
    assert scale is not None
    return scale(data.scores(world, series)[seed])


def is_game(data: Data, world: str) -> bool:
    """Tell whether an environment is an Atari game with a human score, which a mean above 1 wins."""
    try:
        return bool(game(data.of(world)[0].env))
    except UserError:
        return False


def _unshared(data: Data) -> str:
    """Say why there is nothing over all environments."""
    if not data.entries:
        return NOTHING
    if all(data.scale(world) is None for world in data.worlds):
        return (
            "No scores of random and of best play are known for these environments, so nothing can be normalised. Who "
            "knows them puts them into the study's file, as a table "
            f"`[lines.{json.dumps(data.worlds[0])}]` with `random = ...` and `best = ...` for each environment, and "
            "gives `study.run` that file again: it repeats no finished run. `python -m envs.baselines` measures them "
            "in environments written as this suite's are."
        )
    return "No environment with a known scale has finished runs of every series yet."


def aggregate_section(data: Data) -> Section:
    """Tabulate IQM, median, mean and optimality gap of each series over all environments."""
    found, shared, remarks = matrices(data)
    if not found:
        return Section("Over all environments", (_unshared(data),))
    won = ("games won",) if all(is_game(data, world) for world in shared) else ()
    header = ("series", "seeds", *statistics.AGGREGATES, *won)
    rows = []
    for name, scores in found.items():
        shown = [str(estimate) for estimate in statistics.aggregates(scores).values()]
        shown += [f"{statistics.games_won(scores)} of {len(shared)}"] * len(won)
        rows.append((name, str(len(scores)), *shown))
    words = (
        f"Final scores over {counted(len(shared), 'environment')}, normalised: 0 is random play, 1 the "
        "best player known (in Atari games a human). 95 % intervals by stratified bootstrap over seeds; the "
        f"environments are taken as given. {_own_lines(data, shared)}{'; '.join(remarks)}{'.' if remarks else ''}"
    )
    return Section("Over all environments", (words.strip(), Table(header, tuple(rows))))


def _own_lines(data: Data, worlds: Sequence[str]) -> str:
    """Name the environments whose random and best play are known from the study's definition alone."""
    own = [world for world in worlds if world in data.source.lines]
    return f"Random and best play as the study's definition says: {', '.join(own)}. " if own else ""


def profile_section(data: Data) -> Section:
    """Draw performance profiles over all environments."""
    found, shared, _ = matrices(data)
    if not found:
        return Section("Performance profiles", (UNSCALED,))
    highest = max(1.0, *(float(scores.max()) for scores in found.values()))
    lowest = min(0.0, *(float(scores.min()) for scores in found.values()))
    thresholds = np.linspace(lowest, highest, THRESHOLDS)
    profiles = {name: statistics.performance_profile(scores, thresholds) for name, scores in found.items()}
    picture = Picture(
        "profiles",
        profile_figure(profiles, looks(data.series)),
        f"Share of runs in {counted(len(shared), 'environment')} whose normalised final score is above a threshold, "
        "with pointwise 95 % intervals. A curve above another everywhere is better whatever one asks for; below 0: "
        "worse than random play.",
    )
    return Section("Performance profiles", (picture,))


def improvement_section(data: Data) -> Section:
    """Tabulate the probability that one series improves on another."""
    found, _, _ = matrices(data)
    if len(found) < 2:
        why = "It needs finished runs of two series." if found else _unshared(data)
        return Section("Probability of improvement", (why,))
    names = list(found)
    shown = {
        pair: str(statistics.improvement(found[pair[0]], found[pair[1]])) for pair in itertools.permutations(names, 2)
    }
    rows = tuple((name, *(shown.get((name, other), "-") for other in names)) for name in names)
    words = (
        "Chance that a run of the row's series beats one of the column's in an environment, ties half, averaged over "
        "environments, with its 95 % interval. Above 0.5 in the whole interval: the row's is better more often than "
        "not."
    )
    return Section("Probability of improvement", (words, Table(("series", *names), rows)))


def parameters_section(data: Data) -> Section:
    """Draw sizes beside scores."""
    points = [
        (name, runs[0].parameters, interval([_scaled(data, run) for run in runs]), world)
        for world in data.worlds
        for name in data.series
        if (runs := data.of(world, name)) and runs[0].parameters is not None and data.scale(world) is not None
    ]
    if not points:
        return Section("Parameters beside scores", ("There is no run whose size and scale are known.",))
    sizes = [(name, size or 0, score) for name, size, score, _ in points]
    figure = parameters_figure(sizes, looks(data.series), [world for *_, world in points])
    caption = (
        "Trainable parameters and normalised final score, a point an environment and series with its 95 % interval."
    )
    return Section("Parameters beside scores", (Picture("parameters", figure, caption), *_sizes(data)))


def _sizes(data: Data) -> tuple[Part, ...]:
    rows = []
    for name in data.series:
        sizes = {run.env: run.parameters for run in data.of(series=name) if run.parameters is not None}
        if sizes:
            few, many = min(sizes.values()), max(sizes.values())
            rows.append((name, f"{few:,}" if few == many else f"{few:,} to {many:,}"))
    return ("Sizes over the environments of the study:", Table(("series", "parameters"), tuple(rows)))


def _scaled(data: Data, entry: Entry) -> float:
    scale = data.scale(entry.run.world)
    assert scale is not None
    return scale(entry.score)


def memory_section(data: Data) -> Section | None:
    """Tabulate final scores with and without a memory, and the difference; None where no run was evaluated so."""
    rows = tuple(
        row
        for world in data.worlds
        for name in data.series
        if (row := _ablated(world, name, data.of(world, name))) is not None
    )
    words = (
        "The final agents play the final evaluation's episodes once more, and their memory is reset before each step. "
        "Where that costs nothing, the score shows no memory: the newest observation is enough there, or all that is "
        "used. Mean over seeds with its 95 % bootstrap interval."
    )
    header = ("environment", "series", "seeds", "with", "without", "lost")
    return Section("Without the memory", (words, Table(header, rows))) if rows else None


def _ablated(world: str, series: str, runs: list[Entry]) -> tuple[str, ...] | None:
    """Write the row of the runs that were evaluated so, in the measure of their own final scores."""
    measure = "success_rate" if runs and runs[0].success else "episodic_return"
    ablated = [(run.score, run.last(f"{ABLATION}{measure}")) for run in runs]
    pairs = [(score, without) for score, without in ablated if without is not None]
    if not pairs:
        return None
    with_memory, without_memory = zip(*pairs, strict=True)
    lost = [before - after for before, after in pairs]
    estimates = (str(interval(scores)) for scores in (with_memory, without_memory, lost))
    return (world, series, str(len(pairs)), *estimates)
