"""Show scores by environment, over all environments, beside the published ones; what each run came to and cost."""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory.runs.backend import FACT as BACKEND
from dqn_memory.runs.settings import flag_names
from dqn_memory.study import statistics
from dqn_memory.study.collect import ACTING, Data, Entry, meaning, sizes_of
from dqn_memory.study.page import WORDS, Picture, Section, counted, section, slug
from dqn_memory.study.papers.tables import scores as published_scores
from dqn_memory.study.plots import curves_figure, looks, parameters_figure, profile_figure
from dqn_memory.study.run_record import LOSSES
from dqn_memory.study.run_summary import FINALS, LEVELS, MEANINGS, in_steps, median_steps
from dqn_memory.study.statistics import Floats, Moments, game, interval, welch
from envs.markup import Markup, code, escape
from envs.tables import Table, show

READ = ("last average", "mean average", "final", "area")  # numbers of a summary that have a column
PUBLISHED = READ[:3]  # that a paper's number may be
ROUNDING = 1e-9  # by which the mean of equal numbers may fall short of them
SOLVED = 0.95  # of the best known player's success or return, at which an environment counts as solved
ABLATION = "memory_ablation/"  # how the names of metrics begin that were evaluated without the memory
RECALLED = "final/recall_distance"
THRESHOLDS = 101  # of a performance profile
WINDOW = 11  # log lines of a moving average
FEW = 40  # runs up to which each has a row
ALONE = ("seed", "output.", "compute.")  # settings that a run has to itself, or that change no number by contract
# By trainer: published tables, and the papers' names of what our studies call otherwise. Names are compared by their
# letters and digits, so that "Gaussian Adaptive" is gaussian_adaptive. One series may stand in several rows of a table:
# that with mean 6 is also that with width 1.
Names = Mapping[str, Sequence[str]]
TABLES: Mapping[str, Mapping[str, Names]] = tomllib.loads(
    (Path(__file__).parents[1] / "papers" / "names.toml").read_text(encoding="utf-8")
)


def curves_section(data: Data) -> Section | None:
    """Draw the learning curves of each environment."""
    pictures = []
    for world in data.worlds:
        series = {name: runs for place, name, runs in data.groups() if place == world}
        seeds = ", ".join(f"{name}: {len(runs)}" for name, runs in series.items())
        figure = curves_figure(series, looks(data.series), world, data.scale(world))
        pictures.append(Picture(f"curves-{slug(world)}", figure, f"Learning curves in {world}; seeds: {seeds}."))
    return section("curves", pictures)


@dataclass(frozen=True)
class Solved:
    """From when on the mean success, or return, of all seeds stays at `level`: steps, processor seconds of one run."""

    level: float
    steps: int
    seconds: float

    def cells(self) -> dict[str, str]:
        """Print the steps and the seconds."""
        return {"steps": f"{self.steps:,}", "processor seconds": show(self.seconds, ",.0f")}


def solved_section(data: Data) -> Section | None:
    """Say from when on the mean of all seeds stays at the best known player's level, in steps and seconds."""
    rows = []
    for world, name, runs in data.groups():
        if found := solved(data, world, runs):
            row = {"environment": world, "series": name, "seeds": str(len(runs)), "level": f"{found.level:.3f}"}
            rows.append(row | found.cells())
    return section("solved", rows, level=SOLVED)


def solved(data: Data, world: str, runs: Sequence[Entry]) -> Solved | None:
    """Find from when on the runs of a series solve an environment, in two evaluations at least; None: never."""
    level = solved_level(data, world, runs)
    marks = [{step: score for step, (score, _) in scores_and_seconds(run).items()} for run in runs]
    steps = sorted(set(marks[0]).intersection(*marks)) if marks else []
    below = np.flatnonzero(np.array([np.mean([mark[step] for mark in marks]) for step in steps]) < level - ROUNDING)
    first = below[-1] + 1 if len(below) else 0
    return Solved(level, steps[first], steps[first] * runs[0].pace) if first < len(steps) - 1 else None


def solved_level(data: Data, world: str, runs: Sequence[Entry]) -> float:
    """Give the score from which on an environment counts as solved, infinity where there is none."""
    scale = data.scale(world)
    best = scale.one if scale else 1.0 if all(run.success for run in runs) else math.nan  # of a return nothing is known
    return SOLVED * best if best > 0 else math.inf  # below 0 a share of it would be more


