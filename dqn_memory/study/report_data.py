"""Every finished run of a study, read and measured, and a sentence for each that is not in the report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dqn_memory.analysis.size import count
from dqn_memory.runs.errors import UserError
from dqn_memory.runs.folder import Run
from dqn_memory.runs.kinds import trainer_class
from dqn_memory.runs.settings import from_record, load_plugins
from dqn_memory.study.report_source import CONFIG, DEFINITION, READINGS, Source, only_numbers
from dqn_memory.study.run_summary import MEANINGS, Curve, RunSummary, read_curve, summarise
from dqn_memory.study.statistics import HUMAN as HUMAN_SCALES
from dqn_memory.study.statistics import OTHERS, Floats, Scale, game, world_scale
from dqn_memory.study.store import RunState
from envs import baselines
from envs.registry import WORLDS

RETURN, FINAL_RETURN = "eval/episodic_return", "final/episodic_return"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of normalisation layers
PREFERRED = "final"  # the reading that aggregates, gains and pictures use
HEADLINE = "score of the final evaluation"


@dataclass(frozen=True)
class Entry:
    """One finished run. `success` tells whether its curve holds success rates; else it holds returns."""

    run: RunState
    series: str
    config: Any
    lines: list[dict[str, Any]]
    environment: dict[str, Any]
    curve: Curve
    summary: RunSummary
    parameters: int | None
    success: bool

    @property
    def env(self) -> str:
        """The world's id."""
        return str(self.config.environment.env)

    @property
    def score(self) -> float:
        """The reading that stands for the run."""
        return float(getattr(self.summary, PREFERRED))


@dataclass(frozen=True)
class Data:
    """All runs that a report is about. `left_out`: (run, why), of those that are not in it."""

    source: Source
    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...]

    @cached_property
    def series(self) -> list[str]:
        """Names of what is compared, in the order of the study's file, also of series without a finished run."""
        return list(dict.fromkeys(series_of(self.source, run) for run in self.source.runs))

    @cached_property
    def worlds(self) -> list[str]:
        """Labels of the worlds that have a finished run, in the order of the study's file."""
        return [world for world in self.source.worlds if any(entry.run.world == world for entry in self.entries)]

    def of(self, world: str | None = None, series: str | None = None) -> list[Entry]:
        """Runs of a world, of a series, or of both, by seed."""
        return [
            entry
            for entry in self.entries
            if (world is None or entry.run.world == world) and (series is None or entry.series == series)
        ]

    def scores(
        self, world: str, series: str, reading: Callable[[Entry], float] = lambda e: e.score
    ) -> dict[int, float]:
        """A reading of each run by seed."""
        return {entry.run.seed: reading(entry) for entry in self.of(world, series)}

    def scale(self, world: str) -> Scale | None:
        """Scores that count as 0 and as 1 in a world, None where they are not known."""
        found = self.of(world)
        if world in self.source.lines:
            return own_scale(self.source, world, found)
        return scale_of(found[0]) if found else None


def meaning(data: Data, reading: str) -> str:
    """What a reading of this study's runs is; it reads returns where nothing counts as success."""
    measures = {entry.success for entry in data.entries}
    word = "success" if measures <= {True} else "return" if measures == {False} else "success or return"
    return MEANINGS[reading].replace("success", word)


def series_of(source: Source, run: RunState) -> str:
    """What a run is compared as: its architecture, and every other axis but world and seed."""
    others = [f"{axis} {run.axes[axis]}" for axis in source.axes if axis not in ("world", "architecture", "seed")]
    return ", ".join([run.architecture, *others])


def own_scale(source: Source, world: str, runs: Sequence[Entry]) -> Scale:
    """The scale that the study's definition gives; a UserError where it is none of what the runs are read by."""
    line = source.lines[world]
    assert line.random is not None and line.best is not None  # read_lines has seen to it
    if any(run.success for run in runs) and not (line.random >= 0 and line.best <= 1):
        raise UserError(
            f"{source.folder / DEFINITION}: lines.{world}: random {line.random} and best {line.best} must lie within "
            "0 and 1, as this world tells success and the study's scores are success rates"
        )
    return Scale(line.random, line.best)


def scale_of(entry: Entry) -> Scale | None:
    """Random play to the best known player in this suite's worlds, random play to a human in Atari games."""
    name = entry.env.removeprefix("envs:")
    if name in OTHERS:
        return OTHERS[name]
    if name in WORLDS:
        world = entry.config.environment  # the lines are those of the observation that hides the state
        known = baselines.lines(name) is not None and world.path is None and world.observe == "observation"
        return world_scale(name) if known else None
    try:
        return HUMAN_SCALES[game(name)]
    except UserError:
        return None


