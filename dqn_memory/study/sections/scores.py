"""Show scores by environment, over all environments, without the memory, and with phantom rooms."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dqn_memory.evaluate import KINDS_OF_NETWORKS
from dqn_memory.study import statistics
from dqn_memory.study.collect import Data, FinishedRun, meaning, sizes_of
from dqn_memory.study.page import WORDS, PaperTable, Picture, Section, counted, picture_name, section
from dqn_memory.study.plots import curves_figure, drawn, looks, mean_curve, parameters_figure, profile_figure
from dqn_memory.study.run_summary import LEVELS, MEANINGS, in_steps, median_steps
from dqn_memory.study.statistics import Floats, Moments, difference, game, interval, runs_reaching, welch
from envs.markup import Latex, Markup, code, escape
from envs.registry import WORLDS
from envs.tables import Table, format_value

READ = ("last average", "mean average", "final", "area")  # numbers of a summary that have a column
ROUNDING = 1e-9  # max difference between equal numbers and their mean
SOLVED = 0.95  # share of the best known player's success or return at which an environment counts as solved
ABLATION = "memory_ablation/"  # prefix of metrics of the evaluation without the memory
RECALLED = "final/recall_distance"
THRESHOLDS = 101  # in a performance profile


def curves_section(data: Data) -> Section | None:
    """Draw the learning curves of each environment."""
    pictures = []
    for world in data.worlds:
        series = {name: runs for place, name, runs in data.groups() if place == world}
        seeds = ", ".join(f"{name}: {len(runs)}" for name, runs in series.items())
        curves = {name: mean_curve(runs) for name, runs in series.items()}
        figure = curves_figure(curves, looks(data.series), world, data.scale(world), data.of(world)[0].success)
        rows = [(name, *curves[name], len(runs)) for name, runs in series.items()]
        numbers = drawn("series, step, mean, low, high, seeds", rows)
        name, caption = f"curves-{picture_name(world)}", f"Learning curves in {world}; seeds: {seeds}."
        pictures.append(Picture(name, figure, caption, numbers))
    return section("curves", pictures)


@dataclass(frozen=True)
class TimeSolved:
    """The steps, and the processor seconds of one run, after which the mean of all seeds stays at `level`."""

    level: float
    steps: int
    seconds: float

    def cells(self) -> dict[str, str]:
        """Show the steps and the seconds."""
        return {"steps": f"{self.steps:,}", "processor seconds": format_value(self.seconds, ",.0f")}


def solved_section(data: Data) -> Section | None:
    """Tabulate the steps and seconds after which the mean of all seeds stays at the level that counts as solved."""
    rows = []
    for world, name, runs in data.groups():
        if found := time_solved(data, world, runs):
            row = {"environment": world, "series": name, "seeds": str(len(runs)), "level": f"{found.level:.3f}"}
            rows.append(row | found.cells())
    return section("solved", rows, level=SOLVED)


def time_solved(data: Data, world: str, runs: Sequence[FinishedRun]) -> TimeSolved | None:
    """Find the time after which a series solves an environment, for at least two evaluations; None if it never does."""
    return time_kept(runs, solved_level(data, world, runs))


def time_kept(runs: Sequence[FinishedRun], level: float, env: str = "") -> TimeSolved | None:
    """Find the time after which the mean of all runs stays at a level; `env` is one environment of several."""
    marks = [{step: score for step, (score, _) in scores_and_seconds(run, env).items()} for run in runs]
    steps = sorted(set(marks[0]).intersection(*marks)) if marks else []
    below = np.flatnonzero(np.array([np.mean([mark[step] for mark in marks]) for step in steps]) < level - ROUNDING)
    first = below[-1] + 1 if len(below) else 0
    return TimeSolved(level, steps[first], steps[first] * runs[0].pace) if first < len(steps) - 1 else None


def solved_level(data: Data, world: str, runs: Sequence[FinishedRun]) -> float:
    """Give the score at which an environment counts as solved; infinity if it is unknown."""
    scale = data.scale(world)
    best = scale.one if scale else 1.0 if all(run.success for run in runs) else math.nan  # nan: no best return is known
    return SOLVED * best if best > 0 else math.inf  # 95 % of a negative score would be above it


def runs_solved(data: Data, world: str, series: str) -> str:
    """Count the runs of a series whose final score counts as solved; "" if that level is unknown."""
    level = solved_level(data, world, runs := data.of(world, series))
    return runs_reaching([run.score for run in runs], level) if runs and math.isfinite(level) else ""


def scores_and_seconds(run: FinishedRun, env: str = "") -> dict[int, tuple[float, float]]:
    """Give the success (or return) and the processor seconds of each evaluation by step; `env` is one of several."""
    name = f"eval/{measure(run)}{f'/{env}' if env else ''}"
    lines = (line for line in run.record.metrics if line.get(name) is not None)
    return {line["step"]: (line[name], line.get("time/processor") or math.nan) for line in lines}


def measure(run: FinishedRun) -> str:
    """Name the metric that is the run's score."""
    return "success_rate" if run.success else "episodic_return"