def scores_and_seconds(run: Entry) -> dict[int, tuple[float, float]]:
    """Give success, or the return where nothing counts as one, and processor seconds by the step of each evaluation."""
    name = f"eval/{_measure(run)}"
    lines = (line for line in run.record.metrics if line.get(name) is not None)
    return {line["step"]: (line[name], line.get("time/processor") or math.nan) for line in lines}


def _measure(run: Entry) -> str:
    return "success_rate" if run.success else "episodic_return"


def table_section(data: Data) -> Section | None:
    """Tabulate every number of every environment and series, beside random and best-known play."""
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
    return section("scores", rows, legend, coverage=coverage)


def _own_lines(data: Data, worlds: Sequence[str]) -> Markup:
    """Name the environments whose random and best play are known from the study's definition alone."""
    own = ", ".join(world for world in worlds if world in data.source.lines)
    return WORDS["scores"]["own_lines"].format(worlds=own) if own else Markup()


def _row(data: Data, world: str, series: str, runs: Sequence[Entry]) -> dict[str, str]:
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


def _steps(runs: Sequence[Entry], level: int) -> str:
    """Say when runs reached a level, in the median, and how many of them did."""
    reached = [run.summary["steps_to"][level] for run in runs]
    budgets = [run.curve.trained for run in runs]
    if len(set(budgets)) > 1:  # then those that did not have no order
        return ", ".join(map(in_steps, reached, budgets))
    count = len(reached) - reached.count(None)
    some = f" ({count} of {len(reached)})" if 0 < count < len(reached) else ""
    return in_steps(median_steps(reached), budgets[0]) + some


def matrices(data: Data) -> tuple[dict[str, Floats], list[str], list[str]]:
    """Give the normalised scores (R, M) of each series over the environments that all share; these; and remarks.

    An environment counts if it has a scale and every series that has finished runs at all has some there; of a series
    count the seeds that it has in all of these environments.
    """
    present = [name for name in data.series if data.of(series=name)]
    shared = [world for world in data.worlds if data.scale(world) and all(data.of(world, name) for name in present)]
    found, remarks = {}, []
    for name in present if shared else ():
        scores = [data.normalised(world, name) for world in shared]
        common = sorted(set.intersection(*map(set, scores)))
        if common:
            found[name] = np.array([[by_seed[seed] for by_seed in scores] for seed in common])
        else:
            remarks.append(f"{name} is left out, as no seed of it has finished in all of these environments")
        if common and any(set(by_seed) != set(common) for by_seed in scores):
            seeds = ", ".join(map(str, common))
            remarks.append(f"of {name} only the seeds that it has in all of these environments: {seeds}")
    missing = [world for world in data.worlds if world not in shared]
    if missing:
        remarks.append(f"left out, as no scale is known or a series has no finished run there: {', '.join(missing)}")
    return found, shared, remarks


def _unshared(data: Data) -> Markup:
    """Say why there is nothing over all environments."""
    if not data.entries:
        return WORDS["unshared"]["waiting"]
    why = "uneven" if any(data.scale(world) for world in data.worlds) else "unscaled"
    return WORDS["unshared"][why].format(table=code(f"[lines.{json.dumps(data.worlds[0], ensure_ascii=False)}]"))


def aggregate_section(data: Data) -> Section | None:
    """Tabulate IQM, median, mean and optimality gap of each series over all environments."""
    found, shared, remarks = matrices(data)
    rows = []
    for name, scores in found.items():
        numbers = {key: str(estimate) for key, estimate in statistics.aggregates(scores).items()}
        rows.append({"series": name, "seeds": str(len(scores)), **numbers})
        if all(game(data.of(world)[0].env) for world in shared):
            rows[-1]["games won"] = f"{statistics.games_won(scores)} of {len(shared)}"
    notes = [_own_lines(data, shared), escape("; ".join(remarks) + "." * bool(remarks))]
    facts = {"environments": counted(len(shared), "environment"), "remarks": Markup(" ".join(filter(None, notes)))}
    return section("aggregates", rows, **facts, why=_unshared(data) if not rows else "")


