"""Collect the finished runs of a study, and the reasons for leaving out other runs."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from dqn_memory.evaluate import KINDS_OF_NETWORKS
from dqn_memory.interface import Interface
from dqn_memory.network import observation_spec
from dqn_memory.play import SUCCESS_TOLD
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.metrics import METRICS
from dqn_memory.runs.modules import load_modules
from dqn_memory.runs.toml import from_toml
from dqn_memory.size import count, on_meta
from dqn_memory.study.archive import ROWS, Source
from dqn_memory.study.run_record import CONFIG, RunRecord, compact
from dqn_memory.study.run_summary import MEANINGS, Curve, read_curve, summarise
from dqn_memory.study.statistics import HUMAN, OTHERS, Scale, game, world_scale
from dqn_memory.study.store import DEFINITION, RunState
from envs.registry import WORLDS, make_world

# Tensors of a world model that no optimizer changes: buffers of normalisation layers, GLAM's random projection.
FIXED = ("running_mean", "running_var", "num_batches_tracked", "random_projection.weight", "random_projection.bias")
ACTING = {"microseconds to act": "time/acting_us", "bytes remembered": "final/remembered_bytes"}  # costs of acting
PREFERRED = "final"  # the number of a summary that is the run's score


@dataclass(frozen=True)
class FinishedRun:
    """One finished run. Its curve holds success rates if `success`, else returns.

    `pace` is the processor seconds per step, including evaluations. It is that of the fastest run of its series in its
    environment, because other runs shared their machine or had a slower one. It is NaN if no run logs the seconds.
    """

    run: RunState
    record: RunRecord
    series: str
    config: Any
    curve: Curve
    summary: dict[str, Any]
    parameters: int | None
    success: bool
    pace: float = math.nan

    @property
    def env(self) -> str:
        """Id of the environment in its registry; of several all ids."""
        return str(self.config.environment.name).removeprefix("envs:")

    @property
    def score(self) -> float:
        """Score of the run."""
        return self.number(PREFERRED)

    def number(self, name: str) -> float:
        """Give a number of the summary by the name of its column."""
        return float(self.summary[name.replace(" ", "_")])

    def last(self, name: str) -> Any:
        """Give the last logged value of a metric; None if it was never logged."""
        return next((line[name] for line in reversed(self.record.metrics) if name in line), None)


@dataclass(frozen=True)
class Data:
    """The finished runs of a study; `left_out` are pairs of a run that is not among them and the reason."""

    source: Source
    entries: tuple[FinishedRun, ...]
    left_out: tuple[tuple[str, str], ...]

    @cached_property
    def series(self) -> list[str]:
        """Names of all series in the order of the study's file, including those without a finished run."""
        return list(dict.fromkeys(series_of(self.source, run) for run in self.source.runs))

    @cached_property
    def worlds(self) -> list[str]:
        """Labels of the environments that have a finished run, in the order of the study's file."""
        return [world for world in self.source.worlds if self.of(world)]

    def of(self, world: str | None = None, series: str | None = None) -> list[FinishedRun]:
        """Give the runs of an environment, of a series, or of both, in the order of their seeds."""
        return [run for run in self.entries if world in (None, run.run.world) and series in (None, run.series)]

    def groups(self) -> Iterator[tuple[str, str, list[FinishedRun]]]:
        """Give each environment and series with its finished runs, if it has any."""
        for world in self.worlds:
            for series in self.series:
                if runs := self.of(world, series):
                    yield world, series, runs

    def scores(self, world: str, series: str) -> dict[int, float]:
        """Give the score of each run by seed."""
        return {entry.run.seed: entry.score for entry in self.of(world, series)}

    def normalised(self, world: str, series: str) -> dict[int, float]:
        """Give the normalised scores by seed; the environment must have a scale."""
        scale = self.scale(world)
        assert scale is not None
        return {seed: scale(score) for seed, score in self.scores(world, series).items()}

    def scale(self, world: str) -> Scale | None:
        """Give the scores that count as 0 and 1 in an environment; None if they are unknown.

        A UserError says that the study's definition has a scale of returns, but its scores are success rates.
        """
        runs, line = self.of(world), self.source.lines.get(world)
        if line is None:
            return scale_of(runs[0]) if runs else None
        if any(run.success for run in runs) and not (line.random >= 0 and line.best <= 1):
            raise UserError(
                f"{self.source.folder / DEFINITION}: lines.{world}: random {line.random} and best {line.best} must lie "
                "within 0 and 1, as this environment reports success and the study's scores are success rates"
            )
        return Scale(line.random, line.best)


