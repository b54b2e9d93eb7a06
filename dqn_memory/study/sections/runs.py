"""List the runs: which are left out, which differ in more than their seed, what each came to, what all cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from dqn_memory.runs.backend import FACT as BACKEND
from dqn_memory.runs.settings import flag_names
from dqn_memory.study.collect import Data, Entry
from dqn_memory.study.page import Section
from dqn_memory.study.sections.scores import NOTHING
from dqn_memory.study.statistics import Floats
from envs.tables import Table

COST, EVERY = "Time and cost", "Every run"
UNEVEN = "Runs that differ in more than their seed"
LOSSES = ("reconstruction", "reward", "termination", "dynamics", "representation", "variation", "total")
WINDOW = 11  # log lines of a moving average
FEW = 40  # runs up to which each has a row
ALONE = ("seed", "output.", "compute.")  # settings that a run has to itself, or that change no number by contract


def uneven_section(data: Data) -> Section | None:
    """List settings that runs of one series and environment do not share; None where all do.

    A study can be filled over a long time, and what a preset or a default says may have changed in between.
    """
    seeds: dict[tuple[str, str], set[int]] = {}
    places: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for world in data.worlds:
        for series in data.series:
            runs = data.of(world, series)
            for setting in differing([entry.config for entry in runs]):
                _count(runs, setting, seeds, places)
    if not seeds:
        return None
    rows = tuple(
        (setting, value, ", ".join(map(str, sorted(seeds[setting, value]))), str(len(places[setting, value])))
        for setting, value in seeds
    )
    words = "A mean over such runs is one over different settings, and their spread is not that of chance alone."
    return Section(UNEVEN, (words, Table(("setting", "value", "seeds", "series"), rows)))


def differing(configs: Sequence[Any]) -> list[str]:
    """Give the paths of the settings that matter in which configs of one kind are not all the same."""
    if len(configs) < 2:
        return []
    paths = [path for path in flag_names(configs[0]) if not path.startswith(ALONE)]
    return [path for path in paths if len({repr(_value(config, path)) for config in configs}) > 1]


def _count(
    runs: Sequence[Entry], setting: str, seeds: dict[tuple[str, str], set[int]],
    places: dict[tuple[str, str], set[tuple[str, str]]],
) -> None:  # fmt: skip
    for entry in runs:
        key = setting, str(_value(entry.config, setting))
        seeds.setdefault(key, set()).add(entry.run.seed)
        places.setdefault(key, set()).add((entry.run.world, entry.series))


def _value(config: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), config)


def losses_section(data: Data) -> Section | None:
    """Tell how much the parts of a world model's loss fluctuate (GLAM, Figure 6); None where none is logged."""
    rows = [_loss_row(world, name, data.of(world, name)) for world in data.worlds for name in data.series]
    rows = [row for row in rows if any(row[2:])]
    if not any(entry.last(f"losses/{LOSSES[0]}") is not None for entry in data.entries):
        return None
    words = f"Standard deviation of each loss around its moving average over {WINDOW} log lines, mean over seeds."
    return Section("Fluctuation of losses", (words, Table(("environment", "series", *LOSSES), rows)))


def _loss_row(world: str, series: str, runs: Sequence[Entry]) -> tuple[str, ...]:
    told = []
    for part in LOSSES:
        logged = [_logged(run, f"losses/{part}") for run in runs]
        values = [fluctuation(each) for each in logged if len(each)]
        told.append(f"{np.mean(values):.3g}" if values else "")
    return (world, series, *told)


def _logged(run: Entry, name: str) -> Floats:
    return np.array([line[name] for line in run.record.metrics if line.get(name) is not None], np.float64)


def fluctuation(values: Floats, window: int = WINDOW) -> float:
    """Compute the standard deviation of values (N,) around their centred moving average, where that is whole."""
    half = min(window, len(values)) // 2
    if len(values) - 2 * half < 2:
        return math.nan
    trend = np.convolve(values, np.full(2 * half + 1, 1 / (2 * half + 1)), "valid")
    return float((values[half : len(values) - half] - trend).std())