def table_section(data: Data) -> Section | None:
    """Tabulate the numbers of every environment and series beside the reference scores."""
    rows = [_row(data, world, name, runs) for world, name, runs in data.groups()]
    words, lines = WORDS["scores"], _own_lines(data, data.worlds)
    meanings = {
        "random, best": Markup("{}. {}").format(words["lines"], lines) if lines else words["lines"],
        **{name: meaning(data, name) for name in READ},
        "steps to": words["steps_to"].format(meaning=MEANINGS["steps_to"]),
        "p": words["p"].format(rival=next(iter(data.series), "")),
    }
    legend = [Table(("column", "meaning"), list(meanings.items()))] if rows else []
    coverage = ", ".join(f"{100 * share:.0f} with {seeds}" for seeds, share in statistics.COVERAGE.items())
    paper = [PaperTable("scores", _paper_scores(data))] if rows else []
    return section("scores", rows, legend, paper, coverage=coverage)


def _paper_scores(data: Data) -> Table:
    """Tabulate final scores; the best of an environment, and those not significantly below it, are bold."""
    cells: dict[tuple[str, str], Latex] = {}
    for world in data.worlds:
        row = {name: list(data.scores(world, name).values()) for name in data.series if data.of(world, name)}
        tested = {name for name, scores in row.items() if len(scores) > 1}
        bold = tested.difference(statistics.below_best(row)) if len(tested) > 1 else ()
        cells |= {(world, name): _in_latex(str(interval(scores)), name in bold) for name, scores in row.items()}
    series = [name for name in data.series if data.of(series=name)]
    if len(series) > len(data.worlds):
        rows = [{"series": name} | {world: cells.get((world, name)) for world in data.worlds} for name in series]
    else:
        rows = [{"environment": world} | {name: cells.get((world, name)) for name in series} for world in data.worlds]
    return Table.from_records(rows, note=WORDS["scores"]["paper"])


def _in_latex(estimate: str, bold: bool = False) -> Latex:
    """Write a number, and its interval in small letters."""
    point, _, ends = estimate.partition(" ")
    return Latex((rf"\textbf{{{point}}}" if bold else point) + (rf" {{\scriptsize {ends}}}" if ends else ""))


def _own_lines(data: Data, worlds: Sequence[str]) -> Markup:
    """Name the environments whose reference scores come from the study's definition."""
    own = ", ".join(world for world in worlds if world in data.source.lines)
    return WORDS["scores"]["own_lines"].format(worlds=own) if own else Markup()


def _row(data: Data, world: str, series: str, runs: Sequence[FinishedRun]) -> dict[str, str]:
    scale, rival = data.scale(world), data.series[0]
    row = {"environment": world, "series": series, "seeds": str(len(runs))}
    row["parameters"] = "" if runs[0].parameters is None else f"{runs[0].parameters:,}"
    row["random"], row["best"] = ("", "") if scale is None else (f"{scale.zero:.3f}", f"{scale.one:.3f}")
    row |= {name: str(interval([run.number(name) for run in runs])) for name in READ}
    for place, level in enumerate(LEVELS):
        row[f"steps to {level:g}"] = _steps(runs, place) if runs[0].success else ""
    ours, theirs = (list(data.scores(world, name).values()) for name in (series, rival))
    tested = ""
    if series != rival and min(len(ours), len(theirs)) > 1:
        p = welch(Moments.of(ours), Moments.of(theirs))
        tested = "no variance" if math.isnan(p) else "< 0.001" if p < 0.0005 else f"{p:.3f}"
    return row | {f"p against {rival}": tested}