def meaning(data: Data, number: str) -> str:
    """Describe a number of a summary in the words of this study's scores: success or return."""
    measures = {entry.success for entry in data.entries}
    word = "success" if measures <= {True} else "return" if measures == {False} else "success or return"
    return MEANINGS[number.replace(" ", "_")].replace("success", word)


def series_of(source: Source, run: RunState) -> str:
    """Name the series of a run: its architecture and every other axis but environment and seed."""
    others = [f"{axis} {run.axes[axis]}" for axis in source.axes if axis not in ("world", "architecture", "seed")]
    return ", ".join([run.architecture, *others])


def sizes_of(runs: Sequence[FinishedRun]) -> str:
    """Show the number of parameters of runs: 1,200, or 1,200 to 3,400; "" if it is unknown."""
    sizes = [run.parameters for run in runs if run.parameters is not None]
    return " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)})) if sizes else ""


def scale_of(entry: FinishedRun) -> Scale | None:
    """Give the scale of a run: from random play to the best known player, in Atari games to a human.

    That of a run in several environments is the mean of theirs, as its score is.
    """
    scales = [scale_in(id.removeprefix("envs:"), entry) for id in entry.config.environment.ids]
    known = [scale for scale in scales if scale is not None]
    if len(known) < len(scales):
        return None
    return Scale(*(float(np.mean(ends)) for ends in zip(*known, strict=True)))


def scale_in(env: str, entry: FinishedRun) -> Scale | None:
    """Give the scale of a run in one of its environments."""
    if env in WORLDS:  # reference scores are for the default options and the observation that hides the state
        settings, options = entry.config.environment, getattr(entry.config, "catch", None)  # of Blinking Catch
        default = options is None or options == type(options)()
        known = default and settings.path is None and settings.observe == "observation"
        return world_scale(env, entry.success) if known else None
    return OTHERS.get(env) or HUMAN.get(game(env))


def collect(source: Source) -> Data:
    """Read every finished run; leave out and name the runs that are unfinished, failed, missing or damaged."""
    entries: list[FinishedRun] = []
    left_out = [("the study", problem) for problem in source.damage.get("", ())]
    for run in source.runs:
        problems = list(source.damage.get(run.name, ()))
        if not problems and run.state != "finished":
            problems = [": ".join([run.state, *run.error.strip().splitlines()[-1:]])]
        if not problems:
            try:
                entries.append(read_entry(source, run))
            except UserError as error:
                problems = [str(error)]
        left_out += [(run.name, problem) for problem in problems]
    entries.sort(key=lambda entry: entry.run.seed)
    return Data(source, tuple(_at_one_pace(entries)), tuple(left_out))