def left_out_section(data: Data) -> Section:
    """Name the runs that are not in the report, and why."""
    return Section("Left out", (Table(("runs", "why"), left_out_rows(data.left_out)),))


def left_out_rows(left_out: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """List runs and why they are left out; those that differ in their seed alone are one row."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, why in left_out:
        series, dash, seed = name.rpartition("seed-")
        seeds.setdefault((f"{series}{dash}" or seed, why), []).append(seed if dash else "")
    return tuple((f"{series}{', '.join(found)}", why) for (series, why), found in seeds.items())


def cost_section(data: Data) -> Section:
    """Tabulate wall-clock and processor time by series, and name the machines."""
    if not data.entries:
        return Section(COST, (NOTHING,))
    header = ("series", "runs", "steps of all", "minutes of a run", "processor minutes of a run", "starts")
    rows = []
    for name in data.series:
        runs = data.of(series=name)
        if runs:
            walls = [run.run.seconds if run.run.seconds is not None else math.nan for run in runs]
            cores = [run.last("time/processor") or math.nan for run in runs]
            steps, starts = sum(run.curve.trained for run in runs), sum(run.run.attempts for run in runs)
            rows.append((name, str(len(runs)), f"{steps:,}", _minutes(walls), _minutes(cores), str(starts)))
    machines = sorted({_machine(entry.record.environment) for entry in data.entries})
    words = (
        "Mean over runs. Minutes are on the wall, evaluations included; processor minutes leave out what other work on "
        f"the machine took. Machines and versions: {'; '.join(machines)}."
    )
    return Section(COST, (words, Table(header, tuple(rows))))


def runs_section(data: Data) -> Section | None:
    """Give the final evaluation and the cost of each run; None where there are too many of them."""
    if not 0 < len(data.entries) <= FEW:
        return None
    header = ("environment", "series", "seed", "steps", "score", "95 % interval", "episodes", "return",
              "greedy return", "minutes", "processor minutes", "scan", "revision")  # fmt: skip
    rows = [_run_row(entry) for world in data.worlds for name in data.series for entry in data.of(world, name)]
    words = (
        "Scores and returns are those of the final evaluation; greedy: with the most probable actions, where the "
        "others are drawn. The interval is that of a share of so many episodes. A + after a revision: with "
        "uncommitted changes."
    )
    return Section(EVERY, (words, Table(header, rows)))


def _run_row(entry: Entry) -> tuple[str, ...]:
    low, high, greedy = (
        entry.last(f"final/{name}") for name in ("success_low", "success_high", "greedy_episodic_return")
    )
    told = entry.success and low is not None
    interval = "" if not told else "every start tried" if low == high else f"{low:.3f} - {high:.3f}"
    seconds, processor = entry.run.seconds, entry.last("time/processor")
    returned, episodes = entry.last("final/episodic_return"), entry.last("final/episodes")
    return (
        entry.run.world, entry.series, str(entry.run.seed), f"{entry.curve.trained:,}", f"{entry.score:.3f}", interval,
        _number(episodes, ".0f"), _number(returned, ".2f"), _number(greedy, ".2f"),
        _number(None if seconds is None else seconds / 60, ".1f"),
        _number(None if processor is None else processor / 60, ".1f"),
        str(entry.record.environment.get(BACKEND) or ""), _revision(entry.record.environment),
    )  # fmt: skip


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _revision(environment: dict[str, object]) -> str:
    return str(environment.get("revision"))[:10] + ("+" if environment.get("dirty") else "")


def _minutes(seconds: list[float]) -> str:
    known = [each for each in seconds if not math.isnan(each)]
    return f"{sum(known) / len(known) / 60:.2f}" if known else "-"


def _machine(environment: dict[str, object]) -> str:
    return (
        f"{environment.get('cpu')}, {environment.get('device')}, {environment.get('threads')} threads, "
        f"torch {environment.get('torch')}, revision {_revision(environment)}"
    )