def profile_section(data: Data) -> Section | None:
    """Draw performance profiles over all environments."""
    found, shared, _ = matrices(data)
    if not found:
        return section("profiles")
    whole = np.concatenate([scores.ravel() for scores in found.values()])
    thresholds = np.linspace(min(0.0, whole.min()), max(1.0, whole.max()), THRESHOLDS)
    shares = statistics.share_above(thresholds)
    profiles = {name: (thresholds, *statistics.bootstrap(shares, scores)) for name, scores in found.items()}
    caption = WORDS["profiles"]["caption"].format(environments=counted(len(shared), "environment"))
    return section("profiles", Picture("profiles", profile_figure(profiles, looks(data.series)), caption))


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
    """Draw sizes beside scores, and tabulate them."""
    points = []
    for world, name, runs in data.groups():
        if (size := runs[0].parameters) is not None and data.scale(world):
            points.append((world, name, size, interval(list(data.normalised(world, name).values()))))
    if not points:
        return section("parameters")
    sizes = {name: sizes_of(data.of(series=name)) for name in data.series}
    rows = [{"series": name, "parameters": size} for name, size in sizes.items() if size]
    picture = Picture("parameters", parameters_figure(points, looks(data.series)), WORDS["parameters"]["caption"])
    return section("parameters", picture, WORDS["parameters"]["sizes"], rows)


def memory_section(data: Data) -> Section | None:
    """Tabulate final scores with and without a memory, and the difference; None where no run was evaluated so."""
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


def without_memory(runs: Sequence[Entry]) -> list[tuple[float, float]]:
    """Give each evaluated run's final score and that without its memory, by the same choice of actions."""
    pairs = [[run.last(f"{place}{_measure(run)}") for place in ("final/", ABLATION)] for run in runs]
    return [(before, after) for before, after in pairs if after is not None]


def recall_distances(runs: Sequence[Entry]) -> list[float]:
    """Give each measured run's number of past steps from which half of the past's influence comes."""
    return [found for run in runs if (found := run.last(RECALLED)) is not None]


def published_section(data: Data) -> Section | None:
    """Write a row for each environment, series and published table that has both; None where that is not asked."""
    if not data.source.shown.get("published"):
        return None
    rows = []
    for table, names in TABLES.get(data.source.kind, {}).items():
        published = published_scores(table)
        for world, series, runs in data.groups():
            theirs = published.get(game(runs[0].env) or runs[0].env, {})
            budget = ", ".join(f"{steps:,}" for steps in sorted({run.curve.trained for run in runs}))
            for model in matching(series, names, theirs):
                row = {"table": table, "environment": world, "series": series, "published as": model}
                row["published"] = f"{theirs[model]:g}"
                row |= {name: str(interval([run.number(name) for run in runs])) for name in PUBLISHED}
                rows.append(row | {"seeds": str(len(runs)), "budget": budget})
    readings = Markup("; ".join(Markup("**{}**: {}").format(name, meaning(data, name)) for name in PUBLISHED))
    return section("published", rows, readings=readings)


def matching(series: str, names: Names, theirs: Mapping[str, float]) -> list[str]:
    """Give the paper's names of a series; none where the table has none."""
    letters = {model: re.sub(r"[^a-z0-9]", "", model.lower()) for model in (*theirs, *names.get(series, (series,)))}
    wanted = {letters[name] for name in names.get(series, (series,))}
    return [model for model in theirs if letters[model] in wanted]


# The runs: which are left out, what each came to, what all cost


def losses_section(data: Data) -> Section | None:
    """Tell how much the parts of a world model's loss fluctuate (GLAM, Figure 6); None where none is logged."""
    rows = [
        {"environment": world, "series": name} | {part: _fluctuation(runs, f"losses/{part}") for part in LOSSES}
        for world, name, runs in data.groups()
    ]
    return section("losses", [row for row in rows if row[LOSSES[0]]], window=WINDOW)


def _fluctuation(runs: Sequence[Entry], name: str) -> str:
    logged = [[line[name] for line in run.record.metrics if line.get(name) is not None] for run in runs]
    values = [fluctuation(np.array(each, np.float64)) for each in logged if each]
    return f"{np.mean(values):.3g}" if values else ""


def fluctuation(values: Floats, window: int = WINDOW) -> float:
    """Compute the standard deviation of values (N,) around their centred moving average, where that is whole."""
    half = min(window, len(values)) // 2
    if len(values) - 2 * half < 2:
        return math.nan
    trend = np.convolve(values, np.full(2 * half + 1, 1 / (2 * half + 1)), "valid")
    return float((values[half : len(values) - half] - trend).std())


def left_out_section(data: Data) -> Section | None:
    """Name the runs that are not in the report, and why; None where all are."""
    return section("left_out", [{"runs": runs, "why": why} for runs, why in left_out_rows(data.left_out)])