def collect(source: Source) -> Data:
    """Read every finished run; what is unfinished, failed, missing or damaged is named and left out."""
    entries: list[Entry] = []
    left_out = [("the study", problem) for problem in source.damage.get("", ())]
    for run in source.runs:
        problems = list(source.damage.get(run.name, ())) or _unfinished(run)
        if not problems:
            try:
                entries.append(read_entry(source, run))
            except UserError as error:
                problems = [str(error)]
        left_out += [(run.name, problem) for problem in problems]
    entries.sort(key=lambda entry: entry.run.seed)
    return Data(source, tuple(entries), tuple(left_out))


def _unfinished(run: RunState) -> list[str]:
    if run.state == "finished":
        return []
    last = run.error.strip().splitlines()[-1:]
    return [f"{run.state}{': ' if last else ''}{''.join(last)}"]


def read_entry(source: Source, run: RunState) -> Entry:
    """One finished run; a UserError names what is missing or damaged."""
    opened = Run.open(run.folder, tensorboard=False)
    config = from_record(trainer_class(source.kind).config_class, opened.config_toml, str(run.folder / CONFIG))
    success = counts_success(source, run, config)
    curve = read_curve(run.folder) if success else return_curve(run.folder)
    if curve.final is None:
        raise UserError(f"{run.folder / 'metrics.jsonl'} is incomplete: it has no final evaluation")
    parameters = count_parameters(source, run, config)
    series, lines, environment = series_of(source, run), opened.metrics(), opened.environment
    return Entry(run, series, config, lines, environment, curve, summarise(curve), parameters, success)


def counts_success(source: Source, run: RunState, config: Any) -> bool:
    """Whether a run's world says what a success is; elsewhere returns are read. A record says what its report read."""
    if only_numbers(source, run):
        return bool(_recorded(run)["measure"] == "success")
    load_plugins(getattr(config, "plugin", ()))
    return config.environment.env.removeprefix("envs:") in WORLDS


def _recorded(run: RunState) -> dict[str, Any]:
    path = run.folder / READINGS
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        return {name: found[name] for name in ("measure", "parameters")}
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} is missing or damaged") from None


def return_curve(folder: Path) -> Curve:
    """Returns in place of success, of worlds in which nothing counts as success."""
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise UserError(f"{path} is missing: a run's folder holds it from the first evaluation on")
    lines = Run.open(folder, tensorboard=False).metrics()
    final = next((line[FINAL_RETURN] for line in reversed(lines) if FINAL_RETURN in line), None)
    points = [(line["step"], line[RETURN]) for line in lines if RETURN in line]
    points = points or [(lines[-1]["step"], final)] if final is not None else points
    values = [value for _, value in points]
    if not points or not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise UserError(f"{path} is damaged: it has no evaluation ({RETURN}), or one that is no number")
    steps = np.array([step for step, _ in points])
    return Curve(steps, np.array(values, np.float64), max(line["step"] for line in lines), final)


def count_parameters(source: Source, run: RunState, config: Any) -> int | None:
    """Trainable parameters: of the config's network, or, of a world model, of the record that its run left."""
    if only_numbers(source, run):
        known: int | None = _recorded(run)["parameters"]
        return known
    if source.kind != "q_network":
        return _saved_parameters(run)
    from dqn_memory.agent import Interface
    from dqn_memory.analysis.size import on_meta
    from dqn_memory.network import observation_spec

    world = config.environment
    interface = Interface.of(world.env, world.kwargs(training=False), world.observation_key)
    return count(on_meta(config.network, observation_spec(interface.encoded), interface.num_actions)).trainable


def _saved_parameters(run: RunState) -> int | None:
    """Elements of the model in the last checkpoint, running statistics aside; None where there is no such part."""
    opened = Run.open(run.folder, tensorboard=False)
    if not opened.has_checkpoint:
        return None
    model = opened.load(with_replay=False).part("model")
    return sum(tensor.numel() for name, tensor in model.items() if not name.endswith(STATISTICS)) or None


def plain(entry: Entry) -> dict[str, Any]:
    """A run's readings as JSON; `steps_to` is null where a level was not reached within the budget."""
    found = asdict(entry.summary)
    found["steps_to"] = [reached.steps for reached in entry.summary.steps_to]
    return {
        "world": entry.run.world, "series": entry.series, "seed": entry.run.seed, "env": entry.env,
        "measure": "success" if entry.success else "return", "budget": entry.curve.trained,
        "parameters": entry.parameters, **found,
    }  # fmt: skip


def column(scores: Iterable[float]) -> Floats:
    """One world's scores as a matrix of runs by one task, (R, 1)."""
    return np.array(list(scores), np.float64)[:, None]