def _steps(runs: Sequence[FinishedRun], level: int) -> str:
    """Show the median of the steps to a level, and the number of runs that reached the level."""
    reached = [run.summary["steps_to"][level] for run in runs]
    budgets = [run.curve.trained for run in runs]
    if len(set(budgets)) > 1:  # then runs that did not reach it have no order, and no median
        return ", ".join(map(in_steps, reached, budgets))
    count = len(reached) - reached.count(None)
    some = f" ({count} of {len(reached)})" if 0 < count < len(reached) else ""
    return in_steps(median_steps(reached), budgets[0]) + some


def matrices(data: Data) -> tuple[dict[str, Floats], list[str], list[str]]:
    """Give the normalised scores (R, M) of each series, the M environments that all series share, and remarks.

    An environment counts if it has a scale, and finished runs of every series that has any. A seed of a series counts
    if the series has finished runs with it in all of these environments.
    """
    present = [name for name in data.series if data.of(series=name)]
    shared = [world for world in data.worlds if data.scale(world) and all(data.of(world, name) for name in present)]
    found, remarks, kept = {}, [], []
    for name in present if shared else ():
        scores = [data.normalised(world, name) for world in shared]
        common = sorted(set.intersection(*map(set, scores)))
        if common:
            found[name] = np.array([[by_seed[seed] for by_seed in scores] for seed in common])
        else:
            remarks.append(f"{name} is left out, as no seed of it has finished in all of these environments")
        if common and any(set(by_seed) != set(common) for by_seed in scores):
            kept.append(f"{', '.join(map(str, common))} of {name}")
    if kept:
        remarks.append(f"Only seeds count that a series has in all of these environments: {'; '.join(kept)}")
    missing = [world for world in data.worlds if world not in shared]
    if missing:
        remarks.append(f"Left out, as no scale is known or a series has no finished run there: {', '.join(missing)}")
    return found, shared, remarks


def _unshared(data: Data) -> Markup:
    """Explain why there are no numbers over all environments."""
    if not data.entries:
        return WORDS["unshared"]["waiting"]
    why = "uneven" if any(data.scale(world) for world in data.worlds) else "unscaled"
    return WORDS["unshared"][why].format(table=code(f"[lines.{json.dumps(data.worlds[0], ensure_ascii=False)}]"))


def aggregate_section(data: Data) -> Section | None:
    """Tabulate the aggregates of each series over all environments."""
    found, shared, remarks = matrices(data)
    rows = []
    for name, scores in found.items():
        numbers = {key: str(estimate) for key, estimate in statistics.aggregates(scores).items()}
        rows.append({"series": name, "seeds": str(len(scores)), **numbers})
        if all(game(data.of(world)[0].env) for world in shared):
            rows[-1]["games won"] = f"{statistics.games_won(scores)} of {len(shared)}"
    printed = [row | {key: _in_latex(row[key]) for key in statistics.AGGREGATES} for row in rows]
    paper = [PaperTable("aggregates", Table.from_records(printed, note=WORDS["aggregates"]["paper"]))] if rows else []
    notes = [_own_lines(data, shared), escape(". ".join(remarks) + "." * bool(remarks))]
    facts = {"environments": counted(len(shared), "environment"), "remarks": Markup(" ".join(filter(None, notes)))}
    return section("aggregates", rows, paper, **facts, why=_unshared(data) if not rows else "")


def profile_section(data: Data) -> Section | None:
    """Draw performance profiles over all environments."""
    found, shared, _ = matrices(data)
    if not found:
        return section("profiles")
    values = np.concatenate([scores.ravel() for scores in found.values()])
    thresholds = np.linspace(min(0.0, values.min()), max(1.0, values.max()), THRESHOLDS)
    shares = statistics.share_above(thresholds)
    profiles = {name: (thresholds, *statistics.bootstrap_interval(shares, scores)) for name, scores in found.items()}
    caption = WORDS["profiles"]["caption"].format(environments=counted(len(shared), "environment"))
    columns = "series, normalised score, share above it, low, high, seeds"
    numbers = drawn(columns, [(name, *profiles[name], len(scores)) for name, scores in found.items()])
    return section("profiles", Picture("profiles", profile_figure(profiles, looks(data.series)), caption, numbers))