def _at_one_pace(entries: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Set the pace of all runs of a series in an environment to the fastest; prefer runs without a kill."""
    paces = defaultdict[tuple[str, str], list[tuple[bool, float]]](list)
    for entry in entries:
        again = entry.run.attempts > 1  # older logs lose the seconds before a kill
        marks = [line for line in entry.record.metrics if line.get("time/processor") and "eval/episodic_return" in line]
        paces[entry.run.world, entry.series] += [(again, line["time/processor"] / line["step"]) for line in marks[-1:]]
    fastest = {series: min(found)[1] for series, found in paces.items() if found}
    return [replace(run, pace=fastest.get((run.run.world, run.series), math.nan)) for run in entries]


def read_entry(source: Source, run: RunState) -> FinishedRun:
    """Read one finished run; a UserError names the missing or damaged file."""
    record = source.record(run)
    folder, rows = (run.folder, METRICS) if source.recorded is None else (source.folder, ROWS)
    config = from_toml(trainer_class(source.kind).config_class, record.config_toml, str(folder / CONFIG))
    if record.summary is None:  # the summaries of an archive make the runs' modules unnecessary
        load_modules(config, f"the run {run.folder}", run.folder / CONFIG, source.folder / DEFINITION)
    success = not source.shown.get("returns") and counts_success(record, config)
    curve = read_curve(record.metrics, success, str(folder / rows))
    if curve.final is None:
        raise UserError(f"{folder / rows} is incomplete: it has no final evaluation of {run.name}")
    parameters = count_parameters(source, run, record, config)
    return FinishedRun(run, record, series_of(source, run), config, curve, summarise(curve), parameters, success)


def counts_success(record: RunRecord, config: Any) -> bool:
    """Tell whether a run is scored by success: its environment must report it. An archive's summary has the answer."""
    if record.summary is not None:
        return bool(record.summary["measure"] == "success")
    reports = [line[SUCCESS_TOLD] for line in record.metrics if line.get(SUCCESS_TOLD) is not None]
    if reports:
        return bool(reports[-1])
    environment = config.environment  # an older run did not log it
    return environment.is_ours and bool(make_world(environment.id, **environment.kwargs()).defines_success)


def count_parameters(source: Source, run: RunState, record: RunRecord, config: Any) -> int | None:
    """Count trainable parameters: of the config's network, or of the world model in a checkpoint.

    Neither a critic nor GLAM's agent, which has an actor and a critic, counts.
    """
    if record.summary is not None:
        return record.summary.get("parameters")
    if source.kind in KINDS_OF_NETWORKS:
        world = config.environment
        interface = Interface.of(world.id, world.kwargs(training=False), world.interface)
        return count(on_meta(config.network, observation_spec(interface.encoded), interface.actions)).trainable
    opened = Run.open(run.folder)
    if not opened.has_checkpoint:
        return None
    return trained_numbers(opened.load(with_replay=False).part("model")) or None


def trained_numbers(tensors: Mapping[str, Tensor]) -> int:
    """Count the numbers in a world model's tensors that an optimizer changes."""
    return sum(tensor.numel() for name, tensor in tensors.items() if not name.endswith(FIXED))


def kept_record(entry: FinishedRun, attention: Any) -> RunRecord:
    """Make the record of a run for an archive; its summary is computed from the rounded metrics."""
    record, measure = compact(entry.record), "success" if entry.success else "return"
    curve = read_curve(record.metrics, entry.success, entry.run.name)
    summary = {"measure": measure, "budget": curve.trained, "parameters": entry.parameters, **summarise(curve)}
    return replace(record, summary=summary, attention=attention)


def million_seconds(runs: Sequence[FinishedRun]) -> float:
    """Compute the processor seconds of a million training steps at the pace of the fastest run, with evaluations.

    Runs whose pace is unknown do not count; NaN if none is known.
    """
    known = [run for run in runs if not math.isnan(run.pace)]
    if not known:
        return math.nan
    return 1e6 * float(np.average([run.pace for run in known], weights=[run.curve.trained for run in known]))


def _min_metric(metric: str) -> Callable[[Sequence[FinishedRun]], float]:
    """Make a function: the minimum over each environment's runs (uncontended time), then the median of these.

    Runs that did not log the metric do not count; NaN if none did.
    """

    def over(runs: Sequence[FinishedRun]) -> float:
        found = defaultdict[str, list[float]](list)
        for run in runs:
            if (value := run.last(metric)) is not None:
                found[run.run.world].append(value)
        return float(np.median([min(values) for values in found.values()])) if found else math.nan

    return over


COSTS: Mapping[str, Callable[[Sequence[FinishedRun]], float]] = {
    "processor seconds for a million steps": million_seconds,
    **{label: _min_metric(metric) for label, metric in ACTING.items()},
}
