"""Show the single runs: runs left out, settings that differ, scores, losses, time and cost."""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from dqn_memory.runs.backend import FACT as BACKEND
from dqn_memory.runs.settings import flag_names
from dqn_memory.study.collect import ACTING, Data, FinishedRun
from dqn_memory.study.page import Section, section
from dqn_memory.study.run_record import LOSSES
from dqn_memory.study.run_summary import FINALS
from dqn_memory.study.statistics import Floats

WINDOW = 11  # log lines of a moving average
FEW = 40  # max runs in the table of single runs
IGNORED = ("seed", "output.", "compute.")  # settings that differ between seeds, or that change no number


def losses_section(data: Data) -> Section | None:
    """Tabulate the fluctuation of each part of a world model's loss (GLAM, Figure 6); None if none is logged."""
    rows = [
        {"environment": world, "series": name} | {part: _fluctuation(runs, f"losses/{part}") for part in LOSSES}
        for world, name, runs in data.groups()
    ]
    return section("losses", [row for row in rows if row[LOSSES[0]]], window=WINDOW)


def _fluctuation(runs: Sequence[FinishedRun], name: str) -> str:
    logged = [[line[name] for line in run.record.metrics if line.get(name) is not None] for run in runs]
    values = [fluctuation(np.array(each, np.float64)) for each in logged if each]
    return f"{np.mean(values):.3g}" if values else ""


def fluctuation(values: Floats) -> float:
    """Compute the standard deviation of values (N,) around their centred moving average over complete windows."""
    half = min(WINDOW, len(values)) // 2
    if len(values) - 2 * half < 2:
        return math.nan
    trend = np.convolve(values, np.full(2 * half + 1, 1 / (2 * half + 1)), "valid")
    return float((values[half : len(values) - half] - trend).std())


def left_out_section(data: Data) -> Section | None:
    """List the runs that are not in the report, with reasons; None if all are in it."""
    return section("left_out", [{"runs": runs, "why": why} for runs, why in left_out_rows(data.left_out)])


def left_out_rows(left_out: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """List the runs left out and the reason; runs that differ only in their seed share a row."""
    seeds: dict[tuple[str, str], list[str]] = {}
    for name, why in left_out:
        series, dash, seed = name.rpartition("seed-")
        seeds.setdefault((f"{series}{dash}" or seed, why), []).append(seed if dash else "")
    return tuple((f"{series}{', '.join(found)}", why) for (series, why), found in seeds.items())


def uneven_section(data: Data) -> Section | None:
    """List settings that differ between runs of one series and environment; None if none does.

    Presets and defaults may change between the runs of a long study.
    """
    found: dict[tuple[str, str], list[tuple[int, Any]]] = {}  # setting and value: seeds and groups of runs
    for *group, runs in data.groups():
        for setting in flag_names(runs[0].config):
            values = [str(reduce(getattr, setting.split("."), run.config)) for run in runs]
            if len(set(values)) > 1 and not setting.startswith(IGNORED):
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
            starts = sum(max(run.run.attempts, 1) for run in runs)  # a run of --take-from was started elsewhere
            rows.append(row | {"starts": str(starts)})
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
    """Tabulate the final evaluation and the cost of each run; None if there are more than `FEW` runs."""
    few = len(data.entries) <= FEW
    return section("runs", [_run_row(entry) for _, _, runs in data.groups() for entry in runs if few])


def _run_row(entry: FinishedRun) -> dict[str, str]:
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