def improvement_section(data: Data) -> Section | None:
    """Tabulate the probability that one series improves on another."""
    found, beats = matrices(data)[0], statistics.probability_of_improvement
    rows = [
        {"series": name}
        | {rival: "-" if rival == name else str(statistics.estimate(beats, ours, found[rival])) for rival in found}
        for name, ours in found.items()
    ]
    if len(rows) < 2:
        return section("improvement", why=WORDS["improvement"]["alone"] if rows else _unshared(data))
    return section("improvement", rows)


def parameters_section(data: Data) -> Section | None:
    """Draw scores over numbers of parameters, and tabulate the numbers."""
    points = []
    for world, name, runs in data.groups():
        if (size := runs[0].parameters) is not None and data.scale(world):
            points.append((world, name, size, interval(list(data.normalised(world, name).values()))))
    if not points:
        return section("parameters")
    sizes = {name: sizes_of(data.of(series=name)) for name in data.series}
    rows = [{"series": name, "parameters": size} for name, size in sizes.items() if size]
    columns = "environment, series, parameters, normalised score, low, high"
    numbers = drawn(columns, [(*point, *score) for *point, score in points])
    figure, caption = parameters_figure(points, looks(data.series)), WORDS["parameters"]["caption"]
    picture = Picture("parameters", figure, caption, numbers)
    return section("parameters", picture, WORDS["parameters"]["sizes"], rows)


def memory_section(data: Data) -> Section | None:
    """Tabulate final scores with and without the memory; None if no run was evaluated without it."""
    rows = []
    for world, name, runs in data.groups():
        if pairs := without_memory(runs):
            before, after = zip(*pairs, strict=True)
            sides = {"with": before, "without": after, "lost": [x - y for x, y in pairs]}
            where = {"environment": world, "series": name, "seeds": str(len(pairs))}
            rows.append(where | {side: str(interval(scores)) for side, scores in sides.items()})
            if distances := recall_distances(runs):
                rows[-1]["recall distance"] = str(interval(distances))
    return section("memory", rows)


def without_memory(runs: Sequence[FinishedRun]) -> list[tuple[float, float]]:
    """Give the final scores with and without the memory of each run that has both, by the same choice of actions."""
    pairs = [[run.last(f"{place}{measure(run)}") for place in ("final/", ABLATION)] for run in runs]
    return [(before, after) for before, after in pairs if after is not None]


def recall_distances(runs: Sequence[FinishedRun]) -> list[float]:
    """Give the recall distance of each run that logged it."""
    return [found for run in runs if (found := run.last(RECALLED)) is not None]


def phantoms_section(data: Data) -> Section | None:
    """Compare environments that have phantom rooms with their twins without them."""
    if data.source.kind not in KINDS_OF_NETWORKS:
        return None
    ids = {world: data.of(world)[0].env for world in data.worlds}
    pairs = [(world, other) for world in ids for other in ids if control_twin(ids[world]) == ids[other]]
    rows = [row for world, twin in pairs for name in data.series if (row := _effect(data, world, twin, name))]
    return section("phantoms", rows) if rows or data.source.kind == "q_network" else None


def _effect(data: Data, world: str, twin: str, series: str) -> dict[str, str]:
    ours, theirs = (list(data.scores(each, series).values()) for each in (world, twin))
    if not ours or not theirs:
        return {}
    p = welch(Moments.of(ours), Moments.of(theirs))
    columns = [np.array(side)[:, None] for side in (ours, theirs)]
    return {
        "environment": world, "without it": twin, "series": series,
        "seeds": " and ".join(map(str, dict.fromkeys((len(ours), len(theirs))))),
        "with": str(interval(ours)), "without": str(interval(theirs)),
        "effect": str(difference([(ours, theirs)])),
        "with beats without": str(statistics.estimate(statistics.probability_of_improvement, *columns)),
        "p": "" if math.isnan(p) else f"{p:.3f}",
    }  # fmt: skip


def control_twin(id: str) -> str | None:
    """Name the registered environment that is equal but for phantom rooms; None if there is none."""
    name = id.removeprefix("envs:")
    entry = WORLDS.get(name)
    if entry is None or "phantom_rooms" not in entry.kwargs:
        return None
    rest = {key: value for key, value in entry.kwargs.items() if not key.startswith("phantom_")}
    return next((other for other, it in WORLDS.items() if it.entry == entry.entry and dict(it.kwargs) == rest), None)