def left_out_rows(left_out: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """List runs and why they are left out; those that differ in their seed alone are one row."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, why in left_out:
        series, dash, seed = name.rpartition("seed-")
        seeds.setdefault((f"{series}{dash}" or seed, why), []).append(seed if dash else "")
    return tuple((f"{series}{', '.join(found)}", why) for (series, why), found in seeds.items())


def uneven_section(data: Data) -> Section | None:
    """List settings that runs of one series and environment do not share; None where all do.

    A study can be filled over a long time, and what a preset or a default says may have changed in between.
    """
    found: dict[tuple[str, str], list[tuple[int, Any]]] = {}  # setting and value: seeds and groups of runs
    for *group, runs in data.groups():
        for setting in flag_names(runs[0].config):
            values = [str(reduce(getattr, setting.split("."), run.config)) for run in runs]
            if len(set(values)) > 1 and not setting.startswith(ALONE):
                for run, value in zip(runs, values, strict=True):
                    found.setdefault((setting, value), []).append((run.run.seed, tuple(group)))
    rows = []
    for (setting, value), places in found.items():
        seeds, groups = (set(each) for each in zip(*places, strict=True))
        row = {"setting": setting, "value": value, "seeds": ", ".join(map(str, sorted(seeds)))}
        rows.append(row | {"series": str(len(groups))})
    return section("uneven", rows)


def cost_section(data: Data) -> Section | None:
    """Tabulate wall-clock and processor time by series, and name the machines."""
    rows = []
    for name in data.series:
        if runs := data.of(series=name):
            row = {"series": name, "runs": str(len(runs))}
            row["steps of all"] = f"{sum(run.curve.trained for run in runs):,}"
            row["minutes of a run"] = _minutes([run.run.seconds for run in runs])
            row["processor minutes of a run"] = _minutes([run.last("time/processor") for run in runs])
            for column, metric in ACTING.items():
                if known := [found for run in runs if (found := run.last(metric)) is not None]:
                    row[column] = f"{np.median(known):,.0f}"
            rows.append(row | {"starts": str(sum(run.run.attempts for run in runs))})
    machines = sorted({_machine(entry.record.environment) for entry in data.entries})
    return section("cost", rows, machines="; ".join(machines))


def _minutes(seconds: Sequence[float | None]) -> str:
    known = [each for each in seconds if each]
    return f"{sum(known) / len(known) / 60:.2f}" if known else "-"


def _machine(environment: Mapping[str, object]) -> str:
    return (
        f"{environment.get('cpu')}, {environment.get('device')}, {environment.get('threads')} threads, "
        f"torch {environment.get('torch')}, revision {_revision(environment)}"
    )


def _revision(environment: Mapping[str, object]) -> str:
    return str(environment.get("revision"))[:10] + ("+" if environment.get("dirty") else "")


def runs_section(data: Data) -> Section | None:
    """Give the final evaluation and the cost of each run; None where there are too many of them."""
    few = len(data.entries) <= FEW
    return section("runs", [_run_row(entry) for _, _, runs in data.groups() for entry in runs if few])


def _run_row(entry: Entry) -> dict[str, str]:
    kind = next((kind for kind in FINALS if entry.last(f"{kind}/episodes") is not None), "final")
    low, high = (entry.last(f"{kind}/success_{end}") for end in ("low", "high"))
    known = entry.success and low is not None

    def number(value: float | None, form: str, unit: float = 1) -> str:
        return "" if value is None else format(value / unit, form)

    return {
        "environment": entry.run.world, "series": entry.series, "seed": str(entry.run.seed),
        "steps": f"{entry.curve.trained:,}", "score": f"{entry.score:.3f}",
        "95 % interval": "" if not known else "every start tried" if low == high else f"{low:.3f} - {high:.3f}",
        "episodes": number(entry.last(f"{kind}/episodes"), ".0f"),
        "return": number(entry.last(f"{kind}/episodic_return"), ".2f"),
        "greedy return": number(entry.last("final/greedy_episodic_return"), ".2f"),
        "minutes": number(entry.run.seconds, ".1f", 60),
        "processor minutes": number(entry.last("time/processor"), ".1f", 60),
        "scan": str(entry.record.environment.get(BACKEND) or ""), "revision": _revision(entry.record.environment),
    }  # fmt: skip
